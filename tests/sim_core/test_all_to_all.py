"""All-to-alls by counting messages, with PXN and without; how far apart the ranks of a group are, and what that costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from sim_core import collective_seconds, hardware_table, read_hardware
from sim_core.costing.collectives import RING_BASE_S, SIMPLE, all_to_all_s, two_stage_s
from sim_core.costing.groups import EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD, group_plans
from sim_core.hardware.table import device_at
from sim_core.planning.placement import Placement
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


@pytest.mark.parametrize("ways", [all_to_all_s, two_stage_s])
@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (4, 2), (2, 4), (3, 2), (6, 1), (4, 1)])
def test_sockets_carry_what_their_gpus_send_to_the_other_one(ways: Callable[..., float], ranks: int, stride: int) -> None:
    """Two sockets of four GPUs, groups side by side: all that leaves one for the other goes over one link."""
    socket, size = 4, 1e12
    sent = sum(
        size / ranks
        for first in range(stride)
        for mine, other in itertools.permutations(range(first, first + ranks * stride, stride), 2)
        if other < socket <= mine
    )
    box = {"gpus_per_socket": socket, "socket_bandwidth": "15 GB/s", "socket_bandwidth_one": "12 GB/s"}
    links = device_at(hardware_table([read_hardware("H100-SXM").with_values(box)], None).columns, 0)
    inside_s = size * (ranks - 1) / ranks / links.nvlink_bandwidth
    at = Placement(ranks=ranks, nodes=1, fewest=ranks, most=ranks, stride=stride)
    assert ways(size, at, links) == pytest.approx(max(sent / 15e9, inside_s), rel=1e-3)


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


def test_copies_of_sharded_experts_are_as_far_apart_as_their_shards_reach() -> None:
    """HSDP on 32 GPUs with ep 2, state divided among 4: experts among ranks 0 and 2, of which the next copy is on 4 and 6."""
    columns = hardware_table([read_hardware("H100-SXM")], None).columns
    groups = group_plans(columns, make_plans(tp=1, ep=2, all_gpus=32, dp_shard=4), np.zeros(1, np.int64))
    apart = {kind: int(groups.stride[0, kind]) for kind in (SHARD, REPLICA, EXPERT_SHARD, EXPERT_REPLICA)}
    assert apart == {SHARD: 1, REPLICA: 4, EXPERT_SHARD: 2, EXPERT_REPLICA: 4}
