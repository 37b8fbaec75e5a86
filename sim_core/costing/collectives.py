"""Seconds of one collective or send: an alpha-beta model of NCCL's ring, tree and all-to-all over NVLink and NICs.

Latency terms follow NCCL's own tuning model (NVIDIA/nccl, src/graph/tuning.cc, v2.12): base + steps inside nodes * NVLink
hop + steps between nodes * network hop, in a low-latency protocol (LL: short hops, a quarter of the bandwidth) and a
bandwidth one (Simple); the faster is taken, as NCCL does. Bandwidth terms are the classical ones: a ring moves
2(n-1)/n of the bytes over its slowest link for an all-reduce, (n-1)/n for all-gather and reduce-scatter
(Patarasuk & Yuan 2009, section 3).
"""

from __future__ import annotations

from typing import Final

from sim_core.hardware.table import Links
from sim_core.jit import inner_kernel
from sim_core.planning.placement import Placement
from sim_core.workloads.workload import ALL_REDUCE, ALL_TO_ALL, SEND_RECEIVE

BASE_SIMPLE_S: Final = 8.4e-6
BASE_LL_S: Final = 3.6e-6
"""Start of a ring in NCCL's protocols: baseLat of tuning.cc."""
LL_NVLINK_HOP: Final = 0.47 / 3.4
LL_NETWORK_HOP: Final = 2.7 / 9.6
"""A hop in LL over one in Simple: hwLat of tuning.cc."""
LL_BANDWIDTH: Final = 0.25
TREE_BANDWIDTH: Final = 0.9
"""Part of the ring's bus bandwidth that LL and the tree reach: tuning.cc."""


@inner_kernel
def collective_s(
    kind: int,
    size: float,
    at: Placement,
    links: Links,
) -> float:
    """Seconds of a collective of `size` bytes (the whole group's tensor) in a group placed as `at`.

    Each of its ranks brings its share of the NICs. 0 for a group of one or an empty message.
    """
    ranks, nodes, per_node = at.ranks, at.nodes, at.fewest
    if ranks <= 1 or size <= 0:
        return 0.0
    if kind == SEND_RECEIVE:
        return send_s(size, nodes > 1, links)
    if kind == ALL_TO_ALL:
        return _all_to_all_s(size, at, links)
    bandwidth = links.nvlink_bandwidth if nodes == 1 else min(links.nvlink_bandwidth, per_node * links.nic_bandwidth)
    passes = 2 if kind == ALL_REDUCE else 1
    outside = passes * (nodes - 1)
    inside = passes * (ranks - 1) - outside
    moved_s = passes * size * (ranks - 1) / ranks / bandwidth
    best = BASE_SIMPLE_S + inside * links.nvlink_latency + outside * links.nic_latency + moved_s
    low_latency = (
        BASE_LL_S
        + inside * links.nvlink_latency * LL_NVLINK_HOP
        + outside * links.nic_latency * LL_NETWORK_HOP
        + moved_s / LL_BANDWIDTH
    )
    best = min(best, low_latency)
    if kind == ALL_REDUCE and nodes > 1:
        depth = 0
        while (1 << depth) < nodes:
            depth += 1
        hops_s = 2 * ((ranks // nodes) * links.nvlink_latency + depth * links.nic_latency)
        best = min(best, BASE_SIMPLE_S + hops_s + 2 * size / (bandwidth * TREE_BANDWIDTH))
    return best


@inner_kernel
def _all_to_all_s(size: float, at: Placement, links: Links) -> float:
    """Each rank sends size/ranks to every other, by NVLink inside its node and by its share of the NICs outside, at once.

    One message to each remote node and one to each neighbour: NCCL gathers those to a node on one GPU first (PXN,
    NVIDIA technical blog "Doubling all2all Performance with NCCL 2.12", 2022). The slowest rank is one with the fewest
    neighbours, for the network, or one with the most, for NVLink: the cost is convex in their number.
    """
    slowest = 0.0
    for here in (at.fewest, at.most):
        inside_s = size * (here - 1) / at.ranks / links.nvlink_bandwidth
        outside_s = size * (at.ranks - here) / at.ranks / links.nic_bandwidth
        hops_s = (here - 1) * links.nvlink_latency + (at.nodes - 1) * links.nic_latency
        slowest = max(slowest, BASE_SIMPLE_S + hops_s + max(inside_s, outside_s))
    return slowest


@inner_kernel
def send_s(
    size: float,
    between_nodes: bool,
    links: Links,
) -> float:
    """Seconds of one point-to-point send of `size` bytes, all ranks of a node sending at once."""
    if size <= 0:
        return 0.0
    if between_nodes:
        return links.nic_latency + size / links.nic_bandwidth
    return links.nvlink_latency + size / links.nvlink_bandwidth
