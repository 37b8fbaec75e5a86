"""Bandwidths and hops inside a node and out of it: links, NICs, leaves and pods; copies of a token; seconds of the NICs.

GPUs of a node meet in switches, over a link to each other one, or in a torus.
A leaf is the nodes that meet in one switch, or in one set of rails; a pod, those of several leaves. Nodes lie in them in the
order of ranks.
"""

from typing import NamedTuple

import numpy as np

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.hardware.table import Device
from sim_core.models.description import Experts
from sim_core.planning.placement import Placement, crosses_nodes
from sim_core.terms import ALL_REDUCE, ALL_TO_ALL, SEND_RECEIVE

MESH = 1
"""`link_axes` of a node whose GPUs have a link to each other one. 0: switches; from 2 on: axes of a torus."""
WRAPS_FROM = (0, 0, 16, 4)
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


class Routing(NamedTuple):
    """A token goes to `topk` experts, all of them in `topk_groups` of `groups` equal groups of experts in a row."""

    topk: int
    groups: int
    topk_groups: int


def routing_of(experts: Experts | None) -> Routing:
    """The routing of a model; of one without experts, that to a single one."""
    return Routing(experts.topk, experts.groups, experts.topk_groups) if experts else Routing(1, 1, 1)


@outer_kernel
def reached(places: int, routing: Routing) -> float:
    """Mean number of `places` with some expert of a token: groups at random, and experts at random of those groups.

    A place holds as many experts as any other, in a row: some whole groups, and a part of one more. It is missed if each of
    the `topk` experts is another's: (1 - c / topk_groups)^topk, where c of the picked groups are its own, a part counted as
    one. Of one group: n (1 - (1 - 1/n)^topk). Experts are drawn with replacement, and no place has parts of two groups.
    """
    whole, part = routing.groups // places, routing.groups % places / places
    parts = 1 if part > 0 else 0
    missed = 0.0
    for own in range(min(whole, routing.topk_groups) + 1):
        for in_part in range(parts + 1):
            ways = _ways(whole, own) * _ways(routing.groups - whole - parts, routing.topk_groups - own - in_part)
            missed += ways * (1.0 - (own + in_part * part) / routing.topk_groups) ** routing.topk
    return places * (1.0 - missed / _ways(routing.groups, routing.topk_groups))


@outer_kernel
def _ways(count: int, chosen: int) -> float:
    """Ways to choose some of `count`."""
    if chosen < 0 or chosen > count:
        return 0.0
    ways = 1.0
    for k in range(chosen):
        ways *= (count - k) / (k + 1)
    return ways


@inner_kernel
def nic_bandwidth(at: Placement, device: Device) -> float:
    """Bytes/s of one GPU's share of the NICs, while its group and those side by side with it use theirs.

    One GPU alone reaches all of it, a full node `fabric_efficiency`; between, the loss grows with the GPUs.
    """
    using = min(at.most * at.stride, device.gpus_per_node)
    return device.nic_bandwidth * (1 - (1 - device.fabric_efficiency) * (using - 1) / max(device.gpus_per_node - 1, 1))


@outer_kernel
def crowding(at: Placement, device: Device) -> float:
    """How many times as long a ring takes because of the links that leave its leaves and pods; at least 1.

    Each ring leaves a leaf once, by the NICs of one node. A leaf full of groups with `per_leaf` ranks in it, `most` of them on
    a node, has one ring for each `per_leaf` GPUs: most/per_leaf of all its NICs send to other leaves, at the same time.
    """
    crowded = 1.0
    if at.per_leaf > 0:
        crowded = max(crowded, device.leaf_oversubscription * at.most / at.per_leaf)
    if at.per_pod > 0:
        crowded = max(crowded, device.pod_oversubscription * at.most / at.per_pod)
    return crowded


@inner_kernel
def ring_bandwidth(at: Placement, device: Device) -> float:
    """`nic_bandwidth` of a ring, or of a tree in the order of ranks, which may leave leaves and pods."""
    return nic_bandwidth(at, device) / crowding(at, device)


@inner_kernel
def off_rail(device: Device) -> bool:
    """Whether a message to another place of a node leaves its leaf: NIC k is on leaf k, and NVLink does not hand over first."""
    return bool(device.rails and not device.pxn)


@inner_kernel
def leaving_s(at: Placement, device: Device, direct: bool) -> float:
    """Seconds a byte, times the ranks outside its leaf or pod, of what a rank sends to all others; `direct`: by its own NIC."""
    slowest = 0.0
    if at.per_leaf > 0:
        slowest = max(slowest, device.leaf_oversubscription * (at.ranks - at.per_leaf))
    if at.per_pod > 0:
        slowest = max(slowest, device.pod_oversubscription * (at.ranks - at.per_pod))
    if direct and at.nodes > 1 and off_rail(device):
        on_leaf = at.per_leaf // at.most if at.per_leaf > 0 else at.nodes  # one rank of each node
        slowest = max(slowest, device.leaf_oversubscription * (at.ranks - at.fewest - (on_leaf - 1)))
    return slowest / nic_bandwidth(at, device)


@outer_kernel
def crowded_send(stage: int, pp: int, all_gpus: int, device: Device) -> float:
    """`crowding` of the sends from the ranks of a stage to those of the next (of the last: to the first)."""
    crowded, stage_gpus = 1.0, all_gpus // pp
    if device.gpus_per_leaf > 0 and _leaves(stage, pp, all_gpus, device.gpus_per_leaf):
        crowded = max(crowded, device.leaf_oversubscription * min(stage_gpus / device.gpus_per_leaf, 1.0))
    if device.gpus_per_pod > 0 and _leaves(stage, pp, all_gpus, device.gpus_per_pod):
        crowded = max(crowded, device.pod_oversubscription * min(stage_gpus / device.gpus_per_pod, 1.0))
    if off_rail(device) and stage_gpus % device.gpus_per_node != 0:
        crowded = max(crowded, device.leaf_oversubscription)
    return crowded


@inner_kernel
def _leaves(stage: int, pp: int, all_gpus: int, inside: int) -> bool:
    """Whether ranks of a stage and of the next are not all among the same `inside` GPUs."""
    return all_gpus > inside if stage == pp - 1 else crosses_nodes(stage, all_gpus // pp, inside)


@inner_kernel
def nic_s(kind: int, size: float, at: Placement, device: Device) -> float:
    """Seconds for which the NICs that a rank owns are needed for its part of a collective (not of a dispatch); 0 in a node.

    The bytes that leave a node, over its members' NICs: of an all-reduce of two nodes once, of more nodes twice.
    """
    if at.nodes <= 1 or size <= 0:
        return 0.0
    if kind == SEND_RECEIVE:
        return crowding(at, device) * size / (device.nic_bandwidth * device.fabric_efficiency)
    if kind == ALL_TO_ALL:
        return size * (at.ranks - at.fewest) / at.ranks / nic_bandwidth(at, device)
    passes = min(at.nodes - 1, 2) if kind == ALL_REDUCE else 1
    return passes * size * (at.ranks - 1) / at.ranks / (at.fewest * ring_bandwidth(at, device))


@outer_kernel
def shared_s(window_s: float, exposed_s: float, all_s: float, beside_s: float) -> float:
    """Seconds by which a window gets longer because two streams of messages share NICs (docs/network.md).

    Without sharing, the one stream needs the NICs for `all_s` of the window, evenly, and nothing hides `exposed_s` of them;
    the other for `beside_s`, at most the window. Where both send, each has half: the one is later by as much as the other
    sends meanwhile, and so is everything that follows: never by more than all that it sends. What is hidden has room until the
    NICs are full.
    """
    if window_s <= 0 or beside_s <= 0 or all_s <= 0:
        return 0.0
    return min(max(exposed_s * min(beside_s / window_s, 1.0), all_s + beside_s - window_s, 0.0), beside_s)


@inner_kernel
def left_beside(rate: float) -> float:
    """The part of the NICs that a stream leaves to another which asks for all; alone, it asks for the part `rate` of them."""
    return max(1.0 - rate, 0.5)


@outer_kernel
def beside_stream(block_s: float, exposed_s: float, all_s: float, sent_s: float, rate: float) -> tuple[float, float]:
    """What a block and a stream of other messages do to each other while the stream sends all the time.

    Returns the seconds by which the block gets longer, and those of the stream that get through until the block ends. Alone,
    the stream needs the NICs for the part `rate` of its time. The block sends for `all_s`, alone; for `exposed_s` of them it
    does nothing else, the rest goes evenly beside its compute. Its pipeline message, `sent_s`, follows it, and is late as well.
    Of NICs that are asked for too much each of the two has what it asks for, but the one that asks for more than half only what
    the other leaves, at least half (max-min fairness: D. Bertsekas, R. Gallager 1992, Data Networks, section 6.5.2).
    """
    exposed_s = min(exposed_s, block_s)
    compute_s, hidden_s = block_s - exposed_s, max(all_s - exposed_s, 0.0)
    left = left_beside(rate)
    sending_s = exposed_s / left + sent_s * (1.0 / left - 1.0)
    through_s = sending_s * min(1.0, 0.5 / rate)
    if compute_s > 0:
        asked = min(hidden_s / compute_s, 1.0)
        had = min(asked, left) if asked > 0.5 else asked
        stretched_s = compute_s * (asked / had if had > 0 else 1.0)
        sending_s += stretched_s
        through_s += stretched_s * min(1.0, (1.0 - had) / rate)
    return sending_s - block_s, through_s
