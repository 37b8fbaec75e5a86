"""What a user is told of doubtful records, and how to replace them: inspect, simulate, a spec, export."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import Facts, read_workload
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES, GPT7B, LLAMA405B
from tests.sweep.commands import sweep

SPEC = EXAMPLES / "gpt7b.yaml"


def test_inspect_tells_each_doubt_and_the_model() -> None:
    told = sweep("inspect", GPT7B, "--set", "sequence=2048").stdout
    assert "model         36 layers, hidden 4,096, sequence 2,048, vocabulary 50,257, 7.435 G parameters" in told
    assert "which counts the embedding 4 times; here once" in told
    assert "embedding_layer.forward takes 218 ms, expected about 53.9 us: the file's step is 218.1 ms too long (58.8%" in told
    assert "To change it: embedding_layer.forward=53.9 us" in told
    assert "checks        6 doubtful records" in told
    told = sweep("inspect", GPT7B, "--record", "embedding_layer=0.05 ms", "--record", "layernorm=0 B").stdout
    assert "checks        3 doubtful records" in told


def test_a_plan_is_simulated_with_the_chosen_records() -> None:
    plain = sweep("simulate", GPT7B, "--set", "workload.sequence=2048")
    assert "warning: 4 doubtful records of the file are used as they are (2 more of less than 1% each)" in plain.stdout
    assert "warning: this plan is below 15% MFU" in plain.stdout
    chosen = sweep("simulate", GPT7B, "--record", "embedding_layer=0.05 ms", "--record", "grad_param_compute=keep").stdout
    assert "takes 218 ms" not in chosen
    assert "note: records: embedding_layer 0.05 ms, grad_param_compute keep" in chosen
    assert "note: kept as chosen: grad_param_compute takes 43.8 ms" in chosen
    assert "MFU is unknown, it needs tokens: workload.sequence" in chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("embedding_layr=1 ms", "--record embedding_layr: "),
        (
            "embedding_layer=1 parsec",
            "--record embedding_layer: found '1 parsec', expected keep, model, a time such as",
        ),
        ("embedding_layer", "--record: found embedding_layer, expected NAME=VALUE, such as embedding_layer='0.05 ms'"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "simulate"])
def test_a_wrong_record_is_one_line(command: str, given: str, message: str) -> None:
    told = sweep(command, GPT7B, "--record", given)
    assert told.returncode == 2
    assert message in told.stderr
    assert told.stderr.count("\n") == 1


def test_records_are_for_files_that_have_them() -> None:
    table = EXAMPLES / "workloads" / "gpt2_large_layer0.optable.tsv"
    told = sweep("inspect", table, "--record", "a=1 ms")
    assert told.returncode == 2
    assert "--record: the file is of kind operator table; this key is for simai" in told.stderr


def test_records_are_part_of_the_result_s_identity(tmp_path: Path) -> None:
    prepared = [prepare(load_spec(SPEC, sets), SPEC.parent) for sets in ([], ["workload.records.layernorm=1 kB"])]
    assert prepared[0].sweep.identity != prepared[1].sweep.identity
    assert prepared[0].provenance["spec"]["workload"]["records"]["layernorm"] == "0 B"
    assert prepared[0].provenance["checks"] == []
    assert len(prepare(load_spec(EXAMPLES / "gpt7b_as_recorded.yaml"), EXAMPLES).provenance["checks"]) == 6


def test_a_wrong_record_in_a_spec_names_the_spec() -> None:
    told = sweep("run", SPEC, "--dry-run", "--set", "workload.records.layernom=1 kB")
    assert told.returncode == 1
    assert "gpt7b.yaml: workload.records: layernom: " in told.stderr
    assert "nearest valid: layernorm" in told.stderr


def test_an_exported_plan_has_the_chosen_records(tmp_path: Path) -> None:
    """It reads back to the same workload, without the choices."""
    out = tmp_path / "plan.txt"
    assert sweep("export", SPEC, "--plan", 114473, "-o", out).returncode == 0
    workload = read_workload(str(out), Facts(micro_batch=1, sequence=2048))[0]
    assert [check.name for check in workload.checks] == ["optimizer"]  # at eight times the dp
    assert "final_column" in workload.names
    lines = out.read_text().splitlines()
    assert sum(line.startswith("final_column\t") for line in lines) == workload.base.ga


def test_a_file_with_recompute_inside_says_so() -> None:
    told = sweep("inspect", LLAMA405B).stdout
    assert "attention_column.forward is twice its gradient, attention_row too" in told
    assert "sequence 4,096: 16,384 bytes of cross_entropy1 / 4 / micro-batch 1" in told
    assert "unknown: how often the embedding is counted: workload.sequence or workload.ffn" in told
