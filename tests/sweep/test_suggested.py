"""`sweep inspect --suggest-model`: what it prints is read by `sweep model`, and calibrates the file when pasted into a spec."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep

WORKLOADS = EXAMPLES / "workloads"
TOLD = {
    "gpt7b_tp4_dp128.simai.txt": ["layers: 36 ", "hidden: 4096 ", "heads: 32  # assumed: head size 128", "ffn: 10880 "],
    "llama405b_tp8_pp16.simai.txt": [
        "layers: 128  # 8 in the text x pp 16; the preset has 126",
        "heads: 128  # assumed: preset llama3.1-405b is the nearest",
        "kv_heads: 8\n",
        "ffn: 53248 ",
    ],
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_printed_is_pasted_and_runs(tmp_path: Path, name: str) -> None:
    done = sweep("inspect", WORKLOADS / name, "--micro-batch", 1, "--suggest-model")
    assert done.returncode == 0
    for line in TOLD[name]:
        assert line in done.stdout
    (tmp_path / "mine.yaml").write_text(done.stdout, encoding="utf-8")
    assert sweep("model", tmp_path / "mine.yaml").returncode == 0
    given = f"workload: {{path: {WORKLOADS / name}, micro_batch: 1, measured_on: A100-80G-SXM}}\n"
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"name: pasted\n{given}{done.stdout}hardware: {{preset: A100-80G-SXM, memory: 1e4 GB}}\n", encoding="utf-8")
    prepared = prepare(load_spec(spec), tmp_path)
    assert any("recorded times move by the model's ratios" in note for note in prepared.notes)
    row = evaluate(prepared.sweep, np.arange(1)).to_pylist()[0]
    assert row["status"] == "ok"
    assert row["peak_memory_bytes"] > row["state_bytes"] > 0
    assert 0 < row["mfu"] < 1
    refused = sweep("export", spec, "--plan", 0)
    assert refused.returncode == 1
    assert "calibrated by workload.model, which a text does not hold" in refused.stderr


def test_other_files_suggest_none() -> None:
    done = sweep("inspect", WORKLOADS / "gpt2_large_layer0.optable.tsv", "--suggest-model")
    assert done.returncode == 1
    assert "found a workload of kind operator table; only SimAI texts suggest a model" in done.stderr
