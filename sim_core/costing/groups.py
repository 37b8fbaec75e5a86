"""The groups in which a plan's GPUs communicate: their ranks and nodes, worked out once for all plans of a kind."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.collectives import collective_s
from sim_core.distinct import distinct_rows
from sim_core.hardware.table import HardwareTable, Links
from sim_core.jit import kernel
from sim_core.planning.columns import Plans
from sim_core.planning.placement import place
from sim_core.workloads.workload import DP, DP_EP, EMBEDDING, EP, GROUP_NAMES, TP

Ints = npt.NDArray[np.int64]

N_GROUPS: Final = len(GROUP_NAMES)


class Groups(NamedTuple):
    """The distinct sets of groups of some plans; a row has one group of each kind, the worst placed."""

    key: Ints  # [plans] the row of each plan
    ranks: Ints  # [rows, kinds]
    nodes: Ints  # [rows, kinds] that the group touches
    per_node: Ints  # [rows, kinds] its fewest ranks on a node
    alike: Ints  # [rows, kinds] the first row whose group of this kind has the same ranks on the same nodes


def group_plans(hardware: HardwareTable, plans: Plans, rows: Ints) -> Groups:
    """Place the groups of the plans in `rows`, which are legal."""
    gpus_per_node = hardware.gpus_per_node[plans.hardware[rows]]
    table = np.stack([plans.tp[rows], plans.pp[rows], plans.ep[rows], plans.all_gpus[rows], gpus_per_node], axis=1)
    of_row, first = distinct_rows(table)
    key = np.full(len(plans.tp), -1, np.int64)
    key[rows] = of_row
    return _fill(key, table[first])


@kernel
def _fill(key: Ints, kinds: Ints) -> Groups:
    rows = kinds.shape[0]
    ranks, nodes = np.empty((rows, N_GROUPS), np.int64), np.empty((rows, N_GROUPS), np.int64)
    per_node, alike = np.empty((rows, N_GROUPS), np.int64), np.empty((rows, N_GROUPS), np.int64)
    for k in range(rows):
        tp, pp, ep, all_gpus, gpus_per_node = kinds[k, 0], kinds[k, 1], kinds[k, 2], kinds[k, 3], kinds[k, 4]
        dp = all_gpus // (tp * pp)
        ranks[k, TP], ranks[k, EP], ranks[k, DP], ranks[k, DP_EP] = tp, ep, dp, dp // ep
        nodes[k, TP], per_node[k, TP] = place(tp, 1, tp, all_gpus // tp, gpus_per_node)
        nodes[k, EP], per_node[k, EP] = place(ep, tp, tp * ep, all_gpus // (tp * ep), gpus_per_node)
        nodes[k, DP], per_node[k, DP] = place(dp, tp, tp * dp, pp, gpus_per_node)
        nodes[k, DP_EP], per_node[k, DP_EP] = place(dp // ep, tp * ep, tp * dp, pp, gpus_per_node)
        ranks[k, EMBEDDING] = min(pp, 2)
        nodes[k, EMBEDDING] = 2 if pp > 1 and all_gpus > gpus_per_node else 1
        per_node[k, EMBEDDING] = ranks[k, EMBEDDING] // nodes[k, EMBEDDING]
    shape = np.empty((rows, 3), np.int64)
    for kind in range(N_GROUPS):
        shape[:, 0], shape[:, 1], shape[:, 2] = ranks[:, kind], nodes[:, kind], per_node[:, kind]
        of_row, first = distinct_rows(shape)
        for k in range(rows):
            alike[k, kind] = first[of_row[k]]
    return Groups(key=key, ranks=ranks, nodes=nodes, per_node=per_node, alike=alike)


@kernel
def group_s(groups: Groups, row: int, links: Links, kind: int, group: int, size: float) -> float:
    """Seconds of a collective of `kind` with `size` bytes on one of a plan's groups."""
    return collective_s(kind, size, groups.ranks[row, group], groups.nodes[row, group], groups.per_node[row, group], links)
