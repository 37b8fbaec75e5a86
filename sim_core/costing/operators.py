"""Seconds of the operators of a model's unit, by shape, on the kernels of a device; and how many rest on measured kernels."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.costing.case import Blocks
from sim_core.distinct import distinct, distinct_rows
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.attention import (
    Phase,
    attention_s,
    in_8_bits,
    unfused_attention_s,
)
from sim_core.hardware.kernels.device import Kernels, Timed, load_kernels, memory_s, unmeasured
from sim_core.hardware.kernels.gemm import GEMM_PHASES, gemm_s, grouped_gemm_s, inside_s
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import BACKWARD_S, FORWARD_S
from sim_core.models.description import EMBEDDING, LAYER, Model, Unit
from sim_core.models.keys import Keys
from sim_core.models.operators import operators
from sim_core.models.precision import ON_DEVICES, PRECISIONS, WIDE
from sim_core.models.rows import FUSED, GEMM, GROUPED_GEMM, MEMORY, SCAN, AttentionShape, Operators
from sim_core.planning.columns import Plans
from sim_core.planning.keys import key_table, keys_of
from sim_core.workloads.workload import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Arrays, Modelled

UNFUSED = frozenset(
    ("scores", "softmax", "attention_dropout", "context", "context_values", "context_scores", "scores_queries", "scores_keys")
)
"""Operators of attention without a flash kernel, which is costed as a whole."""
WIDE_OPERANDS = frozenset(one.linear for one in PRECISIONS[:WIDE])


class UnitCost(NamedTuple):
    """One pass of one unit for each shape, without messages: seconds of each operator, [shapes, operators]."""

    operators: Operators
    seconds: Floats
    measured: Bools


class Shapes(NamedTuple):
    """Distinct keys of a model, each on one of some devices."""

    keys: Keys
    devices: list[Kernels]
    device: Ints  # [shapes]


def shapes_at(keys: Keys, device: Hardware) -> Shapes:
    """Keys on one device."""
    return Shapes(keys, [load_kernels(device)], np.zeros(len(keys.tp), int))


def devices_of(hardware: HardwareTable) -> tuple[list[Kernels], Ints]:
    """The distinct devices among the variants, and the one of each."""
    kernels = [load_kernels(variant) for variant in hardware.variants]
    first, of_variant = distinct(
        [
            (variant.kernels.tables, one.own, tuple(one.numbers.items()), variant.surface)
            for variant, one in zip(hardware.variants, kernels, strict=True)
        ]
    )
    return [kernels[at] for at in first], of_variant


def shapes_of(modelled: Modelled, hardware: HardwareTable, plans: Plans, rows: Ints) -> tuple[Shapes, Ints, Ints]:
    """The distinct shapes of the plans in `rows`; the one of each, [rows]; and the first of `rows` that has it."""
    devices, of_variant = devices_of(hardware)
    table = np.column_stack([key_table(plans, rows), of_variant[plans.hardware[rows]]])
    shape, picked = distinct_rows(table)
    return Shapes(keys_of(modelled, table[picked]), devices, table[picked, -1]), shape, picked


def rows_of_units(model: Model) -> Iterator[tuple[int, int, Unit]]:
    """The units of a model, each with its row in tables of units, and how often a pass of that row runs it.

    Kinds of layers come first, then the embedding, then all that is after the layers.
    """
    layers = 0
    for unit in model.units:
        if unit.kind == LAYER:
            yield layers, 1, unit
            layers += 1
        else:
            yield len(model.layer_units) + (unit.kind != EMBEDDING), unit.number, unit


def unit_cost(modelled: Modelled, unit: Unit, shapes: Shapes) -> UnitCost:
    """Seconds of all operators of a unit, each shape on its device."""
    ops = operators(modelled.model, unit, shapes.keys, modelled.stack)
    seconds, measured = np.zeros(ops.m.shape), np.zeros(ops.m.shape, bool)
    for number, kernels in enumerate(shapes.devices):
        for precision in np.unique(shapes.keys.precision):
            rows = np.flatnonzero((shapes.device == number) & (shapes.keys.precision == precision))
            if len(rows):
                for op in range(len(ops.names)):
                    timed = _timed(modelled, ops, op, rows, kernels, ON_DEVICES[precision].linear)
                    seconds[rows, op], measured[rows, op] = timed
    return UnitCost(ops, seconds, measured)


def _timed(modelled: Modelled, ops: Operators, op: int, rows: Ints, kernels: Kernels, linear: str) -> Timed:
    """Seconds of an operator in some shapes on one device, and whether they rest on its own measured kernels.

    `linear`: precision of the GEMMs of linear layers.
    """
    name, kind, phase = ops.names[op], ops.kind[op], ops.phase[op]
    dtype = linear if ops.linear[op] else modelled.dtype
    m, n, k = ops.m[rows, op], ops.n[rows, op], ops.k[rows, op]
    if name in UNFUSED:
        whole = name in ("scores", "context_values")
        return unmeasured(_unfused(modelled, ops, rows, kernels, op) if whole else np.zeros(len(rows)))
    if kind == MEMORY:
        return memory_s(kernels, ops.bytes[rows, op], ops.kernels[rows, op])
    if kind in (FUSED, SCAN):
        return inside_s(kernels, dtype, ops.flops[rows, op], scan=kind == SCAN)
    if kind not in (GEMM, GROUPED_GEMM):
        return _flash(modelled, ops.attention, rows, kernels, phase, narrow=linear not in WIDE_OPERANDS)
    if phase == INPUT_GRADIENT:  # as the forward's sizes
        n, k = k, n
    elif phase == WEIGHT_GRADIENT:
        m, n, k = k, m, n
    if kind == GROUPED_GEMM:
        fused = modelled.stack.fused_experts
        return grouped_gemm_s(kernels, dtype, ops.batch[rows, op], m, n, k, phase=GEMM_PHASES[phase], fused=fused)
    one = gemm_s(kernels, dtype, m, n, k, phase=GEMM_PHASES[phase])
    return Timed(one.seconds * ops.batch[rows, op], one.measured)


def _flash(
    modelled: Modelled, shape: AttentionShape | None, rows: Ints, kernels: Kernels, phase: int, *, narrow: bool
) -> Timed:
    if shape is None:
        raise ValueError("attention without a shape")
    way = _way(phase)
    steps = shape.keys[rows] / shape.queries[rows]  # of context parallelism: each as much work as the causal half of the first
    sizes = [shape.sequences[rows], shape.queries[rows], shape.heads[rows], shape.kv_heads[rows]]
    dims = [np.full(len(rows), float(dim)) for dim in (shape.head_dim, shape.v_head_dim)]
    timed = attention_s(kernels, modelled.dtype, *sizes, *dims, phase=way)
    window = np.minimum(float(shape.window or np.inf), shape.keys[rows]) / shape.keys[rows]
    seen = window * (2 - window)  # of the causal half
    device = kernels.tables.device if kernels.tables else ""
    scale = np.full(len(rows), float(modelled.stack.attention_on(device)))
    if narrow and modelled.stack.fp8_attention:
        scale *= in_8_bits(device, way, shape.keys[rows])
    return Timed(timed.seconds * steps * seen * scale, timed.measured)


def _unfused(modelled: Modelled, ops: Operators, rows: Ints, kernels: Kernels, op: int) -> Floats:
    """Scores, softmax, dropout and context, forward or backward."""
    model, way = modelled.model, _way(ops.phase[op])
    sequence = np.maximum(ops.m[rows, op], (ops.n if way == "forward" else ops.k)[rows, op])
    ones, dim = np.ones(len(rows)), np.full(len(rows), float(model.head_dim))
    sizes = ones, sequence, ops.batch[rows, op], dim
    dropout = model.attention_dropout > 0
    return unfused_attention_s(kernels, modelled.dtype, *sizes, phase=way, dropout=dropout).seconds


def _way(phase: int) -> Phase:
    return "forward" if phase == FORWARD else "backward"


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
    passes = arrays.unit_layers[:, -1].astype(float)
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
    return np.divide(measured, total, out=np.full_like(total, np.nan), where=total > 0)
