"""The numbered space: decode against itertools, sampling is a permutation, size costs no memory."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import Workload
from sweep.spec.space import Space, build_space, permuted, to_plans
from sweep.spec.spec import SweepSpec
from tests.conftest import ROOT


def space_of(workload: Workload, **document: object) -> Space:
    spec = SweepSpec.model_validate({"name": "s", "workload": "w", "hardware": "H100-SXM", **document})
    return build_space(spec, workload, ROOT)[0]


def test_numbers_count_through_the_axes_the_first_slowest(gpt7b: Workload) -> None:
    axes: dict[str, list[Any]] = {
        "tp": [1, 2, 8],
        "pp,vpp": [[1, 1], [4, 3]],
        "ga": [2, 4, 8, 16],
        "checkpointing": ["none", "every:2", "block:3"],
    }
    space = space_of(gpt7b, axes=axes)
    expected = list(itertools.product(*axes.values()))
    assert space.size == len(expected) == 72
    columns = space.decode(np.arange(72))
    plans = to_plans(columns, space)
    kinds = {"none": (0, 0), "every:2": (4, 2), "block:3": (5, 3)}
    found = zip(plans.tp, plans.pp, plans.vpp, plans.ga, plans.checkpointing, plans.checkpoint_layers, strict=True)
    assert [tuple(map(int, row)) for row in found] == [(tp, *pv, ga, *kinds[c]) for tp, pv, ga, c in expected]


def test_any_part_of_the_range_decodes_to_the_same_plans(gpt7b: Workload) -> None:
    space = space_of(gpt7b, axes={"tp": [1, 2, 4], "all_gpus": list(range(8, 800, 8)), "ga": [1, 2, 3]})
    whole = space.decode(np.arange(space.size))
    for start, stop in ((0, 1), (17, 400), (space.size - 1, space.size)):
        part = space.decode(np.arange(start, stop))
        assert all((part[name] == whole[name][start:stop]).all() for name in whole)


def test_dp_all_gpus_ga_and_global_batch_follow_from_each_other(gpt7b: Workload) -> None:
    space = space_of(gpt7b, axes={"dp": [2, 4], "global_batch": [16, 24]}, fixed={"tp": 4, "pp": 2, "micro_batch": 4})
    plans = to_plans(space.decode(np.arange(4)), space)
    assert plans.all_gpus.tolist() == [16, 16, 32, 32]
    assert plans.ga.tolist() == [2, 3, 1, 0]  # 24 is no multiple of 4 * 4: marked, not rounded


def test_hardware_axes_pick_the_variant_with_their_values(gpt7b: Workload) -> None:
    spec = SweepSpec.model_validate(
        {
            "name": "s",
            "workload": "w",
            "axes": {"hardware.nic_bandwidth": ["10 GB/s", "20 GB/s"], "tp": [1, 2], "hardware": ["H20-SXM", "A100-80G-SXM"]},
        }
    )
    space, variants = build_space(spec, gpt7b, ROOT)
    plans = to_plans(space.decode(np.arange(space.size)), space)
    told = [
        (variants[row].name, variants[row].value("nic_bandwidth"), int(tp))
        for row, tp in zip(plans.hardware, plans.tp, strict=True)
    ]
    assert told == [(name, nic, tp) for nic in (10e9, 20e9) for tp in (1, 2) for name in ("H20-SXM", "A100-80G-SXM")]


@given(st.integers(1, 5000), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_sample_is_drawn_without_replacement(size: int, seed: int) -> None:
    images = permuted(np.arange(size), size, seed)
    assert sorted(images.tolist()) == list(range(size))


def test_a_sample_is_spread_over_the_space_and_depends_on_the_seed() -> None:
    size = 10**15
    a, b = permuted(np.arange(20_000), size, 1), permuted(np.arange(20_000), size, 2)
    assert not np.array_equal(a, b)
    for images in (a, b):
        counts = np.histogram(images, bins=20, range=(0, size))[0]
        assert counts.min() > 850  # 1000 expected a bin, sigma 31
        assert counts.max() < 1150


def test_a_hundred_million_plans_cost_no_memory(gpt7b: Workload) -> None:
    tracemalloc.start()
    space = space_of(
        gpt7b,
        axes={"tp": [1, 2, 4, 8], "pp": [1, 2, 3, 4], "all_gpus": list(range(8, 8008, 8)), "ga": list(range(1, 6251))},
    )
    columns = space.decode(np.arange(space.size - 10, space.size))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert space.size == 100_000_000
    assert columns["ga"].tolist() == list(range(6241, 6251))
    assert peak < 2_000_000


def test_more_plans_than_a_number_can_count_are_refused(gpt7b: Workload) -> None:
    many = list(range(1, 60_001))
    with pytest.raises(Exception, match=r"more than 2\^62"):
        space_of(gpt7b, axes={"tp": many, "pp": many, "ga": many, "all_gpus": many})
