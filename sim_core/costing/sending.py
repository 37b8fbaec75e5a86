"""The messages of a model: their seconds on the plan's groups, and what compute hides of them."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.costing.fabric import Routing, routing_of
from sim_core.costing.groups import Groups, dispatched_s, group_nic_s, group_s
from sim_core.costing.one_collective import devices_by_node, one_node_factor
from sim_core.costing.operators import UnitCost, sum_of
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import APART, PAIRS
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at
from sim_core.models.description import Model, Unit
from sim_core.models.messages import ETP, Messages
from sim_core.models.precision import WIDE
from sim_core.models.rows import GATHERED_GRADIENTS
from sim_core.models.stack import Stack
from sim_core.planning.columns import FLEX, Plans
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, CP_RING, REDUCE_SCATTER, SEND_RECEIVE
from sim_core.workloads.workload import EP, FORWARD, INPUT_GRADIENT, TP, WEIGHT_GRADIENT, Modelled

_BESIDE_SHARED = {"permute": ("shared_fc1", "shared_activation"), "unpermute": ("shared_fc2",)}
"""Which part of the shared experts Megatron-LM runs beside dispatch and combine (core/transformer/moe/shared_experts.py)."""
_OF_EXPERTS = ("experts_fc1", "experts_fc2", "shared_fc1", "shared_fc2")
SMALL = 1e5
"""Bytes up to which a tensor-parallel ring is not counted."""


class Pass(NamedTuple):
    """One pass of a unit in all rows of the block table that are being filled."""

    modelled: Modelled
    hardware: HardwareTable
    plans: Plans  # one a row
    groups: Groups
    place: Ints  # [rows] of `groups`
    shape: Ints  # [rows] the key of the model
    speed: Floats  # [rows] on seconds of compute
    launches: Floats  # [rows] on what the host takes to launch a layer
    unit: Unit
    cost: UnitCost
    sent: Messages

    def nodes(self, group: int) -> Ints:
        """Nodes of the group that lies on the most, [rows]."""
        nodes: Ints = self.groups.placed[self.groups.end[self.place, group] - 1, 0]
        return nodes

    def compute_s(self, names: tuple[str, ...], phase: int) -> Floats:
        """Seconds of some operators in one phase, [rows]."""
        operators = self.cost.operators
        mine = np.array([name in names for name in operators.names]) & (operators.phase == phase)
        return sum_of(self.cost.seconds, mine)[self.shape] * self.speed

    def ring_steps(self) -> Floats:
        """Steps of each tensor-parallel ring, [rows, messages]; 0 for other messages."""
        ranks = self.groups.ranks[self.place, TP]
        steps = np.where(self.sent.kind == ALL_REDUCE, 2.0, 1.0)[None, :] * (ranks - 1)[:, None]
        return np.where((self.sent.group == TP)[None, :] & (self.sent.bytes[self.shape] > SMALL), steps, 0.0)


def dynamic(model: Model, stack: Stack) -> bool:
    """Whether the host has to know how many tokens each expert gets: not with padded capacities, nor in a graph of all."""
    padded = model.experts is not None and model.experts.capacity_factor is not None and model.experts.pad_to_capacity
    return model.experts is not None and not padded and stack.graphs != "full"


def message_s(one: Pass) -> tuple[Floats, Floats]:
    """Seconds of each message on the groups of each row, [rows, messages]; and those for which it needs the NICs."""
    sent, stack, plans, groups, place = one.sent, one.modelled.stack, one.plans, one.groups, one.place
    columns = one.hardware.columns
    size = np.ascontiguousarray(sent.bytes[one.shape]) * _narrower(one)
    group = np.where(sent.group == ETP, TP, sent.group)
    routing = routing_of(one.modelled.model.experts)
    seconds, nic = seconds_of_messages(columns, plans, groups, place, sent.kind, group, size, routing)
    devices, of_variant = devices_by_node(one.hardware)
    device = of_variant[plans.hardware]
    alike, picked = distinct_rows(np.column_stack([one.shape, place, device, plans.overlap_tp]))
    for k in range(len(sent.names)):
        inside = groups.placed[groups.end[place[picked], group[k]] - 1, 0] == 1  # the last one has the most nodes
        factor = np.ones(len(picked))
        for number, variant in enumerate(devices):
            some = np.flatnonzero(inside & (device[picked] == number) & (size[picked, k] > 0))
            if len(some):
                ranks = groups.ranks[place[picked[some]], group[k]]
                factor[some] = one_node_factor(variant, int(sent.kind[k]), ranks, size[picked[some], k])
        handed_on = (plans.dispatcher == FLEX) & (sent.kind[k] == ALL_TO_ALL) & (group[k] == EP)  # not by NCCL
        seconds[:, k] *= np.where(handed_on, 1.0, factor[alike])
    if stack.ring_step_across:
        own, _ = seconds_of_messages(columns, plans, groups, place, sent.kind, group, np.minimum(size, 1.0), routing)
        least = one.ring_steps() * np.where(one.nodes(TP) > 1, stack.ring_step_across, 0.0)[:, None]
        seconds += np.maximum(least - own, 0.0)
    if stack.metadata_across and one.modelled.model.experts is not None:  # what ranks exchange before a dispatch
        exchanged = (plans.dispatcher == FLEX) & (one.nodes(EP) > 1) & (plans.ep > 1)
        counts = np.array([operator == "routing" for operator in sent.operators]) & (size > 0) & exchanged[:, None]
        seconds = np.where(counts, np.maximum(seconds, stack.metadata_across), seconds)
    return seconds, np.minimum(nic, seconds)


def _narrower(one: Pass) -> Floats:
    """Bytes of each message over those of its activations, [rows, messages]: of sums of products that run in fewer bits."""
    sent, plans, devices = one.sent, one.plans, one.modelled.stack.sums_in_8_bits
    narrower = np.ones((len(plans.tp), len(sent.names)))
    if devices:
        on = np.array([device.kernels.tables in devices for device in one.hardware.variants])[plans.hardware]
        sums = (sent.kind == REDUCE_SCATTER) & (sent.group == TP) & (sent.phase == FORWARD)
        sums &= np.array([operator in GATHERED_GRADIENTS for operator in sent.operators], bool)
        narrower[np.ix_(on & (plans.overlap_tp == 1) & (plans.precision >= WIDE), sums)] = 0.5
    return narrower


@kernel
def seconds_of_messages(
    hardware: HardwareColumns,
    plans: Plans,
    groups: Groups,
    place: Ints,
    kind: Ints,
    group: Ints,
    size: Floats,
    routing: Routing,
) -> tuple[Floats, Floats]:
    """Seconds of each message of each plan, and those of the NICs where these are shared, [rows, messages] each.

    `place`: the row of `groups` of each plan.
    """
    seconds, nic = np.zeros(size.shape), np.zeros(size.shape)
    hardware, plans, groups = reference(hardware), reference(plans), reference(groups)
    for row in range(size.shape[0]):
        at, dispatcher = place[row], plans.dispatcher[row]
        device = reference(device_at(hardware, plans.hardware[row]))
        for k in range(size.shape[1]):
            bytes_ = size[row, k]
            if not bytes_ > 0:
                continue
            if dispatcher > 0 and kind[k] == ALL_TO_ALL and group[k] == EP:
                seconds[row, k], nic[row, k] = dispatched_s(groups, at, device, dispatcher, routing, bytes_)
            else:
                hops = groups.ranks[at, group[k]] - 1 if kind[k] == SEND_RECEIVE else 1  # of a ring
                seconds[row, k] = hops * group_s(groups, at, device, kind[k], group[k], bytes_)
                nic[row, k] = hops * group_nic_s(groups, at, device, kind[k], group[k], bytes_)
            if not device.shared_nics:
                nic[row, k] = 0.0
    return seconds, nic


def exposed_s(one: Pass, k: int, total: Floats) -> Floats:
    """Seconds of message k that nothing hides, and those by which it slows what hides it."""
    sent, stack, plans = one.sent, one.modelled.stack, one.plans
    kind, group, operator, phase = sent.kind[k], sent.group[k], sent.operators[k], int(sent.phase[k])
    hidden = _hidden_s(one, k, total)
    out: Floats = total - hidden * (1 - stack.contention)
    if kind == SEND_RECEIVE or group not in (EP, TP, ETP):
        return out
    if group == EP:
        over = total - _behind_other_s(one, operator, phase, total)
        if kind == ALL_TO_ALL:  # beside the shared experts; in the backward with their weight gradients, unless these run apart
            shared = one.compute_s(_BESIDE_SHARED[operator], phase)
            if phase != FORWARD:
                weights_s = one.compute_s(_BESIDE_SHARED[operator], WEIGHT_GRADIENT)
                shared = shared + np.where(APART[plans.schedule], 0.0, weights_s)
            beside_shared = total - np.minimum(total, shared) * (1 - stack.contention)
            out = np.where(plans.overlap_shared_experts == 1, beside_shared, out)
        return np.where((plans.overlap_ep == 1) & ~PAIRS[plans.schedule], over, out)
    # What `overlap_tp` hides goes part by part beside the product that it belongs to. A gather is a ring exchange: while a part
    # of the product runs, the next part of the input comes, and the last part of the product has nothing beside it. The sum of
    # a product is pipelined: its last part is sent when all is computed.
    ranks = np.maximum(plans.tp, 1)
    product = one.compute_s((operator,), phase)
    if kind == ALL_GATHER:
        in_parts = np.minimum(total, product * (ranks - 1) / ranks)
    else:
        parts = stack.tp_parts or ranks
        in_parts = np.minimum(total, product) * (parts - 1) / parts
    return np.where(plans.overlap_tp == 1, total - np.maximum(hidden, in_parts) * (1 - stack.overlap_contention), out)


def _hidden_s(one: Pass, k: int, total: Floats) -> Floats:
    """Seconds of message k that run beside compute without `overlap_tp` and `overlap_ep`."""
    sent, stack, plans = one.sent, one.modelled.stack, one.plans
    names, beside = (sent.operators[k],), int(sent.beside[k])
    if sent.kind[k] == SEND_RECEIVE:  # each hop beside a step of attention, of which there is one more
        steps = one.groups.ranks[one.place, CP_RING]
        hidden: Floats = np.minimum(total, one.compute_s(names, beside) * (steps - 1) / steps)
        return hidden
    hidden = np.zeros(len(total))
    if beside >= 0 and stack.hides_backward_tp:
        hidden = np.minimum(total, one.compute_s(names, beside))
        if beside == WEIGHT_GRADIENT:
            hidden = np.where(APART[plans.schedule], 0.0, hidden)
    if stack.own_part_first and sent.kind[k] == ALL_GATHER and sent.group[k] == TP and beside < 0:
        hidden = np.minimum(total, one.compute_s(names, int(sent.phase[k])) / np.maximum(plans.tp, 1))
    return hidden


def _behind_other_s(one: Pass, operator: str, phase: int, total: Floats) -> Floats:
    """Seconds of a message of experts that `overlap_ep` hides.

    Where a stack does not say how much: behind the compute of the experts, shared ones included, which dispatch and combine
    share. Else the messages of one micro-batch run beside the compute of another (Megatron-LM's combined 1F1B,
    core/models/common/model_chunk_schedule_plan.py): a combine of the backward beside attention's forward, one of the forward
    beside its backward, dispatches beside the experts both ways; where the host waits for counts, no more than was measured.
    """
    stack = one.modelled.stack
    measured = stack.overlap_ep_hidden if dynamic(one.modelled.model, stack) else None
    if stack.overlap_ep_hidden is None:
        window = one.compute_s(_OF_EXPERTS, phase) / 2
    elif operator == "unpermute":
        attention = tuple(name for name in one.cost.operators.names if name not in _OF_EXPERTS)
        window = one.compute_s(attention, FORWARD if phase != FORWARD else INPUT_GRADIENT)
    else:
        window = sum((one.compute_s(_OF_EXPERTS, each) for each in range(3)), np.zeros(len(total))) / 2
    hidden: Floats = (
        np.minimum(total, window) * (1 - stack.contention) if measured is None else np.minimum(total * measured, window)
    )
    return hidden
