"""The block table of a model in numbers: its operators on a device's kernels, its messages, and the host that launches them."""

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.costing.case import (
    EXPERTS_BACKWARD,
    EXPERTS_FORWARD,
    LATE_COPIES,
    LAUNCH_BACKWARD,
    LAUNCH_FORWARD,
    WAIT_APART,
    WAIT_BACKWARD,
    WAIT_FORWARD,
    WEIGHT_COMPUTE,
    WEIGHT_GRADIENTS,
    Blocks,
)
from sim_core.costing.groups import Groups
from sim_core.costing.operators import rows_of_units, shapes_of, sum_of, unit_cost
from sim_core.costing.sending import Pass, dynamic, exposed_s, message_s
from sim_core.engine.schedules import FORWARDS_FIRST, ORDER, PAIRS
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import BACKWARD_S, CP_TOTAL, EP_TOTAL, FORWARD_S, LAUNCH_S, OFFLOAD_S, RECOMPUTE_S, TP_TOTAL
from sim_core.models.activations import activation_bytes, module_bytes, offload_bytes
from sim_core.models.description import LAYER
from sim_core.models.keys import Keys
from sim_core.models.messages import messages
from sim_core.models.precision import WIDE
from sim_core.models.recompute import ALL, CORE_ATTN, norms_apart, operators_of, share_again
from sim_core.models.weights import WIDE_BYTES, frozen, held
from sim_core.planning.columns import FULL, MODULES, NONE, SELECTIVE, Plans, slice_plans
from sim_core.terms import CP_A2A, CP_RING
from sim_core.workloads.moving import EXPONENTS, rule_scales
from sim_core.workloads.workload import EP, FORWARD, INPUT_GRADIENT, TP, WEIGHT_GRADIENT, Modelled, Workload

EXPOSED = 1
AGAIN = 2
"""Row of `nic_s`."""
WEIGHT_LAUNCHES = 0.25
"""Part of the backward kernels of a layer that are of weight gradients: a GEMM of each of four linear layers, of some 16."""
ALLTOALL = 0
LONE = 2
"""`overlap_ep` of a layer that is launched in pairs, but has nothing beside it."""
CAPTURED = {"none": (1.0, False), "attention": (0.0, False), "router": (1.0, True), "attention and router": (0.0, True)}
"""By `graphs`: part of a dense layer's CPU time that is left in a layer with experts, and whether its router is captured."""


def cost_model_blocks(
    workload: Workload,
    modelled: Modelled,
    hardware: HardwareTable,
    plans: Plans,
    groups: Groups,
    first: Ints,
    overlap_ep: Ints,
    launches: Floats,
    blocks: Blocks,
) -> None:
    """Fill the rows of `blocks`; row k is that of plan `first[k]`, with `overlap_ep[k]` and `launches[k]`."""
    shapes, shape, picked = shapes_of(modelled, hardware, plans, first)
    plans, base = slice_plans(plans, first)._replace(overlap_ep=overlap_ep), workload.base
    rows = modelled, hardware, plans, groups, groups.key[first], shape, 1 / plans.device_speed, launches
    for row in picked:
        ratios = plans.micro_batch[row] / base.micro_batch / plans.cp[row], plans.tp[row] / base.tp, plans.ep[row] / base.ep
        rule_scales(*ratios, 1.0, 1.0, EXPONENTS, blocks.scale[row])
    blocks.scale[:] = blocks.scale[picked[shape]]
    for at, times, unit in rows_of_units(modelled.model):
        cost, keys = unit_cost(modelled, unit, shapes), shapes.keys
        sent = messages(modelled.model, unit, keys, modelled.stack)
        _add_unit(blocks, at, Pass(*rows, unit, cost._replace(seconds=cost.seconds * times), sent), times, keys)
        trained, still = held(modelled.model, unit, keys), frozen(modelled.model, unit, keys)
        width = modelled.model.lora.base_bytes / WIDE_BYTES if modelled.model.lora and unit.kind == LAYER else 1.0
        for column, mine in enumerate((trained.dense, trained.experts, still.dense * width, still.experts * width)):
            blocks.held[:, at, column] += mine[shape] * times


def _add_unit(blocks: Blocks, at: int, one: Pass, times: int, keys: Keys) -> None:
    """Add one unit to the table; its messages run `times` times."""
    cost, sent, operators, shape, speed, modelled = one.cost, one.sent, one.cost.operators, one.shape, one.speed, one.modelled
    work, rerun, apart_s, nic_s = blocks.work[:, at], blocks.again[:, at], blocks.apart_s[:, at], blocks.nic_s[:, at]
    of_phase = [sum_of(cost.seconds, operators.phase == phase)[shape] * speed for phase in range(3)]
    ran_s = [of_phase[FORWARD], of_phase[INPUT_GRADIENT] + of_phase[WEIGHT_GRADIENT], np.zeros(len(shape))]
    blocks.measured_s[:, at] += sum_of(cost.measured * cost.seconds, operators.phase >= 0)[shape] * speed
    work[:, FORWARD_S] += ran_s[0]
    work[:, BACKWARD_S] += ran_s[1]
    how = one.plans.checkpointing
    mask = np.where(how == MODULES, one.plans.checkpoint_layers, np.where(how == SELECTIVE, CORE_ATTN, ALL))
    masks = np.unique(mask).tolist()
    for modules in masks:  # that recompute runs again
        some = mask == modules
        redone = cost.seconds * share_again(
            operators, modules, norms_apart(modelled.model, one.unit, modelled.stack.fused_norms)
        )
        ran_s[AGAIN][some] = (sum_of(redone, operators.phase == FORWARD)[shape] * speed)[some]
    rerun[:, RECOMPUTE_S] += ran_s[AGAIN]
    seconds, of_nics = (of_one * times for of_one in message_s(one))
    exposed = np.zeros((3, len(shape)))  # of forward, backward, recompute
    for k in range(len(sent.names)):
        total, group = seconds[:, k], int(sent.group[k])
        if not total.any():
            continue
        out = exposed_s(one, k, total)
        metric = CP_TOTAL if group in (CP_A2A, CP_RING) else EP_TOTAL if group == EP else TP_TOTAL
        backwards = int(sent.phase[k] != FORWARD)
        nic = of_nics[:, k]
        nic = np.stack([nic, nic * out / np.maximum(total, 1e-30)], axis=1)
        nic_s[:, backwards] += nic
        work[:, metric] += total
        work[:, metric + EXPOSED] += out
        exposed[backwards] += out
        if group == EP:
            apart_s[:, EXPERTS_BACKWARD if backwards else EXPERTS_FORWARD] += out
        if not backwards:
            again = np.isin(mask, [own for own in masks if own == ALL or sent.operators[k] in operators_of(own)])
            rerun[:, metric] += np.where(again, total, 0.0)
            rerun[:, metric + EXPOSED] += np.where(again, out, 0.0)
            exposed[AGAIN] += np.where(again, out, 0.0)
            nic_s[:, AGAIN] += np.where(again[:, None], nic, 0.0)
    apart_s[:, WEIGHT_COMPUTE] += of_phase[WEIGHT_GRADIENT]
    _launch(
        blocks, at, one, [mine + out for mine, out in zip(ran_s, exposed, strict=True)], of_phase[WEIGHT_GRADIENT], mask == ALL
    )
    if one.unit.kind == LAYER and ((one.plans.activation_offload > 0) | (one.plans.offload_modules > 0)).any():
        _copy(blocks, at, one, keys, mask)


def _copy(blocks: Blocks, at: int, one: Pass, keys: Keys, mask: Ints) -> None:
    """Add what a layer waits for its copies: to the host beside its forward, back beside its backward. The link has a direction
    for each.

    Where forwards and backwards alternate, a copy goes on beside the other pass, too: runs on H800s in pipelines that send 0.8
    and 0.95 of their activations take about what they would without (docs/layers.md), not 10 and 13 % longer; where they follow
    each other, copies lag (`LATE_COPIES`). Where all forwards come first, what is not sent in time would stay on the device.
    """
    model, stack, plans, how = one.modelled.model, one.modelled.stack, one.plans, one.plans.checkpointing
    kept = activation_bytes(model, one.unit, keys, stack)[one.shape]
    inside = kept[np.arange(len(how)), np.select([how == SELECTIVE, how == FULL], [1, 2], 0)]
    saved, sent = module_bytes(model, one.unit, keys, stack)[one.shape], offload_bytes(model, one.unit, keys, stack)[one.shape]
    inside = inside - _of_mask(saved, np.where(how == MODULES, mask, 0))
    moved = np.minimum(plans.activation_offload * inside + _of_mask(sent, plans.offload_modules), inside)
    copy_s = moved / np.maximum(one.hardware.columns.host_bandwidth[plans.hardware], 1.0)  # 0: where nothing can be moved
    again_s = np.where(how == NONE, 0.0, blocks.again_s[:, at])
    forward_s, backward_s = blocks.forward_s[:, at], blocks.backward_s[:, at] + again_s
    alternate = passes_alternate(plans)
    first_s, then_s = np.where(alternate, np.inf, forward_s), backward_s + np.where(alternate, forward_s, 0.0)
    for of_pass, free_s in ((blocks.forward_s, first_s), (blocks.backward_s, then_s)):
        waited_s = np.maximum(copy_s - free_s, 0.0) * (moved > 0)
        of_pass[:, at] += waited_s
        blocks.work[:, at, OFFLOAD_S] += waited_s
    late_s = np.maximum(copy_s - forward_s, 0.0) + np.maximum(copy_s - blocks.backward_s[:, at] - again_s, 0.0)
    blocks.apart_s[:, at, LATE_COPIES] += np.where(alternate & (moved > 0), late_s, 0.0)


def beside_another(workload: Workload, plans: Plans) -> Floats:
    """Part of a plan's blocks that `overlap_ep` runs beside one of another micro-batch, [n]; 1 without it.

    Megatron-LM pairs a forward with a backward (core/pipeline_parallel/combined_1f1b.py). Those of warm-up and cool-down have
    no partner: (vpp - 1) pp + 1 both ways on the last stage, after pp - 1 on the stages before it.
    """
    if workload.from_file or not workload.modelled or workload.modelled.stack.overlap_ep_hidden is None:
        return np.ones(len(plans.ep))
    part = np.maximum(1 - plans.pp * plans.vpp / (plans.ga * plans.vpp + plans.pp - 1), 0.0)
    return np.where((plans.overlap_ep == 1) & (plans.ep > 1) & ~PAIRS[plans.schedule], part, 1.0)


def passes_alternate(plans: Plans) -> Bools:
    """Whether a stage's forwards and backwards are of several micro-batches in turn, [n]."""
    alternate: Bools = (plans.pp > 1) & (ORDER[plans.schedule] != FORWARDS_FIRST)
    return alternate


def _of_mask(columns: Floats, mask: Ints) -> Floats:
    """Sum of the columns, [rows, k], whose bit is set, [rows]."""
    total: Floats = (columns * (mask[:, None] >> np.arange(columns.shape[1]) & 1)).sum(axis=1)
    return total


def pipelines_over_nodes(hardware: HardwareTable, plans: Plans) -> Bools:
    """Whether a plan has a pipeline on more than one node, [n]."""
    return (plans.pp > 1) & (plans.all_gpus > hardware.columns.gpus_per_node[plans.hardware])


def _host_s(one: Pass) -> tuple[list[Floats], list[Floats]]:
    """CPU seconds of one pass of a layer, forward and backward, [rows] each; and those that the device waits in any case.

    The GEMMs of the experts of a rank run one after another, each with casts of its operands (Megatron-LM's TEGroupedMLP on
    Transformer Engine's GroupedLinear): small kernels behind a wait for counts, which the device has run dry.
    """
    sent, plans, model, stack = one.sent, one.plans, one.modelled.model, one.modelled.stack
    none = np.zeros(len(one.shape))
    if stack.graphs == "full":
        return [none, none], [none, none]
    experts = model.experts if one.unit.moe else None
    left, router = CAPTURED[stack.graphs] if experts else (0.0 if stack.graphs.startswith("attention") else 1.0, False)
    share = np.where(plans.tp > 1, 1.0, stack.host_without_tp)
    narrow, waits = plans.precision >= WIDE, (plans.dispatcher == ALLTOALL) & dynamic(model, stack)
    combined = (plans.overlap_ep > 0) & (plans.ep > 1) & ~PAIRS[plans.schedule]  # pairs are that overlap by themselves
    slower = np.where(combined, stack.host_overlap_ep, 1.0)
    launch_s, wait_s = [], []
    for phase, launch in enumerate((stack.host_forward, stack.host_backward)):
        mine = (sent.phase != FORWARD) == bool(phase)
        calls = (sent.bytes[:, mine] > 0).sum(axis=1)[one.shape]
        dense_s = share * (launch * one.launches) + stack.host_collective * calls
        if stack.ring_step_in_pipelines:
            each = stack.ring_step_in_pipelines + (one.nodes(TP) - 1) * stack.ring_step_across
            each = np.where(pipelines_over_nodes(one.hardware, plans), each, 0.0)
            dense_s = dense_s + each * one.ring_steps()[:, mine].sum(axis=1)
        if experts is None:
            launch_s.append(left * dense_s)
            wait_s.append(none)
            continue
        each = stack.host_expert[phase] + np.where(narrow, stack.host_expert_casts[phase], 0.0)
        each = experts.count / plans.ep * (each + np.where(narrow & waits, stack.host_expert_padding[phase], 0.0))
        own = np.where(waits, stack.host_alltoall[phase], 0.0)
        own = own + stack.host_experts[phase] * (1 - stack.router_share if router else 1.0)
        launch_s.append(slower * (left * dense_s + own + each))
        wait_s.append(each)
    return launch_s, wait_s


def _launch(blocks: Blocks, at: int, one: Pass, ran_s: list[Floats], weights_s: Floats, whole: Bools) -> None:
    """Add forward, backward and recompute of a unit, which take `ran_s` and what they wait in any case, unless the host takes
    longer to launch their kernels.

    `weights_s`: of the backward, what weight gradients take; where these run apart, each part has kernels of its own to launch.
    `whole`: whether recompute runs all of a layer.
    """
    apart_s = blocks.apart_s[:, at]
    forward_s, backward_s, again_s = ran_s
    inputs_s = backward_s - weights_s
    if one.unit.kind == LAYER:  # the ends are a few kernels
        (host_forward, host_backward), (wait_forward, wait_backward) = _host_s(one)
        inputs_s = inputs_s + wait_backward
        forward_s = np.maximum(forward_s + wait_forward, host_forward)
        backward_s = np.maximum(backward_s + wait_backward, host_backward)
        again_s = np.where(whole, np.maximum(again_s + wait_forward, host_forward), again_s)
        apart_s[:, LAUNCH_FORWARD] += host_forward
        apart_s[:, LAUNCH_BACKWARD] += host_backward
        weights_s = np.maximum(weights_s, WEIGHT_LAUNCHES * host_backward)
        inputs_s = np.maximum(inputs_s, (1 - WEIGHT_LAUNCHES) * host_backward)
    apart_s[:, WAIT_FORWARD] += forward_s - ran_s[0]
    apart_s[:, WAIT_BACKWARD] += backward_s - ran_s[1]
    blocks.forward_s[:, at] += forward_s
    blocks.backward_s[:, at] += backward_s
    blocks.again_s[:, at] += again_s
    blocks.work[:, at, LAUNCH_S] += forward_s - ran_s[0] + (backward_s - ran_s[1])
    blocks.again[:, at, LAUNCH_S] += again_s - ran_s[AGAIN]
    apart_s[:, WEIGHT_GRADIENTS] += weights_s
    apart_s[:, WAIT_APART] += np.maximum(inputs_s + weights_s - backward_s, 0.0)
