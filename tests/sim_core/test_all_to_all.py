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


def rounds(messages: int, at_once: int) -> int:
    """In how many turns messages are sent of which so many are under way at once, counted."""
    turns = 0
    while messages > 0:
        messages -= min(messages, at_once)
        turns += 1
    return turns


@pytest.mark.parametrize("pxn", [True, False])
@pytest.mark.parametrize(("ranks", "nodes"), [(4, 1), (2, 1), (2, 2), (5, 5), (9, 9), (8, 2), (16, 4), (4, 4), (48, 12)])
def test_short_all_to_alls_are_posted_together(ranks: int, nodes: int, pxn: bool) -> None:
    """A hop of NVLink for all neighbours; messages to other nodes in rounds of as many as a node has GPUs, without steps in
    between. Without PXN one after another."""
    latency = {"nvlink_latency": "2 us", "nic_latency": "50 us"}
    hardware = read_hardware("H100-SXM").with_values({"gpus_per_node": GPUS, "nics_per_node": GPUS, "pxn": pxn, **latency})
    remote = ranks - ranks // nodes
    start_s = RING_BASE_S[SIMPLE] + (2e-6 if ranks > nodes else 0.0)
    found = (collective_seconds("all_to_all", [1.0], ranks, nodes, hardware)[0] - start_s) / 50e-6
    if not pxn or not remote:
        assert found == pytest.approx(remote, abs=1e-6)
        return
    turns = rounds(remote, GPUS)
    assert turns - 1e-6 <= found < turns + 1
    assert (remote - 1) % GPUS or found == pytest.approx(turns, abs=1e-6)


MEASURED = (
    *((8, 1, 2**20, 16.18), (4, 1, 2**20, 16.91), (8, 1, 2**22, 26.4), (8, 1, 2**25, 126.6), (2, 1, 2**22, 21.37)),
    *((10, 10, 33554400, 762.45), (20, 10, 33554240, 777.19), (40, 10, 33553920, 845.22), (80, 10, 33553920, 970.33)),
)
"""H100s: ranks, nodes, bytes, us (ai-dynamo/aiconfigurator 095f58a; xxrjun/nccl-tests-cluster 455de4f, ten nodes)."""


@pytest.mark.parametrize(("ranks", "nodes", "size", "us"), MEASURED)
def test_all_to_alls_of_h100s_take_as_long_as_measured(ranks: int, nodes: int, size: int, us: float) -> None:
    """With a hop for each neighbour and node those inside took up to 2.2 times as long, few GPUs of ten nodes 1.13 times."""
    found = collective_seconds("all_to_all", [size], ranks, nodes, read_hardware("H100-SXM"))[0] * 1e6
    assert found == pytest.approx(us, rel=0.2 if nodes == 1 else 0.11)


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
