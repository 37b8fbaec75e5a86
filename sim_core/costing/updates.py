"""Seconds of an update that is not AdamW's, by stage: the traffic of its state, Newton-Schulz by shape, what ranks exchange.

An update ends on the busiest rank. Without a divided optimizer every rank updates all that it holds.
"""

from typing import Final

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.costing.case import Updates
from sim_core.costing.fabric import routing_of
from sim_core.costing.groups import Groups
from sim_core.costing.layouts import DENSE, EXPERTS, Group, layouts_of
from sim_core.costing.modelled import seconds_of_messages
from sim_core.costing.operators import devices_of
from sim_core.distinct import distinct_rows
from sim_core.hardware.kernels.device import Kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.table import HardwareTable
from sim_core.models.optimizers import MOMENTS, NS_STEPS, Local, Optimizer
from sim_core.planning.columns import Plans
from sim_core.planning.split import Split
from sim_core.terms import ALL_GATHER, ALL_REDUCE
from sim_core.workloads.workload import TP, Modelled, Workload

SENT: Final = ((ALL_GATHER, 1.0), (ALL_REDUCE, float(NS_STEPS)))
"""Messages of a matrix, and how often: gathered once, summed in each step."""


def update_table(
    workload: Workload, hardware: HardwareTable, plans: Plans, groups: Groups, split: Split, rows: Ints, none: Updates
) -> Updates:
    """The updates of the plans in `rows`; `none`: the table without any, which AdamW alone needs."""
    modelled = workload.modelled
    if modelled is None or workload.from_file or not plans.optimizer[rows].any():
        return none
    found = layouts_of(workload, modelled, plans, split, rows)
    place = groups.alike[groups.key[found.rows], TP]
    columns = [found.key, plans.hardware[found.rows], plans.device_speed[found.rows].view(np.int64), place]
    of_row, first = distinct_rows(np.stack(columns, axis=1))
    key = none.key.copy()
    key[found.rows] = of_row
    seconds, padding = np.zeros((len(first), int(plans.pp[found.rows].max()))), np.ones((len(first), 2))
    devices, of_variant = devices_of(hardware)
    for number, at in enumerate(first):
        row, (optimizer, both) = int(found.rows[at]), found.layouts[found.key[at]]
        hbm = float(hardware.columns.hbm_bandwidth[plans.hardware[row]])
        device, speed = devices[of_variant[plans.hardware[row]]], float(plans.device_speed[row])
        for which in (DENSE, EXPERTS):
            group = both[which]
            if group.shares:
                kinds = _kinds_s(modelled, device, group.kinds) / speed
                kinds += _messages_s(modelled, hardware, plans, groups, row, group.kinds)
                kinds += [_moved(modelled, optimizer) * kind.elements / hbm for kind in group.kinds]
                busiest = [(share @ kinds).max(initial=0.0) for share in group.shares]
                more = np.array(busiest) - modelled.stack.optimizer_bytes * group.in_matrices / group.ranks / hbm
                padding[number, which] = (1 + group.padding / np.maximum(group.elements, 1.0)).max()
            else:
                more = _evenly(optimizer, group) / hbm
            seconds[number, : len(more)] += more
    return Updates(key, seconds, padding)


def _moved(modelled: Modelled, optimizer: Optimizer) -> float:
    """Bytes that an update moves of each weight."""
    return modelled.stack.optimizer_bytes + 2 * (optimizer.state - MOMENTS) + optimizer.traffic


def _evenly(optimizer: Optimizer, group: Group) -> Floats:
    """Bytes beyond AdamW's that each rank moves of a state that is divided evenly, [stages]."""
    each = 2 * (optimizer.state - MOMENTS) + optimizer.traffic
    moved: Floats = (each * group.elements + 2 * optimizer.factored * group.factors) / group.ranks
    return moved


def _kinds_s(modelled: Modelled, device: Kernels, kinds: tuple[Local, ...]) -> Floats:
    """Seconds of Newton-Schulz of one matrix of each kind: its products one by one, in the precision of the model's."""
    m, n, k = np.array([kind.products for kind in kinds], np.float64).reshape(-1, 3).T
    seconds: Floats = NS_STEPS * gemm_s(device, modelled.dtype, m, n, k).seconds.reshape(len(kinds), -1).sum(axis=1)
    return seconds


def _messages_s(
    modelled: Modelled, hardware: HardwareTable, plans: Plans, groups: Groups, row: int, kinds: tuple[Local, ...]
) -> Floats:
    """Seconds of what tensor-parallel ranks send of one matrix of each kind."""
    size = np.array([[value for kind in kinds for value in (kind.gathered, kind.summed)]])
    kind = np.array([one for _ in kinds for one, _ in SENT], np.int64)
    group, routing = np.full(len(kind), TP, np.int64), routing_of(modelled.model.experts)
    first = np.array([row], np.int64)
    each, _ = seconds_of_messages(hardware.columns, plans, groups, first, kind, group, size, routing)
    seconds: Floats = (each.reshape(-1, len(SENT)) * [times for _, times in SENT]).sum(axis=1)
    return seconds
