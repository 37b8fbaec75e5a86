"""What leaves a node: copies of a token, bandwidths of NICs and of links out of leaves and pods, seconds of the NICs.

A leaf is the nodes that meet in one switch, or in one set of rails; a pod, those of several leaves. Nodes lie in them in the
order of ranks.
"""

from typing import NamedTuple

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.hardware.table import Device
from sim_core.models.description import Experts
from sim_core.planning.placement import Placement, crosses_nodes
from sim_core.terms import ALL_REDUCE, ALL_TO_ALL, SEND_RECEIVE


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
