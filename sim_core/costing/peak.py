"""Peak memory of a modelled plan: state, activations in flight by the schedule's own order, what recompute works on.

Bytes of tensors on the fullest stage. What an allocator and a context take besides is a matter of the stack
(`Stack.fragmentation`, `Stack.reserved`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.parameters import ends_held, expert_replicas, stage_factor
from sim_core.distinct import distinct_rows
from sim_core.engine.schedule import CHUNK_MASK, CHUNK_SHIFT, fill_order
from sim_core.jit import kernel
from sim_core.models.activations import activation_bytes
from sim_core.models.description import EMBEDDING, LAYER
from sim_core.planning.columns import BLOCK, EVERY, FULL, SELECTIVE, Plan, Plans, plan_at
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.split import Split, split_plans
from sim_core.workloads.moving import EXPERT_PARAMETERS, EXPONENTS, N_RULES, PARAMETERS, rule_scales
from sim_core.workloads.workload import REDUCE_GRADIENTS, Arrays, Modelled, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE, WITHOUT_CORE, INPUT_ONLY = 0, 1, 2
"""Columns of the activations: all, all but core attention, the input of the layer."""


class Peak(NamedTuple):
    """Bytes on the fullest stage, [n]; NaN where not modelled."""

    total: Floats
    activations: Floats  # of them


class _State(NamedTuple):
    """Parameters of the whole model, and bytes of each on a rank: kept by all, divided among those with the same ones."""

    dense: float
    experts: float
    replicated: float
    divided: float
    sharded: bool


def peak_memory(workload: Workload, modelled: Modelled, plans: Plans, rows: Ints) -> Peak:
    """Peak memory of the plans in `rows`, which must be legal."""
    peak = Peak(np.full(len(plans.tp), np.nan), np.full(len(plans.tp), np.nan))
    if not len(rows):
        return peak
    order = np.lexsort((plans.ga[rows], plans.vpp[rows], plans.pp[rows], plans.schedule[rows]))
    rows = rows[order]
    table = key_table(plans, rows)
    shape, first = distinct_rows(table)
    kept = _kept(workload, modelled, table[first])
    split = split_plans(workload.arrays, plans, rows)
    blocks = int((2 * plans.vpp[rows] * plans.pp[rows] * plans.ga[rows]).max())
    held = int((plans.vpp[rows] * plans.pp[rows]).max())
    scratch = np.empty(blocks, np.int64), np.zeros(held, np.int64)
    _fill(workload.arrays, plans, split, _state(workload), rows, shape, kept, *scratch, peak.total, peak.activations)
    return peak


def _kept(workload: Workload, modelled: Modelled, shapes: Ints) -> Floats:
    """Activations of one micro-batch in one pass of each unit, [shapes, units, 3]."""
    model, units = modelled.model, workload.arrays.unit_layers.shape[0]
    keys = keys_of(modelled, shapes)
    kept = np.zeros((len(shapes), units, 3))
    number = 0
    for unit in model.units:
        at = units - 2 if unit.kind == EMBEDDING else units - 1
        if unit.kind == LAYER:
            at, number = number, number + 1
        found = activation_bytes(model, unit, keys, flash=modelled.stack.flash_attention)
        kept[:, at] += found * (1 if unit.kind == LAYER else unit.number)
    return kept


def _state(workload: Workload) -> _State:
    step, width = workload.arrays.step, workload.arrays.gradient_width
    reduced = step.role == REDUCE_GRADIENTS
    dense, experts = (
        float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum()) / width for rule in (PARAMETERS, EXPERT_PARAMETERS)
    )
    return _State(dense, experts, *workload.state_width, workload.arrays.optimizer.sharded)


@kernel
def _fill(
    arrays: Arrays,
    plans: Plans,
    split: Split,
    state: _State,
    rows: Ints,
    shape: Ints,
    kept: Floats,
    order: Ints,
    in_flight: Ints,
    total: Floats,
    activations: Floats,
) -> None:
    """Fill `total` and `activations`; consecutive rows with the same schedule share its order."""
    schedule, pp, vpp, ga = -1, -1, -1, -1
    scale = np.empty(N_RULES)
    base = arrays.base
    for k in range(len(rows)):
        plan = plan_at(plans, rows[k])
        if plan.schedule != schedule or plan.pp != pp or plan.vpp != vpp or plan.ga != ga:
            schedule, pp, vpp, ga = plan.schedule, plan.pp, plan.vpp, plan.ga
            fill_order(schedule, pp, vpp, ga, order)
            _count_in_flight(order, pp, vpp, ga, in_flight)
        rule_scales(plan.micro_batch / base.micro_batch, plan.tp / base.tp, plan.ep / base.ep, EXPONENTS, scale)
        dp = plan.all_gpus / (plan.tp * plan.pp)
        row, stage_row = split.offset[split.key[rows[k]]], split.stage_offset[split.key[rows[k]]]
        for stage in range(pp):
            layers, ends = float(split.stage_layers[stage_row + stage]), ends_held(stage, pp)
            dense = state.dense * stage_factor(arrays, scale, plan.tp, PARAMETERS, layers, ends)
            experts = state.experts * stage_factor(arrays, scale, plan.tp, EXPERT_PARAMETERS, layers, ends)
            bytes_ = dense * (state.replicated + state.divided / (dp if state.sharded else 1.0))
            replicas = expert_replicas(arrays, dp, plan.tp, plan.ep)
            bytes_ += experts * (state.replicated + state.divided / (replicas if state.sharded else 1.0))
            of_stage, working = 0.0, 0.0
            for chunk in range(vpp):
                held, redone = _chunk(arrays, split, plan, kept, shape[k], row + chunk * pp + stage)
                of_stage += in_flight[stage * vpp + chunk] * held
                working = max(working, redone)
            of_stage += working
            if not total[rows[k]] >= bytes_ + of_stage:
                total[rows[k]] = bytes_ + of_stage
                activations[rows[k]] = of_stage


@kernel
def _count_in_flight(order: Ints, pp: int, vpp: int, ga: int, in_flight: Ints) -> None:
    """Micro-batches of each chunk whose activations a stage keeps when it keeps the most, [pp * vpp]."""
    now = np.zeros(vpp, np.int64)
    for stage in range(pp):
        now[:] = 0
        most, held = -1, 0
        for at in range(stage * 2 * vpp * ga, (stage + 1) * 2 * vpp * ga):
            code = order[at]
            chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
            change = -1 if code & 1 else 1
            now[chunk] += change
            held += change
            if held > most:
                most = held
                in_flight[stage * vpp : (stage + 1) * vpp] = now


@kernel
def _chunk(arrays: Arrays, split: Split, plan: Plan, kept: Floats, shape: int, row: int) -> tuple[float, float]:
    """Bytes that one micro-batch leaves in a virtual stage, and those that its recompute works on."""
    how, layers = plan.checkpointing, split.end[row] - split.begin[row]
    redone = 0
    if how in (FULL, EVERY):
        redone = layers
    elif how == BLOCK:
        redone = min(plan.checkpoint_layers, layers)
    held, working = 0.0, 0.0
    units = kept.shape[1]
    for unit in range(units):
        passes, of_layers = split.passes[row, unit], split.layers[row, unit]
        ends = passes - of_layers
        column = WITHOUT_CORE if how == SELECTIVE else WHOLE
        again = redone * of_layers / layers if layers > 0 else 0.0
        stored = again / plan.checkpoint_layers if how == EVERY else again
        held += (of_layers - again) * kept[shape, unit, column] + stored * kept[shape, unit, INPUT_ONLY]
        held += ends * kept[shape, unit, WHOLE]
        if again > 0:
            span = plan.checkpoint_layers if how == EVERY else 1
            working = max(working, span * kept[shape, unit, WHOLE])
    return held, working
