"""Seconds of an all-to-all in two stages: between nodes, then inside them."""

from __future__ import annotations

from sim_core.costing.collectives import RING_BASE_S, SIMPLE, crosses_sockets
from sim_core.costing.fabric import leaving_s, nic_bandwidth
from sim_core.hardware.table import Links
from sim_core.jit import outer_kernel
from sim_core.planning.placement import Placement


@outer_kernel
def two_stage_s(size: float, at: Placement, links: Links) -> float:
    """An all-to-all in two stages, one after the other: among the ranks of the nodes that have the same place on theirs, then
    inside each node (Tutel's 2DH, arXiv 2206.03382, section 3.4; DeepSpeed-MoE, arXiv 2201.05596, section 5.2).

    A rank sends what it has for all ranks of a node to one of them: the same bytes over its NIC as `all_to_all_s`; inside, the
    bytes of all nodes. The inner stage has to copy before and after, which costs nothing here.
    """
    slowest = 0.0
    for here in (at.fewest, at.most):
        seconds = 0.0
        if at.nodes > 1:
            outside = size * (at.ranks - here) / at.ranks
            outside_s = max(outside / nic_bandwidth(at, links), size * leaving_s(at, links, False) / at.ranks)
            seconds += RING_BASE_S[SIMPLE] + (at.nodes - 1) * links.nic_latency + outside_s
        if here > 1:
            inside_s = size * (here - 1) / here / links.nvlink_bandwidth
            if crosses_sockets(at, links):
                far = max(here - links.gpus_per_socket / at.stride, 0.0)
                inside_s = max(inside_s, links.gpus_per_socket * size * far / here / links.socket_bandwidth)
            seconds += RING_BASE_S[SIMPLE] + (here - 1) * links.nvlink_latency + inside_s
        slowest = max(slowest, seconds)
    return slowest
