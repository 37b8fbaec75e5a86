"""Steps without a barrier, one after another until they take the same time: the mean of many is what one is said to take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sim_core import hardware_table
from tests.conftest import rest_long
from tests.oracle.cases import Machines, random_machines, random_plans, random_workload
from tests.oracle.nics import share
from tests.oracle.pipeline import DEEPSPEED
from tests.oracle.step import Oracle, Plan
from tests.oracle.test_oracle import agree, oracle

STEPS, LAST = 24, 8
"""Steps in a row, and those whose mean is taken."""


def mean_step_s(of: Oracle) -> float:
    """Seconds of a step among many: each stage begins its next one, and gathers its parameters, when it has ended its own."""
    ended, ends = [0.0] * of.plan.pp, []
    for _ in range(STEPS):
        out: defaultdict[str, float] = defaultdict(float)
        lines = of.pipeline(of.durations(out))
        shared = share(of, lines)
        work = [of.once_a_step(stage, out) for stage in range(of.plan.pp)]
        gates, after = of.gathers(lines, shared, [-end for end in ended], out)
        for stage, chunk in product(range(of.plan.pp), range(of.plan.chunks)):
            start, end = gates[stage][chunk]
            lines.gate[stage][chunk] = max(start, ended[stage]), end
        stages, block_end = lines.run()[:2]
        reduced = of.reductions(lines, shared, [stage.end for stage in stages], block_end, out)
        ended = [sum(parts) for parts in zip(reduced, after, work, strict=True)]
        ends.append(max(ended))
    return (ends[-1] - ends[-1 - LAST]) / LAST


def drawn(seed: int, count: int) -> list[tuple[Oracle, Oracle]]:
    """Plans without a barrier on NICs that nothing shares, with parameters gathered beside forwards and without."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    machines = random_machines(rng, workload.dtype)
    variants = tuple(one.with_values({"shared_nics": False, "memory": "1e15 B"}) for one in machines.variants)
    machines = Machines(variants, machines.measured_on, hardware_table(variants, machines.measured_on, workload.dtype))
    found: list[Plan] = []
    for plan in random_plans(rng, workload, len(variants)):
        if plan.schedule != DEEPSPEED and plan.pp > 1 and plan.ga * plan.pp * plan.vpp < 100:
            found.append(replace(plan, post_validation=1, overlap_param=1))
        if len(found) == count:
            break
    assert agree(workload, machines, found) == count
    alike = [replace(plan, overlap_param=0) for plan in found]
    return [(oracle(workload, machines, one), oracle(workload, machines, two)) for one, two in zip(found, alike, strict=True)]


@pytest.mark.parametrize("seed", rest_long(range(30), 8))
def test_a_step_takes_what_it_takes_among_others(seed: int) -> None:
    """Never less, hardly more, and no more than where all stages gather first."""
    for beside, before in drawn(seed, 6):
        one_s, mean_s = beside.metrics()["step_time_s"], mean_step_s(beside)
        assert mean_s * (1 - 1e-9) <= one_s <= min(mean_s * 1.05, before.metrics()["step_time_s"] * (1 + 1e-9))
