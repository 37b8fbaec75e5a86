"""The block table of a model in numbers: its operators on a device's kernels, its messages on the plan's groups."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Blocks
from sim_core.costing.groups import Groups, group_s
from sim_core.distinct import distinct_rows
from sim_core.hardware.kernels.attention import (
    attention_backward_s,
    attention_forward_s,
    unfused_attention_backward_s,
    unfused_attention_forward_s,
)
from sim_core.hardware.kernels.device import Kernels, Timed, load_kernels
from sim_core.hardware.kernels.gemm import PHASES, gemm_s, grouped_gemm_s
from sim_core.hardware.kernels.memory import memory_s
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at
from sim_core.jit import kernel
from sim_core.metrics import BACKWARD_S, EP_TOTAL, FORWARD_S, RECOMPUTE_S, TP_TOTAL
from sim_core.models.activations import activation_bytes
from sim_core.models.description import EMBEDDING, LAYER, Unit
from sim_core.models.keys import Keys
from sim_core.models.messages import ETP, Messages, messages
from sim_core.models.operators import operators
from sim_core.models.rows import GEMM, GROUPED_GEMM, MEMORY, AttentionShape, Operators
from sim_core.planning.columns import SELECTIVE, Plans
from sim_core.workloads.moving import EXPONENTS, rule_scales
from sim_core.workloads.workload import EP, FORWARD, INPUT_GRADIENT, TP, WEIGHT_GRADIENT, Modelled, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EXPOSED: Final = 1
UNFUSED: Final = frozenset(
    ("scores", "softmax", "attention_dropout", "context", "context_values", "context_scores", "scores_queries", "scores_keys")
)
"""Operators of attention without a flash kernel, which is costed as a whole."""


class UnitCost(NamedTuple):
    """One pass of one unit for each shape, without messages: seconds of each operator, [shapes, operators]."""

    operators: Operators
    seconds: Floats
    measured: npt.NDArray[np.bool_]


def model_keys(modelled: Modelled, tp: Ints, ep: Ints, micro_batch: Ints) -> Keys:
    """The keys of a model for some plans."""
    return modelled.keys(tp, ep, micro_batch)


def cost_model_blocks(
    workload: Workload, modelled: Modelled, hardware: HardwareTable, plans: Plans, groups: Groups, first: Ints, blocks: Blocks
) -> None:
    """Fill the rows of `blocks`; row k is that of plan `first[k]`."""
    model, stack = modelled.model, modelled.stack
    devices, of_variant = _devices(hardware)
    table = np.stack([plans.tp[first], plans.ep[first], plans.micro_batch[first], of_variant[plans.hardware[first]]], axis=1)
    shape, picked = distinct_rows(table)
    keys = modelled.keys(*(np.ascontiguousarray(table[picked, k]) for k in range(3)))
    speed = 1 / plans.device_speed[first]
    _fill_scales(workload, plans, first, blocks)
    ends = {EMBEDDING: len(model.layer_units)}
    number = 0
    for unit in model.units:
        at = ends.get(unit.kind, len(model.layer_units) + 1)
        if unit.kind == LAYER:
            at, number = number, number + 1
        cost = _unit_cost(modelled, unit, keys, devices, table[picked, 3])
        sent = messages(model, unit, keys, stack.kernels)
        times = 1 if unit.kind == LAYER else unit.number
        _add_unit(blocks, at, cost, sent, modelled, hardware, plans, groups, first, shape, speed, times)
        kept = activation_bytes(model, unit, keys, flash=stack.flash_attention) * times
        blocks.kept[:, at] += kept[shape]


def _devices(hardware: HardwareTable) -> tuple[list[Kernels], Ints]:
    """The distinct devices among the variants, and the one of each."""
    found: dict[object, int] = {}
    devices: list[Kernels] = []
    of_variant: list[int] = []
    for variant in hardware.variants:
        kernels = load_kernels(variant)
        key = (variant.kernels.tables, kernels.own, tuple(kernels.numbers.items()))
        if key not in found:
            found[key] = len(devices)
            devices.append(kernels)
        of_variant.append(found[key])
    return devices, np.array(of_variant, np.int64)


def _fill_scales(workload: Workload, plans: Plans, first: Ints, blocks: Blocks) -> None:
    base = workload.base
    for row, i in enumerate(first):
        ratios = (plans.micro_batch[i] / base.micro_batch, plans.tp[i] / base.tp, plans.ep[i] / base.ep)
        rule_scales(*ratios, EXPONENTS, blocks.scale[row])


def _unit_cost(modelled: Modelled, unit: Unit, keys: Keys, devices: list[Kernels], of_shape: Ints) -> UnitCost:
    """Seconds of all operators of a unit, each shape on its device."""
    found = operators(modelled.model, unit, keys, modelled.stack.kernels)
    seconds, measured = np.zeros(found.m.shape), np.zeros(found.m.shape, np.bool_)
    for number, kernels in enumerate(devices):
        rows = np.flatnonzero(of_shape == number)
        if len(rows):
            seconds[rows], measured[rows] = _on_device(modelled, found, rows, kernels)
    return UnitCost(found, seconds, measured)


def _on_device(modelled: Modelled, found: Operators, rows: Ints, kernels: Kernels) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Seconds of the operators in some shapes on one device, and which of them rest on its own measured kernels."""
    seconds, measured = np.zeros((len(rows), len(found.names))), np.zeros((len(rows), len(found.names)), np.bool_)
    dtype = modelled.dtype
    for op, name in enumerate(found.names):
        kind, phase = found.kind[op], found.phase[op]
        m, n, k = found.m[rows, op], found.n[rows, op], found.k[rows, op]
        if name in UNFUSED:
            continue
        if kind == MEMORY:
            timed = memory_s(kernels, found.bytes[rows, op], found.kernels[rows, op])
        elif kind in (GEMM, GROUPED_GEMM):
            if phase == INPUT_GRADIENT:  # as the forward's sizes
                n, k = k, n
            elif phase == WEIGHT_GRADIENT:
                m, n, k = k, m, n
            how = PHASES[phase]
            if kind == GEMM:
                timed = gemm_s(kernels, dtype, m, n, k, phase=how)
            else:
                timed = grouped_gemm_s(kernels, dtype, found.batch[rows, op], m, n, k, phase=how)
        else:
            timed = _flash(modelled, found.attention, rows, kernels, phase)
        seconds[:, op], measured[:, op] = timed
    for op, name in enumerate(found.names):
        if name == "scores" or name == "context_values":
            seconds[:, op] = _unfused(modelled, found, rows, kernels, op)
    return seconds, measured


def _flash(modelled: Modelled, shape: AttentionShape | None, rows: Ints, kernels: Kernels, phase: int) -> Timed:
    if shape is None:
        raise ValueError("attention without a shape")
    sizes = [shape.sequences[rows], shape.keys[rows], shape.heads[rows], shape.kv_heads[rows]]
    dims = [np.full(len(rows), float(dim)) for dim in (shape.head_dim, shape.v_head_dim)]
    cost = attention_forward_s if phase == FORWARD else attention_backward_s
    timed = cost(kernels, modelled.dtype, *sizes, *dims)
    window = np.minimum(float(shape.window or np.inf), shape.keys[rows]) / shape.keys[rows]
    seen = window * (2 - window)  # of the causal half
    return Timed(timed.seconds * seen * modelled.stack.attention_scale, timed.measured)


def _unfused(modelled: Modelled, found: Operators, rows: Ints, kernels: Kernels, op: int) -> Floats:
    """Scores, softmax, dropout and context, forward or backward."""
    model = modelled.model
    cost = unfused_attention_forward_s if found.phase[op] == FORWARD else unfused_attention_backward_s
    sequence = np.maximum(found.m[rows, op], found.k[rows, op] if found.phase[op] != FORWARD else found.n[rows, op])
    one = np.ones(len(rows))
    heads = found.batch[rows, op]
    dim = np.full(len(rows), float(model.head_dim))
    return cost(kernels, modelled.dtype, one, sequence, heads, dim, dropout=model.attention_dropout > 0).seconds


def _add_unit(
    blocks: Blocks,
    at: int,
    cost: UnitCost,
    sent: Messages,
    modelled: Modelled,
    hardware: HardwareTable,
    plans: Plans,
    groups: Groups,
    first: Ints,
    shape: Ints,
    speed: Floats,
    times: int,
) -> None:
    """Add one unit to the table, `times` times."""
    stack, found = modelled.stack, cost.operators
    seconds = cost.seconds * times
    of_phase = [_sum(seconds, found.phase == phase)[shape] * speed for phase in range(3)]
    core = _sum(seconds, found.core)[shape] * speed
    forward, backward = of_phase[FORWARD], of_phase[INPUT_GRADIENT] + of_phase[WEIGHT_GRADIENT]
    blocks.measured_s[:, at] += _sum(cost.measured * seconds, np.ones(len(found.names), np.bool_))[shape] * speed
    blocks.work[:, at, FORWARD_S] += forward
    blocks.work[:, at, BACKWARD_S] += backward
    exposed = [np.zeros(len(first)), np.zeros(len(first))]
    selective = plans.checkpointing[first] == SELECTIVE
    size = np.ascontiguousarray(sent.bytes[shape])
    group = np.where(sent.group == ETP, TP, sent.group)
    columns = _message_s(hardware.columns, plans, groups, first, sent.kind, group, size) * times
    again_forward = np.zeros(len(first))
    for k in range(len(sent.names)):
        total = columns[:, k]
        if not total.any():
            continue
        out = _exposed(total, k, cost, sent, modelled, plans, first, shape, speed, times)
        metric = TP_TOTAL if group[k] == TP else EP_TOTAL
        backwards = int(sent.phase[k] != FORWARD)
        blocks.work[:, at, metric] += total
        blocks.work[:, at, metric + EXPOSED] += out
        exposed[backwards] += out
        if not backwards:
            blocks.again[:, at, metric] += np.where(selective, 0.0, total)
            blocks.again[:, at, metric + EXPOSED] += np.where(selective, 0.0, out)
            again_forward += out
    again = np.where(selective, core, forward + again_forward)
    blocks.again[:, at, RECOMPUTE_S] += np.where(selective, core, forward)
    launched = (stack.launch_forward, stack.launch_backward) if found.attention or stack.launch_forward else (0.0, 0.0)
    if at >= blocks.forward_s.shape[1] - 2:
        launched = (0.0, 0.0)  # the ends are a few kernels
    blocks.forward_s[:, at] += np.maximum(forward + exposed[0], launched[0])
    blocks.backward_s[:, at] += np.maximum(backward + exposed[1], launched[1])
    blocks.again_s[:, at] += np.where(selective, again, np.maximum(again, launched[0]))


def _exposed(
    total: Floats,
    k: int,
    cost: UnitCost,
    sent: Messages,
    modelled: Modelled,
    plans: Plans,
    first: Ints,
    shape: Ints,
    speed: Floats,
    times: int,
) -> Floats:
    """Seconds of message k that nothing hides, and those by which it slows what hides it."""
    stack, found = modelled.stack, cost.operators
    beside = int(sent.beside[k])
    hidden = np.zeros(len(total))
    if beside >= 0 and stack.hides_backward_tp:
        ops = np.array([name == sent.operators[k] for name in found.names]) & (found.phase == beside)
        compute = _sum(cost.seconds, ops)[shape] * speed * times
        hidden = np.minimum(total, compute)
    out = total - hidden * (1 - stack.contention)
    if sent.group[k] == EP:
        phase = int(sent.phase[k])
        ops = np.array([name.startswith("experts_fc") for name in found.names]) & (found.phase == phase)
        compute = _sum(cost.seconds, ops)[shape] * speed * times / 2  # dispatch and combine share it
        over = total - np.minimum(total, compute) * (1 - stack.contention)
        return np.where(plans.overlap_ep[first] == 1, over, out)
    return np.where(plans.overlap_tp[first] == 1, np.minimum(out, stack.overlapped_tp_exposed * total), out)


def _sum(seconds: Floats, which: npt.NDArray[np.bool_]) -> Floats:
    """Sum over some operators, one after another: numpy's own order of adding depends on the number of rows."""
    total = np.zeros(len(seconds))
    for op in np.flatnonzero(which):
        total += seconds[:, op]
    return total


@kernel
def _message_s(
    hardware: HardwareColumns, plans: Plans, groups: Groups, first: Ints, kind: Ints, group: Ints, size: Floats
) -> Floats:
    """Seconds of each message for each row, [rows, messages]."""
    seconds = np.zeros(size.shape)
    for row in range(size.shape[0]):
        i = first[row]
        links = device_at(hardware, plans.hardware[i]).links
        for k in range(size.shape[1]):
            if size[row, k] > 0:
                seconds[row, k] = group_s(groups, groups.key[i], links, kind[k], group[k], size[row, k])
    return seconds
