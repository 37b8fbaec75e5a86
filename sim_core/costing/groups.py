"""Where the communication groups of plans are placed, computed once for all plans with equal groups."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.jit import inner_kernel, kernel, outer_kernel
from sim_core.costing.collectives import collective_s, dispatch_s, two_stage_s
from sim_core.costing.fabric import Routing, nic_s, reached
from sim_core.distinct import distinct_rows
from sim_core.hardware.table import Device, HardwareColumns
from sim_core.planning.columns import FLEX, Plans
from sim_core.planning.keys import a2a_ranks
from sim_core.planning.placement import Placement, placements
from sim_core.terms import ALL_TO_ALL, CP_A2A, CP_RING
from sim_core.workloads.workload import DP, DP_EP, EMBEDDING, EP, GROUP_NAMES, TP

N_GROUPS = len(GROUP_NAMES)
SHARD, REPLICA, EXPERT_SHARD, EXPERT_REPLICA = range(N_GROUPS, N_GROUPS + 4)
"""Ranks of DP, and of DP_EP, that divide the model's state among themselves; and those with the same part of it."""
_KINDS = N_GROUPS + 4


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
    of_row, distinct = distinct_rows(table)
    key = np.full(len(plans.tp), -1, int)
    key[rows] = of_row
    ranks, stride, first, end, placed, within = _fill(table[distinct], whole_experts)
    alike = np.empty((len(ranks), N_GROUPS), int)
    for kind in range(N_GROUPS):
        at = first[:, kind, None] + np.arange((end[:, kind] - first[:, kind]).max(initial=0))
        places = np.where((at < end[:, kind, None])[:, :, None], placed[np.minimum(at, len(placed) - 1)], 0)
        shape = np.column_stack([ranks[:, kind], stride[:, kind], within[:, kind], places.reshape(len(ranks), -1)])
        of_row, first_alike = distinct_rows(shape)
        alike[:, kind] = first_alike[of_row]
    return Groups(key=key, ranks=ranks, stride=stride, first=first, end=end, placed=placed, within=within, alike=alike)


@kernel
def _lie(kind: int, tp: int, sizes: Ints, shard: int) -> tuple[int, int, int]:
    """Ranks of a group of this kind, GPUs from one to the next, and those of a block of such groups side by side.

    Megatron's rank order: tp fastest, then cp, then dp, then pp. Gradients are reduced over dp and cp; ep is inside both. State
    is divided among `shard` neighbours of them.
    """
    pp, ep, all_gpus, cp, a2a = int(sizes[1]), int(sizes[2]), int(sizes[3]), int(sizes[4]), int(sizes[5])
    stage = all_gpus // pp
    if kind >= N_GROUPS:
        apart = tp if kind in (SHARD, REPLICA) else tp * ep
        ranks = shard if kind in (SHARD, REPLICA) else max(shard // ep, 1)
        if kind in (SHARD, EXPERT_SHARD):
            return ranks, apart, apart * ranks
        return stage // (apart * ranks), apart * ranks, stage
    if kind == TP:
        return tp, 1, tp
    if kind == EP:
        return ep, tp, tp * ep
    if kind == DP:
        return stage // tp, tp, stage
    if kind == DP_EP:
        return stage // tp // ep, tp * ep, stage
    if kind == CP_A2A:
        return a2a, tp, tp * a2a
    if kind == CP_RING:
        return cp // a2a, tp * a2a, tp * cp
    return min(pp, 2), max(pp - 1, 1) * stage, all_gpus  # EMBEDDING: the first and the last stage


@kernel
def _fill(sizes: Ints, whole_experts: bool) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
    """Fill ranks, stride, first, end, placed and within of Groups.

    A row of `sizes`: tp, pp, ep, GPUs, cp, ranks of its all-to-all, GPUs of a node, `dp_shard`, GPUs of a leaf, of a pod.
    """
    rows = sizes.shape[0]
    ranks = np.empty((rows, _KINDS), np.int64)
    first, end, stride = np.empty_like(ranks), np.empty_like(ranks), np.empty_like(ranks)
    within = np.zeros((rows, _KINDS, 2), np.int64)
    placed = np.empty((2 * _KINDS * rows, 3), np.int64)
    used = 0
    for k in range(rows):
        gpus, node = sizes[k, 3], sizes[k, 6]
        stage = gpus // sizes[k, 1]
        shard = sizes[k, 7] if sizes[k, 7] > 0 else gpus // (sizes[k, 0] * sizes[k, 1])
        for kind in range(_KINDS):
            tp, divided = sizes[k, 0], shard
            if whole_experts and kind in (EP, DP_EP, EXPERT_SHARD, EXPERT_REPLICA):
                # tp does not divide experts: ranks of a tensor-parallel group are different ranks of the experts' groups
                tp, divided = 1, shard * sizes[k, 0]
            number, apart, block = _lie(kind, tp, sizes[k], divided)
            beside = stage if kind == EMBEDDING else apart  # groups that begin side by side
            ranks[k, kind] = number
            stride[k, kind] = min(apart if apart < node else beside, node)  # over nodes, ranks of one stage lie side by side
            distinct = placements(number, apart, beside, block, gpus // block, node)
            first[k, kind], end[k, kind] = used, used + distinct.shape[0]
            used += distinct.shape[0]
            if used > placed.shape[0]:
                placed = _longer(placed, 2 * used)
            _copy(distinct, placed, first[k, kind])
            for level in range(2):
                if sizes[k, 8 + level] > 0:  # among so many consecutive GPUs that are full of such groups
                    distinct = placements(number, apart, beside, block, gpus // block, sizes[k, 8 + level])
                    if distinct[-1, 0] > 1:
                        within[k, kind, level] = distinct[0, 2]
                        for row in range(distinct.shape[0]):
                            within[k, kind, level] = min(within[k, kind, level], distinct[row, 2])
    return ranks, stride, first, end, _longer(placed[:used], used), within


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
    ranks, placed, stride, within = groups.ranks, groups.placed, groups.stride, groups.within
    nodes, fewest, most = placed[k, 0], placed[k, 1], placed[k, 2]
    per_leaf, per_pod = within[row, group, 0], within[row, group, 1]
    return Placement(ranks[row, group], nodes, fewest, most, stride[row, group], per_leaf, per_pod)


@outer_kernel
def group_s(groups: Groups, row: int, device: Device, kind: int, group: int, size: float) -> float:
    """Seconds of a collective of `kind` with `size` bytes on a plan's groups of one kind: that of the slowest group."""
    slowest = 0.0
    for k in range(groups.first[row, group], groups.end[row, group]):
        slowest = max(slowest, collective_s(kind, size, placement_at(groups, row, group, k), device))
    return slowest


@inner_kernel
def dispatched_s(
    groups: Groups, row: int, device: Device, dispatcher: int, routing: Routing, size: float
) -> tuple[float, float]:
    """Seconds of a dispatch to experts, FLEX or HIERARCHICAL, on the slowest EP group of a plan; and those of the NICs.

    FLEX sends a token to each remote node once (collectives.dispatch_s).
    """
    slowest, longest = 0.0, 0.0
    for k in range(groups.first[row, EP], groups.end[row, EP]):
        at = placement_at(groups, row, EP, k)
        of_nics = nic_s(ALL_TO_ALL, size, at, device)
        if dispatcher == FLEX:
            slowest = max(slowest, dispatch_s(size, routing, at, device))
            of_nics = reached(at.nodes, routing) / routing.topk * of_nics
        else:
            slowest = max(slowest, two_stage_s(size, at, device))
        longest = max(longest, of_nics)
    return slowest, longest


@inner_kernel
def group_nic_s(groups: Groups, row: int, device: Device, kind: int, group: int, size: float) -> float:
    """Seconds for which a collective needs the NICs, on the group that needs them longest."""
    longest = 0.0
    for k in range(groups.first[row, group], groups.end[row, group]):
        longest = max(longest, nic_s(kind, size, placement_at(groups, row, group, k), device))
    return longest
