"""`balanced_cost`: the slowest virtual stage of all contiguous divisions, of models of unlike layers and of files."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from sim_core import (
    Floats,
    HardwareTable,
    Plans,
    Workload,
    bounds,
    legality,
    plans as plans_of,
    read_hardware,
    read_model,
    read_stack,
    shape_of,
    simulate,
    slice_plans,
    workload_from_model,
)
from sim_core.costing.running import divide
from sim_core.engine.program import DOWN, UP
from sim_core.hardware.table import hardware_table
from sim_core.simulator import run_alone


def plans(workload: Workload, **plan: Any) -> Plans:
    """One replica, unless a plan says otherwise."""
    return plans_of(workload, **{"dp": 1, **plan})


FULL = {"checkpointing": "full", "micro_batch": 1}


@pytest.fixture(scope="module")
def h200() -> HardwareTable:
    return hardware_table([read_hardware("H200-SXM").with_values({"memory": "100 TB"})], None)


def work(model: str, **values: object) -> Workload:
    return workload_from_model(read_model(model, values), read_stack("megatron-core"), sequence_parallel=True)


HYBRID = work("nemotron-h-8b", layers=9, pattern="M-M*-MM-M")


def divisions(layers: int, virtual: int) -> list[list[int]]:
    """Every division of layers among virtual stages of which only the last may hold none."""
    cuts = combinations(range(1, layers + 1), virtual - 1)
    return [np.diff([0, *cut, layers]).tolist() for cut in cuts]


def virtual_s(workload: Workload, hardware: HardwareTable, layers: list[int], **plan: Any) -> Floats:
    """Seconds of a forward and a backward of each virtual stage, as the engine runs them."""
    ran = run_alone(workload, hardware, plans(workload, layer_split=[layers], **plan))
    durations = ran.scratch.program.duration_s
    return np.asarray(durations[DOWN, : len(layers)] + durations[UP, : len(layers)])


def lists_of(workload: Workload, hardware: HardwareTable, **plan: Any) -> list[int]:
    shape = shape_of(workload, hardware, plans(workload, layer_split="balanced_cost", **plan))
    return [stage[chunk] for chunk in range(plan.get("vpp", 1)) for stage in shape.layers]


def step_s(workload: Workload, hardware: HardwareTable, split: object, **plan: Any) -> float:
    found = simulate(workload, hardware, plans(workload, layer_split=split, **plan)).named()
    assert found["reason"][0] == ""
    return float(found["step_time_s"][0])


@pytest.mark.parametrize(
    "plan", [{"pp": 3}, {"pp": 2, "vpp": 2}, {"pp": 3, "checkpointing": "block:2"}, {"pp": 3, "checkpointing": "selective"}]
)
def test_no_contiguous_division_has_a_faster_slowest_stage(h200: HardwareTable, plan: dict[str, Any]) -> None:
    """Against all divisions, by the durations that the engine runs."""
    plan = {"tp": 4, "ga": 8, **FULL, **plan}
    virtual = plan["pp"] * plan.get("vpp", 1)
    every = [row for row in divisions(9, virtual) if max(row) < 6]
    slowest = {tuple(row): virtual_s(HYBRID, h200, row, **plan).max() for row in every}
    chosen = tuple(lists_of(HYBRID, h200, **plan))
    assert slowest[chosen] == pytest.approx(min(slowest.values()), rel=1e-8)
    assert np.ptp([*slowest.values()]) > 0.3 * slowest[chosen]  # the choice matters


def test_of_divisions_as_fast_the_evenest_is_taken() -> None:
    rng = np.random.default_rng(0)

    def seconds(row: list[int], own_s: Floats, again_s: Floats, ends_s: Floats, span: int) -> Floats:
        parts = np.split(np.arange(len(own_s)), np.cumsum(row)[:-1])
        own = np.array([own_s[part].sum() + again_s[part[:span]].sum() for part in parts])
        own[[0, -1]] += ends_s
        return own

    for _ in range(60):
        virtual, span = int(rng.integers(2, 6)), int(rng.integers(0, 3))
        layers = virtual + int(rng.integers(0, 5))
        own_s = rng.uniform(0.1, 3, 3)[rng.integers(0, 3, layers)]
        again_s = own_s / 3 * (span > 0)
        ends_s = rng.uniform(0, 4, 2)
        every = [seconds(row, own_s, again_s, ends_s, span) for row in divisions(layers, virtual)]
        least = min(of.max() for of in every)
        even = min((of**2).sum() for of in every if of.max() <= least * (1 + 1e-9))
        costs = own_s[None], again_s[None], np.array([span]), ends_s[None], np.arange(layers)
        (divided,) = divide(*costs, np.array([layers]), np.array([virtual]))
        found = seconds(divided.tolist(), own_s, again_s, ends_s, span)
        assert found.max() == pytest.approx(least)
        assert (found**2).sum() == pytest.approx(even)


UNLIKE = {
    "gemma3-27b": {"tp": 8, "pp": 8, "ga": 32},  # 62 layers and a vocabulary of 262,208
    "nemotron-h-56b": {"tp": 8, "pp": 8, "ga": 32},
    "nemotron3-nano-30b-a3b": {"tp": 2, "pp": 4, "ep": 8, "dp": 8, "ga": 16},
    "deepseek-v3": {"tp": 1, "pp": 16, "ep": 8, "dp": 8, "ga": 64},  # dense layers first, one of prediction last
    "llama4-maverick": {"tp": 8, "pp": 8, "ep": 8, "dp": 8, "ga": 32},
    "llama3-70b": {"tp": 8, "pp": 8, "ga": 32},
}
LEAST_GAIN = {"gemma3-27b": 0.12, "nemotron-h-56b": 0.06, "deepseek-v3": 0.2}


@pytest.mark.parametrize("model", UNLIKE)
def test_it_is_never_slower_than_equal_numbers_of_layers(h200: HardwareTable, model: str) -> None:
    workload = work(model)
    for vpp in (1, 2):
        plan = {**FULL, **UNLIKE[model], "vpp": vpp}
        ratio = step_s(workload, h200, "balanced_cost", **plan) / step_s(workload, h200, "balanced", **plan)
        assert ratio <= (1 - LEAST_GAIN.get(model, 0.0)) * (1 + 1e-9)


def test_layers_that_are_alike_stay_where_they_are(h200: HardwareTable) -> None:
    """Where the vocabulary is small; a large one moves layers away from the last stage."""
    small = work("llama3-8b", vocabulary=1024)
    assert lists_of(small, h200, tp=4, pp=4, ga=8) == [8, 8, 8, 8]
    large = lists_of(work("llama3-8b", vocabulary=1_000_000), h200, tp=4, pp=4, ga=8)
    assert large[-1] < 4
    assert np.ptp(large[:-1]) <= 1


def test_a_list_of_the_same_layers_gives_the_same_step(h200: HardwareTable) -> None:
    plan = {"tp": 4, "pp": 4, "vpp": 2, "ga": 8, **FULL}
    assert step_s(HYBRID, h200, "balanced_cost", **plan) == step_s(HYBRID, h200, [lists_of(HYBRID, h200, **plan)], **plan)


def test_plans_of_a_batch_have_divisions_of_their_own(h200: HardwareTable) -> None:
    splits = ["balanced", "balanced_cost"]
    grid = plans(HYBRID, tp=[1, 8], pp=[1, 3, 4], vpp=[1, 2], micro_batch=1, ga=12, layer_split=splits)
    together = simulate(HYBRID, h200, grid).metrics
    assert np.isfinite(together).any()
    for row in range(len(grid.tp)):
        alone = simulate(HYBRID, h200, slice_plans(grid, slice(row, row + 1)))
        assert alone.metrics[:, 0].tobytes() == np.ascontiguousarray(together[:, row]).tobytes()


def test_bounds_are_of_the_same_division(h200: HardwareTable) -> None:
    grid = plans(HYBRID, tp=[1, 4], pp=[1, 2, 4], micro_batch=1, ga=[4, 8], layer_split="balanced_cost", **{"dp": [1, 4]})
    found, bound = simulate(HYBRID, h200, grid), bounds(HYBRID, h200, grid)
    legal = found.reason == 0
    assert legal.any()
    assert (bound.step_time_s[legal] <= found.named()["step_time_s"][legal] * (1 + 1e-9)).all()
    assert (bound.memory[:, legal] == found.memory[:, legal]).all()


def test_plans_that_cannot_run_say_why(h200: HardwareTable) -> None:
    def reason(**plan: Any) -> str:
        return str(simulate(HYBRID, h200, plans(HYBRID, layer_split="balanced_cost", **plan)).named()["reason"][0])

    assert reason(pp=12, ga=12) == "more_chunks_than_layers"
    assert reason(tp=3) != ""
    assert reason(pp=2, ga=4, fidelity="simai") == "not_in_simai"
    assert reason(pp=2, ga=4, checkpointing="block:9") == "checkpoint_span_exceeds_stage"
    assert reason(pp=2, ga=4, checkpointing="block:3") == ""


def test_a_precision_that_one_device_lacks_stops_no_other_plan() -> None:
    """The cost of a layer is unknown there: such a plan says so, by every way that divides layers."""
    table = hardware_table([read_hardware(name) for name in ("A100-80G-SXM", "H100-SXM")], None)
    own = work("llama3-8b")
    given = plans(own, tp=2, dp=4, pp=4, ga=8, precision=["bf16", "fp8_blockwise"], layer_split=["balanced", "balanced_cost"])
    given = slice_plans(given, np.tile(np.arange(4), 2))._replace(hardware=np.repeat([0, 1], 4))
    lacks, said = (given.precision > 0) & (given.hardware == 0), "precision_not_on_device"
    found = simulate(own, table, given)
    assert (found.named()["reason"] == said).tolist() == lacks.tolist()
    assert (found.reason[~lacks] == 0).all()
    np.testing.assert_array_equal(legality(own, table, given)[0], found.reason)
    np.testing.assert_array_equal(bounds(own, table, given).reason, found.reason)
    one_by_one = [simulate(own, table, slice_plans(given, np.array([row]))).reason[0] for row in range(8)]
    assert one_by_one == found.reason.tolist()


def test_layers_of_a_file_are_divided_by_its_seconds(gpt7b: Workload, h100: HardwareTable) -> None:
    """Also where only the first layers have no experts, or more layers are asked for than recorded."""
    for layers in (36, 44):
        counts = lists_of(gpt7b, h100, pp=4, dp=4, layers=layers)
        assert sum(counts) == layers
        assert np.ptp(counts[1:-1]) <= 1


def test_a_framework_that_divides_by_a_rule_of_its_own_can_take_it_too(h200: HardwareTable) -> None:
    model = read_model("llama3-8b")
    own = workload_from_model(model, read_stack("nanotron"), sequence_parallel=True)
    plan = {"tp": 4, "pp": 4, "ga": 8}
    assert lists_of(own, h200, **plan) != [8, 8, 8, 8]
    assert step_s(own, h200, "balanced_cost", **plan) <= 1.02 * step_s(own, h200, "balanced", **plan)
