"""Collectives and sends against closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_core.costing.collectives import BASE_SIMPLE_S, collective_s, send_s
from sim_core.hardware.table import Links
from sim_core.planning.placement import Placement, crosses_nodes
from sim_core.workloads.workload import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER

KINDS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL)
NVLINK, NVLINK_S, NIC, NIC_S = 400e9, 3e-6, 50e9, 10e-6
BIG = 1e12
"""Bytes so many that latency is nothing beside them."""


def links(nvlink: float = NVLINK, nic: float = NIC) -> Links:
    return Links(nvlink_bandwidth=nvlink, nvlink_latency=NVLINK_S, nic_bandwidth=nic, nic_latency=NIC_S)


def cost(kind: int, size: float, ranks: int, nodes: int, per_node: int, nvlink: float = NVLINK, nic: float = NIC) -> float:
    at = Placement(ranks=ranks, nodes=nodes, fewest=per_node, most=per_node)
    return collective_s(kind, size, at, links(nvlink, nic))


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


def test_all_to_all_over_nodes_sends_all_but_the_node_s_own_share_by_nic() -> None:
    assert cost(ALL_TO_ALL, BIG, 32, 4, 8) == pytest.approx(24 / 32 * BIG / NIC, rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_costs_nothing(kind: int) -> None:
    assert cost(kind, BIG, 1, 1, 1) == 0.0
    assert cost(kind, 0.0, 8, 1, 8) == 0.0


def test_small_messages_cost_latency_not_bandwidth() -> None:
    """An empty-handed ring over 8 GPUs: under the Simple protocol's base + hops, but not free."""
    assert 0 < cost(ALL_GATHER, 1.0, 8, 1, 8) < BASE_SIMPLE_S + 7 * NVLINK_S


def test_a_tree_beats_a_ring_over_many_nodes_for_small_all_reduces() -> None:
    """2 * 511 hops of a ring against 2 * 9 levels of a tree."""
    assert cost(ALL_REDUCE, 1e6, 512, 512, 1) < 0.2 * 2 * 511 * NIC_S


@given(
    st.sampled_from(KINDS),
    st.floats(1, 1e11),
    st.integers(1, 8),
    st.integers(1, 300),
    st.floats(1.0, 8.0),
    st.booleans(),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_more_bandwidth_is_never_slower_more_bytes_never_faster(
    kind: int, size: float, per_node: int, nodes: int, factor: float, nvlink: bool
) -> None:
    ranks = per_node * nodes
    before = cost(kind, size, ranks, nodes, per_node)
    wider = cost(kind, size, ranks, nodes, per_node, NVLINK * (factor if nvlink else 1), NIC * (1 if nvlink else factor))
    assert wider <= before * (1 + 1e-12)
    assert cost(kind, size * factor, ranks, nodes, per_node) >= before * (1 - 1e-12)


@given(st.floats(1, 1e11), st.booleans())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_send_is_latency_and_bytes(size: float, between: bool) -> None:
    expected = NIC_S + size / NIC if between else NVLINK_S + size / NVLINK
    assert send_s(size, between, links()) == pytest.approx(expected, rel=1e-12)


@given(st.integers(1, 64), st.integers(2, 16), st.sampled_from([4, 8]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_stages_on_one_node_talk_by_nvlink(stage_gpus: int, pp: int, gpus_per_node: int) -> None:
    for stage in range(pp - 1):
        ranks = range(stage * stage_gpus, (stage + 1) * stage_gpus)
        expected = any(rank // gpus_per_node != (rank + stage_gpus) // gpus_per_node for rank in ranks)
        assert crosses_nodes(stage, stage_gpus, gpus_per_node) == expected
