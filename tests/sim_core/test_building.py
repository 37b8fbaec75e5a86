"""Plans from names and numbers, and the check of plans at the door."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from sim_core import MEMORY, METRICS, HardwareTable, SpecError, Workload, legality, plans, simai_breakdown, simulate, trace
from tests.conftest import ROOT, make_plans


def test_lists_are_axes_and_the_rest_is_the_workload_s_own_plan(gpt7b: Workload) -> None:
    grid = plans(gpt7b, tp=[1, 2], pp=[2, 4, 6], dp=8, checkpointing="block:2", layer_split="balanced")
    assert grid.tp.tolist() == [1, 1, 1, 2, 2, 2]
    assert grid.pp.tolist() == [2, 4, 6, 2, 4, 6]
    assert (grid.all_gpus == grid.tp * grid.pp * 8).all()
    assert set(grid.checkpoint_layers.tolist()) == {2}
    assert set(grid.micro_batch.tolist()) == {gpt7b.base.micro_batch}
    assert set(grid.overlap_pp.tolist()) == {0}
    own = plans(gpt7b)
    assert tuple(getattr(own, name)[0] for name in gpt7b.base._fields) == gpt7b.base


def test_a_global_batch_gives_the_micro_batches(gpt7b: Workload, h100: HardwareTable) -> None:
    grid = plans(gpt7b, dp=[16, 3], global_batch=64, micro_batch=2)
    assert grid.ga.tolist() == [2, 0]
    assert simulate(gpt7b, h100, grid).named()["reason"].tolist() == ["", "global_batch_not_divisible"]


def test_a_list_of_layers_is_one_value(gpt7b: Workload) -> None:
    assert plans(gpt7b, pp=2, layer_split=[20, 16]).virtual_layers.tolist() == [[20, 16]]
    grid = plans(gpt7b, pp=2, layer_split=["even", [20, 16]])
    assert grid.virtual_layers.tolist() == [[-1, -1], [20, 16]]


def test_results_have_names(gpt7b: Workload, h100: HardwareTable) -> None:
    results = simulate(gpt7b, h100, plans(gpt7b, tp=[4, 64], all_gpus=512))
    named = results.named()
    assert list(named) == ["reason", *METRICS, *MEMORY, "measured_share", "recomputed_flops"]
    assert named["reason"].tolist() == ["", ""]
    assert named["step_time_s"].tolist() == results.metrics[-1].tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpp": 2}, "plans: unknown name 'tpp', nearest valid: tp, pp, vpp"),
        ({"tp": []}, "plans: tp: found an empty list, expected at least one value"),
        ({"tp": 1.5}, "plans: tp: found 1.5, expected a whole number"),
        ({"tp": "four"}, "plans: tp: found 'four', expected a number"),
        ({"tp": True}, "plans: tp: found 'True', expected a number"),
        ({"schedule": "1f1"}, "plans: schedule: found '1f1', nearest valid: 1f1b"),
        ({"checkpointing": "block"}, "checkpointing: found 'block', nearest valid: block:K, K a whole number above 0"),
        ({"layer_split": "evn"}, "layer_split: found 'evn', nearest valid: even; or the layers of each virtual stage"),
        ({"dp": 8, "all_gpus": 64}, "plans: dp and all_gpus are both given, but one follows from the other"),
        ({"device_speed": -1}, "plans.device_speed: found -1.0 in row 0, expected 1e-09 to 1e+09"),
        ({"checkpointing": "block:" + "9" * 30}, "checkpointing: found 'block:999"),
        ({"tp": float("nan")}, "plans: tp: found 'nan', expected a number below 2^62"),
        ({"tp": 1e300}, "plans: tp: found '1e+300', expected a number below 2^62"),
        ({"tp": 2**61, "pp": 4, "dp": 1}, "plans.tp: found 2305843009213693952 in row 0, expected 1 to 65,536"),
        ({"tp": 2**40}, "plans.tp: found 1099511627776 in row 0, expected 1 to 65,536"),
        ({"global_batch": -5}, "plans.global_batch: found -5 in row 0, expected 1 to 16,777,216"),
        ({"layer_split": "\u0661\u0668"}, "layer_split: found"),
        ({"micro_batch": [1, 0]}, "plans.micro_batch: found 0 in row 1, expected 1 to"),
    ],
)
def test_faults_are_one_line(gpt7b: Workload, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        plans(gpt7b, **given)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("schedule", 12), ("ga", -3), ("vpp", 0), ("hardware", -1), ("hardware", 1), ("tp", 0), ("fidelity", 2),
        ("layer_split", 9), ("checkpointing", -1), ("overlap_tp", 2), ("gradient_precision", 3),
        ("microbatch_group_size", -1), ("straggler_stage", -1),
        ("device_speed", -1.0), ("device_speed", float("nan")), ("pp_overlap_ratio", 0.0), ("straggler_factor", float("inf")),
        ("bucket_bytes", -1), ("checkpoint_layers", -1), ("layers", 0),
    ],
)  # fmt: skip
def test_a_column_out_of_its_bounds_is_refused(gpt7b: Workload, h100: HardwareTable, column: str, value: float) -> None:
    with pytest.raises(SpecError, match=rf"plans\.{column}: found"):
        simulate(gpt7b, h100, make_plans(gpt7b, **{column: value}))


def test_columns_that_do_not_fit_each_other_are_refused(gpt7b: Workload, h100: HardwareTable) -> None:
    good = make_plans(gpt7b, tp=[1, 2, 4])
    with pytest.raises(SpecError, match=r"plans\.ga: found 1 rows, expected 3"):
        simulate(gpt7b, h100, good._replace(ga=np.ones(1, np.int64)))
    with pytest.raises(SpecError, match=r"plans\.ga: found 1 dimensions of float64, expected 1 of int64"):
        simulate(gpt7b, h100, good._replace(ga=np.ones(3)))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"plans\.ga: found 2 dimensions"):
        simulate(gpt7b, h100, good._replace(ga=np.ones((3, 1), np.int64)))


@pytest.mark.parametrize(
    ("name", "column", "found"),
    [
        ("virtual_layers", np.zeros(2, np.int64), "1 dimensions of int64, expected 2 of int64"),
        ("ga", np.ones((2, 1), np.int64), "2 dimensions of int64, expected 1 of int64"),
        ("ga", np.ones(2, np.int32), "1 dimensions of int32, expected 1 of int64"),
        ("device_speed", np.ones(2, np.int64), "1 dimensions of int64, expected 1 of float64"),
        ("ga", np.ones(4, np.int64)[::2], "1 dimensions of int64, expected 1 of int64, contiguous"),
    ],
)
def test_arrays_that_compiled_code_cannot_read_are_refused(
    gpt7b: Workload, h100: HardwareTable, name: str, column: np.ndarray[Any, Any], found: str
) -> None:
    table = make_plans(gpt7b, ga=[1, 1])._replace(**{name: column})
    with pytest.raises(SpecError, match=f"plans.{name}: found {found}"):
        simulate(gpt7b, h100, table)


def test_only_what_takes_a_number_is_said_to_take_one(gpt7b: Workload) -> None:
    with pytest.raises(SpecError, match=r"checkpointing: found 'nonne', nearest valid: none$"):
        plans(gpt7b, checkpointing="nonne")
    with pytest.raises(SpecError, match=r"checkpointing: found 'blok:2', nearest valid: block:K, K a whole number above 0$"):
        plans(gpt7b, checkpointing="blok:2")


def test_swapped_arguments_are_refused_in_one_line(gpt7b: Workload, h100: HardwareTable) -> None:
    good = make_plans(gpt7b)
    given: tuple[tuple[Any, Any, Any], ...] = ((h100, gpt7b, good), (gpt7b, good, h100), ((gpt7b, ()), h100, good))
    messages = (
        "workload: found a HardwareTable, expected a Workload",
        "hardware: found a Plans, expected a HardwareTable",
        "workload: found a tuple, expected a Workload",
    )
    for arguments, message in zip(given, messages, strict=True):
        for call in (simulate, legality, trace, simai_breakdown):
            with pytest.raises(SpecError, match=message):
                call(*arguments)


def test_the_events_of_an_illegal_plan_are_refused(gpt7b: Workload, h100: HardwareTable) -> None:
    with pytest.raises(
        SpecError, match="the plan cannot run: gpus_not_divisible \\(tp \\* cp \\* pp does not divide all_gpus\\)"
    ):
        trace(gpt7b, h100, make_plans(gpt7b, tp=3))
    with pytest.raises(SpecError, match="trace: found row 1, expected 0 to 0"):
        trace(gpt7b, h100, make_plans(gpt7b), row=1)


def test_the_example_of_the_documentation_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = doctest.testfile(str(ROOT / "docs" / "notebook.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 5
    assert found.failed == 0


def test_a_bucket_may_hold_all_gradients_of_a_large_model(gpt7b: Workload) -> None:
    """3.1 billion parameters of 4 bytes."""
    assert plans(gpt7b, bucket_bytes=12_400_000_000).bucket_bytes.tolist() == [12_400_000_000]
