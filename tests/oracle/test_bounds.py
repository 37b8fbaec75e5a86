"""The lower bound of a step against the engine: random plans of random workloads, every schedule and switch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from sim_core import (
    FASTER,
    METRICS,
    REASONS,
    SCHEDULES,
    Hardware,
    bounds,
    coarse_bounds,
    coarse_bounds_over,
    hardware_table,
    ignored_columns,
    plans as make,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    slice_plans,
    work_bounds,
    workload_from_model,
)
from tests.conftest import rest_long
from tests.oracle.cases import Machines, columns, random_machines, random_plans, random_workload

UNITS = {"bandwidth": "B/s", "latency": "s", "efficiency": ""}
STEP_TIME = METRICS.index("step_time_s")


def sharing(machines: Machines) -> Machines:
    """The same machines, whose streams of messages share NICs."""
    variants = [one.with_values({"shared_nics": True}) for one in machines.variants]
    return Machines(tuple(variants), machines.measured_on, hardware_table(variants, machines.measured_on))


def ratios(seeds: range, plans: int) -> dict[tuple[str, int], list[float]]:
    """Bound over simulated step, by schedule and post-validation."""
    found = defaultdict(list)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        workload = random_workload(rng)
        machines = random_machines(rng, workload.dtype)
        machines = sharing(machines) if seed % 2 else machines
        draw = random_plans(rng, workload, len(machines.variants))
        chosen = [next(draw) for _ in range(plans)]
        table = columns(chosen)
        simulated, bounded = simulate(workload, machines.table, table), bounds(workload, machines.table, table)
        assert (bounded.reason == simulated.reason).all()
        assert np.array_equal(bounded.memory, simulated.memory, equal_nan=True)
        assert np.array_equal(np.isnan(bounded.step_time_s), simulated.reason != 0)
        for k in np.flatnonzero(simulated.reason == 0):
            ratio = bounded.step_time_s[k] / simulated.metrics[STEP_TIME, k]
            assert ratio <= 1, chosen[k]
            found[SCHEDULES[chosen[k].schedule], chosen[k].post_validation].append(float(ratio))
    return found


@pytest.mark.parametrize("first", rest_long(range(0, 120, 20), 2))
def test_no_step_is_shorter_than_its_bound(first: int) -> None:
    ratios(range(first, first + 20), 12)


def better(rng: np.random.Generator, one: Hardware) -> Hardware:
    """The same hardware with some network numbers better, and NICs shared or not."""
    numbers = {name: sign for name, sign in FASTER.items() if name != "overlap_tp" and rng.random() < 0.5}
    values = {name: one.value(name) * float(rng.choice([1.05, 2.0, 8.0])) ** sign for name, sign in numbers.items()}
    texts = {name: f"{value!r} {UNITS[name.rpartition('_')[2]]}".strip() for name, value in values.items()}
    texts |= {name: str(min(values[name], 1.0)) for name in values if name.endswith("efficiency")}
    return one.with_values({**texts, "shared_nics": bool(rng.random() < 0.5)})


def faster(rng: np.random.Generator, machines: Machines) -> Machines:
    """The machines, then each better."""
    both = [*machines.variants, *(better(rng, one) for one in machines.variants)]
    return Machines(tuple(both), machines.measured_on, hardware_table(both, machines.measured_on))


@pytest.mark.parametrize("first", rest_long(range(0, 60, 20), 1))
def test_no_plan_of_a_block_is_shorter_than_its_coarse_bound(first: int) -> None:
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        workload = random_workload(rng)
        machines = random_machines(rng, workload.dtype)
        machines = faster(rng, sharing(machines) if seed % 2 else machines)
        half = len(machines.variants) // 2
        draw = random_plans(rng, workload, half)
        table = columns([next(draw) for _ in range(12)])
        simulated = simulate(workload, machines.table, table)
        for k in range(12):  # each on its own: what is ignored depends on the schedules
            plan = slice_plans(table, np.array([k] * 4))
            left_out = ignored_columns(workload, plan.schedule, plan.sharding) - {"shared_nics"}
            assert {"bucket_bytes", "overlap_param", "gradient_precision"} <= left_out
            draws: dict[str, Any] = {"bucket_bytes": rng.integers(0, 10**9, 4), "gradient_precision": rng.integers(0, 3, 4)}
            draws |= {name: rng.integers(0, 2, 4) for name in ("overlap_grad", "overlap_param")}
            changed = plan._replace(
                **{name: draws[name] for name in left_out}, overlap_tp=np.maximum(plan.overlap_tp, [0, 1, 0, 1])
            )
            changed = changed._replace(hardware=plan.hardware + np.array([0, 0, half, half]))
            found = coarse_bounds(workload, machines.table, changed)
            assert (found.reason == simulated.reason[k]).all()
            assert np.array_equal(found.memory, np.repeat(simulated.memory[:, k : k + 1], 4, axis=1), equal_nan=True)
            if simulated.reason[k] == 0:
                assert (found.step_time_s <= simulated.metrics[STEP_TIME, k]).all()


@pytest.mark.parametrize("first", rest_long(range(0, 120, 20), 2))
def test_no_step_is_shorter_than_its_work(first: int) -> None:
    """Of all schedules, slow stages and fast ones; reasons are those of a simulation but for memory."""
    nearest = 0.0
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        workload = random_workload(rng)
        machines = random_machines(rng, workload.dtype)
        draw = random_plans(rng, workload, len(machines.variants))
        plans = columns([next(draw) for _ in range(12)])
        plans = plans._replace(straggler_factor=plans.straggler_factor * float(rng.choice([0.3, 1.0])))
        simulated, least = simulate(workload, machines.table, plans), work_bounds(workload, machines.table, plans)
        told = np.char.startswith(np.array(REASONS)[simulated.reason], "memory_exceeds") & (least.reason == 0)
        event = plans.fidelity == 0
        assert (told | (least.reason == simulated.reason))[event].all()
        runs = np.flatnonzero((simulated.reason == 0) & event)
        assert np.isnan(least.step_time_s[(least.reason != 0) | ~event]).all()
        parts = least.step_time_s[runs] / simulated.metrics[STEP_TIME, runs]
        assert (parts <= 1).all()
        nearest = max(nearest, float(parts.max(initial=0.0)))
    assert nearest > 0.9


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
def test_no_step_is_shorter_than_its_work_where_pairs_hide_messages(schedule: str) -> None:
    model = read_model("deepseek-v3", {"sequence": 4096})
    workload = workload_from_model(model, read_stack("hai-llm"), sequence_parallel=True)
    slow = {"memory": "100 TB", "nic_bandwidth": "40 Gb/s"}
    hardware = hardware_table([read_hardware("H800-SXM").with_values(slow)], None)
    sizes: dict[str, Any] = {
        "tp": 1,
        "pp": 2,
        "ep": 32,
        "all_gpus": 64,
        "layer_split": "balanced",
        "vpp": 2 if schedule == "dualpipev" else 1,
    }
    plans = make(workload, schedule=schedule, ga=64, checkpointing="none", **sizes)
    step_s = simulate(workload, hardware, plans).metrics[STEP_TIME]
    least_s = work_bounds(workload, hardware, plans).step_time_s
    assert (least_s <= step_s).all()
    assert (2 * least_s > step_s).all()  # they are hidden: without pairs the step would be longer than all work


NUMBERS = np.array([24, 1, 2, 3, 0, 8, 4, 6, 7, 16, 2**24, 12, 5, 48])
"""Of micro-batches, in no order: some that no group and no round divides, one of steps too large."""


@pytest.mark.parametrize("first", rest_long(range(0, 60, 30), 1))
def test_coarse_bounds_over_micro_batches_are_those_of_each_plan(first: int) -> None:
    legal = 0
    reasons: set[int] = set()
    near: list[float] = []
    for seed in range(first, first + 30):
        rng = np.random.default_rng(seed)
        workload = random_workload(rng)
        machines = random_machines(rng, workload.dtype)
        draw = random_plans(rng, workload, len(machines.variants))
        drawn = columns([next(draw) for _ in range(8)])
        if seed % 10 == 0:  # global batches that are too large: 2^53 is the most
            drawn = drawn._replace(all_gpus=np.where(np.arange(8) < 4, drawn.all_gpus * 2**34, drawn.all_gpus))
        each = slice_plans(drawn, np.repeat(np.arange(8), len(NUMBERS)))._replace(ga=np.tile(NUMBERS, 8))
        simulated, one_by_one = simulate(workload, machines.table, each), coarse_bounds(workload, machines.table, each)
        reason, step_s = coarse_bounds_over(workload, machines.table, drawn, NUMBERS)
        assert np.array_equal(reason.ravel(), one_by_one.reason)
        assert np.array_equal(np.isnan(step_s.ravel()), one_by_one.reason != 0)
        runs = simulated.reason == 0
        assert (step_s.ravel()[runs] <= simulated.metrics[STEP_TIME, runs]).all()
        alone_s = np.hstack([coarse_bounds_over(workload, machines.table, drawn, one)[1] for one in NUMBERS[:, None]])
        assert (step_s.ravel()[runs] <= alone_s.ravel()[runs] * (1 + 1e-9)).all()
        near += (step_s.ravel()[runs] / one_by_one.step_time_s[runs]).tolist()
        again, rough_s = coarse_bounds_over(workload, machines.table, drawn, NUMBERS, rough=True)
        assert np.array_equal(again, reason)
        assert (rough_s[reason == 0] <= step_s[reason == 0]).all()
        legal, reasons = legal + int(runs.sum()), reasons | set(reason.ravel())
    assert legal > 300
    assert np.mean(near) > 0.95  # nearly as high between those that are bounded
    assert len(reasons) > 5
