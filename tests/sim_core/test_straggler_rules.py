"""Which plans a straggler concerns: one that is as fast as the others is none, one that is faster is one as well."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import METRICS, REASONS, HardwareTable, Workload, simulate
from tests.conftest import make_plans


@pytest.mark.parametrize(
    ("factor", "stage", "reason"),
    [(1.0, 4, ""), (1.0, 9, ""), (0.9, 3, ""), (1.1, 3, ""), (0.9, 4, "straggler_beyond_pp"), (1.1, 4, "straggler_beyond_pp")],
)
def test_a_stage_that_no_plan_has_matters_only_if_it_is_slower_or_faster(
    gpt7b: Workload, h100: HardwareTable, factor: float, stage: int, reason: str
) -> None:
    plans = make_plans(pp=4, ga=8, straggler_factor=[1.0, factor], straggler_stage=[0, stage])
    found = simulate(gpt7b, h100, plans)
    assert [REASONS[code] for code in found.reason] == ["", reason]
    plain, other = found.metrics[METRICS.index("step_time_s")]
    if factor == 1:
        assert plain == other
    elif not reason:
        assert other > plain if factor > 1 else other <= plain, "where one is faster, the others are as slow as before"


@pytest.mark.parametrize("changed", [{"straggler_factor": 0.9}, {"straggler_factor": 1.1}, {"device_speed": 0.9}])
def test_simai_knows_no_unequal_devices(gpt7b: Workload, h100: HardwareTable, changed: dict[str, float]) -> None:
    """SimAI-Analytical has one compute time for all ranks; a stage named as straggler that is none changes nothing."""
    refused = simulate(gpt7b, h100, make_plans(fidelity=1, **changed))
    assert [REASONS[code] for code in refused.reason] == ["not_in_simai"]
    same = simulate(gpt7b, h100, make_plans(fidelity=1, straggler_stage=[0, 3]))
    assert [REASONS[code] for code in same.reason] == ["", ""]
    np.testing.assert_array_equal(same.metrics[:, 0], same.metrics[:, 1])
