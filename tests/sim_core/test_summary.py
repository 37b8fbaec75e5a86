"""What a workload holds, summed up by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import BasePlan, Traffic, summarize
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DP,
    DP_EP,
    EP,
    GATHER_PARAMETERS,
    NO_COMM,
    REDUCE_GRADIENTS,
    TP,
    Pieces,
)
from tests.oracle.cases import FIXED, Once, step_pieces, workload_of
from tests.oracle.step import EXPERT_PARAMETERS, PARAMETERS

PIECES = Pieces(
    unit=np.array([0, 0, 1, 2]),
    compute_s=np.array([[1.0, 2.0, 4.0], [0.5, 0.25, 0.125], [16.0, 32.0, 64.0], [3.0, 5.0, 7.0]]),
    comm_kind=np.array([[ALL_REDUCE, NO_COMM, NO_COMM], [ALL_TO_ALL, ALL_TO_ALL, NO_COMM], 3 * [NO_COMM], 3 * [ALL_REDUCE]]),
    comm_group=np.array([[TP, TP, TP], [EP, EP, EP], [TP, TP, TP], [TP, TP, TP]]),
    comm_bytes=np.array([[10.0, 0.0, 0.0], [7.0, 9.0, 0.0], [0.0, 0.0, 0.0], [100.0, 0.0, 300.0]]),
    comm_rule=np.zeros((4, 3), np.int64),
    rerun=np.zeros(4),
    rerun_s=np.zeros(4),
    attention_core=np.zeros(4, np.bool_),
    gradient_bytes=np.zeros(4),
)
STEP = [
    Once(REDUCE_GRADIENTS, ALL_REDUCE, DP, 800.0, PARAMETERS),
    Once(REDUCE_GRADIENTS, ALL_REDUCE, DP_EP, 80.0, EXPERT_PARAMETERS),
    Once(GATHER_PARAMETERS, ALL_GATHER, DP, 400.0, PARAMETERS),
    Once(AFTER_GRADIENTS, NO_COMM, TP, 0.0, FIXED, 0.75),
    Once(AFTER_GRADIENTS, ALL_REDUCE, TP, 4.0, FIXED, 0.5),
]


def test_a_stage_with_its_ends_is_summed_up() -> None:
    """Six layers of unit 0 on two stages: three on the recorded one, which has the units before and after them, too."""
    base = BasePlan(tp=2, pp=2, vpp=1, ep=2, all_gpus=8, ga=1, micro_batch=1)
    workload = workload_of(
        PIECES, step_pieces(STEP), [0] * 6, base=base, first_unit=1, last_unit=2, experts=4, gradient_width=2.0
    )
    found = summarize(workload)
    assert found.layers_per_stage == 3
    assert found.forward_s == 3 * 1.5 + 16 + 3
    assert found.backward_s == 3 * (6 + 0.375) + 96 + 12
    assert found.step_compute_s == 1.25
    assert (found.parameters_per_rank, found.expert_parameters_per_rank) == (400.0, 40.0)
    assert list(found.pieces) == [
        ("piece 0", 3, 3.0, 18.0),
        ("piece 1", 3, 1.5, 3 * 0.375),
        ("piece 2", 1, 16.0, 96.0),
        ("piece 3", 1, 3.0, 12.0),
    ]
    rows: list[tuple[Any, ...]] = [
        ("TP", "all-reduce", False, 3 + 2, 30.0 + 400.0),
        ("EP", "all-to-all", False, 6, 3 * 16.0),
        ("TP", "all-reduce", True, 1, 4.0),
        ("DP", "all-reduce", True, 1, 800.0),
        ("DP", "all-gather", True, 1, 400.0),
        ("DP_EP", "all-reduce", True, 1, 80.0),
    ]
    assert found.traffic == tuple(Traffic(group=g, collective=c, per_step=s, count=n, bytes=b) for g, c, s, n, b in rows)


def test_parameters_that_no_message_tells_are_not_known() -> None:
    found = summarize(workload_of(PIECES, step_pieces([]), [0, 0], first_unit=1, last_unit=2))
    assert (found.parameters_per_rank, found.expert_parameters_per_rank) == (None, None)


def test_parameters_of_gradients_that_stand_with_the_pieces() -> None:
    pieces = PIECES._replace(gradient_bytes=np.array([4.0, 8.0, 100.0, 1000.0]))
    found = summarize(workload_of(pieces, step_pieces([]), [0, 0], first_unit=1, layered=True))
    assert found.parameters_per_rank == pytest.approx((2 * 12.0 + 100.0) / 4)
