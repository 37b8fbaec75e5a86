"""Bytes/s and hops among the GPUs of a node: through switches, over a link to each other GPU, or around a torus."""

from typing import Final

import numpy as np

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.hardware.table import Links
from sim_core.planning.placement import Placement

MESH: Final = 1
"""`link_axes` of a node whose GPUs have a link to each other one. 0: switches; from 2 on: axes of a torus."""
WRAPS_FROM: Final = (0, 0, 16, 4)
"""Chips of an axis from which a torus of 2, of 3 axes goes round: 2D pods of 16 x 16, 3D ones made of cubes of 4 x 4 x 4
(jax-ml.github.io/scaling-book, "TPUs", appendix of the specifications)."""


@inner_kernel
def crosses_sockets(at: Placement, links: Links) -> bool:
    """Whether some of its ranks in one node are on different sockets (groups are taken to begin at a socket's first GPUs)."""
    return 0 < links.gpus_per_socket <= (at.most - 1) * at.stride


@inner_kernel
def _side(links: Links) -> float:
    """Chips of an axis of the torus, all axes taken equal; whole where it nearly is."""
    side = links.gpus_per_node ** (1.0 / links.link_axes)
    return float(np.rint(side)) if abs(side - np.rint(side)) < 1e-6 else side


@inner_kernel
def goes_round(links: Links) -> bool:
    """Whether the axes of the torus are closed to rings."""
    return _side(links) >= WRAPS_FROM[min(links.link_axes, len(WRAPS_FROM) - 1)]


@inner_kernel
def _extent(ranks: int, at: Placement, axis: int, links: Links) -> float:
    """Chips of an axis over which `ranks` of a group lie: axis k holds distances from side^k to side^(k+1)."""
    side = _side(links)
    below = side**axis
    return max(min(ranks * at.stride, below * side) / max(float(at.stride), below), 1.0)


@outer_kernel
def linked_share(ranks: int, at: Placement, links: Links) -> float:
    """Part of a GPU's links that `ranks` of a group in a node have for themselves.

    On a mesh those to each other: (ranks - 1) of (GPUs of the node - 1). On a torus those of the axes along which the group
    lies: both links of an axis that it fills and that goes round, one of another.
    """
    if links.link_axes == 0 or ranks <= 1:
        return 1.0
    if links.link_axes == MESH:
        return (ranks - 1) / max(links.gpus_per_node - 1, 1)
    used = 0.0
    for axis in range(links.link_axes):
        extent = _extent(ranks, at, axis, links)
        if extent > 1.0 + 1e-9:
            used += 1.0 if goes_round(links) and extent > _side(links) - 1e-9 else 0.5
    return max(used, 0.5) / links.link_axes


@inner_kernel
def inside_bandwidth(at: Placement, links: Links) -> float:
    """Bytes/s of a ring's link inside a node; without bound for one rank on each. Groups side by side share what is
    between the sockets, which each ring crosses once in each direction."""
    if at.most <= 1:
        return np.inf
    if crosses_sockets(at, links):
        shared = links.socket_bandwidth / min(at.stride, links.gpus_per_socket)
        return min(links.nvlink_bandwidth, links.socket_bandwidth_one, shared)
    return links.nvlink_bandwidth * linked_share(at.most, at, links)


@outer_kernel
def hops_inside(ranks: int, at: Placement, links: Links) -> float:
    """Hops after which a byte has been at all ranks of a group on a torus: half way round each of its axes, or along it."""
    hops = 0.0
    for axis in range(links.link_axes):
        extent = _extent(ranks, at, axis, links)
        hops += extent / 2 if goes_round(links) and extent > _side(links) - 1e-9 else extent - 1.0
    return max(hops, 1.0)


@outer_kernel
def spread_s(size: float, ranks: int, at: Placement, links: Links) -> float:
    """Seconds in which each of `ranks` GPUs of a group in a node sends `size` bytes, evenly to all of them, itself as well.

    Through switches and on a mesh what goes to others passes once, each over its own link. On a torus it passes on: over a
    ring of L chips each byte goes L/4 links far in the mean, both ways, so an axis takes size x L / (8 x a link's bytes/s)
    (jax-ml.github.io/scaling-book, "Sharded matrices": a quarter of an all-gather), and twice that where it does not go round.
    Axes work at once, as bytes can take them in any order: the longest counts.
    """
    if links.link_axes <= MESH:
        return size * (ranks - 1) / ranks / (links.nvlink_bandwidth * linked_share(ranks, at, links))
    longest = 1.0
    for axis in range(links.link_axes):
        extent = _extent(ranks, at, axis, links)
        rings = goes_round(links) and extent > _side(links) - 1e-9
        longest = max(longest, extent if rings else 2 * extent)
    return size * longest / (8 * links.nvlink_bandwidth / (2 * links.link_axes))


@inner_kernel
def one_link(links: Links) -> float:
    """Bytes/s from a GPU to one other of its node."""
    if links.link_axes == 0:
        return links.nvlink_bandwidth
    if links.link_axes == MESH:
        return links.nvlink_bandwidth / max(links.gpus_per_node - 1, 1)
    return links.nvlink_bandwidth / (2 * links.link_axes)
