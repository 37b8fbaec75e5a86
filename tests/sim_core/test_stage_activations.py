"""Activations in flight: as many micro-batches as fill a pipeline tell as much as all."""

from __future__ import annotations

import itertools

import numpy as np

from sim_core.costing.in_flight import count_in_flight
from sim_core.costing.stage_activations import micro_batches_to_fill
from sim_core.engine.codes import DEEPSPEED, GPIPE, ONE_F_ONE_B, row_of
from sim_core.engine.schedule import fill_order
from tests.conftest import make_plans


def counted(schedule: int, pp: int, vpp: int, ga: int, group: int) -> list[int]:
    """Micro-batches of each chunk of each stage when the stage keeps the most."""
    order, found = np.empty(pp * row_of(schedule, vpp, ga), np.int64), np.zeros((1, 2, pp * vpp), np.int64)
    fill_order(schedule, pp, vpp, ga, group, order, order)
    count_in_flight(order, schedule, pp, vpp, ga, found)
    in_flight: list[int] = found[0, 0].tolist()
    return in_flight


def test_a_pipeline_that_is_full_keeps_no_more() -> None:
    fewer = 0
    for pp, vpp, more, ga in itertools.product((1, 2, 3, 5), (1, 2, 3), (None, 0, 1, 4), (1, 2, 3, 5, 7, 12, 20, 33, 64)):
        group = 0 if more is None else pp + more
        plans = make_plans(schedule=[ONE_F_ONE_B], pp=[pp], vpp=[vpp], ga=[ga], microbatch_group_size=[group])
        enough = int(micro_batches_to_fill(plans, np.zeros(1, np.int64))[0])
        assert enough <= ga
        fewer += enough < ga
        assert counted(ONE_F_ONE_B, pp, vpp, enough, group) == counted(ONE_F_ONE_B, pp, vpp, ga, group)
        if vpp == 1:
            assert counted(DEEPSPEED, pp, 1, enough, group) == counted(DEEPSPEED, pp, 1, ga, group)
    assert fewer > 100


def test_gpipe_keeps_all() -> None:
    plans = make_plans(schedule=[GPIPE], pp=[2], vpp=[1], ga=[64], microbatch_group_size=[0])
    assert micro_batches_to_fill(plans, np.zeros(1, np.int64)).tolist() == [64]
