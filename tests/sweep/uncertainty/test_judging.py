"""Plans beside the best: intervals and ties, and which evidence they rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sim_core import read_hardware
from sweep.uncertainty.evidence import (
    ASSUMED_KERNELS,
    HOST_BOUND,
    MOVED,
    RESIZED,
    Basis,
    Differences,
    Spread,
    basis_of,
    recorded,
    recorded_moves,
)
from sweep.uncertainty.judging import coordinates, distances, judge, widest

SPREAD = Spread(low=-0.1, middle=0.02, high=0.3, between=0.06, within=0.1, runs=400, sets=12)
BASIS = Basis(spread=SPREAD, differences=Differences(size=0.5, pairs=700, sets=8), why="of a test")
NONE = Basis(spread=None, differences=None, why="none")


def plans(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


def test_doublings_between_plans() -> None:
    """tp 2 to 8 is two doublings, another choice one, another device twelve; dp follows from the others."""
    rows = plans(
        tp=[2, 8, 2, 2], dp=[8, 2, 8, 8], overlap=[True, True, False, True], hardware=["a", "a", "a", "b"], limit=[0, 0, 0, 5]
    )
    found = distances(coordinates(rows, rows.column_names), 0)
    assert found.tolist() == [0, 2, 1, 13]


def test_near_plans_are_told_apart_sooner_than_far_ones() -> None:
    """6 % slower: a neighbour is told from the best, a plan of quite other sizes is not; 60 % slower, it is, too."""
    rows = plans(tp=[1, 1, 8, 8], pp=[1, 1, 8, 8], recompute=["no", "no", "no", "no"])
    found = judge(rows, rows.column_names, np.array([1.0, 1.06, 1.06, 1.6]), BASIS)
    assert found.tie.tolist() == [True, False, True, False]
    assert found.chance[0] == 1
    assert found.chance[1] < found.chance[2] < 0.5
    assert found.low == pytest.approx(np.exp(-0.1))
    assert found.high == pytest.approx(np.exp(0.3))


def test_each_group_has_its_own_best() -> None:
    """Two groups judged together are what each is on its own."""
    rows = plans(tp=[1, 2, 8, 8, 1, 2], pp=[1, 1, 4, 1, 1, 1])
    seconds = np.array([1.0, 1.1, 1.15, 0.5, 0.55, 0.9])
    group = np.array([0, 0, 1, 1, 1, 0])
    both = judge(rows, rows.column_names, seconds, BASIS, group=group)
    for number in (0, 1):
        at = np.flatnonzero(group == number)
        alone = judge(rows.take(at), rows.column_names, seconds[at], BASIS)
        assert both.best[at].tolist() == at[alone.best].tolist()
        assert both.chance[at] == pytest.approx(alone.chance)


def test_no_tie_beyond_the_widest_ratio() -> None:
    rows = plans(tp=[1, 2**40], pp=[1, 1])
    ratio = widest(BASIS)
    assert judge(rows, rows.column_names, np.array([1.0, ratio * 0.99]), BASIS).tie[1]
    assert not judge(rows, rows.column_names, np.array([1.0, ratio * 1.01]), BASIS).tie[1]


def test_without_evidence_nothing_is_claimed() -> None:
    rows = plans(tp=[1, 2])
    judged = judge(rows, ["tp"], np.array([2.0, 1.0]), NONE)
    assert judged.best.tolist() == [1, 1]
    assert judged.tie.tolist() == [False, True]
    assert np.isnan(judged.low).all()
    assert judge(rows.slice(0, 0), ["tp"], np.zeros(0), BASIS).tie.tolist() == []


def test_which_evidence_a_result_has() -> None:
    dense = basis_of({"spec": {"workload": {"model": {"preset": "x"}}}, "inputs": {"workload": {}}})
    experts = basis_of(
        {"spec": {"workload": {"model": {"preset": "x"}}}, "inputs": {"workload": {"expert_parameters_per_rank": 1.0}}}
    )
    trace = basis_of({"spec": {"workload": {"path": "x"}}, "start": {"recorded_s": 1.0}})
    file = basis_of({"spec": {"workload": {"path": "x"}}})
    assert dense.spread is not None
    assert experts.spread is not None
    assert trace.spread is not None
    assert file.spread is None
    assert experts.spread.high > dense.spread.high > trace.spread.high
    assert "no measured runs" in file.why


def of_trace(files: str, *, axis: str = "pp", experts: bool = True) -> Basis:
    inputs = {"workload": {"expert_parameters_per_rank": 1.0} if experts else {}}
    spec = {"workload": {"path": "x"}, "axes": {axis: [[1, 1], [2, 2]] if "," in axis else [1, 2]}}
    return basis_of({"spec": spec, "start": {"recorded_s": 1.0, "files": files}, "inputs": inputs})


def test_traces_are_judged_by_the_kind_of_move_and_by_their_files() -> None:
    bars = recorded_moves()
    for files, told in (("all", "all files"), ("groups", "whole expert group"), ("ranks", "no whole expert group")):
        moved, resized = of_trace(files), of_trace(files, axis="sequence,experts")
        for found, kind in ((moved, MOVED), (resized, RESIZED)):
            assert found.spread is not None
            assert (found.spread.low, found.spread.high) == (bars[f"{kind}, {files}"].low, bars[f"{kind}, {files}"].high)
            assert told in found.why
            assert 85 <= bars[f"{kind}, {files}"].inside <= 95
        dense = of_trace(files, experts=False)
        assert dense.spread is not None
        assert moved.spread is not None
        assert dense.spread.high >= moved.spread.high
    assert of_trace("ranks", experts=False).spread.high > 1.5 * of_trace("ranks").spread.high  # type: ignore[union-attr]


def test_another_number_of_experts_is_known_less_well_unless_its_load_is_stated() -> None:
    """The further the number, the wider; 90 % of moves of one doubling lie within what moves kept aside showed."""

    def width(**stated: list[float]) -> float:
        spec = {"workload": {"path": "x"}, "axes": stated}
        start = {"recorded_s": 1.0, "files": "all", "experts": 8}
        basis = basis_of({"spec": spec, "start": start, "inputs": {"workload": {"expert_parameters_per_rank": 1.0}}})
        assert basis.spread is not None
        assert ("expert_imbalance states it" in basis.why) == (basis.spread.between > 0)
        return basis.spread.high - basis.spread.low

    same = width(experts=[8])
    assert same == width(experts=[8, 16], expert_imbalance=[1.5]) == width(sequence=[2048])
    assert 1.3 * same < width(experts=[8, 16]) < width(experts=[8, 32]) < width(experts=[8, 32], sequence=[2048])
    assert width(**{"sequence,experts": [[2048, 16]]}) > 0.5  # type: ignore[arg-type]


def test_intervals_widen_with_what_is_known_of_a_plan() -> None:
    """A quarter of a step for the host is one factor of 1.5, half of it two; kernels of which none was measured 1.2 more."""
    widening = {HOST_BOUND: 1.5, ASSUMED_KERNELS: 1.2, "experts": 3.0}
    basis = replace(BASIS, spread=replace(SPREAD, low=-0.1, middle=0.0, high=0.1), widening=widening)
    rows = plans(
        tp=[1, 2, 4, 8, 16],
        launch_s=[0.0, 0.25, 0.9, 0.0, None],
        step_time_s=[1.0] * 5,
        measured_share=[1.0, 1.0, 1.0, 0.5, None],
    )
    factor = basis.wider(rows)
    assert factor == pytest.approx([1, 1.5, 1.5**2, 1.2**0.5, 1.2])
    judged = judge(rows, ["tp"], np.ones(5), basis)
    wide = judged.widened(factor)
    assert np.log(wide.high) == pytest.approx(0.1 * factor)
    assert np.log(wide.low) == pytest.approx(-0.1 * factor)
    assert basis.wider(plans(tp=[1])) == pytest.approx([1])
    assert BASIS.wider(rows) == pytest.approx(np.ones(5))


def test_a_result_with_experts_that_says_nothing_of_its_switches_is_known_less_well() -> None:
    inputs = {"workload": {"expert_parameters_per_rank": 1}}

    def spread(stack: object) -> float:
        basis = basis_of({"inputs": inputs, "spec": {"workload": {"model": "mixtral-8x7b", "stack": stack}}}, recorded())
        assert basis.spread is not None
        return basis.spread.high - basis.spread.low

    assert spread("nemo") == spread({"preset": "nemo", "host_forward": "1 ms"})
    assert spread({"preset": "nemo", "release": "26.04"}) < spread("nemo")


def test_a_device_with_few_runs_has_a_wider_interval_that_says_so() -> None:
    """By the interval of its pooled factor, an error of its own, where fewer than three sets tell it."""

    def basis(*devices: str) -> Basis:
        hardware = [read_hardware(name).model_dump() for name in devices]
        return basis_of({"inputs": {"workload": {}}, "spec": {"workload": {"model": "llama3-8b"}}, "hardware": hardware})

    known, new = (basis(name).spread for name in ("H100-SXM", "MI300X"))
    assert known is not None
    assert new is not None
    told = read_hardware("MI300X").kernels.sustained_scale.told
    assert told is not None
    further = np.log(told.high / told.low) / 2
    assert new.high - new.middle == pytest.approx(np.hypot(known.high - known.middle, further), rel=1e-3)
    assert basis("H100-SXM", "MI300X").spread == new
    assert f"few on this device (MI300X: {told.runs} runs of 1 set), so wider" in basis("MI300X").why
