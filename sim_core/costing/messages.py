"""Seconds of the messages of a model's unit: on the wire, and exposed."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.groups import Groups, dispatch_group_nic_s, dispatch_group_s, group_nic_s, group_s
from sim_core.costing.one_node import one_node_factor
from sim_core.costing.operators import UnitCost, sum_of
from sim_core.costing.routing import Routing, routing_of
from sim_core.engine.codes import APART
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at
from sim_core.jit import kernel
from sim_core.models.messages import ETP, Messages
from sim_core.planning.columns import FLEX, Plans
from sim_core.references import reference
from sim_core.terms import ALL_TO_ALL, CP_RING, FORWARD, SEND_RECEIVE
from sim_core.workloads.workload import EP, TP, WEIGHT_GRADIENT, Modelled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


_BESIDE_SHARED: Final = {"permute": ("shared_fc1", "shared_activation"), "unpermute": ("shared_fc2",)}
"""Which part of the shared experts Megatron-LM runs beside dispatch and combine (core/transformer/moe/shared_experts.py)."""
_OF_EXPERTS: Final = ("experts_fc1", "experts_fc2", "shared_fc1", "shared_fc2")


class Filled(NamedTuple):
    """The rows of the block table that are being filled; row k is that of plan `first[k]`."""

    modelled: Modelled
    hardware: HardwareTable
    plans: Plans
    groups: Groups
    first: Ints
    shape: Ints  # [rows] the key of the model
    speed: Floats  # [rows] on seconds of compute


def message_s(filled: Filled, sent: Messages) -> tuple[Floats, Floats]:
    """Seconds of each message on the groups of each row, [rows, messages]; and those for which it needs the NICs."""
    plans, groups, first, hardware = filled.plans, filled.groups, filled.first, filled.hardware
    size = np.ascontiguousarray(sent.bytes[filled.shape])
    group = np.where(sent.group == ETP, TP, sent.group)
    routing = routing_of(filled.modelled.model.experts)
    seconds, nic = _message_s(hardware.columns, plans, groups, first, sent.kind, group, size, routing)
    place = groups.key[first]
    for k in range(len(sent.names)):
        inside = groups.placed[groups.end[place, group[k]] - 1, 0] == 1  # the last one has the most nodes
        for variant, device in enumerate(hardware.variants):
            rows = np.flatnonzero(inside & (plans.hardware[first] == variant) & (size[:, k] > 0))
            if len(rows):
                ranks = groups.ranks[place[rows], group[k]]
                seconds[rows, k] *= one_node_factor(device, int(sent.kind[k]), ranks, size[rows, k])
    return seconds, np.minimum(nic, seconds)


@kernel
def _message_s(
    hardware: HardwareColumns,
    plans: Plans,
    groups: Groups,
    first: Ints,
    kind: Ints,
    group: Ints,
    size: Floats,
    routing: Routing,
) -> tuple[Floats, Floats]:
    """Seconds of each message for each row, and those of the NICs where these are shared, [rows, messages] each."""
    seconds, nic = np.zeros(size.shape), np.zeros(size.shape)
    hardware, plans, groups = reference(hardware), reference(plans), reference(groups)
    for row in range(size.shape[0]):
        i = first[row]
        links = reference(device_at(hardware, plans.hardware[i]).links)
        for k in range(size.shape[1]):
            of_experts = plans.dispatcher[i] > 0 and kind[k] == ALL_TO_ALL and group[k] == EP
            if size[row, k] > 0 and links.shared_nics and of_experts and plans.dispatcher[i] == FLEX:
                nic[row, k] = dispatch_group_nic_s(groups, groups.key[i], links, routing, size[row, k])
            elif size[row, k] > 0 and links.shared_nics:
                nic[row, k] = group_nic_s(groups, groups.key[i], links, kind[k], group[k], size[row, k])
            if size[row, k] > 0 and of_experts:
                seconds[row, k] = dispatch_group_s(groups, groups.key[i], links, plans.dispatcher[i], routing, size[row, k])
            elif size[row, k] > 0:
                seconds[row, k] = group_s(groups, groups.key[i], links, kind[k], group[k], size[row, k])
                if kind[k] == SEND_RECEIVE:  # a hop of a ring
                    seconds[row, k] *= groups.ranks[groups.key[i], group[k]] - 1
                    nic[row, k] *= groups.ranks[groups.key[i], group[k]] - 1
    return seconds, nic


def exposed_s(filled: Filled, cost: UnitCost, sent: Messages, k: int, total: Floats) -> Floats:
    """Seconds of message k that nothing hides, and those by which it slows what hides it."""
    stack, plans, first = filled.modelled.stack, filled.plans, filled.first
    beside = int(sent.beside[k])
    hidden = np.zeros(len(total))
    if sent.kind[k] == SEND_RECEIVE:  # each hop beside a step of attention, of which there is one more
        steps = filled.groups.ranks[filled.groups.key[first], CP_RING]
        hidden = np.minimum(total, _compute_s(filled, cost, (sent.operators[k],), beside) * (steps - 1) / steps)
        exposed: Floats = total - hidden * (1 - stack.contention)
        return exposed
    if beside >= 0 and stack.hides_backward_tp:
        hidden = np.minimum(total, _compute_s(filled, cost, (sent.operators[k],), beside))
        if beside == WEIGHT_GRADIENT:
            hidden = np.where(APART[plans.schedule[first]], 0.0, hidden)
    out = total - hidden * (1 - stack.contention)
    if sent.group[k] == EP:  # dispatch and combine share the compute of the experts, shared ones included
        compute = _compute_s(filled, cost, _OF_EXPERTS, int(sent.phase[k])) / 2
        over = total - np.minimum(total, compute) * (1 - stack.contention)
        if sent.kind[k] == ALL_TO_ALL:
            shared = _shared_s(filled, cost, sent.operators[k], int(sent.phase[k]))
            beside_shared = total - np.minimum(total, shared) * (1 - stack.contention)
            out = np.where(plans.overlap_shared_experts[first] == 1, beside_shared, out)
        return np.where(plans.overlap_ep[first] == 1, over, out)
    if sent.group[k] != TP and sent.group[k] != ETP:
        return out
    return np.where(plans.overlap_tp[first] == 1, np.minimum(out, stack.overlapped_tp_exposed * total), out)


def _shared_s(filled: Filled, cost: UnitCost, operator: str, phase: int) -> Floats:
    """Seconds of the shared experts that run beside a message of `operator`, [rows].

    In the backward with their weight gradients, unless these run apart.
    """
    names = _BESIDE_SHARED[operator]
    seconds = _compute_s(filled, cost, names, phase)
    if phase == FORWARD:
        return seconds
    apart = APART[filled.plans.schedule[filled.first]]
    return seconds + np.where(apart, 0.0, _compute_s(filled, cost, names, WEIGHT_GRADIENT))


def _compute_s(filled: Filled, cost: UnitCost, names: tuple[str, ...], phase: int) -> Floats:
    """Seconds of some operators in one phase, [rows]."""
    found = cost.operators
    seconds = sum_of(cost.seconds, np.array([name in names for name in found.names]) & (found.phase == phase))
    return seconds[filled.shape] * filled.speed
