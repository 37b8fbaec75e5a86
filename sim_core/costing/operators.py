"""Seconds of the operators of a model's unit, by shape, on the kernels of a device; and how many rest on measured kernels."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.costing.case import Blocks
from sim_core.hardware.kernels.attention import (
    LARGEST_FUSED,
    LARGEST_IN_CORE,
    attention_backward_s,
    attention_forward_s,
    in_8_bits,
    unfused_attention_backward_s,
    unfused_attention_forward_s,
)
from sim_core.hardware.kernels.device import Kernels, Timed, load_kernels, memory_s
from sim_core.hardware.kernels.gemm import GEMM_PHASES, gemm_s, grouped_gemm_s, inside_s
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import BACKWARD_S, FORWARD_S
from sim_core.models.description import Unit
from sim_core.models.keys import Keys
from sim_core.models.operators import operators
from sim_core.models.precision import ON_DEVICES, PRECISIONS, WIDE
from sim_core.models.rows import FUSED, GEMM, GROUPED_GEMM, MEMORY, SCAN, AttentionShape, Operators
from sim_core.workloads.workload import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Arrays, Modelled

UNFUSED: Final = frozenset(
    ("scores", "softmax", "attention_dropout", "context", "context_values", "context_scores", "scores_queries", "scores_keys")
)
"""Operators of attention without a flash kernel, which is costed as a whole."""
WIDE_OPERANDS: Final = frozenset(one.linear for one in PRECISIONS[:WIDE])


class UnitCost(NamedTuple):
    """One pass of one unit for each shape, without messages: seconds of each operator, [shapes, operators]."""

    operators: Operators
    seconds: Floats
    measured: Bools


def devices_of(hardware: HardwareTable) -> tuple[list[Kernels], Ints]:
    """The distinct devices among the variants, and the one of each."""
    index: dict[object, int] = {}
    devices: list[Kernels] = []
    of_variant: list[int] = []
    for variant in hardware.variants:
        kernels = load_kernels(variant)
        key = (variant.kernels.tables, kernels.own, tuple(kernels.numbers.items()), variant.surface)
        if key not in index:
            index[key] = len(devices)
            devices.append(kernels)
        of_variant.append(index[key])
    return devices, np.array(of_variant, np.int64)


def unit_cost(modelled: Modelled, unit: Unit, keys: Keys, devices: list[Kernels], of_shape: Ints) -> UnitCost:
    """Seconds of all operators of a unit, each shape on its device."""
    ops = operators(modelled.model, unit, keys, modelled.stack)
    seconds, measured = np.zeros(ops.m.shape), np.zeros(ops.m.shape, np.bool_)
    for number, kernels in enumerate(devices):
        for precision in np.unique(keys.precision):
            rows = np.flatnonzero((of_shape == number) & (keys.precision == precision))
            if len(rows):
                linear = ON_DEVICES[precision].linear
                seconds[rows], measured[rows] = _on_device(modelled, ops, rows, kernels, linear)
    return UnitCost(ops, seconds, measured)


def _on_device(modelled: Modelled, ops: Operators, rows: Ints, kernels: Kernels, linear: str) -> tuple[Floats, Bools]:
    """Seconds of the operators in some shapes on one device, and which of them rest on its own measured kernels.

    `linear`: precision of the GEMMs of linear layers.
    """
    seconds, measured = np.zeros((len(rows), len(ops.names))), np.zeros((len(rows), len(ops.names)), np.bool_)
    for op, name in enumerate(ops.names):
        kind, phase = ops.kind[op], ops.phase[op]
        m, n, k = ops.m[rows, op], ops.n[rows, op], ops.k[rows, op]
        if name in UNFUSED:
            continue
        if kind == MEMORY:
            timed = memory_s(kernels, ops.bytes[rows, op], ops.kernels[rows, op])
        elif kind in (FUSED, SCAN):
            timed = inside_s(kernels, linear if ops.linear[op] else modelled.dtype, ops.flops[rows, op], scan=kind == SCAN)
        elif kind in (GEMM, GROUPED_GEMM):
            if phase == INPUT_GRADIENT:  # as the forward's sizes
                n, k = k, n
            elif phase == WEIGHT_GRADIENT:
                m, n, k = k, m, n
            how = GEMM_PHASES[phase]
            dtype = linear if ops.linear[op] else modelled.dtype
            if kind == GEMM:
                one = gemm_s(kernels, dtype, m, n, k, phase=how)
                timed = Timed(one.seconds * ops.batch[rows, op], one.measured)
            else:
                fused = modelled.stack.fused_experts
                timed = grouped_gemm_s(kernels, dtype, ops.batch[rows, op], m, n, k, phase=how, fused=fused)
        else:
            timed = _flash(modelled, ops.attention, rows, kernels, phase, narrow=linear not in WIDE_OPERANDS)
        seconds[:, op], measured[:, op] = timed
    for op, name in enumerate(ops.names):
        if name == "scores" or name == "context_values":
            seconds[:, op] = _unfused(modelled, ops, rows, kernels, op)
    return seconds, measured


def _flash(
    modelled: Modelled, shape: AttentionShape | None, rows: Ints, kernels: Kernels, phase: int, *, narrow: bool
) -> Timed:
    if shape is None:
        raise ValueError("attention without a shape")
    steps = shape.keys[rows] / shape.queries[rows]  # of context parallelism: each as much work as the causal half of the first
    sizes = [shape.sequences[rows], shape.queries[rows], shape.heads[rows], shape.kv_heads[rows]]
    dims = [np.full(len(rows), float(dim)) for dim in (shape.head_dim, shape.v_head_dim)]
    cost = attention_forward_s if phase == FORWARD else attention_backward_s
    timed = cost(kernels, modelled.dtype, *sizes, *dims)
    window = np.minimum(float(shape.window or np.inf), shape.keys[rows]) / shape.keys[rows]
    seen = window * (2 - window)  # of the causal half
    device = kernels.tables.device if kernels.tables else ""
    scale = np.full(len(rows), modelled.stack.attention_on(device))
    if narrow and modelled.stack.fp8_attention:
        scale *= in_8_bits(device, "forward" if phase == FORWARD else "backward", shape.keys[rows])
    return Timed(timed.seconds * steps * seen * scale, timed.measured)


def _unfused(modelled: Modelled, ops: Operators, rows: Ints, kernels: Kernels, op: int) -> Floats:
    """Scores, softmax, dropout and context, forward or backward."""
    model = modelled.model
    cost = unfused_attention_forward_s if ops.phase[op] == FORWARD else unfused_attention_backward_s
    sequence = np.maximum(ops.m[rows, op], ops.k[rows, op] if ops.phase[op] != FORWARD else ops.n[rows, op])
    ones = np.ones(len(rows))
    heads = ops.batch[rows, op]
    dim = np.full(len(rows), float(model.head_dim))
    largest = LARGEST_IN_CORE if modelled.stack.flash_attention else LARGEST_FUSED
    dropout = model.attention_dropout > 0
    return cost(kernels, modelled.dtype, ones, sequence, heads, dim, dropout=dropout, largest=largest).seconds


def sum_of(seconds: Floats, which: Bools) -> Floats:
    """Sum over some operators, one after another: numpy's own order of adding depends on the number of rows."""
    total = np.zeros(len(seconds))
    for op in np.flatnonzero(which):
        total += seconds[:, op]
    return total


def measured_share(arrays: Arrays, blocks: Blocks, layers: Ints, rows: Ints) -> Floats:
    """Part of the forward and backward seconds of a micro-batch, over all stages, for plans `rows`; recompute is left out.

    `layers` are those of all plans.
    """
    passes = arrays.unit_layers[:, -1].astype(np.float64)
    passes[[unit for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0]] += 1
    seconds = blocks.work[:, :, FORWARD_S] + blocks.work[:, :, BACKWARD_S]
    key = blocks.key[rows]
    measured, total = np.zeros(len(rows)), np.zeros(len(rows))
    for unit, times in enumerate(passes):  # one after another: BLAS adds in an order that depends on the number of rows
        measured += blocks.measured_s[key, unit] * times
        total += seconds[key, unit] * times
    if arrays.layer_unit >= 0:  # all layers are alike, and their number may be another
        unit = arrays.layer_unit
        more = layers[rows] - passes[unit]
        measured, total = measured + blocks.measured_s[key, unit] * more, total + seconds[key, unit] * more
    return _ratio(measured, total)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)
