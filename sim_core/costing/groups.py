"""Where the communication groups of plans are placed, computed once for all plans with equal groups."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.jit import inner_kernel, kernel, outer_kernel
from sim_core.costing.collectives import collective_s, dispatch_s, two_stage_s
from sim_core.costing.fabric import Routing, dispatch_nic_s, nic_s
from sim_core.distinct import distinct_rows
from sim_core.hardware.table import HardwareColumns, Links
from sim_core.planning.columns import FLEX, Plans
from sim_core.planning.keys import a2a_ranks
from sim_core.planning.placement import Placement, placements
from sim_core.terms import CP_A2A, CP_RING
from sim_core.workloads.workload import DP, DP_EP, EP, GROUP_NAMES, TP

N_GROUPS: Final = len(GROUP_NAMES)
SHARD, REPLICA, EXPERT_SHARD, EXPERT_REPLICA = range(N_GROUPS, N_GROUPS + 4)
"""Ranks of DP, and of DP_EP, that divide the model's state among themselves; and those with the same part of it."""
_KINDS: Final = N_GROUPS + 4


class Groups(NamedTuple):
    """The distinct sets of groups of a batch of plans; each column is one kind of group."""

    key: Ints  # [plans] the row of each plan
    ranks: Ints  # [rows, kinds] ranks of one group
    stride: Ints  # [rows, kinds] GPUs from one of its ranks to the next, at most those of a node; groups side by side
    first: Ints  # [rows, kinds] first row in `placed`, which has the distinct placements of the groups of this kind
    end: Ints  # [rows, kinds] one past their last row
    placed: Ints  # [placements, 3] nodes of a group, its fewest ranks on a node, its most
    within: Ints  # [rows, kinds, 2] ranks in a leaf and in a pod that are full of such groups; 0: all of a group are in one
    alike: Ints  # [rows, N_GROUPS] the first row whose groups of this kind have the same ranks, stride and places


def group_plans(hardware: HardwareColumns, plans: Plans, rows: Ints, whole_experts: bool = False) -> Groups:
    """Place the groups of the plans in `rows`, which must be legal."""
    on = plans.hardware[rows]
    sizes = [plans.tp[rows], plans.pp[rows], plans.ep[rows], plans.all_gpus[rows], plans.cp[rows], a2a_ranks(plans, rows)]
    levels = hardware.gpus_per_leaf[on], hardware.gpus_per_pod[on]
    table = np.stack([*sizes, hardware.gpus_per_node[on], plans.dp_shard[rows], *levels], axis=1)
    of_row, first = distinct_rows(table)
    key = np.full(len(plans.tp), -1, np.int64)
    key[rows] = of_row
    return _fill(key, table[first], whole_experts)


@kernel
def _placements(kind: int, tp: int, sizes: Ints, shard: int, gpus_per_node: int) -> tuple[int, Ints]:
    """Ranks of a group of this kind, and its placements. Megatron's rank order: tp fastest, then cp, then dp, then pp.

    Gradients are reduced over dp and cp; ep is inside both. State is divided among `shard` neighbours of them.
    """
    pp, ep, all_gpus, cp, a2a = int(sizes[1]), int(sizes[2]), int(sizes[3]), int(sizes[4]), int(sizes[5])
    stage = all_gpus // pp
    dp = stage // tp
    if kind >= N_GROUPS:
        apart = tp if kind in (SHARD, REPLICA) else tp * ep
        ranks = shard if kind in (SHARD, REPLICA) else max(shard // ep, 1)
        if kind in (SHARD, EXPERT_SHARD):
            return ranks, placements(ranks, apart, apart, apart * ranks, all_gpus // (apart * ranks), gpus_per_node)
        copies = stage // (apart * ranks)
        return copies, placements(copies, apart * ranks, apart * ranks, stage, pp, gpus_per_node)
    if kind == TP:
        return tp, placements(tp, 1, 1, tp, all_gpus // tp, gpus_per_node)
    if kind == EP:
        return ep, placements(ep, tp, tp, tp * ep, all_gpus // (tp * ep), gpus_per_node)
    if kind == DP:
        return dp, placements(dp, tp, tp, stage, pp, gpus_per_node)
    if kind == DP_EP:
        return dp // ep, placements(dp // ep, tp * ep, tp * ep, stage, pp, gpus_per_node)
    if kind == CP_A2A:
        return a2a, placements(a2a, tp, tp, tp * a2a, all_gpus // (tp * a2a), gpus_per_node)
    if kind == CP_RING:
        return cp // a2a, placements(cp // a2a, tp * a2a, tp * a2a, tp * cp, all_gpus // (tp * cp), gpus_per_node)
    ends = min(pp, 2)  # EMBEDDING: the first and the last stage
    return ends, placements(ends, (pp - 1) * stage, stage, all_gpus, 1, gpus_per_node)


@inner_kernel
def _stride(kind: int, tp: int, sizes: Ints, shard: int) -> int:
    """GPUs from one rank of a group to the next: as many groups of the kind lie side by side, and send at the same time."""
    pp, ep, all_gpus, a2a = int(sizes[1]), int(sizes[2]), int(sizes[3]), int(sizes[5])
    if kind >= N_GROUPS:
        apart = tp if kind in (SHARD, REPLICA) else tp * ep
        if kind in (SHARD, EXPERT_SHARD):
            return apart
        return apart * (shard if kind == REPLICA else max(shard // ep, 1))
    if kind == TP:
        return 1
    if kind == DP_EP:
        return tp * ep
    if kind == CP_RING:
        return tp * a2a
    if kind in (EP, DP, CP_A2A):
        return tp
    stage = all_gpus // pp
    apart = max(pp - 1, 1) * stage
    return apart if apart < sizes[6] else stage  # EMBEDDING: over nodes, only the ranks of one stage lie side by side


@kernel
def _within(kind: int, tp: int, sizes: Ints, shard: int, inside: int) -> int:
    """Ranks of a group among `inside` consecutive GPUs that are full of such groups; 0 if all are, or if `inside` is 0."""
    if inside == 0:
        return 0
    distinct = _placements(kind, tp, sizes, shard, inside)[1]
    if distinct[-1, 0] == 1:
        return 0
    most = distinct[0, 2]
    for k in range(distinct.shape[0]):
        if distinct[k, 0] > 1:
            most = min(most, distinct[k, 2])
    return int(most)


@kernel
def _fill(key: Ints, kinds: Ints, whole_experts: bool) -> Groups:
    """A row of `kinds`: tp, pp, ep, GPUs, cp, ranks of its all-to-all, GPUs of a node, `dp_shard`, GPUs of a leaf, of a pod."""
    rows = kinds.shape[0]
    ranks = np.empty((rows, _KINDS), np.int64)
    first, end, stride = np.empty_like(ranks), np.empty_like(ranks), np.empty_like(ranks)
    within = np.empty((rows, _KINDS, 2), np.int64)
    placed = np.empty((2 * _KINDS * rows, 3), np.int64)
    used = 0
    for k in range(rows):
        shard = kinds[k, 7] if kinds[k, 7] > 0 else kinds[k, 3] // (kinds[k, 0] * kinds[k, 1])
        for kind in range(_KINDS):
            tp, divided = kinds[k, 0], shard
            if whole_experts and kind in (EP, DP_EP, EXPERT_SHARD, EXPERT_REPLICA):
                # tp does not divide experts: ranks of a tensor-parallel group are different ranks of the experts' groups
                tp, divided = 1, shard * kinds[k, 0]
            ranks[k, kind], distinct = _placements(kind, tp, kinds[k], divided, kinds[k, 6])
            stride[k, kind] = min(_stride(kind, tp, kinds[k], divided), kinds[k, 6])
            for level in range(2):
                within[k, kind, level] = _within(kind, tp, kinds[k], divided, kinds[k, 8 + level])
            first[k, kind], end[k, kind] = used, used + distinct.shape[0]
            used += distinct.shape[0]
            if used > placed.shape[0]:
                placed = _longer(placed, 2 * used)
            _copy(distinct, placed, first[k, kind])
    alike = _alike(ranks, stride, first, end, placed, within)
    places = _longer(placed[:used], used)
    return Groups(key=key, ranks=ranks, stride=stride, first=first, end=end, placed=places, within=within, alike=alike)


@kernel
def _longer(rows: Ints, length: int) -> Ints:
    """A copy with room for `length` rows."""
    copied = np.empty((length, rows.shape[1]), np.int64)
    _copy(rows, copied, 0)
    return copied


@kernel
def _copy(rows: Ints, into: Ints, at: int) -> None:
    """Copy rows, number by number: numba compiles whole texts of errors for an assignment of arrays."""
    for k in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            into[at + k, column] = rows[k, column]


@kernel
def _alike(ranks: Ints, stride: Ints, first: Ints, end: Ints, placed: Ints, within: Ints) -> Ints:
    """The first row with the same ranks, stride and places, for each row and kind."""
    alike = np.empty((ranks.shape[0], N_GROUPS), np.int64)  # a layer's cost depends on no other kind
    for kind in range(N_GROUPS):
        widest = 0
        for k in range(ranks.shape[0]):
            widest = max(widest, end[k, kind] - first[k, kind])
        shape = np.zeros((ranks.shape[0], 4 + 3 * widest), np.int64)
        for k in range(ranks.shape[0]):
            shape[k, 0], shape[k, 1] = ranks[k, kind], stride[k, kind]
            shape[k, 2], shape[k, 3] = within[k, kind, 0], within[k, kind, 1]
            for j in range(end[k, kind] - first[k, kind]):
                for part in range(3):
                    shape[k, 4 + 3 * j + part] = placed[first[k, kind] + j, part]
        of_row, first_alike = distinct_rows(shape)
        for k in range(ranks.shape[0]):
            alike[k, kind] = first_alike[of_row[k]]
    return alike


@inner_kernel
def group_nodes(groups: Groups, row: int, group: int) -> int:
    """The most nodes that one of a plan's groups of this kind lies on."""
    most = 1
    for k in range(groups.first[row, group], groups.end[row, group]):
        most = max(most, groups.placed[k, 0])
    return int(most)


@inner_kernel
def between_nodes(groups: Groups, row: int, group: int) -> bool:
    """Whether some of a plan's groups of one kind have ranks on several nodes."""
    return group_nodes(groups, row, group) > 1


@outer_kernel
def placement_at(groups: Groups, row: int, group: int, k: int) -> Placement:
    """The placement in row `k` of `placed`, one of the plan's groups of this kind."""
    placed, within = groups.placed, groups.within
    return Placement(
        ranks=groups.ranks[row, group],
        nodes=placed[k, 0],
        fewest=placed[k, 1],
        most=placed[k, 2],
        stride=groups.stride[row, group],
        per_leaf=within[row, group, 0],
        per_pod=within[row, group, 1],
    )


@outer_kernel
def group_s(groups: Groups, row: int, links: Links, kind: int, group: int, size: float) -> float:
    """Seconds of a collective of `kind` with `size` bytes on a plan's groups of one kind: that of the slowest group."""
    slowest = 0.0
    for k in range(groups.first[row, group], groups.end[row, group]):
        slowest = max(slowest, collective_s(kind, size, placement_at(groups, row, group, k), links))
    return slowest


@inner_kernel
def dispatch_group_s(groups: Groups, row: int, links: Links, dispatcher: int, routing: Routing, size: float) -> float:
    """Seconds of a dispatch to experts, FLEX or HIERARCHICAL, on the slowest EP group of a plan."""
    slowest = 0.0
    for k in range(groups.first[row, EP], groups.end[row, EP]):
        at = placement_at(groups, row, EP, k)
        seconds = dispatch_s(size, routing, at, links) if dispatcher == FLEX else two_stage_s(size, at, links)
        slowest = max(slowest, seconds)
    return slowest


@inner_kernel
def group_nic_s(groups: Groups, row: int, links: Links, kind: int, group: int, size: float) -> float:
    """Seconds for which a collective needs the NICs, on the group that needs them longest."""
    longest = 0.0
    for k in range(groups.first[row, group], groups.end[row, group]):
        longest = max(longest, nic_s(kind, size, placement_at(groups, row, group, k), links))
    return longest


@inner_kernel
def dispatch_group_nic_s(groups: Groups, row: int, links: Links, routing: Routing, size: float) -> float:
    """`group_nic_s` of a dispatch to experts that sends a token to each remote node once (FLEX)."""
    longest = 0.0
    for k in range(groups.first[row, EP], groups.end[row, EP]):
        longest = max(longest, dispatch_nic_s(size, routing, placement_at(groups, row, EP, k), links))
    return longest
