"""The seconds of every kind of group against explicit lists of ranks, one group at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import HardwareTable, Plans, hardware_table, read_hardware
from sim_core.costing.groups import EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD, Groups, group_plans, group_s
from sim_core.hardware.table import device_at
from sim_core.planning.placement import placements
from sim_core.terms import CP_A2A, CP_RING
from sim_core.workloads.workload import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, DP, DP_EP, EMBEDDING, EP, TP
from tests.conftest import make_plans

NODES = range(2, 9)
"""GPUs of a node."""
START_S = 8.4e-6
"""Of a message in NCCL's protocol Simple."""

Shape = tuple[int, int, int, int]
"""tp, ep, dp, pp."""


def shapes() -> Iterator[Shape]:
    """All small plans, and some whose groups cross several nodes."""
    for tp, ep, dp_of_ep, pp in itertools.product((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 6, 8), (1, 2, 3), (1, 2, 3)):
        if tp * ep * dp_of_ep * pp <= 96:
            yield tp, ep, ep * dp_of_ep, pp
    yield from ((1, 1, 40, 2), (1, 20, 40, 1), (3, 14, 28, 1), (7, 9, 9, 2), (1, 7, 49, 1))


def groups_of(shape: Shape) -> dict[int, list[list[int]]]:
    """The ranks of every group of each kind. Megatron's order: tp fastest, then dp with ep inside it, then pp."""
    tp, ep, dp, pp = shape
    number = np.arange(tp * dp * pp).reshape(pp, dp // ep, ep, tp)  # [stage, replica of the experts, expert, tensor]
    ends = number[[0, -1]] if pp > 1 else number[:1]
    return {
        TP: number.reshape(-1, tp).tolist(),
        EP: np.moveaxis(number, 2, -1).reshape(-1, ep).tolist(),
        DP: np.moveaxis(number.reshape(pp, dp, tp), 1, -1).reshape(-1, dp).tolist(),
        DP_EP: np.moveaxis(number, 1, -1).reshape(-1, dp // ep).tolist(),
        EMBEDDING: ends.reshape(len(ends), -1).T.tolist(),
    }


def held(ranks: list[int], gpus_per_node: int) -> tuple[int, ...]:
    """How many of a group's ranks lie on each of its nodes."""
    return tuple(len(list(on)) for _, on in itertools.groupby(sorted(rank // gpus_per_node for rank in ranks)))


@pytest.fixture(scope="module")
def table() -> HardwareTable:
    """A row for each size of a node."""
    node = read_hardware("H100-SXM")
    return hardware_table(
        [node.with_values({"gpus_per_node": size, "nics_per_node": size, "fabric_efficiency": 1}) for size in NODES], None
    )


@pytest.fixture(scope="module")
def placed(table: HardwareTable) -> tuple[Plans, list[Shape], Groups]:
    """All shapes on all nodes, at once as in a slice."""
    both = [(shape, row) for row in range(len(NODES)) for shape in shapes()]
    plans = make_plans(
        tp=[shape[0] for shape, _ in both],
        ep=[shape[1] for shape, _ in both],
        pp=[shape[3] for shape, _ in both],
        all_gpus=[shape[0] * shape[2] * shape[3] for shape, _ in both],
        hardware=[row for _, row in both],
    )
    return plans, [shape for shape, _ in both], group_plans(table.columns, plans, np.arange(len(both)))


@pytest.mark.parametrize("size", [2e3, 2e6, 2e9])
def test_an_all_to_all_is_as_slow_as_the_slowest_rank_of_any_group(
    table: HardwareTable, placed: tuple[Plans, list[Shape], Groups], size: float
) -> None:
    """Each rank sends size/n to each other: by NVLink to those on its node and by its NIC to the rest, at once. The first
    message takes a hop, each further one to another node a part: eight, or as many as a node has GPUs, are under way."""
    plans, made, groups = placed
    wrong = []
    for i, shape in enumerate(made):
        gpus_per_node, links = NODES[plans.hardware[i]], device_at(table.columns, plans.hardware[i])
        slowest = 0.0
        for on in {held(ranks, gpus_per_node) for ranks in groups_of(shape)[EP]}:
            ranks = sum(on)
            for mine in on if ranks > 1 else ():
                inside_s = size / ranks * (mine - 1) / links.nvlink_bandwidth
                outside_s = size / ranks * (ranks - mine) / links.nic_bandwidth
                if max(on) > 1:  # half of what filling takes at 10 MB
                    inside_s += 25e-6 * max(on) * size / (max(on) * size + ranks * 10e6)
                hops_s = (max(on) > 1) * links.nvlink_latency
                if ranks > mine:
                    hops_s += (1 + (ranks - mine - 1) / min(gpus_per_node, 8)) * links.nic_latency
                slowest = max(slowest, START_S + hops_s + max(inside_s, outside_s))
        found = group_s(groups, groups.key[i], links, ALL_TO_ALL, EP, size)
        if found != pytest.approx(slowest, rel=1e-12):
            wrong.append((shape, gpus_per_node, found / slowest))
    assert not wrong, f"{len(wrong)} of {len(made)}, such as {min(wrong, key=lambda one: one[2])}"


def test_groups_are_placed_where_the_rank_order_puts_them(placed: tuple[Plans, list[Shape], Groups]) -> None:
    """Of each kind, every (nodes, fewest, most ranks on a node) that some group has, and no other."""
    plans, made, groups = placed
    for i, shape in enumerate(made):
        row, gpus_per_node = groups.key[i], NODES[plans.hardware[i]]
        for kind, lists in groups_of(shape).items():
            expected = {(len(on), min(on), max(on)) for on in (held(ranks, gpus_per_node) for ranks in lists)}
            found = [tuple(at) for at in groups.placed[groups.first[row, kind] : groups.end[row, kind]].tolist()]
            assert found == sorted(expected), (shape, gpus_per_node, kind)
            assert groups.ranks[row, kind] == len(lists[0])


def test_groups_are_alike_where_ranks_neighbours_and_placements_are(placed: tuple[Plans, list[Shape], Groups]) -> None:
    groups = placed[2]
    for kind in range(groups.alike.shape[1]):
        known: dict[tuple[int, int, bytes], int] = {}
        for row, (ranks, first, end) in enumerate(zip(groups.ranks, groups.first, groups.end, strict=True)):
            own = (int(ranks[kind]), int(groups.stride[row, kind]), groups.placed[first[kind] : end[kind]].tobytes())
            assert groups.alike[row, kind] == known.setdefault(own, row)
        assert len(known) > 10 or kind in (EMBEDDING, CP_A2A, CP_RING)  # of one rank here


@pytest.mark.parametrize("whole", [False, True])
def test_state_is_divided_among_neighbours_of_dp(table: HardwareTable, whole: bool) -> None:
    """Every group of SHARD, REPLICA and of the same for experts, whose ranks with `whole` span tp, as a list of ranks."""
    made = [(shape, shard) for shape in shapes() for shard in range(1, shape[2] + 1) if shape[2] % shard == 0][::3]
    made = [(shape, shard) for shape, shard in made if (shard * (shape[0] if whole else 1)) % shape[1] == 0]
    plans = make_plans(
        tp=[shape[0] for shape, _ in made],
        ep=[shape[1] for shape, _ in made],
        pp=[shape[3] for shape, _ in made],
        all_gpus=[shape[0] * shape[2] * shape[3] for shape, _ in made],
        dp_shard=[shard for _, shard in made],
        hardware=len(NODES) - 1,
    )
    groups = group_plans(table.columns, plans, np.arange(len(made)), whole)
    for i, ((tp, ep, dp, pp), shard) in enumerate(made):
        number = np.arange(tp * dp * pp)
        dense = number.reshape(pp, dp // shard, shard, tp)  # [stage, replica, shard, tensor]
        inside = 1 if whole else tp
        mine = shard * tp // inside // ep
        experts = number.reshape(pp, -1, mine, ep, inside)  # [stage, replica, shard, expert, tensor]
        expected = {
            SHARD: np.moveaxis(dense, 2, -1).reshape(-1, shard),
            REPLICA: np.moveaxis(dense, 1, -1).reshape(-1, dp // shard),
            EXPERT_SHARD: np.moveaxis(experts, 2, -1).reshape(-1, mine),
            EXPERT_REPLICA: np.moveaxis(experts, 1, -1).reshape(-1, experts.shape[1]),
        }
        row = groups.key[i]
        for kind, ranks in expected.items():
            lie = {(len(on), min(on), max(on)) for on in (held(one, NODES[-1]) for one in ranks.tolist())}
            found = [tuple(at) for at in groups.placed[groups.first[row, kind] : groups.end[row, kind]].tolist()]
            assert (found, groups.ranks[row, kind]) == (sorted(lie), ranks.shape[1]), (made[i], kind)


RINGS = [
    (1, 1, 64, 64, (DP, SHARD)),
    (2, 1, 64, 64, (DP, SHARD)),
    (4, 1, 64, 64, (DP, SHARD)),
    (8, 1, 64, 64, (DP, SHARD)),
    (16, 1, 64, 64, (DP, SHARD)),  # a tensor-parallel group over two nodes
    (2, 8, 64, 64, (DP, DP_EP, EXPERT_SHARD)),
    (4, 1, 64, 16, (SHARD, REPLICA)),  # hybrid sharding
    (2, 4, 64, 16, (EXPERT_SHARD, EXPERT_REPLICA)),
]
"""tp, ep, dp, ranks that divide the state, and the kinds of group that are rings over all nodes then."""


@pytest.mark.parametrize(("tp", "ep", "dp", "shard", "kinds"), RINGS)
@pytest.mark.parametrize("nics", [1, 8])
def test_rings_side_by_side_take_all_nics_of_a_node(
    tp: int, ep: int, dp: int, shard: int, kinds: tuple[int, ...], nics: int
) -> None:
    """All groups of a kind send at once: together, each node's rings carry (n-1)/n of their messages out, and all its NICs
    reach `fabric_efficiency` of what each reaches alone. Counted over the GPUs of a node, whichever group each is of."""
    hardware = read_hardware("H100-SXM").with_values({"nics_per_node": nics, "fabric_efficiency": 0.8, "pat": False})
    table = hardware_table([hardware], None)
    plans = make_plans(tp=tp, ep=ep, pp=1, all_gpus=tp * dp, dp_shard=shard)
    groups, links = group_plans(table.columns, plans, np.zeros(1, np.int64)), device_at(table.columns, 0)
    node = nics * hardware.value("nic_bandwidth") * hardware.value("nic_efficiency") * 0.8
    size = 1e13
    members = {
        DP: dp, DP_EP: dp // ep, SHARD: shard, REPLICA: dp // shard, EXPERT_SHARD: shard // ep, EXPERT_REPLICA: dp // shard
    }  # fmt: skip
    apart = {DP: tp, DP_EP: tp * ep, SHARD: tp, REPLICA: tp * shard, EXPERT_SHARD: tp * ep, EXPERT_REPLICA: tp * shard}
    for kind in kinds:
        rings = {gpu % apart[kind] for gpu in range(8)}  # on the first node
        for collective, passes in ((ALL_GATHER, 1), (ALL_REDUCE, 2)):
            out = len(rings) * passes * size * (members[kind] - 1) / members[kind]
            found = group_s(groups, 0, links, collective, kind, size)
            assert found == pytest.approx(out / node, rel=1e-3), (kind, collective)


def test_the_embeddings_of_two_stages_meet_over_the_nics_of_one() -> None:
    """Three stages of 4 GPUs on nodes of 8: four GPUs of the first node send, the other four belong to the second stage."""
    hardware = read_hardware("H100-SXM").with_values({"fabric_efficiency": 0.8, "pat": False})
    table = hardware_table([hardware], None)
    plans = make_plans(tp=4, pp=3, all_gpus=12)
    groups, links = group_plans(table.columns, plans, np.zeros(1, np.int64)), device_at(table.columns, 0)
    nic = hardware.value("nic_bandwidth") * hardware.value("nic_efficiency") * (1 - 0.2 * 3 / 7)
    assert group_s(groups, 0, links, ALL_GATHER, EMBEDDING, 1e13) == pytest.approx(0.5e13 / nic, rel=1e-3)


def lists(ranks: int, stride: int, starts: int, block: int, blocks: int) -> list[list[int]]:
    return [[b * block + t + k * stride for k in range(ranks)] for b in range(blocks) for t in range(starts)]


@given(st.integers(1, 9), st.integers(1, 200), st.integers(1, 3), st.sampled_from([1, 2, 3, 5, 6, 8, 12, 72]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_stride_is_placed_as_counted(stride: int, ranks: int, blocks: int, gpus_per_node: int) -> None:
    kind = (ranks, stride, stride, stride * ranks, blocks)
    expected = {(len(on), min(on), max(on)) for on in (held(own, gpus_per_node) for own in lists(*kind))}
    assert {tuple(at) for at in placements(*kind, gpus_per_node).tolist()} == expected


def test_odd_tensor_groups_straddle_nodes() -> None:
    """tp 3 on nodes of 8: 0-2, 3-5, 6-8, 9-11, 12-14, 15-17: on one node, 2 + 1, or 1 + 2, which costs the same."""
    assert placements(3, 1, 1, 3, 5, 8).tolist() == [[1, 3, 3], [2, 1, 2]]
    assert placements(3, 1, 1, 3, 2, 8).tolist() == [[1, 3, 3]]  # with two groups, none straddles
    assert placements(16, 4, 4, 64, 1, 72).tolist() == [[1, 16, 16]]  # all in one rack of 72


def test_a_group_of_a_billion_is_placed_at_once() -> None:
    """Stride 3 on nodes of 8, and a million blocks: counted in rounds, not rank by rank."""
    ranks = 2**30
    assert placements(ranks, 3, 3, 3 * ranks, 1, 8).tolist() == [[3 * ranks // 8, 2, 3]]
    assert placements(2**10, 3, 3, 3 * 2**10, 2**20, 8).tolist() == [[384, 2, 3]]
    assert placements(7, 1, 1, 7, 2**40, 65_536).tolist() == [[1, 7, 7], [2, 1, 6], [2, 2, 5], [2, 3, 4]]
