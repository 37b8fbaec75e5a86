"""The lower bound of a step against the engine: random plans of random workloads, every schedule and switch."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from sim_core import METRICS, SCHEDULES, bounds, hardware_table, simulate
from tests.oracle.cases import Machines, columns, random_machines, random_plans, random_workload

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


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_no_step_is_shorter_than_its_bound(first: int) -> None:
    ratios(range(first, first + 20), 12)
