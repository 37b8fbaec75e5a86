"""All-to-alls by counting messages, with PXN and without; how far apart the ranks of a group are, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import collective_seconds, hardware_table, read_hardware
from sim_core.costing.collectives import RING_BASE_S, SIMPLE
from sim_core.costing.groups import group_plans
from sim_core.terms import DP, DP_EP, EP, TP
from tests.conftest import make_plans
from tests.oracle.groups import Grid, side_by_side

GPUS = 4
"""Of a node."""


def messages(ranks: int, nodes: int, *, pxn: bool) -> tuple[int, int]:
    """The most that one rank sends, by NVLink and by its NIC: to each rank one, or with PXN to each remote node one."""
    place = [rank * nodes // ranks for rank in range(ranks)]
    most = (0, 0)
    for mine in range(ranks):
        inside = [other for other in range(ranks) if other != mine and place[other] == place[mine]]
        outside = [place[other] if pxn else other for other in range(ranks) if place[other] != place[mine]]
        most = max(most, (len(inside), len(set(outside))))
    return most


@pytest.mark.parametrize("pxn", [True, False])
@pytest.mark.parametrize(("ranks", "nodes"), [(4, 1), (8, 2), (16, 4), (4, 4), (2, 2)])
def test_short_all_to_alls_take_a_latency_for_each_message(ranks: int, nodes: int, pxn: bool) -> None:
    """NVIDIA technical blog "Doubling all2all Performance with NCCL 2.12" (2022): PXN joins what goes to one node."""
    latency = {"nvlink_latency": "2 us", "nic_latency": "50 us"}
    hardware = read_hardware("H100-SXM").with_values({"gpus_per_node": GPUS, "nics_per_node": GPUS, "pxn": pxn, **latency})
    inside, outside = messages(ranks, nodes, pxn=pxn)
    expected = RING_BASE_S[SIMPLE] + inside * 2e-6 + outside * 50e-6
    assert collective_seconds("all_to_all", [1.0], ranks, nodes, hardware)[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 4, 16), (2, 1, 4, 8), (2, 2, 2, 8), (1, 1, 2, 32), (4, 1, 8, 16), (1, 2, 3, 6)])
def test_ranks_of_a_group_are_as_far_apart_as_in_their_list(shape: tuple[int, int, int, int]) -> None:
    """`stride` is the number of GPUs from one rank of a group to its next one, in a list of all ranks; at most a node's."""
    tp, pp, ep, dp = shape
    grid = Grid(tp, pp, ep, dp)
    columns = hardware_table([read_hardware("H100-SXM")], None).columns
    groups = group_plans(columns, make_plans(tp=tp, pp=pp, ep=ep, all_gpus=tp * pp * dp), np.zeros(1, np.int64))
    for kind in (TP, EP, DP, DP_EP):
        ranks = grid.groups(kind)[0]
        if len(ranks) > 1:
            assert groups.stride[0, kind] == min(side_by_side(grid, kind, ranks, 8), 8), kind
