"""Which plans a straggler concerns: one that is as fast as the others is none, one that is faster is one as well."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    SCHEDULES,
    HardwareTable,
    Workload,
    hardware_table,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.planning.columns import SPLITS
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


@pytest.mark.parametrize("contention", [0.15, 0.0])
@pytest.mark.parametrize("gathers", [1, 0])
def test_a_slower_stage_never_makes_a_step_faster(gathers: int, contention: float) -> None:
    """Not even where compute is slower beside gathers of parameters, which pass while other stages wait for it."""
    stack = read_stack("megatron-core").model_copy(update={"dp_contention": contention})
    workload = workload_from_model(read_model("llama3-8b", {}), stack, sequence_parallel=True)
    device = read_hardware("H100-SXM").with_values({"memory": "10 TB", "nic_bandwidth": "25 Gb/s"})
    factors = [1.0, 1.03, 1.1, 1.3]
    plans = make_plans(
        workload,
        tp=8, pp=5, all_gpus=120, micro_batch=1, ga=12, schedule=SCHEDULES.index("zb-h2"), overlap_grad=1, overlap_pp=1,
        overlap_param=gathers, overlap_tp=1, bucket_bytes=100_000_000, layer_split=SPLITS.index("balanced"),
        straggler_stage=[1] * len(factors), straggler_factor=factors,
    )  # fmt: skip
    found = simulate(workload, hardware_table([device], None), plans)
    assert [REASONS[code] for code in found.reason] == [""] * len(factors)
    assert (np.diff(found.metrics[METRICS.index("step_time_s")]) >= 0).all()
