"""Bytes/s and hops among the GPUs of a node: through switches, over a link to each other GPU, or around a torus."""

from typing import Final

import numpy as np

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.hardware.table import Device
from sim_core.planning.placement import Placement

MESH: Final = 1
"""`link_axes` of a node whose GPUs have a link to each other one. 0: switches; from 2 on: axes of a torus."""
WRAPS_FROM: Final = (0, 0, 16, 4)
"""Chips of an axis from which a torus of 2, of 3 axes goes round: 2D pods of 16 x 16, 3D ones made of cubes of 4 x 4 x 4
(jax-ml.github.io/scaling-book, "TPUs", appendix of the specifications)."""


@inner_kernel
def crosses_sockets(at: Placement, device: Device) -> bool:
    """Whether some of its ranks in one node are on different sockets (groups are taken to begin at a socket's first GPUs)."""
    return 0 < device.gpus_per_socket <= (at.most - 1) * at.stride


@inner_kernel
def _side(device: Device) -> float:
    """Chips of an axis of the torus, all axes taken equal; whole where it nearly is."""
    side = device.gpus_per_node ** (1.0 / device.link_axes)
    return float(np.rint(side)) if abs(side - np.rint(side)) < 1e-6 else side


@inner_kernel
def _along(ranks: int, at: Placement, axis: int, device: Device) -> tuple[float, bool]:
    """Chips of an axis over which `ranks` of a group lie, and whether they are a ring: all of an axis that is closed to one.

    Axis k holds distances from side^k to side^(k+1).
    """
    side = _side(device)
    below = side**axis
    extent = max(min(ranks * at.stride, below * side) / max(float(at.stride), below), 1.0)
    closed = side >= WRAPS_FROM[min(device.link_axes, len(WRAPS_FROM) - 1)]
    return extent, closed and extent > side - 1e-9


@outer_kernel
def linked_share(ranks: int, at: Placement, device: Device) -> float:
    """Part of a GPU's links that `ranks` of a group in a node have for themselves.

    On a mesh those to each other: (ranks - 1) of (GPUs of the node - 1). On a torus those of the axes along which the group
    lies: both links of an axis that it fills and that goes round, one of another.
    """
    if device.link_axes == 0 or ranks <= 1:
        return 1.0
    if device.link_axes == MESH:
        return (ranks - 1) / max(device.gpus_per_node - 1, 1)
    used = 0.0
    for axis in range(device.link_axes):
        extent, ring = _along(ranks, at, axis, device)
        if extent > 1.0 + 1e-9:
            used += 1.0 if ring else 0.5
    return max(used, 0.5) / device.link_axes


@inner_kernel
def inside_bandwidth(at: Placement, device: Device) -> float:
    """Bytes/s of a ring's link inside a node; without bound for one rank on each. Groups side by side share what is
    between the sockets, which each ring crosses once in each direction."""
    if at.most <= 1:
        return np.inf
    if crosses_sockets(at, device):
        shared = device.socket_bandwidth / min(at.stride, device.gpus_per_socket)
        return min(device.nvlink_bandwidth, device.socket_bandwidth_one, shared)
    return device.nvlink_bandwidth * linked_share(at.most, at, device)


@outer_kernel
def hops_inside(ranks: int, at: Placement, device: Device) -> float:
    """Hops after which a byte has been at all ranks of a group on a torus: half way round each of its axes, or along it."""
    hops = 0.0
    for axis in range(device.link_axes):
        extent, ring = _along(ranks, at, axis, device)
        hops += extent / 2 if ring else extent - 1.0
    return max(hops, 1.0)


@outer_kernel
def spread_s(size: float, ranks: int, at: Placement, device: Device) -> float:
    """Seconds in which each of `ranks` GPUs of a group in a node sends `size` bytes, evenly to all of them, itself as well.

    Through switches and on a mesh what goes to others passes once, each over its own link. On a torus it passes on: over a
    ring of L chips each byte goes L/4 links far in the mean, both ways, so an axis takes size x L / (8 x a link's bytes/s)
    (jax-ml.github.io/scaling-book, "Sharded matrices": a quarter of an all-gather), and twice that where it does not go round.
    Axes work at once, as bytes can take them in any order: the longest counts.
    """
    if device.link_axes <= MESH:
        return size * (ranks - 1) / ranks / (device.nvlink_bandwidth * linked_share(ranks, at, device))
    longest = 1.0
    for axis in range(device.link_axes):
        extent, ring = _along(ranks, at, axis, device)
        longest = max(longest, extent if ring else 2 * extent)
    return size * longest / (8 * device.nvlink_bandwidth / (2 * device.link_axes))


@inner_kernel
def one_link(device: Device) -> float:
    """Bytes/s from a GPU to one other of its node."""
    if device.link_axes == 0:
        return device.nvlink_bandwidth
    if device.link_axes == MESH:
        return device.nvlink_bandwidth / max(device.gpus_per_node - 1, 1)
    return device.nvlink_bandwidth / (2 * device.link_axes)
