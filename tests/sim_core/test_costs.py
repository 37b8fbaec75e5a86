"""Collectives and sends against closed forms, in microseconds and with figures written out.

A ring or tree moves what its paper says; latencies are worked out by hand from NCCL's table for hops of 3.4 and 14 us.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from sim_core import hardware_table, read_hardware
from sim_core.compiled.jit import kernel
from sim_core.costing.collectives import (
    LL,
    LL128,
    PROTOCOLS,
    SIMPLE,
    Message,
    collective_s,
    message_of,
    nvls_s,
    nvls_tree_s,
    pat_s,
    ring_s,
    send_s,
    tree_s,
)
from sim_core.hardware.table import Device, device_at
from sim_core.planning.placement import Placement, crosses_nodes
from sim_core.workloads.workload import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
NVLINK, NVLINK_S, NIC, NIC_S = 400e9, 3.4e-6, 50e9, 14e-6
US = 1e-6
BIG = 1e12
"""Bytes so many that latency is nothing beside them."""
SMALL = 1e-3
"""Bytes so few that latency is all."""
PLAIN = device_at(hardware_table([read_hardware("H100-SXM")], None).columns, 0)._replace(
    nvlink_bandwidth=NVLINK, nvlink_latency=NVLINK_S, nic_bandwidth=NIC, nic_latency=NIC_S, ll128=False, pat=False, nvls=False,
    nvls_tree=False, nvls_efficiency=0.85, ll_bandwidth_one_node=1e12, ll_bandwidth_two_nodes=1e12,
    ll_bandwidth_more_nodes=1e12, net_overhead=1e-6, gpus_per_node=1, fabric_efficiency=1.0, shared_nics=False,
)  # fmt: skip
EVERYTHING = PLAIN._replace(ll128=True, pat=True, nvls=True, nvls_tree=True)


def group(ranks: int, nodes: int, per_node: int) -> Placement:
    return Placement(ranks=ranks, nodes=nodes, fewest=per_node, most=per_node)


def cost(kind: int, size: float, ranks: int, nodes: int, per_node: int, links: Device = PLAIN) -> float:
    return collective_s(kind, size, group(ranks, nodes, per_node), links)


@kernel
def message(kind: int, size: float, at: Placement, links: Device) -> Message:
    return message_of(kind, size, at, links)


def ring(kind: int, size: float, at: Placement, protocol: int, links: Device) -> float:
    return ring_s(kind, message(kind, size, at, links), at, protocol, links)


def tree(size: float, at: Placement, protocol: int, links: Device) -> float:
    return tree_s(message(ALL_REDUCE, size, at, links), at, protocol, links)


def nvls_tree(size: float, at: Placement, links: Device) -> float:
    return nvls_tree_s(message(ALL_REDUCE, size, at, links), at, links)


def pat(size: float, at: Placement, links: Device) -> float:
    return pat_s(message(ALL_GATHER, size, at, links), at, links)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ring_inside_a_node_moves_n_minus_1_over_n(ranks: int) -> None:
    """Patarasuk & Yuan 2009: all-reduce 2(n-1)/n, all-gather and reduce-scatter (n-1)/n of the bytes."""
    share = (ranks - 1) / ranks
    assert cost(ALL_REDUCE, BIG, ranks, 1, ranks) == pytest.approx(2 * share * BIG / NVLINK, rel=1e-3)
    assert cost(ALL_GATHER, BIG, ranks, 1, ranks) == pytest.approx(share * BIG / NVLINK, rel=1e-3)
    assert cost(REDUCE_SCATTER, BIG, ranks, 1, ranks) == pytest.approx(share * BIG / NVLINK, rel=1e-3)
    assert cost(ALL_TO_ALL, BIG, ranks, 1, ranks) == pytest.approx(share * BIG / NVLINK, rel=1e-3)


@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
def test_ring_over_nodes_is_bound_by_the_nics_its_ranks_share(per_node: int) -> None:
    """Each rank brings its NIC; NVLink binds once they are faster together."""
    nodes = 16
    ranks = nodes * per_node
    bandwidth = min(NVLINK, per_node * NIC)
    assert cost(ALL_GATHER, BIG, ranks, nodes, per_node) == pytest.approx((ranks - 1) / ranks * BIG / bandwidth, rel=1e-3)


def test_a_ring_is_bound_by_the_node_with_the_fewest_nics() -> None:
    straddling = Placement(ranks=9, nodes=2, fewest=1, most=8)
    assert collective_s(ALL_GATHER, BIG, straddling, PLAIN) == pytest.approx(8 / 9 * BIG / NIC, rel=1e-3)


def test_all_to_all_over_nodes_sends_all_but_the_node_s_own_share_by_nic() -> None:
    assert cost(ALL_TO_ALL, BIG, 32, 4, 8) == pytest.approx(24 / 32 * BIG / NIC, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_costs_nothing(kind: int) -> None:
    assert cost(kind, BIG, 1, 1, 1, EVERYTHING) == 0.0
    assert cost(kind, 0.0, 8, 1, 8, EVERYTHING) == 0.0


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes", "expected_us"),
    [
        (ALL_GATHER, 8, 1, (6.6 + 7 * 0.6, 14 + 7 * 1.9, 8.4 + 7 * 3.4)),
        (ALL_REDUCE, 8, 1, (6.6 + 14 * 0.6, 14 + 14 * 1.9, 8.4 + 14 * 3.4)),
        # between nodes every step posts to the network: 1 us, 3 in Simple, where the hop of 3.4 hides it
        # and those of LL128 were measured to take twice what NCCL has
        (REDUCE_SCATTER, 32, 4, (6.6 + 28 * 1 + 3 * 2.7, 14 + 2 * (28 * 1.9 + 3 * 4), 8.4 + 28 * 3.4 + 3 * 14)),
        (ALL_REDUCE, 32, 4, (6.6 + 56 * 1 + 6 * 2.7, 14 + 2 * (56 * 1.9 + 6 * 4), 1.4 * (8.4 + 56 * 3.4 + 6 * 14))),
        # with one rank on each node, the hops of a tree
        (ALL_GATHER, 16, 16, (6.6 + 15 * 5, 14 + 2 * 15 * 8.5, 8.4 + 15 * 14)),
    ],
)
def test_a_ring_s_latency(kind: int, ranks: int, nodes: int, expected_us: tuple[float, float, float]) -> None:
    for protocol, expected in zip(PROTOCOLS, expected_us, strict=True):
        found = ring(kind, SMALL, group(ranks, nodes, ranks // nodes), protocol, PLAIN)
        assert found / US == pytest.approx(expected, rel=1e-6)


def test_hosts_with_slow_posts_slow_a_ring_between_nodes() -> None:
    """2 us: two a step in LL, six in Simple, more than its hop."""
    slow = PLAIN._replace(net_overhead=2e-6)
    assert ring(ALL_GATHER, SMALL, group(32, 4, 8), LL, slow) / US == pytest.approx(6.6 + 28 * 2 + 3 * 2.7, rel=1e-6)
    assert ring(ALL_GATHER, SMALL, group(32, 4, 8), SIMPLE, slow) / US == pytest.approx(8.4 + 28 * 6 + 3 * 14, rel=1e-6)
    assert ring(ALL_GATHER, SMALL, group(8, 1, 8), SIMPLE, slow) / US == pytest.approx(8.4 + 7 * 3.4, rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "nodes", "expected_us"),
    [
        (8, 1, (6.8 + 14 * 0.6, 14 + 14 * 1.25, 8.4 + 14 * 4)),
        (16, 2, (6.8 + 14 * 0.6 + 2 * 5, 14 + 14 * 1.25 + 2 * 8.5, 8.4 + 14 * 4 + 2 * 14)),
        (40, 5, (6.8 + 14 * 0.6 + 6 * 5, 14 + 14 * 1.25 + 6 * 8.5, 8.4 + 14 * 4 + 6 * 14)),  # 3 levels
        (512, 512, (6.8 + 18 * 5, 14 + 18 * 8.5, 8.4 + 18 * 14)),
    ],
)
def test_a_tree_s_latency(ranks: int, nodes: int, expected_us: tuple[float, float, float]) -> None:
    """Up and down a chain in the node and the levels between them."""
    for protocol, expected in zip(PROTOCOLS, expected_us, strict=True):
        found = tree(SMALL, group(ranks, nodes, ranks // nodes), protocol, PLAIN)
        assert found / US == pytest.approx(expected, rel=1e-6)


def test_the_smallest_all_reduce_is_a_tree_in_ll() -> None:
    """25.2 and 35.2 us; measured on 2 and 4 nodes of H100 with InfiniBand: 24.7 and 34.7 (NVIDIA/nccl-tests issue 309)."""
    assert cost(ALL_REDUCE, SMALL, 16, 2, 8, EVERYTHING) / US == pytest.approx(25.2, rel=1e-6)
    assert cost(ALL_REDUCE, SMALL, 32, 4, 8, EVERYTHING) / US == pytest.approx(35.2, rel=1e-6)


def sends(nodes: int) -> int:
    """Halves of the message that the busiest node sends in an all-reduce on two complementary binary trees.

    The tree in the order of its numbers: the parent of a node is one step of its lowest set bit away, so that odd nodes are
    leaves; and the same tree of the nodes shifted by one, in which the even ones are.
    """
    sent: Counter[int] = Counter()
    for shift in (0, 1):
        for node in range(1, nodes):
            low = node & -node
            parent = (node ^ low) | (low << 1)
            parent = parent if parent < nodes else node ^ low
            sent[(node + shift) % nodes] += 1  # up
            sent[(parent + shift) % nodes] += 1  # down
    return max(sent.values())


@pytest.mark.parametrize("nodes", [2, 4, 6, 8, 16, 30, 64])
def test_a_tree_sends_what_two_complementary_trees_send(nodes: int) -> None:
    """Sanders, Speck & Traeff 2009: at most twice the message from any node; of two nodes, once."""
    moved = sends(nodes) / 2
    assert moved == (1 if nodes == 2 else 2)
    expected = moved * BIG / (8 * 0.25 * NIC) / 0.92
    slow = PLAIN._replace(nic_bandwidth=0.25 * NIC)
    assert tree(BIG, group(8 * nodes, nodes, 8), SIMPLE, slow) == pytest.approx(expected, rel=1e-3)


def test_inside_a_node_a_tree_is_a_chain() -> None:
    """Each GPU sends the message up and down over its NVLink."""
    assert tree(BIG, group(8, 1, 8), SIMPLE, PLAIN) == pytest.approx(2 * BIG / NVLINK / 0.92, rel=1e-3)


def test_two_nodes_reduce_faster_than_their_nics_carry_a_ring() -> None:
    """2 x A100 with four 100 Gb/s NICs: measured bus bandwidth 1.57 x that of the NICs (EFA)."""
    nics = 4 * 12.5e9
    slow = PLAIN._replace(nic_bandwidth=nics / 8)
    seconds = cost(ALL_REDUCE, BIG, 16, 2, 8, slow)
    assert 2 * 15 / 16 * BIG / seconds / nics == pytest.approx(2 * 15 / 16 * 0.92, rel=1e-3)


def test_medium_trees_carry_part_of_their_bandwidth() -> None:
    """1 MiB in LL128: 0.6 of it; between the sizes of the table, between its figures."""
    carried = 0.92 * 120 / 128 * 8 * NIC / 2
    latency_s = tree(SMALL, group(32, 4, 8), LL128, PLAIN)
    for size, part in ((2**20, 0.6), (2**22, 0.8), (2**22 / 2**0.5, 0.7), (2**40, 1.0)):
        assert tree(size, group(32, 4, 8), LL128, PLAIN) - latency_s == pytest.approx(size / carried / part, rel=1e-6)


NCCL_TENTHS = (
    "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10 10 10 10",
    "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10 10",
    "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9 9",
)
"""treeCorrectionFactor of LL, LL128 and Simple at 64 B, 128 B, ... 256 MiB (NVIDIA/nccl v2.18, src/graph/tuning.cc)."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_trees_carry_the_part_that_nccl_says_at_each_size(protocol: int) -> None:
    at = group(32, 4, 8)
    latency_s, whole_s = tree(SMALL, at, protocol, PLAIN), tree(2.0**60, at, protocol, PLAIN) / 2.0**60
    seconds = [tree(64.0 * 2**k, at, protocol, PLAIN) - latency_s for k in range(23)]
    carried = [64.0 * 2**k * whole_s / each for k, each in enumerate(seconds)]
    assert carried == pytest.approx([int(tenth) / 10 for tenth in NCCL_TENTHS[protocol].split()], rel=1e-3)


@pytest.mark.parametrize(("nodes", "most"), [(1, 30e9), (2, 20e9), (3, 10e9), (16, 10e9)])
def test_ll_carries_no_more_than_its_cap(nodes: int, most: float) -> None:
    capped = PLAIN._replace(ll_bandwidth_one_node=30e9, ll_bandwidth_two_nodes=20e9, ll_bandwidth_more_nodes=10e9)
    ranks = 8 * nodes
    share = (ranks - 1) / ranks
    assert ring(ALL_GATHER, BIG, group(ranks, nodes, 8), LL, capped) == pytest.approx(share * BIG / most, rel=1e-3)
    assert tree(BIG, group(ranks, nodes, 8), LL, capped) == pytest.approx(2 * BIG / most, rel=1e-3)
    assert ring(ALL_GATHER, BIG, group(ranks, nodes, 8), LL, PLAIN) == pytest.approx(share * BIG / NVLINK * 2, rel=1e-3)


def test_ll128_wins_between_ll_and_simple() -> None:
    """All-gather of 4 MB over 8 GPUs: 7 x 1.9 us and 0.92 of the bandwidth."""
    expected = (14 + 7 * 1.9) * US + 7 / 8 * 4e6 / (0.92 * NVLINK)
    assert cost(ALL_GATHER, 4e6, 8, 1, 8, PLAIN._replace(ll128=True, ll_bandwidth_one_node=1e9)) == pytest.approx(expected)
    without = (8.4 + 7 * 3.4) * US + 7 / 8 * 4e6 / NVLINK
    assert cost(ALL_GATHER, 4e6, 8, 1, 8, PLAIN._replace(ll_bandwidth_one_node=1e9)) == pytest.approx(without)
    assert expected < without


@pytest.mark.parametrize("ranks", [3, 5, 8, 72])
def test_nvls_moves_what_the_switch_does_not_hold(ranks: int) -> None:
    """Each GPU sends its part of all for the one who adds it up, and the sum that it was given, to all by one store."""
    sent = [0.0] * ranks
    for owner in range(ranks):
        for rank in range(ranks):
            sent[rank] += BIG / ranks
        sent[owner] += BIG / ranks
    expected = max(sent) / (0.85 * NVLINK)
    assert nvls_s(BIG, group(ranks, 1, ranks), PLAIN) == pytest.approx(expected, rel=1e-3)
    assert nvls_s(SMALL, group(ranks, 1, ranks), PLAIN) / US == pytest.approx(25, rel=1e-6)


@pytest.mark.parametrize(("preset", "first"), [("H100-SXM", 5), ("B200-SXM", 6)])
def test_nvls_takes_over_at_as_many_gpus_as_measured(preset: str, first: int) -> None:
    """Worth 3 % from 5 GPUs of H200 on as measured, from 6 of B200 on in the tuner of AWS (stas00/ml-engineering)."""
    links = device_at(hardware_table([read_hardware(preset)], None).columns, 0)
    rings = {n: ring(ALL_REDUCE, BIG, group(n, 1, n), SIMPLE, links) for n in range(2, 9)}
    assert [n for n in rings if cost(ALL_REDUCE, BIG, n, 1, n, links) < 0.97 * rings[n]] == list(range(first, 9))


def test_nvls_is_for_all_reduces_inside_one_node_of_more_than_two() -> None:
    on = PLAIN._replace(nvls=True)
    assert cost(ALL_REDUCE, BIG, 8, 1, 8, on) < 0.9 * cost(ALL_REDUCE, BIG, 8, 1, 8)
    for kind, ranks, nodes, per_node in ((ALL_GATHER, 8, 1, 8), (ALL_REDUCE, 2, 1, 2), (ALL_REDUCE, 16, 2, 8)):
        assert cost(kind, BIG, ranks, nodes, per_node, on) == cost(kind, BIG, ranks, nodes, per_node)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_nvls_tree_is_bound_by_the_switch_or_the_nics(nodes: int) -> None:
    """Inside it reaches 0.9 of NVLS; NICs send the message once between two nodes, twice between more."""
    at = group(8 * nodes, nodes, 8)
    moved = BIG if nodes == 2 else 2 * BIG
    inside_s = 9 / 8 * BIG / (0.9 * 0.85 * NVLINK)
    assert nvls_tree(BIG, at, PLAIN) == pytest.approx(max(inside_s, moved / (8 * NIC)), rel=1e-3)
    slow = PLAIN._replace(nic_bandwidth=1e9)
    assert nvls_tree(BIG, at, slow) == pytest.approx(moved / 8e9, rel=1e-3)
    levels = {2: 1, 4: 2, 16: 4}[nodes]
    assert nvls_tree(SMALL, at, PLAIN) / US == pytest.approx(25 + 2 * levels * 14, rel=1e-6)


def test_nvls_needs_time_until_all_stages_are_at_work() -> None:
    """50 us in one node, 100 us over several, of a message of whole chunks; half at 10 MB."""
    moved_s = 9 / 8 * 10e6 / (0.85 * NVLINK)
    assert nvls_s(10e6, group(8, 1, 8), PLAIN) == pytest.approx(25e-6 + moved_s + 25e-6)
    assert nvls_tree(10e6, group(16, 2, 8), PLAIN) == pytest.approx((25 + 28 + 50) * US + moved_s / 0.9)


@pytest.mark.parametrize(
    ("per_node", "stride", "share"), [(1, 1, 1.0), (8, 1, 0.9), (1, 8, 0.9), (2, 4, 0.9), (4, 1, 1 - 0.1 * 3 / 7)]
)
def test_nics_that_are_used_at_once_reach_less(per_node: int, stride: int, share: float) -> None:
    """Groups side by side count: of a data-parallel group of one GPU a node, all eight NICs send at once."""
    busy = PLAIN._replace(fabric_efficiency=0.9, gpus_per_node=8, nic_bandwidth=1e9)
    at = Placement(ranks=4 * per_node, nodes=4, fewest=per_node, most=per_node, stride=stride)
    moved = (at.ranks - 1) / at.ranks * BIG
    assert collective_s(ALL_GATHER, BIG, at, busy) == pytest.approx(moved / (per_node * share * 1e9), rel=1e-3)


def test_nvls_tree_needs_as_many_ranks_on_each_node() -> None:
    on = PLAIN._replace(nvls_tree=True)
    assert cost(ALL_REDUCE, BIG, 16, 2, 8, on) < 0.99 * cost(ALL_REDUCE, BIG, 16, 2, 8)
    uneven = Placement(ranks=15, nodes=2, fewest=7, most=8)
    assert collective_s(ALL_REDUCE, BIG, uneven, on) == collective_s(ALL_REDUCE, BIG, uneven, PLAIN)
    assert cost(ALL_REDUCE, BIG, 4, 2, 2, on) == cost(ALL_REDUCE, BIG, 4, 2, 2)


@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER])
def test_pat_takes_a_logarithm_of_steps(kind: int) -> None:
    """128 nodes with one rank each: 7 steps of 14 / 3.5 us, and 2.8 for each rank."""
    on = PLAIN._replace(pat=True)
    expected = 8 + 7 * 4 + 128 * 2.8
    assert cost(kind, SMALL, 128, 128, 1, on) / US == pytest.approx(expected, rel=1e-6)
    assert cost(kind, SMALL, 128, 128, 1) / US == pytest.approx(6.6 + 127 * 5, rel=1e-6)
    assert pat(BIG, group(128, 128, 1), on) == pytest.approx(BIG / (0.75 * NIC), rel=1e-3)
    assert cost(kind, SMALL, 128, 64, 2, on) == cost(kind, SMALL, 128, 64, 2)  # only with one rank on each node
    assert cost(ALL_REDUCE, SMALL, 128, 128, 1, on) == cost(ALL_REDUCE, SMALL, 128, 128, 1)


@given(
    st.sampled_from(KINDS),
    st.floats(1, 1e11),
    st.integers(1, 8),
    st.integers(1, 300),
    st.floats(1.0, 8.0),
    st.booleans(),
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_more_bandwidth_is_never_slower_more_bytes_never_faster(
    kind: int, size: float, per_node: int, nodes: int, factor: float, nvlink: bool, on: tuple[bool, bool, bool, bool]
) -> None:
    ranks = per_node * nodes
    switches = dict(zip(("ll128", "pat", "nvls", "nvls_tree"), on, strict=True))
    links = PLAIN._replace(**switches)
    before = cost(kind, size, ranks, nodes, per_node, links)
    key = "nvlink_bandwidth" if nvlink else "nic_bandwidth"
    wider = cost(kind, size, ranks, nodes, per_node, links._replace(**{key: getattr(links, key) * factor}))
    assert wider <= before * (1 + 1e-12)
    assert cost(kind, size * factor, ranks, nodes, per_node, links) >= before * (1 - 1e-12)
    assert before <= cost(kind, size, ranks, nodes, per_node, PLAIN) * (1 + 1e-12)  # a choice more is never slower


@given(st.floats(1, 1e11), st.booleans())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_send_is_latency_and_bytes(size: float, between: bool) -> None:
    expected = NIC_S + size / NIC if between else NVLINK_S + size / NVLINK
    assert send_s(size, between, PLAIN) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 64), st.integers(2, 16), st.sampled_from([4, 8]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_stages_on_one_node_talk_by_nvlink(stage_gpus: int, pp: int, gpus_per_node: int) -> None:
    for stage in range(pp - 1):
        ranks = range(stage * stage_gpus, (stage + 1) * stage_gpus)
        expected = any(rank // gpus_per_node != (rank + stage_gpus) // gpus_per_node for rank in ranks)
        assert crosses_nodes(stage, stage_gpus, gpus_per_node) == expected
