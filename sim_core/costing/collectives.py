"""Seconds of one collective, all-to-alls among them, or send, over NVLink and NICs: the fastest algorithm and protocol of NCCL.

Latencies and bandwidth factors are those of NCCL's own tuning model (NVIDIA/nccl, src/graph/tuning.cc, v2.27, unless another
version is named); the bytes that an algorithm moves over a link follow from the algorithm. docs/network.md says which is taken
when, and what is not modelled.
"""

from typing import NamedTuple

import numpy as np

from sim_core.compiled.jit import inlined_kernel, inner_kernel, outer_kernel
from sim_core.costing.fabric import (
    MESH,
    Routing,
    crosses_sockets,
    crowding,
    hops_inside,
    inside_bandwidth,
    leaving_s,
    nic_bandwidth,
    one_link,
    reached,
    ring_bandwidth,
    spread_s,
)
from sim_core.hardware.table import Device
from sim_core.planning.placement import Placement
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, NO_COMM, REDUCE_SCATTER, SEND_RECEIVE

COSTED = {ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECEIVE}
"""Kinds of messages that `collective_s` tells apart, or takes as an all-gather because they take as long."""
if missing := [row.name for kind, row in enumerate(COLLECTIVES) if kind not in (NO_COMM, *COSTED)]:
    raise ValueError(f"collective {missing[0]}: collective_s has no seconds for it, and it is not in COSTED")

PROTOCOLS = (0, 1, 2)
LL, LL128, SIMPLE = PROTOCOLS
"""Low latency: a flag in every 8 bytes. The same in every 128 bytes. Large chunks behind a memory fence."""

RING_BASE_S = (6.6e-6, 14.0e-6, 8.4e-6)
TREE_BASE_S = (6.8e-6, 14.0e-6, 8.4e-6)
"""Start of a ring and of a tree in each protocol: baseLat."""
RING_NVLINK_HOP = (0.6 / 3.4, 1.9 / 3.4, 1.0)
TREE_NVLINK_HOP = (0.6 / 3.4, 1.25 / 3.4, 4.0 / 3.4)
"""A hop over NVLink, over that of a ring in Simple, which is the hardware's `nvlink_latency`: hwLat."""
RING_NETWORK_HOP = (2.7 / 14.0, 4.0 / 14.0, 1.0)
TREE_NETWORK_HOP = (5.0 / 14.0, 8.5 / 14.0, 1.0)
"""A hop over the network, over that of a ring in Simple, which is the hardware's `nic_latency`: hwLat."""
OVERHEADS = (1.0, 1.0, 3.0)
"""Posts to the network for each step of a ring between nodes: getNetOverhead."""
RING_PLATEAU = 1.4
"""A ring all-reduce between nodes in Simple takes this many times its latency: ncclTopoGetAlgoTime."""

LL_BANDWIDTH = 0.5
LL128_BANDWIDTH = 0.92
"""Part of a ring's bandwidth that carries data; of LL128, 120 of 128 bytes, for which tuning.cc has 0.92."""
TREE_BANDWIDTH = 0.92
TREE_LL_BANDWIDTH = 1 / 3.8
TREE_LL128_BANDWIDTH = 120 / 128
TREE_LL128_BANDWIDTH_ONE_NODE = 7 / 9
"""Part of its link's bandwidth that a tree reaches, and of that the protocols."""
TREE_CORRECTION = np.array([
    [1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0],
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0],
    [0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0],
])  # fmt: skip
"""Part of its bandwidth that a tree reaches in each protocol at 64 B, 128 B, ... 256 MiB: treeCorrectionFactor; then all."""
CORRECTION_FROM = 64.0

NVLS_S = 25e-6
"""An all-reduce in the NVLink switches: hwLat of NVLS and of NVLSTree."""
NVLS_MOST_WITHOUT = 2
"""NCCL sets NVLS up for more GPUs of a node than these: ncclNvlsInit (src/transport/nvls.cc)."""
NVLS_TREE_INSIDE = 0.9
"""Part of NVLS's bandwidth inside the nodes that NVLSTree reaches: all-reduces of two nodes of H100s (468 GB/s on four
clusters, NCCL 2.18 to 2.26) and B300s (767), docs/network.md."""
NVLS_FILL_S = 50e-6
NVLS_TREE_FILL_S = 100e-6
ALL_TO_ALL_FILL_S = 25e-6
FILL_BYTES = 10e6
"""Seconds until all stages of its pipeline are at work, for a message of whole chunks; chunks of smaller messages are smaller,
half of it at these bytes. Measured: all-reduces of 1 MB to 256 MB on one and two nodes of H100s and B200s; all-to-alls inside
nodes of A100s, H100s, H200s, B200s and B300s, on each of which 25 us are nearer than none (docs/network.md)."""
AT_ONCE = 8
"""Messages of a channel that are under way at once: NVIDIA/nccl issue 1028."""
RING_LL128_BETWEEN_NODES = 2.0
"""A ring between nodes takes the latency of LL128 this many times: all-gathers of two nodes of A100s and H200s and of ten of
H100s (docs/network.md); tuning.cc says 1."""

PAT_BASE_S = 8e-6
PAT_STEP = 1 / 3.5
PAT_RANK_S = 2.8e-6
PAT_BANDWIDTH = 0.75
"""PAT: its start, a step over a network hop, what each rank adds, part of the NIC's bandwidth."""


class Message(NamedTuple):
    """A message in its group: what all algorithms and protocols share."""

    size: float  # bytes of the whole group's tensor
    ringed: float  # bytes that a ring moves over each of its links
    inside: float  # bytes/s of a ring's link inside a node
    network: float  # bytes/s of the NICs of the node with the fewest ranks; without bound in one node
    depth: int  # levels of a binary tree over the nodes
    place: float  # of an all-reduce among the sizes of TREE_CORRECTION, by its logarithm


@inlined_kernel
def message_of(kind: int, size: float, at: Placement, device: Device) -> Message:
    """The message of a collective over links that are no torus."""
    passes, depth, place = 2 if kind == ALL_REDUCE else 1, 0, 0.0
    while (1 << depth) < at.nodes:
        depth += 1
    if kind == ALL_REDUCE:
        place = float(min(max(np.log2(size / CORRECTION_FROM), 0.0), TREE_CORRECTION.shape[1] - 1.0))
    return Message(
        size=size,
        ringed=passes * size * (at.ranks - 1) / at.ranks,
        inside=inside_bandwidth(at, device),
        network=at.fewest * ring_bandwidth(at, device) if at.nodes > 1 else np.inf,
        depth=depth,
        place=place,
    )


@outer_kernel
def collective_s(kind: int, size: float, at: Placement, device: Device) -> float:
    """Seconds of a collective of `size` bytes (the whole group's tensor) in a group placed as `at`.

    Each rank brings its share of its node's NICs. 0 for a group of one or an empty message.
    """
    if at.ranks <= 1 or size <= 0:
        return 0.0
    if kind == SEND_RECEIVE:
        return send_s(size, at.nodes > 1, device, crowding(at, device))
    if kind == ALL_TO_ALL:
        return all_to_all_s(size, at, device)
    if device.link_axes > MESH:
        return torus_s(kind, size, at, device)
    message, fastest = message_of(kind, size, at, device), np.inf
    for protocol in PROTOCOLS:
        if protocol == LL128 and not device.ll128:
            continue
        fastest = min(fastest, ring_s(kind, message, at, protocol, device))
        if kind == ALL_REDUCE:
            fastest = min(fastest, tree_s(message, at, protocol, device))
    if kind != ALL_REDUCE:
        return min(fastest, pat_s(message, at, device)) if device.pat and at.nodes == at.ranks else fastest
    if device.nvls and at.nodes == 1 and at.most > NVLS_MOST_WITHOUT:
        fastest = min(fastest, nvls_s(size, at, device))
    if device.nvls_tree and at.nodes > 1 and at.fewest == at.most and at.most > NVLS_MOST_WITHOUT:
        fastest = min(fastest, nvls_tree_s(message, at, device))
    return fastest


@outer_kernel
def ring_s(kind: int, message: Message, at: Placement, protocol: int, device: Device) -> float:
    """One ring through all ranks: n-1 steps, each of size/n bytes over every link; an all-reduce goes round twice.

    (Patarasuk & Yuan 2009, section 3.) The ring enters each node, so the node with the fewest NICs binds it.
    """
    passes = 2 if kind == ALL_REDUCE else 1
    outside = passes * (at.nodes - 1)
    inside = passes * (at.ranks - 1) - outside
    inside_hop_s = device.nvlink_latency * RING_NVLINK_HOP[protocol]
    bandwidth = min(message.inside, message.network)
    if at.nodes > 1:
        inside_hop_s = max(inside_hop_s, device.net_overhead * OVERHEADS[protocol])
    # with one rank on each node nothing hides the latency of the network: NCCL takes a tree's
    network_hop = TREE_NETWORK_HOP[protocol] if at.nodes == at.ranks else RING_NETWORK_HOP[protocol]
    hops_s = inside * inside_hop_s + outside * device.nic_latency * network_hop
    if protocol == LL128 and at.nodes > 1:
        hops_s *= RING_LL128_BETWEEN_NODES
    latency_s = RING_BASE_S[protocol] + hops_s
    if protocol == SIMPLE and kind == ALL_REDUCE and at.nodes > 1:
        latency_s *= RING_PLATEAU
    if protocol == LL:
        bandwidth = min(bandwidth * LL_BANDWIDTH, _most_in_ll(at.nodes, device))
    elif protocol == LL128:
        bandwidth *= LL128_BANDWIDTH
    return latency_s + message.ringed / bandwidth


@outer_kernel
def torus_s(kind: int, size: float, at: Placement, device: Device) -> float:
    """Rings around all axes of a torus at once, both ways; between slices rings of chips at the same place, before or after.

    An all-gather takes (n-1)/n of the bytes over all links of the axes, and as many hops as the furthest chip is away; an
    all-reduce twice that (jax-ml.github.io/scaling-book, "Sharded matrices and how to multiply them"; XLA's collectives over
    several slices: reduce inside, exchange a part of each chip outside, gather inside).
    """
    seconds = 0.0
    if at.most > 1:
        seconds += hops_inside(at.most, at, device) * device.nvlink_latency
        seconds += size * (at.most - 1) / at.most / inside_bandwidth(at, device)
    if at.nodes > 1:
        seconds += (at.nodes - 1) * device.nic_latency
        seconds += size * (at.nodes - 1) / at.nodes / (at.fewest * ring_bandwidth(at, device))
    return seconds * (2 if kind == ALL_REDUCE else 1)


@outer_kernel
def tree_s(message: Message, at: Placement, protocol: int, device: Device) -> float:
    """An all-reduce up and down two complementary binary trees over the nodes, and a chain through the GPUs of each.

    (Sanders, Speck & Traeff 2009.) Each tree takes half of the bytes, and a node is an inner one in at most one of them: its
    NICs send twice the bytes in each direction; of two nodes, once. A GPU of a chain sends the bytes up and down.
    """
    inside_s = (at.most - 1) * device.nvlink_latency * TREE_NVLINK_HOP[protocol]
    outside_s = message.depth * device.nic_latency * TREE_NETWORK_HOP[protocol]
    bandwidth = message.inside / 2
    if at.nodes > 1:
        bandwidth = min(bandwidth, message.network / min(at.nodes - 1, 2))
    bandwidth *= TREE_BANDWIDTH
    if protocol == LL:
        bandwidth = min(bandwidth * TREE_LL_BANDWIDTH, _most_in_ll(at.nodes, device) / 2)
    elif protocol == LL128:
        bandwidth *= TREE_LL128_BANDWIDTH if at.nodes > 1 else TREE_LL128_BANDWIDTH_ONE_NODE
    # TREE_CORRECTION between its sizes: in NCCL's steps a larger message can be the faster one
    below = min(int(message.place), TREE_CORRECTION.shape[1] - 2)
    share = message.place - below
    bandwidth *= float(TREE_CORRECTION[protocol, below] * (1 - share) + TREE_CORRECTION[protocol, below + 1] * share)
    return TREE_BASE_S[protocol] + 2 * (inside_s + outside_s) + message.size / bandwidth


@outer_kernel
def nvls_s(size: float, at: Placement, device: Device) -> float:
    """An all-reduce that the NVLink switches of one node add up and copy (NVLink SHARP).

    Each GPU loads its n-th part, added up on the way from all, and stores it to all: size * (n+1)/n over its link in each
    direction (Klenk et al. 2020; that the sum goes through the GPU, arXiv 2603.28239, abstract).
    """
    return NVLS_S + _nvls_moved_s(size, at, device) + _fill_s(NVLS_FILL_S, size)


@outer_kernel
def nvls_tree_s(message: Message, at: Placement, device: Device) -> float:
    """NVLS inside the nodes, the two trees of `tree_s` between them, at once."""
    size, network = message.size, message.network / min(at.nodes - 1, 2)
    moved_s = max(_nvls_moved_s(size, at, device) / NVLS_TREE_INSIDE, size / network)
    return NVLS_S + 2 * message.depth * device.nic_latency + moved_s + _fill_s(NVLS_TREE_FILL_S, size)


@outer_kernel
def pat_s(message: Message, at: Placement, device: Device) -> float:
    """An all-gather or reduce-scatter of parallel aggregated trees, one rank on each node (Jeaugey 2025, arXiv 2506.20252)."""
    steps_s = message.depth * device.nic_latency * PAT_STEP + at.ranks * PAT_RANK_S
    return PAT_BASE_S + steps_s + message.size / (PAT_BANDWIDTH * message.network)


@outer_kernel
def all_to_all_s(size: float, at: Placement, device: Device) -> float:
    """Each rank sends size/ranks to every other, by NVLink inside its node and by its share of the NICs outside, at once.

    The slowest rank is one with the fewest neighbours, for the network, or one with the most, for NVLink: the cost is convex
    in their number, and all wait for the first hop and the filled pipeline of those with the most.
    """
    slowest = 0.0
    for here in (at.fewest, at.most):
        inside_s = max(spread_s(size * here / at.ranks, here, at, device), _between_sockets_s(size, here, at.ranks, at, device))
        hops_s = _posted_s(at.most, at.ranks - here, at, device)
        if at.most > 1 and device.link_axes <= MESH:
            inside_s += _fill_s(ALL_TO_ALL_FILL_S, size * at.most / at.ranks)
        slowest = max(slowest, RING_BASE_S[SIMPLE] + hops_s + max(inside_s, _outside_s(size, here, at, device, True)))
    return slowest


@inner_kernel
def _posted_s(here: int, remote: int, at: Placement, device: Device) -> float:
    """Latency of messages to all of `here` ranks on a node and `remote` ones on others.

    NCCL posts the sends of an all-to-all as one kernel: a hop of NVLink for all, a hop of the network for the first, and for
    each further rank what its message keeps the channel, of which `AT_ONCE` are under way, or as many as a node has GPUs, which
    hand them on (PXN, NVIDIA technical blog "Doubling all2all Performance with NCCL 2.12", 2022). Without PXN a hop each;
    between slices of a torus one for each other slice.
    """
    together, sent = device.link_axes <= MESH, float(remote)
    if remote > 0 and device.pxn:
        sent = 1 + (remote - 1) / min(device.gpus_per_node, AT_ONCE) if together else at.nodes - 1.0
    return (min(here - 1, 1) if together else hops_inside(here, at, device)) * device.nvlink_latency + sent * device.nic_latency


@inner_kernel
def _outside_s(size: float, here: int, at: Placement, device: Device, direct: bool) -> float:
    """Seconds in which a rank sends what it has for ranks on other nodes, of `size` for all; `direct`: by its own NIC."""
    outside_s = size * (at.ranks - here) / at.ranks / nic_bandwidth(at, device)
    return max(outside_s, size * leaving_s(at, device, direct) / at.ranks)


@inner_kernel
def _between_sockets_s(size: float, here: int, ranks: int, at: Placement, device: Device) -> float:
    """Seconds in which `here` ranks on a node send what goes to its other socket, of `size` for `ranks`."""
    if not crosses_sockets(at, device):
        return 0.0
    far = max(here - device.gpus_per_socket / at.stride, 0.0)
    return device.gpus_per_socket * size * far / ranks / device.socket_bandwidth


@outer_kernel
def dispatch_s(size: float, routing: Routing, at: Placement, device: Device) -> float:
    """An all-to-all of `size` bytes of routed copies per rank in which a token goes to each remote node once.

    (DeepSeek-V3, arXiv 2412.19437, section 3.2.2.) There, NVLink hands it on, once to each rank with some of its experts.
    How many nodes, or ranks, have some: `reached`; `all_to_all_s` sends topk copies.
    """
    to_nodes = reached(at.nodes, routing) / routing.topk
    to_ranks = reached(at.ranks, routing) / routing.topk
    slowest = 0.0
    for here in (at.fewest, at.most):
        inside_s = spread_s(to_ranks * size, here, at, device)
        slowest = max(slowest, inside_s, _outside_s(to_nodes * size, here, at, device, False))
    hops_s = device.nvlink_latency + (device.nic_latency if at.nodes > 1 else 0.0)
    return RING_BASE_S[SIMPLE] + hops_s + slowest


@outer_kernel
def send_s(size: float, between_nodes: bool, device: Device, crowded: float = 1.0) -> float:
    """Seconds of one point-to-point send of `size` bytes, all ranks of a node sending at once.

    `crowded`: bytes that leave a leaf or pod over what its links carry, where they are more; else 1.
    """
    if size <= 0:
        return 0.0
    if between_nodes:
        return device.nic_latency + crowded * size / (device.nic_bandwidth * device.fabric_efficiency)
    return device.nvlink_latency + size / one_link(device)


@inner_kernel
def _most_in_ll(nodes: int, device: Device) -> float:
    """Bytes/s that LL carries at most, whatever the links."""
    if nodes == 1:
        return device.ll_bandwidth_one_node
    return device.ll_bandwidth_two_nodes if nodes == 2 else device.ll_bandwidth_more_nodes


@inner_kernel
def _fill_s(whole_s: float, size: float) -> float:
    return whole_s * size / (size + FILL_BYTES)


@inner_kernel
def _nvls_moved_s(size: float, at: Placement, device: Device) -> float:
    return size * (at.fewest + 1) / at.fewest / (device.nvls_efficiency * device.nvlink_bandwidth)


@outer_kernel
def two_stage_s(size: float, at: Placement, device: Device) -> float:
    """An all-to-all in two stages, one after the other: among the ranks of the nodes that have the same place on theirs, then
    inside each node (Tutel's 2DH, arXiv 2206.03382, section 3.4; DeepSpeed-MoE, arXiv 2201.05596, section 5.2).

    A rank sends what it has for all ranks of a node to one of them: the same bytes over its NIC as `all_to_all_s`; inside, the
    bytes of all nodes. The inner stage has to copy before and after, which costs nothing here.
    """
    slowest = 0.0
    for here in (at.fewest, at.most):
        seconds = 0.0
        if at.nodes > 1:
            seconds += RING_BASE_S[SIMPLE] + _posted_s(1, at.nodes - 1, at, device) + _outside_s(size, here, at, device, False)
        if here > 1:
            inside_s = max(spread_s(size, here, at, device), _between_sockets_s(size, here, here, at, device))
            inside_s += _fill_s(ALL_TO_ALL_FILL_S, size)
            seconds += RING_BASE_S[SIMPLE] + _posted_s(here, 0, at, device) + inside_s
        slowest = max(slowest, seconds)
    return slowest
