"""Mistakes that new users made: each is answered by what they meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import SpecError, nearest
from sweep.conditions import check_condition
from sweep.spec import load_spec
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep

SPEC = EXAMPLES / "llama3_70b_h100.yaml"


@pytest.mark.parametrize(
    ("assignment", "hint"),
    [
        ("fixed.precision=fp8", "nearest valid: fp8_blockwise, fp8_delayed, fp8_tensorwise"),
        ("fixed.zero_stage=1", "nearest valid: sharding"),
        ("fixed.world_size=8", "nearest valid: all_gpus"),
        ("fixed.tensor_model_parallel_size=8", "nearest valid: tp"),
        ("fixed.pipeline_parallel_degree=8", "nearest valid: pp"),
        ("fixed.per_device_train_batch_size=1", "nearest valid: micro_batch"),
        ("fixed.num_layers_per_virtual_pipeline_stage=2", "nearest valid: vpp"),
        ("fixed.moe_token_dispatcher_type=flex", "nearest valid: dispatcher"),
        ("fixed.seq_length=4096", "set workload.sequence, the same for all plans (a trace has the axis sequence, too)"),
        ("budget.price=2", "nearest valid: usd_per_gpu_hour"),
        ("failures.restart=600", "expected a number with its unit, such as '600 s'"),
    ],
)
def test_the_name_that_was_meant_is_said(assignment: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        load_spec(SPEC, [assignment])
    assert str(error.value).endswith(hint)


def test_null_takes_a_fixed_value_away() -> None:
    assert "all_gpus" not in load_spec(SPEC, ["fixed.all_gpus=null", "fixed.dp=8"]).fixed


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("checkpointing = none", "unknown column 'none', a text needs quotes: 'none'"),
        ("tp * pp => 8", "at least is >="),
    ],
)
def test_a_condition_is_corrected(condition: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        check_condition(condition, ["checkpointing", "tp", "pp"])
    assert str(error.value).endswith(hint)


def test_many_words_are_cut_to_the_nearest() -> None:
    assert nearest("none", [f"column_{k}" for k in range(30)]).endswith("(30 in all)")
    assert nearest("zzz", ["a", "b"]) == "valid: a, b"


def test_a_model_handed_to_run_is_sent_to_init(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 4096}')
    done = sweep("run", path)
    assert done.returncode != 0
    assert done.stderr == f"error: {path}: is a model, not a sweep; `sweep init {path}` writes one for it\n"


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = sweep("init", "llama3-8b", "--gpus", 8, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "model: llama3-8b" in done.stdout
    assert not list(tmp_path.iterdir())
