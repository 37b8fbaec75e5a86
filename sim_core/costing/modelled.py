"""The block table of a model in numbers: its operators on a device's kernels, its messages on the plan's groups."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import (
    EXPERTS_BACKWARD,
    EXPERTS_FORWARD,
    LAUNCH_BACKWARD,
    LAUNCH_FORWARD,
    WAIT_APART,
    WAIT_BACKWARD,
    WAIT_FORWARD,
    WEIGHT_COMPUTE,
    WEIGHT_GRADIENTS,
    Blocks,
)
from sim_core.costing.experts import Host, dynamic, host_of, metadata_s
from sim_core.costing.fabric import Routing, routing_of
from sim_core.costing.groups import Groups, dispatch_group_nic_s, dispatch_group_s, group_nic_s, group_s
from sim_core.costing.one_collective import devices_by_node, one_node_factor
from sim_core.costing.operators import UnitCost, devices_of, sum_of, unit_cost
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import APART, PAIRS
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at
from sim_core.metrics import BACKWARD_S, CP_TOTAL, EP_TOTAL, FORWARD_S, LAUNCH_S, RECOMPUTE_S, TP_TOTAL
from sim_core.models.description import EMBEDDING, LAYER, Unit
from sim_core.models.messages import ETP, Messages, messages
from sim_core.models.precision import WIDE
from sim_core.models.recompute import ALL, CORE_ATTN, norms_apart, operators_of, share_again
from sim_core.models.rows import GATHERED_GRADIENTS
from sim_core.models.weights import frozen, held
from sim_core.planning.columns import FLEX, MODULES, SELECTIVE, Plans
from sim_core.planning.keys import key_table, keys_of
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, CP_A2A, CP_RING, REDUCE_SCATTER, SEND_RECEIVE
from sim_core.workloads.moving import EXPONENTS, rule_scales
from sim_core.workloads.workload import EP, FORWARD, INPUT_GRADIENT, TP, WEIGHT_GRADIENT, Modelled, Workload

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
    launches: Floats  # [rows] on what the host takes to launch a layer


def message_s(filled: Filled, sent: Messages) -> tuple[Floats, Floats]:
    """Seconds of each message on the groups of each row, [rows, messages]; and those for which it needs the NICs."""
    plans, groups, first, hardware = filled.plans, filled.groups, filled.first, filled.hardware
    size = np.ascontiguousarray(sent.bytes[filled.shape]) * _narrower(filled, sent)
    group = np.where(sent.group == ETP, TP, sent.group)
    routing = routing_of(filled.modelled.model.experts)
    seconds, nic = seconds_of_messages(hardware.columns, plans, groups, first, sent.kind, group, size, routing)
    place = groups.key[first]
    devices, of_variant = devices_by_node(hardware)
    device = of_variant[plans.hardware[first]]
    alike, picked = distinct_rows(np.column_stack([filled.shape, place, device, plans.overlap_tp[first]]))
    place, device, size_of = place[picked], device[picked], size[picked]
    for k in range(len(sent.names)):
        inside = groups.placed[groups.end[place, group[k]] - 1, 0] == 1  # the last one has the most nodes
        factor = np.ones(len(picked))
        for number, one in enumerate(devices):
            rows = np.flatnonzero(inside & (device == number) & (size_of[:, k] > 0))
            if len(rows):
                ranks = groups.ranks[place[rows], group[k]]
                factor[rows] = one_node_factor(one, int(sent.kind[k]), ranks, size_of[rows, k])
        seconds[:, k] *= factor[alike]
    stack = filled.modelled.stack
    if stack.ring_step_across:
        own, _ = seconds_of_messages(hardware.columns, plans, groups, first, sent.kind, group, np.minimum(size, 1.0), routing)
        least = _ring_steps(filled, sent) * np.where(_nodes(filled) > 1, stack.ring_step_across, 0.0)[:, None]
        seconds += np.maximum(least - own, 0.0)
    if stack.metadata_across:
        least = metadata_s(stack, filled.modelled.model, plans, first, _nodes(filled, EP) > 1)
        counts = np.array([operator == "routing" for operator in sent.operators]) & (size > 0)
        seconds = np.where(counts, np.maximum(seconds, least[:, None]), seconds)
    return seconds, np.minimum(nic, seconds)


def _narrower(filled: Filled, sent: Messages) -> Floats:
    """Bytes of each message over those of its activations, [rows, messages]: of sums of products that run in fewer bits."""
    stack, plans, first = filled.modelled.stack, filled.plans, filled.first
    narrower = np.ones((len(first), len(sent.names)))
    if not stack.sums_in_8_bits:
        return narrower
    names = np.array([device.kernels.tables in stack.sums_in_8_bits for device in filled.hardware.variants])
    rows = names[plans.hardware[first]] & (plans.overlap_tp[first] == 1) & (plans.precision[first] >= WIDE)
    sums = (sent.kind == REDUCE_SCATTER) & (sent.group == TP) & (sent.phase == FORWARD)
    sums &= np.array([operator in GATHERED_GRADIENTS for operator in sent.operators], np.bool_)
    narrower[np.ix_(rows, sums)] = 0.5
    return narrower


def _ring_steps(filled: Filled, sent: Messages) -> Floats:
    """Steps of each tensor-parallel ring, [rows, messages]; 0 for other messages."""
    groups = filled.groups
    ranks = groups.ranks[groups.key[filled.first], TP]
    steps = np.where(sent.kind == ALL_REDUCE, 2.0, 1.0)[None, :] * (ranks - 1)[:, None]
    return np.where((sent.group == TP)[None, :] & (sent.bytes[filled.shape] > SMALL), steps, 0.0)


def _nodes(filled: Filled, group: int = TP) -> Ints:
    """Nodes of the group that lies on the most, [rows]; by default of the tensor-parallel one."""
    groups = filled.groups
    nodes: Ints = groups.placed[groups.end[groups.key[filled.first], group] - 1, 0]
    return nodes


SMALL: Final = 1e5


@kernel
def seconds_of_messages(
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
    hidden = _hidden_s(filled, cost, sent, k, total)
    out: Floats = total - hidden * (1 - stack.contention)
    if sent.kind[k] == SEND_RECEIVE:
        return out
    if sent.group[k] == EP:
        over = total - _behind_other_s(filled, cost, sent, k, total)
        if sent.kind[k] == ALL_TO_ALL:
            shared = _shared_s(filled, cost, sent.operators[k], int(sent.phase[k]))
            beside_shared = total - np.minimum(total, shared) * (1 - stack.contention)
            out = np.where(plans.overlap_shared_experts[first] == 1, beside_shared, out)
        return np.where((plans.overlap_ep[first] == 1) & ~PAIRS[plans.schedule[first]], over, out)
    if sent.group[k] != TP and sent.group[k] != ETP:
        return out
    hidden = np.maximum(hidden, _hidden_in_parts_s(filled, cost, sent, k, total))
    return np.where(plans.overlap_tp[first] == 1, total - hidden * (1 - stack.overlap_contention), out)


def _hidden_s(filled: Filled, cost: UnitCost, sent: Messages, k: int, total: Floats) -> Floats:
    """Seconds of message k that run beside compute without `overlap_tp` and `overlap_ep`."""
    stack, plans, first = filled.modelled.stack, filled.plans, filled.first
    beside = int(sent.beside[k])
    if sent.kind[k] == SEND_RECEIVE:  # each hop beside a step of attention, of which there is one more
        steps = filled.groups.ranks[filled.groups.key[first], CP_RING]
        beside_s: Floats = _compute_s(filled, cost, (sent.operators[k],), beside) * (steps - 1) / steps
        return np.minimum(total, beside_s)
    hidden = np.zeros(len(total))
    if beside >= 0 and stack.hides_backward_tp:
        hidden = np.minimum(total, _compute_s(filled, cost, (sent.operators[k],), beside))
        if beside == WEIGHT_GRADIENT:
            hidden = np.where(APART[plans.schedule[first]], 0.0, hidden)
    if stack.own_part_first and sent.kind[k] == ALL_GATHER and sent.group[k] == TP and beside < 0:
        product = _compute_s(filled, cost, (sent.operators[k],), int(sent.phase[k]))
        hidden = np.minimum(total, product / np.maximum(plans.tp[first], 1))
    return hidden


def _hidden_in_parts_s(filled: Filled, cost: UnitCost, sent: Messages, k: int, total: Floats) -> Floats:
    """Seconds of a message that goes part by part beside the product that it belongs to: what `overlap_tp` hides.

    A gather is a ring exchange: while a part of the product runs, the next part of the input comes, and the last part of the
    product has nothing beside it. The sum of a product is pipelined: its last part is sent when all is computed.
    """
    stack, ranks = filled.modelled.stack, np.maximum(filled.plans.tp[filled.first], 1)
    product = _compute_s(filled, cost, (sent.operators[k],), int(sent.phase[k]))
    hidden: Floats
    if sent.kind[k] == ALL_GATHER:
        hidden = np.minimum(total, product * (ranks - 1) / ranks)
    else:
        parts = stack.tp_parts or ranks
        hidden = np.minimum(total, product) * (parts - 1) / parts
    return hidden


def _behind_other_s(filled: Filled, cost: UnitCost, sent: Messages, k: int, total: Floats) -> Floats:
    """Seconds of message k of experts that `overlap_ep` hides.

    Where a stack does not say how much: behind the compute of the experts, shared ones included, which dispatch and combine
    share. Else the messages of one micro-batch run beside the compute of another (Megatron-LM's combined 1F1B,
    core/models/common/model_chunk_schedule_plan.py): a combine of the backward beside attention's forward, one of the forward
    beside its backward, dispatches beside the experts both ways; where the host waits for counts, no more than it was measured.
    """
    stack = filled.modelled.stack
    if stack.overlap_ep_hidden is None:
        compute = _compute_s(filled, cost, _OF_EXPERTS, int(sent.phase[k])) / 2
        return np.minimum(total, compute) * (1 - stack.contention)
    if dynamic(filled.modelled.model, stack):
        return total * stack.overlap_ep_hidden
    names = cost.operators.names
    if sent.operators[k] == "unpermute":
        attention = tuple(name for name in names if name not in _OF_EXPERTS)
        window = _compute_s(filled, cost, attention, FORWARD if sent.phase[k] != FORWARD else INPUT_GRADIENT)
    else:
        window = sum((_compute_s(filled, cost, _OF_EXPERTS, phase) for phase in range(3)), np.zeros(len(total))) / 2
    return np.minimum(total, window) * (1 - stack.contention)


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
    operators = cost.operators
    seconds = sum_of(cost.seconds, np.array([name in names for name in operators.names]) & (operators.phase == phase))
    return seconds[filled.shape] * filled.speed


EXPOSED: Final = 1
AGAIN: Final = 2
"""Row of `nic_s`."""
WEIGHT_LAUNCHES: Final = 0.25
"""Part of the backward kernels of a layer that are of weight gradients: a GEMM of each of four linear layers, of some 16."""


def cost_model_blocks(
    workload: Workload,
    modelled: Modelled,
    hardware: HardwareTable,
    plans: Plans,
    groups: Groups,
    first: Ints,
    launches: Floats,
    blocks: Blocks,
) -> None:
    """Fill the rows of `blocks`; row k is that of plan `first[k]`, with `launches[k]`."""
    model, stack = modelled.model, modelled.stack
    devices, of_variant = devices_of(hardware)
    table = np.column_stack([key_table(plans, first), of_variant[plans.hardware[first]]])
    shape, picked = distinct_rows(table)
    keys = keys_of(modelled, table[picked])
    filled = Filled(modelled, hardware, plans, groups, first, shape, 1 / plans.device_speed[first], launches)
    _fill_scales(workload, plans, first, shape, picked, blocks)
    ends = {EMBEDDING: len(model.layer_units)}
    number = 0
    for unit in model.units:
        at = ends.get(unit.kind, len(model.layer_units) + 1)
        if unit.kind == LAYER:
            at, number = number, number + 1
        cost = unit_cost(modelled, unit, keys, devices, table[picked, -1])
        sent = messages(model, unit, keys, stack)
        times = 1 if unit.kind == LAYER else unit.number
        cost = cost._replace(seconds=cost.seconds * times)
        _add_unit(blocks, at, filled, cost, sent, unit, times)
        mine = held(model, unit, keys)
        blocks.held[:, at, 0] += mine.dense[shape] * times
        blocks.held[:, at, 1] += mine.experts[shape] * times
        still = frozen(model, unit, keys)
        blocks.held[:, at, 2] += still.dense[shape] * times
        blocks.held[:, at, 3] += still.experts[shape] * times


def _fill_scales(workload: Workload, plans: Plans, first: Ints, shape: Ints, picked: Ints, blocks: Blocks) -> None:
    """The scales of each row: those of the shape that it has, which are those of the row `picked` for it."""
    base = workload.base
    for row in picked:
        i = first[row]
        ratios = (plans.micro_batch[i] / base.micro_batch / plans.cp[i], plans.tp[i] / base.tp, plans.ep[i] / base.ep)
        rule_scales(*ratios, 1.0, 1.0, EXPONENTS, blocks.scale[row])
    blocks.scale[:] = blocks.scale[picked[shape]]


def _add_unit(blocks: Blocks, at: int, filled: Filled, cost: UnitCost, sent: Messages, unit: Unit, times: int) -> None:
    """Add one unit to the table; its messages run `times` times."""
    operators, shape, speed, modelled = cost.operators, filled.shape, filled.speed, filled.modelled
    of_phase = [sum_of(cost.seconds, operators.phase == phase)[shape] * speed for phase in range(3)]
    forward, backward = of_phase[FORWARD], of_phase[INPUT_GRADIENT] + of_phase[WEIGHT_GRADIENT]
    blocks.measured_s[:, at] += sum_of(cost.measured * cost.seconds, operators.phase >= 0)[shape] * speed
    blocks.work[:, at, FORWARD_S] += forward
    blocks.work[:, at, BACKWARD_S] += backward
    exposed = [np.zeros(len(shape)), np.zeros(len(shape))]
    mask = again_mask(filled.plans, filled.first)
    again_compute = np.zeros(len(shape))
    for modules in np.unique(mask):
        rows = mask == modules
        redone = cost.seconds * share_again(
            operators, int(modules), norms_apart(modelled.model, unit, modelled.stack.fused_norms)
        )
        again_compute[rows] = (sum_of(redone, operators.phase == FORWARD)[shape] * speed)[rows]
    seconds, of_nics = (of_one * times for of_one in message_s(filled, sent))
    again_messages = np.zeros(len(shape))
    for k in range(len(sent.names)):
        total = seconds[:, k]
        if not total.any():
            continue
        out = exposed_s(filled, cost, sent, k, total)
        of_context = int(sent.group[k]) in (CP_A2A, CP_RING)
        metric = CP_TOTAL if of_context else EP_TOTAL if sent.group[k] == EP else TP_TOTAL
        backwards = int(sent.phase[k] != FORWARD)
        nic = of_nics[:, k]
        nic = np.stack([nic, nic * out / np.maximum(total, 1e-30)], axis=1)
        blocks.nic_s[:, at, backwards] += nic
        blocks.work[:, at, metric] += total
        blocks.work[:, at, metric + EXPOSED] += out
        exposed[backwards] += out
        if sent.group[k] == EP:
            blocks.apart_s[:, at, EXPERTS_BACKWARD if backwards else EXPERTS_FORWARD] += out
        if not backwards:
            left_out = np.array([modules != ALL and sent.operators[k] not in operators_of(modules) for modules in mask])
            blocks.again[:, at, metric] += np.where(left_out, 0.0, total)
            blocks.again[:, at, metric + EXPOSED] += np.where(left_out, 0.0, out)
            again_messages += np.where(left_out, 0.0, out)
            blocks.nic_s[:, at, AGAIN] += np.where(left_out[:, None], 0.0, nic)
    blocks.again[:, at, RECOMPUTE_S] += again_compute
    ran_s = forward + exposed[0], backward + exposed[1], again_compute + again_messages
    blocks.apart_s[:, at, WEIGHT_COMPUTE] += of_phase[WEIGHT_GRADIENT]
    host = host_of(modelled.model, modelled.stack, filled.plans, filled.first, _host_s(filled, sent), moe=unit.moe)
    _launch(blocks, at, host, ran_s, of_phase[WEIGHT_GRADIENT], mask == ALL)


def pipelines_over_nodes(hardware: HardwareTable, plans: Plans, rows: Ints) -> Bools:
    """Whether a plan has a pipeline on more than one node, [rows]."""
    of_node = np.array([device.value("gpus_per_node") for device in hardware.variants])
    over: Bools = (plans.pp[rows] > 1) & (plans.all_gpus[rows] > of_node[plans.hardware[rows]])
    return over


def _host_s(filled: Filled, sent: Messages) -> tuple[Floats, Floats]:
    """Seconds of the host to launch the forward and the backward of a layer, [rows] each."""
    stack, plans, first = filled.modelled.stack, filled.plans, filled.first
    share = np.where(plans.tp[first] > 1, 1.0, stack.host_without_tp)
    sent_backward = sent.phase != FORWARD
    calls = [(sent.bytes[:, sent_backward == backward] > 0).sum(axis=1)[filled.shape] for backward in (False, True)]
    host = [
        share * (launch * filled.launches) + stack.host_collective * number
        for launch, number in zip((stack.host_forward, stack.host_backward), calls, strict=True)
    ]
    if stack.ring_step_in_pipelines:
        slow = pipelines_over_nodes(filled.hardware, plans, first)
        each = stack.ring_step_in_pipelines + (_nodes(filled) - 1) * stack.ring_step_across
        steps = _ring_steps(filled, sent)
        for backward in range(2):
            host[backward] = host[backward] + np.where(slow, each, 0.0) * steps[:, sent_backward == bool(backward)].sum(axis=1)
    return host[0], host[1]


def _launch(
    blocks: Blocks,
    at: int,
    host: Host,
    ran_s: tuple[Floats, Floats, Floats],
    weights_s: Floats,
    whole: Bools,
) -> None:
    """Add forward, backward and recompute of a unit, which take `ran_s` and what they wait in any case, unless the host takes
    longer to launch their kernels.

    `weights_s`: of the backward, what weight gradients take; where these run apart, each part has kernels of its own to launch.
    `whole`: whether recompute runs all of a layer.
    """
    forward_s, backward_s, again_s = ran_s
    inputs_s = backward_s - weights_s
    if at < blocks.forward_s.shape[1] - 2:  # the ends are a few kernels
        host_forward, host_backward = host.launch_s
        inputs_s = inputs_s + host.wait_s[1]
        forward_s = np.maximum(forward_s + host.wait_s[0], host_forward)
        backward_s = np.maximum(backward_s + host.wait_s[1], host_backward)
        again_s = np.where(whole, np.maximum(again_s + host.wait_s[0], host_forward), again_s)
        blocks.apart_s[:, at, LAUNCH_FORWARD] += host_forward
        blocks.apart_s[:, at, LAUNCH_BACKWARD] += host_backward
        weights_s = np.maximum(weights_s, WEIGHT_LAUNCHES * host_backward)
        inputs_s = np.maximum(inputs_s, (1 - WEIGHT_LAUNCHES) * host_backward)
    blocks.apart_s[:, at, WAIT_FORWARD] += forward_s - ran_s[0]
    blocks.apart_s[:, at, WAIT_BACKWARD] += backward_s - ran_s[1]
    blocks.forward_s[:, at] += forward_s
    blocks.backward_s[:, at] += backward_s
    blocks.again_s[:, at] += again_s
    blocks.work[:, at, LAUNCH_S] += forward_s - ran_s[0] + (backward_s - ran_s[1])
    blocks.again[:, at, LAUNCH_S] += again_s - ran_s[2]
    blocks.apart_s[:, at, WEIGHT_GRADIENTS] += weights_s
    blocks.apart_s[:, at, WAIT_APART] += np.maximum(inputs_s + weights_s - backward_s, 0.0)


def again_mask(plans: Plans, rows: Ints) -> Ints:
    """The modules of a layer that recompute runs again, [rows]: a mask of RECOMPUTE_MODULES, or ALL."""
    how = plans.checkpointing[rows]
    return np.where(how == MODULES, plans.checkpoint_layers[rows], np.where(how == SELECTIVE, CORE_ATTN, ALL))
