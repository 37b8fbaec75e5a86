"""A pipeline of one stage: nothing is sent, whatever the schedule, and the order of its blocks costs nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import SCHEDULES, HardwareTable, Workload, legality, plans, simulate


@pytest.mark.parametrize("overlap", [True, False])
def test_one_stage_takes_the_same_in_every_schedule(gpt7b: Workload, h100: HardwareTable, overlap: bool) -> None:
    """All forwards and backwards run on one device: their sum, with slow or fast links between stages that are not there."""
    allowed, steps = [], []
    for schedule in SCHEDULES:
        for vpp in (1, 2):
            grid = plans(gpt7b, pp=1, vpp=vpp, ga=8, schedule=schedule, overlap_pp=overlap, layer_split="balanced")
            if legality(gpt7b, h100, grid)[0][0] == 0:
                found = simulate(gpt7b, h100, grid).named()
                assert found["pp_exposed_s"][0] == 0, schedule
                assert found["pp_total_s"][0] == 0, schedule
                assert found["bubble_s"][0] == pytest.approx(0, abs=1e-9 * found["step_time_s"][0]), schedule
                allowed.append((schedule, vpp))
                steps.append(found["step_time_s"][0])
    assert {name for name, _ in allowed} >= {"gpipe", "1f1b"}
    np.testing.assert_allclose(steps, steps[0], rtol=0.02, err_msg="weight gradients that run apart are launched apart")
