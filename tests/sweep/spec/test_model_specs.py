"""Specs that name a model instead of a file: what they mean, what they refuse, and the rows they give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sim_core import (
    HARDWARE_KEYS,
    SWITCH,
    SpecError,
    hardware_yaml,
    model_flops_per_token,
    model_yaml,
    read_hardware,
    read_model,
)
from sweep.compare.changes import input_changes
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared, prepare
from sweep.spec.spec import load_spec
from tests.sweep.commands import sweep
from tests.sweep.conftest import MODEL, SpecWriter, spec_in


def prepared_of(path: Path, *sets: str) -> Prepared:
    return prepare(load_spec(path, sets), path.parent)


def rows_of(prepared: Prepared) -> list[dict[str, Any]]:
    batch = evaluate(prepared.sweep, np.arange(prepared.sweep.space.count))
    return [dict(row) for row in pa.Table.from_batches([batch]).to_pylist()]


@pytest.fixture
def small(write_spec: SpecWriter) -> Path:
    return write_spec(**MODEL)


@pytest.mark.parametrize(
    "given",
    [
        {"workload": {"model": "gpt2"}},
        {"workload": None, "model": "gpt2"},
        {"workload": {"stack": "megatron-core"}, "model": "gpt2"},
        {"workload": {"model": {"preset": "gpt2"}, "sequence_parallel": True}},
        {"workload": {"model": "mine.yaml"}},
    ],
)
def test_the_forms_of_a_model_mean_the_same(write_spec: SpecWriter, given: dict[str, Any]) -> None:
    path = write_spec(**{**MODEL, "workload": {"model": "gpt2", "sequence": 1024}})
    (path.parent / "mine.yaml").write_text(model_yaml(read_model("gpt2")))
    before = prepared_of(path).sweep.identity
    assert prepared_of(write_spec(**{**MODEL, **given})).sweep.identity == before


def test_numbers_in_the_spec_are_a_model_and_change_a_preset(write_spec: SpecWriter) -> None:
    numbers = {"layers": 4, "hidden": 256, "heads": 4, "ffn": 1024, "vocabulary": 1000, "gated": True, "activation": "silu"}
    more = {"norm": "rmsnorm", "position": "rotary", "tied": False}
    inline = prepared_of(write_spec(**{**MODEL, "workload": {"model": {**numbers, **more}, "sequence": 512}}))
    assert inline.sweep.workload.layers == 4
    changed = {"preset": "mixtral-8x7b", "layers": 8, "experts": {"topk": 1}}
    modelled = prepared_of(write_spec(**{**MODEL, "workload": {"model": changed}})).sweep.workload.modelled
    assert modelled
    assert modelled.model.experts
    assert (modelled.model.layers, modelled.model.experts.topk, modelled.model.experts.count) == (8, 1, 8)


def test_a_set_reaches_the_model_wherever_it_is_given(write_spec: SpecWriter) -> None:
    for given in ({"workload": {"model": "gpt2"}}, {"workload": None, "model": "gpt2"}):
        path = write_spec(**{**MODEL, **given})
        for key in ("model.layers", "workload.model.layers"):
            assert prepared_of(path, f"{key}=6").sweep.workload.layers == 6


def test_what_is_not_set_is_told(small: Path) -> None:
    prepared = prepared_of(small, "fixed={}", "axes={tp: [1]}")
    assert {"pp: 1", "dp: 1", "checkpointing: none"} <= set(prepared.sweep.space.defaults)
    told = " ".join(prepared.notes)
    assert "model mixtral-8x7b: 4096 tokens a sequence, stack megatron-core, with sequence parallelism" in told
    assert "without sequence parallelism" in " ".join(prepared_of(small, "workload.sequence_parallel=false").notes)
    assert "compute times are as in the workload" not in told


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "unknown model": (
        {"workload": {"model": "llama3-71b"}},
        "workload.model: unknown model 'llama3-71b', nearest valid: llama3-70b",
    ),
    "unknown stack": (
        {"workload": {"model": "gpt2", "stack": "megatron"}},
        "small.yaml:4: workload.stack: unknown stack 'megatron', nearest valid: megatron-",
    ),
    "no sequence": (
        {"workload": {"model": "hf/config.json"}},
        "workload.model: model hf does not say how long its sequences were (set workload.sequence, in tokens)",
    ),
    "both": ({"workload": {"model": "gpt2", "path": "w.txt"}}, "workload: measured_on: missing; a file calibrated by a model"),
    "both, the model above": ({"model": "gpt2"}, "workload: measured_on: missing; a file calibrated by a model"),
    "another model than the file's": (
        {"workload": {"model": "gpt2", "path": "w.txt", "measured_on": "H100-SXM"}},
        "workload.model: layers: found 36 in the file, and 12 in the model gpt2",
    ),
    "neither": ({"workload": {"sequence": 5}}, "workload: path or model: missing (a workload file, or a model"),
    "nothing": ({"workload": None}, "workload or model: missing (a workload file, or a model"),
    "misspelt": ({"workload": None, "modle": "gpt2"}, "modle: unknown key, nearest valid: model"),
    "no such file": ({"workload": {"model": "none/config.json"}}, "none/config.json': No such file or directory"),
    "not JSON": ({"workload": {"model": "broken/config.json", "sequence": 8}}, "broken/config.json:1: not JSON"),
    "an unknown field": (
        {"workload": {"model": "odd/config.json", "sequence": 8}},
        "odd/config.json",
    ),
    "an unknown number": (
        {"workload": {"model": {"layers": 1, "hiden": 1}}},
        "workload.model: hiden: unknown key, nearest valid: hidden",
    ),
    "an unknown number of a preset": (
        {"workload": {"model": {"preset": "mixtral-8x7b", "experts": {"topc": 1}}}},
        "workload.model: mixtral-8x7b: experts.topc: unknown key, nearest valid: experts.topk",
    ),
    "a fact of files": ({"workload": {"model": "gpt2", "tp": 4}}, "workload: tp: is a fact about a file"),
    "a key of models": ({"workload": {"path": "w.txt", "stack": "megatron-core"}}, "workload: stack: needs workload.model"),
    "a number as model": ({"workload": {"model": 7}}, "workload.model: found '7', expected a name, a path, or a mapping"),
    "a number as switch": ({"workload": {"model": "gpt2", "sequence_parallel": 1}}, "workload.sequence_parallel: found '1'"),
    "two models": ({"workload": {"model": "gpt2"}, "model": "gpt2"}, "model: is given at the top level and under workload"),
    "a sequence beyond the model": (
        {"workload": {"model": "gpt2", "sequence": 2048}},
        "workload.model: gpt2: sequence: found 2048, expected at most positions 1024",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_spec_cannot_mean_is_one_line(tmp_path: Path, what: str) -> None:
    changes, message = HOSTILE[what]
    document = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    document |= {"intermediate_size": 128, "vocab_size": 100, "num_key_value_heads": 4, "tie_word_embeddings": False}
    document |= {"hidden_act": "silu"}
    for name, text in (
        ("hf", json.dumps(document)),
        ("odd", json.dumps({**document, "expert_wings": 3})),
        ("broken", '{"model_type"'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    path = spec_in(tmp_path, **{**MODEL, "workload": {"path": "w.txt"}, **changes})
    with pytest.raises(SpecError) as caught:
        prepared_of(path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    if what == "an unknown field":
        assert "expert_wings" in str(caught.value)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "heads_not_divisible_by_tp": ("gpt2", {"tp": 8}),
    "kv_heads_do_not_fit_tp": ("mistral-7b-v0.1", {"tp": 32, "model": {"kv_heads": 12, "heads": 96, "head_dim": 128}}),
    "ffn_not_divisible_by_tp": ("llama2-7b", {"tp": 32, "model": {"ffn": 11000}}),
    "sequence_not_divisible_by_tp": ("llama2-7b", {"tp": 8, "sequence": 1001}),
    "experts_not_divisible_by_ep": ("qwen3-30b-a3b", {"ep": 3, "dp": 3}),
    "expert_ffn_not_divisible_by_etp": ("mixtral-8x7b", {"tp": 8, "stack": "megatron-2022", "model": {"experts.ffn": 14340}}),
    "experts_need_sequence_parallel": ("mixtral-8x7b", {"tp": 8, "sequence_parallel": False}),
    "no_experts": ("llama2-7b", {"ep": 2, "dp": 2}),
    "not_in_simai": ("gpt2", {"fidelity": "simai"}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_sizes_that_the_model_cannot_have_are_reasons(write_spec: SpecWriter, reason: str) -> None:
    model, given = REFUSED[reason]
    values = dict(given)
    workload: dict[str, Any] = {key: values.pop(key) for key in ("stack", "sequence", "sequence_parallel") if key in values}
    changed: dict[str, Any] = values.pop("model", {})
    sets = [f"model.{key}={value}" for key, value in changed.items()]
    fixed: dict[str, Any] = {"dp": 1, **values}
    path = write_spec(**{**MODEL, "workload": {"model": model, **workload}, "axes": {"ga": [1]}, "fixed": fixed})
    (row,) = rows_of(prepared_of(path, *sets))
    assert row["reason"] == reason


def test_the_columns_of_a_model(small: Path) -> None:
    """MFU is the model's FLOPs over the peak of all GPUs; memory and the measured share are known."""
    prepared = prepared_of(small)
    ok = [row for row in rows_of(prepared) if row["status"] == "ok"]
    assert ok
    flops = model_flops_per_token(read_model("mixtral-8x7b", {"sequence": 4096}))
    peak = read_hardware("H100-SXM").value("peak_flops_bf16")
    for row in ok:
        tokens = row["global_batch"] * 4096 / row["step_time_s"] / 64
        assert row["tokens_per_s_per_gpu"] == pytest.approx(tokens, rel=1e-12)
        assert row["tflops_per_gpu"] == pytest.approx(tokens * flops / 1e12, rel=1e-12)
        assert row["mfu"] == pytest.approx(tokens * flops / peak, rel=1e-12)
        assert 0 < row["measured_share"] < 1
        assert row["peak_memory_bytes"] > row["state_bytes"] > 0


def test_nothing_counts_as_measured_on_a_device_without_tables(small: Path) -> None:
    for hardware, measured in (("H100-SXM", True), ("H800-SXM", False)):
        ok = [row for row in rows_of(prepared_of(small, f"hardware={hardware}")) if row["status"] == "ok"]
        assert ok
        assert all((row["measured_share"] > 0) == measured for row in ok)


def test_files_have_no_measured_share(write_spec: SpecWriter) -> None:
    ok = [row for row in rows_of(prepared_of(write_spec(sample={"n": 300}))) if row["status"] == "ok"]
    assert ok
    assert all(row["measured_share"] is None and row["mfu"] > 0 for row in ok)


@pytest.mark.parametrize("key", [key for key, (section, _) in HARDWARE_KEYS.items() if section in ("kernels", "device")])
def test_each_number_of_device_and_kernels_changes_the_identity_of_a_model(small: Path, key: str) -> None:
    value, unit = read_hardware("H100-SXM").value(key), HARDWARE_KEYS[key][1]
    other = "true" if unit == SWITCH else f"{value * 0.5 or 1.0!r} {unit}".strip()
    before = prepared_of(small)
    after = prepared_of(small, f"hardware.{key}={other}")
    assert after.sweep.identity != before.sweep.identity
    assert after.provenance["inputs"]["hardware"] != before.provenance["inputs"]["hardware"]


def test_the_tables_change_the_identity_of_a_model(small: Path) -> None:
    text, mine = hardware_yaml(read_hardware("H100-SXM")), small.parent / "mine.yaml"
    mine.write_text(text)
    before = prepared_of(small, "hardware=mine.yaml")
    mine.write_text(text.replace("  tables: H100-SXM\n", ""))
    assert mine.read_text() != text
    after = prepared_of(small, "hardware=mine.yaml")
    assert after.sweep.identity != before.sweep.identity
    told = [change.text for change in input_changes(before.provenance, after.provenance)]
    assert "hardware H100-SXM kernels.tables: H100-SXM -> none" in told


@pytest.mark.parametrize(
    "change", ["model.layers=16", "workload.stack=megatron-2022", "workload.sequence=2048", "workload.sequence_parallel=false"]
)
def test_each_choice_of_a_model_changes_the_identity(small: Path, change: str) -> None:
    assert prepared_of(small, change).sweep.identity != prepared_of(small).sweep.identity


def test_one_plan_of_a_model_from_the_command_line() -> None:
    told = sweep("simulate", "--model", "llama3-8b", "--sequence", 4096, "--set", "tp=2", "--set", "ga=8", "--set", "dp=4")
    assert told.returncode == 0, told.stderr
    assert "tp 2, pp 1, vpp 1, ep 1, dp 4, all_gpus 8" in told.stdout
    assert "TFLOP/s per GPU" in told.stdout
    assert "memory of the fullest stage" in told.stdout
    inspected = sweep("inspect", "llama3-8b")
    assert (inspected.returncode, inspected.stderr) == (
        1,
        "error: llama3-8b: is a model: `sweep model llama3-8b` shows it\n",
    )
    for arguments, found in (((), "neither it nor"), (("w.txt", "--model", "gpt2"), "it and")):
        refused = sweep("simulate", *arguments)
        assert (refused.returncode, refused.stderr) == (
            2,
            f"error: FILE: found {found} --model, expected one of them\n",
        )


def test_a_model_is_run_ranked_compared_and_not_exported(small: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert sweep("run", small, "--out", first, "--workers", 0).returncode == 0
    again = sweep("run", small, "--out", first, "--workers", 0, "--top", 0)
    assert (again.returncode, "240 plans in" in again.stdout) == (0, False)
    assert sweep("run", small, "--out", second, "--workers", 0, "--top", 0, "--set", "model.layers=16").returncode == 0
    ranked = sweep("rank", first, "--columns", "all", "--format", "json", "--top", 1)
    assert {"mfu", "measured_share", "peak_memory_bytes"} <= set(json.loads(ranked.stdout)[0])
    on_its_side = sweep("rank", first, "--columns", "all", "--top", 2).stdout
    assert [line.split()[:1] for line in on_its_side.splitlines() if line.startswith(" mfu ")] == [["mfu"]]
    compared = sweep("compare", first, second)
    assert "workload.model" in compared.stdout
    refused = sweep("export", first, "--plan", "best", "--format", "simai")
    assert refused.returncode == 1
    assert "a model has no SimAI text" in refused.stderr


GPT_7B = {
    "layers": 36, "hidden": 4096, "heads": 32, "ffn": 10880, "gated": False, "activation": "gelu", "norm": "layernorm",
    "position": "learned", "positions": 2048, "tied": False, "vocabulary": 50257, "sequence": 2048,
}  # fmt: skip


def test_a_file_calibrated_by_a_model_is_swept(write_spec: SpecWriter) -> None:
    """From the file its plan and the times of its layers, from the model memory, MFU and what moves."""
    given = {"path": "w.txt", "micro_batch": 1, "sequence": 2048, "measured_on": "A100-80G-SXM", "model": GPT_7B}
    path = write_spec(workload=given, hardware="A100-80G-SXM", axes={"pp": [1, 4], "checkpointing": ["none", "full"]}, fixed={})
    prepared = prepared_of(path)
    assert any(note.startswith("calibrated: a layer takes ") for note in prepared.notes)
    rows = rows_of(prepared)
    assert [(row["tp"], row["all_gpus"]) for row in rows] == [(4, 512)] * 4  # the plan of the file
    assert all(row["status"] == "ok" and 0.01 < row["mfu"] < 0.6 and row["peak_memory_bytes"] for row in rows)
    plain = prepared_of(write_spec(workload={"model": GPT_7B}, hardware="A100-80G-SXM"))
    assert plain.sweep.identity != prepared.sweep.identity
