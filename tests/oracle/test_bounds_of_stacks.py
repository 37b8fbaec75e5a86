"""Lower bounds against the engine for models on random pages of stacks: no fact may lift a bound above a step."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest

from sim_core import (
    METRICS,
    PLAN_FIELDS,
    SCHEDULES,
    HardwareTable,
    Ints,
    Plans,
    Workload,
    bounds,
    coarse_bounds,
    coarse_bounds_over,
    hardware_table,
    ignored_columns,
    legality,
    preset_names,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    slice_plans,
    work_bounds,
    workload_from_model,
)
from tests.conftest import make_plans, rest_long
from tests.model_plans import MODELS, drawn
from tests.oracle.test_bounds import better
from tests.stack_pages import random_stack

STEP = METRICS.index("step_time_s")
MANY = 100_000


class Drawn(NamedTuple):
    """Plans of one model on one page: devices, then as many with a better network."""

    workload: Workload
    hardware: HardwareTable
    half: int
    plans: Plans


def machines(rng: np.random.Generator) -> tuple[HardwareTable, int]:
    """Two presets without a limit of memory, on NICs of 10 to 400 Gb/s that messages share or not; then the same, better."""
    found = []
    for name in rng.choice(preset_names(), 2, replace=False).tolist():
        network = {"nic_bandwidth": f"{rng.choice([10, 25, 100, 400])} Gb/s", "shared_nics": bool(rng.integers(2))}
        leaves = {"nodes_per_leaf": 2, "leaf_oversubscription": 3, "rails": bool(rng.integers(2))} if rng.random() < 0.3 else {}
        found.append(read_hardware(name).with_values({"memory": "100 TB", **network, **leaves}))
    return hardware_table([*found, *(better(rng, one) for one in found)], None), len(found)


def random_case(seed: int, rows: int) -> Drawn:
    """A page, a model, machines and plans of all schedules, shardings (none, too), switches and precisions."""
    rng = np.random.default_rng(seed)
    model = read_model(str(rng.choice(MODELS)), {"sequence": 1024})
    workload = workload_from_model(model, random_stack(rng), sequence_parallel=bool(rng.integers(2)))
    hardware, half = machines(rng)
    worse = hardware_table(list(hardware.variants[:half]), None)
    plans = drawn(rng, workload, worse, rows)
    number = len(plans.tp)
    words = {name: len(PLAN_FIELDS[name].words) for name in ("precision", "dispatcher", "optimizer", "muon_tp_mode")}
    changes: dict[str, Any] = {name: rng.integers(count, size=number) for name, count in words.items()}
    changes |= {name: rng.integers(2, size=number) for name in ("overlap_shared_experts", "muon_aligned")}
    changes |= {"prefetch_layers": rng.integers(1, 3, number), "dp_shard": rng.choice([0, 0, 2, 4], number)}
    changes |= {"gradient_precision": rng.integers(3, size=number)}
    changes["optimizer"] *= rng.random(number) < 0.1  # the others take long
    for name, column in changes.items():  # one by one, so that most plans still can run
        changed = plans._replace(**{name: column})
        runs = legality(workload, worse, changed)[0] == 0
        plans = plans._replace(**{name: np.where(runs, column, getattr(plans, name))})
    return Drawn(workload, hardware, half, plans)


def by_ignored(case: Drawn, rows: Ints) -> dict[frozenset[str], Ints]:
    """Some plans by what their coarse bound ignores."""
    schedule, sharding = case.plans.schedule[rows], case.plans.sharding[rows]
    found = defaultdict(list)
    for kind in np.unique(np.stack([schedule, sharding], axis=1), axis=0):
        some = rows[(schedule == kind[0]) & (sharding == kind[1])]
        found[ignored_columns(case.workload, kind[:1], kind[1:]) - {"shared_nics"}].append(some)
    return {names: np.concatenate(some) for names, some in found.items()}


def standing(rng: np.random.Generator, case: Drawn, rows: Ints, left_out: frozenset[str]) -> Plans:
    """Plans that stand for some plans: other values where the bound ignores them, no worse ones in FASTER."""
    plans, number = slice_plans(case.plans, rows), len(rows)
    draws: dict[str, Any] = {"bucket_bytes": rng.integers(0, 10**9, number), "gradient_precision": rng.integers(3, size=number)}
    draws |= {name: rng.integers(2, size=number) for name in ("overlap_grad", "overlap_param")}
    plans = plans._replace(**{name: draws[name] for name in left_out})
    tp = np.maximum(plans.overlap_tp, rng.integers(2, size=number))
    return plans._replace(overlap_tp=tp, hardware=plans.hardware + case.half * rng.integers(2, size=number))


def held(seed: int, rows: int) -> int:
    """How many plans ran; fails if one is shorter than one of its bounds."""
    case, rng = random_case(seed, rows), np.random.default_rng([seed, 1])
    workload, hardware, plans = case.workload, case.hardware, case.plans
    if not len(plans.tp):
        return 0
    simulated, fine = simulate(workload, hardware, plans), bounds(workload, hardware, plans)
    ran, step_s = simulated.reason == 0, simulated.metrics[STEP]

    def check(what: str, of: Ints, bound_s: Any) -> None:
        above = np.flatnonzero(bound_s > step_s[of])
        for k in above[:1]:
            plan = {name: getattr(plans, name)[of[k]].item() for name in plans._fields if getattr(plans, name).ndim == 1}
            stack = workload.modelled.stack if workload.modelled else None
            pytest.fail(
                f"{seed}: {what} bound {bound_s[k] / step_s[of[k]]:.6f} of the step, {len(above)} plans\n{plan}\n{stack}"
            )

    check("fine", np.flatnonzero(ran), fine.step_time_s[ran])
    check("work's", np.flatnonzero(ran), work_bounds(workload, hardware, plans).step_time_s[ran])
    for left_out, some in by_ignored(case, np.flatnonzero(ran)).items():
        stands = standing(rng, case, some, left_out)
        coarse = coarse_bounds(workload, hardware, stands)
        assert not coarse.reason.any()
        assert np.array_equal(coarse.memory, simulated.memory[:, some], equal_nan=True)
        check("coarse", some, coarse.step_time_s)
        numbers, number = np.unique(plans.ga[some], return_inverse=True)
        for rough in (False, True):
            reason, over_s = coarse_bounds_over(workload, hardware, stands, numbers, rough=rough)
            own = np.arange(len(some)), number
            assert not reason[own].any()
            check("rough" if rough else "family's", some, over_s[own])
    return int(ran.sum())


@pytest.mark.parametrize("seed", rest_long(range(8), 3))
def test_no_fact_lifts_a_bound_above_a_step(seed: int) -> None:
    held(seed, 100)


@pytest.mark.long
def test_no_fact_lifts_a_bound_above_a_step_of_many_plans() -> None:
    ran, seed = 0, 1000
    while ran < MANY:
        ran += held(seed, 500)
        seed += 1


def test_what_is_not_sent_does_not_wait() -> None:
    """Replicas of nanotron sum gradients tensor by tensor, and each waits: but not in a bound whose replicas send nothing."""
    workload = workload_from_model(read_model("gpt2", {"sequence": 1024}), read_stack("nanotron"), sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM")], None)
    plans = make_plans(
        workload, tp=1, pp=2, all_gpus=64, ga=2, sharding=1, overlap_grad=[0, 1, 1], bucket_bytes=[0, 0, 10_000_000],
        schedule=SCHEDULES.index("1f1b"), layer_split=1,
    )  # fmt: skip
    step_s = simulate(workload, hardware, plans).metrics[STEP]
    assert step_s[1] < step_s[0]
    assert (coarse_bounds(workload, hardware, plans).step_time_s <= step_s).all()


@pytest.mark.parametrize("facts", [{"hides_backward_tp": True}, {"own_part_first": True}])
def test_what_overlap_tp_may_slow_down_is_not_in_the_bound(facts: dict[str, object]) -> None:
    """On a page where what it hides slows compute more than what is hidden anyway, the switch need not help."""
    stack = read_stack("nanotron").with_facts({**facts, "contention": 0, "overlap_contention": 1, "host_forward": "0 s"})
    workload = workload_from_model(read_model("llama3-8b", {"sequence": 4096}), stack, sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB"})], None)
    plans = make_plans(workload, tp=8, all_gpus=8, ga=2, overlap_tp=[0, 1])
    step_s = simulate(workload, hardware, plans).metrics[STEP]
    assert coarse_bounds(workload, hardware, plans).step_time_s[1] <= step_s.min()
