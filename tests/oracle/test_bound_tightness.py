"""The lower bound of a step is as tight as docs/search.md says: written out for pipelines of stages with one chunk each."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import SCHEDULES, bounds, hardware_table, read_hardware, simulate
from tests.conftest import make_plans, rest_long
from tests.oracle.cases import one_layer, step_pieces, workload_of

FORWARD, INPUT, WEIGHTS = 1.0, 1.5, 0.5
SPLIT, BOTH_ENDS = ("zb-h1", "zb-h2", "dualpipe"), ("dualpipe",)
EXACT = ("gpipe", "1f1b")


def bound_s(schedule: str, pp: int, ga: int, slow: int, factor: float) -> float:
    """Each stage waits for its first forward, then is busy; behind its last input gradient come those of stages before it."""
    slower = [factor if stage == slow else 1.0 for stage in range(pp)]
    from_first = [FORWARD * sum(slower[:stage]) for stage in range(pp)]
    from_last = [FORWARD * sum(slower[stage + 1 :]) for stage in range(pp)]
    heads = [min(pair) for pair in zip(from_first, from_last, strict=True)] if schedule in BOTH_ENDS else from_first
    ends = [head + ga * (FORWARD + INPUT + WEIGHTS) * slower[stage] for stage, head in enumerate(heads)]
    latest, tail = 0.0, 0.0
    for stage in reversed(range(pp)):
        inputs = ends[stage] - (ga * WEIGHTS * slower[stage] if schedule in SPLIT else 0.0)
        backward = (INPUT + (0 if schedule in SPLIT else WEIGHTS)) * slower[stage]
        tail = inputs if stage == pp - 1 or schedule in BOTH_ENDS else max(inputs, tail + backward)
        latest = max(latest, ends[stage], tail)
    return latest


@pytest.mark.parametrize("schedule", [*EXACT, *SPLIT])
@pytest.mark.parametrize(("pp", "ga"), rest_long([(4, 8), (6, 12), (2, 8), (4, 16)], 2))
@pytest.mark.parametrize(("slow", "factor"), [(0, 1.0), (0, 3.0), (1, 3.0), (-1, 3.0), (-1, 0.25), (0, 0.25)])
def test_bounds_are_those_of_the_proof(schedule: str, pp: int, ga: int, slow: int, factor: float) -> None:
    slow %= pp
    machines = hardware_table([read_hardware("H100-SXM")], None)
    layer = one_layer()._replace(compute_s=np.array([[FORWARD, INPUT, WEIGHTS]]))
    workload = workload_of(layer, step_pieces([]), [0] * pp, p2p_bytes=1.0)
    plan = make_plans(
        workload,
        tp=1,
        pp=pp,
        all_gpus=pp,
        ga=ga,
        schedule=SCHEDULES.index(schedule),
        straggler_stage=slow,
        straggler_factor=factor,
    )
    found = bounds(workload, machines, plan)
    assert found.step_time_s[0] == pytest.approx(bound_s(schedule, pp, ga, slow, factor), rel=2e-4)
    if schedule in EXACT and factor == 1:  # nothing is lost: (ga + pp - 1) passes
        step_s = simulate(workload, machines, plan).named()["step_time_s"][0]
        assert found.step_time_s[0] == pytest.approx(step_s, rel=2e-4)
