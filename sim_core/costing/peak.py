"""Peak memory of a plan: state, activations in flight by the schedule's own order, what recompute works on, buffers, reserve.

On the fullest stage. What an allocator and a context take besides the tensors is a matter of the stack
(`Stack.fragmentation`, `Stack.reserved`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import sharding_of
from sim_core.costing.estimated import estimate_of, estimated_bytes
from sim_core.costing.in_flight import MOMENTS, count_in_flight
from sim_core.costing.memory import state_widths
from sim_core.costing.parameters import stage_factor
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import PLACEMENT, SPLITS, chunks_of, most_blocks, most_cells, most_scratch, virtual_of
from sim_core.engine.schedule import fill_order
from sim_core.jit import inner_kernel, kernel
from sim_core.metrics import (
    ACTIVATION_BYTES,
    ALLOCATED,
    ALLOCATOR_BYTES,
    COMMUNICATION_BYTES,
    LOGITS_BYTES,
    MEMORY,
    PEAK_BYTES,
    RESERVED_BYTES,
    STATE_BYTES,
)
from sim_core.models.activations import activation_bytes, buffer_bytes, logits_bytes, module_bytes
from sim_core.models.description import EMBEDDING, LAYER
from sim_core.models.precision import GATHERED
from sim_core.models.recompute import CORE_ATTN, RECOMPUTE_MODULES
from sim_core.models.sharding import held
from sim_core.models.stack import read_stack
from sim_core.planning.columns import BLOCK, EVERY, FILE, FULL, MODULES, SELECTIVE, Plan, Plans, by_order, plan_at
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.split import Split, ends_of_stage, split_plans
from sim_core.terms import GRADIENTS_SHARDED, PARAMETERS_SHARDED
from sim_core.units import short
from sim_core.workloads.moving import ALL_PARAMETERS, EXPERT_PARAMETERS, EXPONENTS, N_RULES, PARAMETERS, rule_scales, times_base
from sim_core.workloads.workload import REDUCE_GRADIENTS, Arrays, Modelled, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE, WITHOUT_CORE, INPUT_ONLY, LOGITS, SAVED = 0, 1, 2, 3, 4
"""Columns of the activations: all, all but core attention, the input of the layer; logits and loss, which are in all three.
Of a model, from SAVED on, what each of RECOMPUTE_MODULES does not keep."""
ASSUMED_STACK: Final = "megatron-core"
"""Whose allocator and reserve are taken for files, which do not tell theirs."""
PARAMETER_BYTES: Final = 2.0
NO_STAGES: Final = np.empty((4, 0))


class _State(NamedTuple):
    """Parameters of the whole model, and bytes of each on a rank."""

    dense: float
    experts: float
    dense_width: Floats  # [plans]
    expert_width: Floats  # [plans]


class _Held(NamedTuple):
    """What a rank holds of each unit, [shapes, units, ...]."""

    activations: Floats  # of one micro-batch in one pass, by WHOLE, WITHOUT_CORE, INPUT_ONLY
    parameters: Floats


def peak_memory(workload: Workload, plans: Plans, rows: Ints, of_stages: Floats = NO_STAGES) -> Floats:
    """Bytes by MEMORY of the plans in `rows`, which must be legal, [len(MEMORY), n]; NaN where unknown.

    `of_stages`, if given, is filled with bytes on each stage of the last plan, [4, stages]: tensors without buffers; of these
    activations with logits; of those logits; layers that are not sharded.
    """
    memory = np.full((len(MEMORY), len(plans.tp)), np.nan)
    estimate = None if workload.modelled else estimate_of(workload)
    if workload.arrays.pieces.rerun.any():  # which activations a file keeps is not known where it runs some forwards again
        rows = rows[plans.checkpointing[rows] != FILE]
    if not len(rows) or isinstance(estimate, str):
        return memory
    rows = by_order(plans, rows)
    table = key_table(plans, rows)
    shape, first = distinct_rows(table)
    if workload.modelled:
        kept, buffers = _held(workload, workload.modelled, table[first])
        stack = workload.modelled.stack
    elif estimate:
        activations, buffers = estimated_bytes(workload, estimate, table[first][:, 0], table[first][:, 2])
        kept = _Held(activations, np.zeros(activations.shape[:2]))
        stack = read_stack(ASSUMED_STACK)
    split = split_plans(workload.arrays, plans, rows)
    schedule, pp, vpp = plans.schedule[rows], plans.pp[rows], plans.vpp[rows]
    blocks, cells = most_blocks(schedule, pp, vpp, plans.ga[rows]), most_cells(schedule, pp, vpp)
    most = np.empty(blocks, np.int64), np.empty(most_scratch(schedule, pp, plans.ga[rows]), np.int64)
    in_flight = np.zeros((MOMENTS if SPLITS[schedule].any() else 1, 2, cells), np.int64)
    whole = np.zeros(len(plans.tp))
    tensors, activations, logits = memory[PEAK_BYTES], memory[ACTIVATION_BYTES], memory[LOGITS_BYTES]
    state = _state(workload, plans)
    filled = tensors, whole, activations, logits, of_stages
    _fill(workload.arrays, plans, split, state, rows, shape, kept, *most, in_flight, *filled)
    memory[STATE_BYTES] = tensors - activations - whole
    activations -= logits
    memory[COMMUNICATION_BYTES, rows] = buffers[shape, 0] + np.where(plans.pp[rows] > 1, buffers[shape, 1], 0.0)
    memory[COMMUNICATION_BYTES] += whole
    memory[ALLOCATOR_BYTES] = (stack.fragmentation - 1) * memory[ALLOCATED].sum(axis=0)
    memory[RESERVED_BYTES, rows] = stack.reserved
    memory[PEAK_BYTES] = memory[:PEAK_BYTES].sum(axis=0)
    return memory


def memory_basis(workload: Workload) -> str:
    """What the peak memory of a workload's plans rests on, in one line."""
    workload = workload.memory_of or workload
    found = None if workload.modelled else estimate_of(workload)
    if isinstance(found, str):
        return (
            f"only the model's state is checked (state_bytes); activations are unknown: the file does not tell {found} "
            "(workload.model would)"
        )
    stack = workload.modelled.stack if workload.modelled else read_stack(ASSUMED_STACK)
    told = f"{stack.fragmentation - 1:.0%} for the allocator and {short(stack.reserved, 'B')} for context and communicators"
    if found is None:
        return f"peak_memory_bytes holds {told}"
    return (
        f"activations are an estimate (hidden {found.hidden}, sequence {found.sequence}, flash attention, dropout"
        f"{', sequence parallelism' * found.parallel}); peak_memory_bytes holds {told}"
    )


def _held(workload: Workload, modelled: Modelled, shapes: Ints) -> tuple[_Held, Floats]:
    """Activations and parameters of each unit, and buffers, [shapes, 2]."""
    model, stack, units = modelled.model, modelled.stack, workload.arrays.unit_layers.shape[0]
    keys = keys_of(modelled, shapes)
    kept, parameters = np.zeros((len(shapes), units, SAVED + len(RECOMPUTE_MODULES))), np.zeros((len(shapes), units))
    number = 0
    for unit in model.units:
        at = units - 2 if unit.kind == EMBEDDING else units - 1
        if unit.kind == LAYER:
            at, number = number, number + 1
        times = 1 if unit.kind == LAYER else unit.number
        kept[:, at, :LOGITS] += activation_bytes(model, unit, keys, flash=stack.flash_attention, kept=stack.kept) * times
        kept[:, at, SAVED:] += module_bytes(model, unit, keys, flash=stack.flash_attention, kept=stack.kept)
        kept[:, at, LOGITS] += logits_bytes(model, unit, keys, stack.logit_bytes) * times
        mine = held(model, unit, keys)
        parameters[:, at] += (mine.dense + mine.experts) * times
    return _Held(kept, parameters), buffer_bytes(model, keys)


def _state(workload: Workload, plans: Plans) -> _State:
    step, width = workload.arrays.step, workload.arrays.gradient_width
    reduced = step.role == REDUCE_GRADIENTS
    dense, experts, mixed = (
        float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum()) / width
        for rule in (PARAMETERS, EXPERT_PARAMETERS, ALL_PARAMETERS)
    )
    dense += mixed * (1 - workload.arrays.shares.experts)  # its experts have messages of their own
    return _State(dense, experts, *state_widths(workload, plans))


@kernel
def _fill(
    arrays: Arrays,
    plans: Plans,
    split: Split,
    state: _State,
    rows: Ints,
    shape: Ints,
    kept: _Held,
    order: Ints,
    scratch: Ints,
    in_flight: Ints,
    total: Floats,
    whole: Floats,
    activations: Floats,
    logits: Floats,
    of_stages: Floats,
) -> None:
    """Fill bytes of tensors: `total`, of these `whole` (layers not sharded) and `activations`, of those `logits`.

    Consecutive rows with the same schedule share its order.
    """
    schedule, pp, vpp, ga, group, moments = -1, -1, -1, -1, -1, 1
    scale = np.empty(N_RULES)
    base = arrays.base
    for k in range(len(rows)):
        plan = plan_at(plans, rows[k])
        same = plan.schedule == schedule and plan.pp == pp and plan.vpp == vpp and plan.ga == ga
        if not same or plan.microbatch_group_size != group:
            schedule, pp, vpp, ga, group = plan.schedule, plan.pp, plan.vpp, plan.ga, plan.microbatch_group_size
            fill_order(schedule, pp, vpp, ga, group, order, scratch)
            moments = count_in_flight(order, schedule, pp, vpp, ga, in_flight)
        sizes = plan.micro_batch / base.micro_batch, plan.tp / base.tp, plan.ep / base.ep
        rule_scales(*sizes, 1.0, times_base(plan.experts, arrays.experts), EXPONENTS, scale)
        sharding = sharding_of(arrays, plan)
        placement, chunks = PLACEMENT[schedule], chunks_of(schedule, vpp)
        row, stage_row = split.offset[split.key[rows[k]]], split.stage_offset[split.key[rows[k]]]
        for stage in range(pp):
            layers, ends = float(split.stage_layers[stage_row + stage]), ends_of_stage(placement, stage, pp)
            dense = state.dense * stage_factor(arrays, scale, plan.tp, PARAMETERS, layers, ends)
            experts = state.experts * stage_factor(arrays, scale, plan.tp, EXPERT_PARAMETERS, layers, ends)
            bytes_ = dense * state.dense_width[rows[k]] + experts * state.expert_width[rows[k]]
            of_stage, of_logits, unsharded = 0.0, 0.0, 0.0
            for moment in range(moments):
                then, working, logits_then = 0.0, 0.0, 0.0
                for chunk in range(chunks):
                    cell, virtual_row = stage * chunks + chunk, row + virtual_of(placement, stage, chunk, pp)
                    held, redone, waiting = _chunk(arrays, split, plan, kept.activations, shape[k], virtual_row)
                    then += in_flight[moment, 0, cell] * held
                    then += in_flight[moment, 1, cell] * waiting
                    logits_then += in_flight[moment, 0, cell] * _logits(split, kept.activations, shape[k], virtual_row)
                    working = max(working, redone)
                if then + working > of_stage:
                    of_stage, of_logits = then + working, logits_then
            if sharding >= GRADIENTS_SHARDED:  # its schedules have a loop of stages
                unsharded = _unsharded(arrays, split, plan, sharding, kept.parameters[shape[k]], row + stage)
            if of_stages.shape[1] > stage:
                of_stages[0, stage], of_stages[1, stage] = bytes_ + of_stage + unsharded, of_stage
                of_stages[2, stage], of_stages[3, stage] = of_logits, unsharded
            if not total[rows[k]] >= bytes_ + of_stage + unsharded:
                total[rows[k]] = bytes_ + of_stage + unsharded
                whole[rows[k]] = unsharded
                activations[rows[k]] = of_stage
                logits[rows[k]] = of_logits


@kernel
def _logits(split: Split, kept: Floats, shape: int, row: int) -> float:
    """Bytes of logits that one micro-batch leaves in a virtual stage."""
    total = 0.0
    for unit in range(kept.shape[1]):
        total += (split.passes[row, unit] - split.layers[row, unit]) * kept[shape, unit, LOGITS]
    return total


@inner_kernel
def _unsharded(arrays: Arrays, split: Split, plan: Plan, sharding: int, parameters: Floats, first: int) -> float:
    """Bytes of whole layers on a stage whose first virtual stage is in row `first` of the split.

    16-bit parameters: of embedding and head, and of the layer that runs with those gathered ahead, or of all layers if they
    stay. Gradients: those of one unit as the backward writes them, and as they are sent.
    """
    largest, gathered, layers = 0.0, 0.0, 0
    at_ends = parameters.shape[0] - 2
    widest = 0.0
    for unit in range(parameters.shape[0]):
        for chunk in range(plan.vpp):
            row = first + chunk * plan.pp
            passes = split.passes[row, unit]
            if passes == 0:
                continue
            largest = max(largest, parameters[unit])
            if unit >= at_ends or not plan.reshard_after_forward:
                gathered += passes * parameters[unit]
            else:
                layers += passes
                widest = max(widest, parameters[unit])
    gathered += min(layers, 1 + plan.prefetch_layers) * widest
    whole = PARAMETER_BYTES * GATHERED[plan.precision] * gathered if sharding == PARAMETERS_SHARDED else 0.0
    return whole + (PARAMETER_BYTES + arrays.gradient_width) * largest


@inner_kernel
def _saved(kept: Floats, modules: int) -> float:
    """Bytes that a layer does not keep where `modules`, a mask, run again."""
    saved = 0.0
    for k in range(kept.shape[0] - SAVED):
        if modules >> k & 1:
            saved += kept[SAVED + k]
    return saved


@kernel
def _chunk(arrays: Arrays, split: Split, plan: Plan, kept: Floats, shape: int, row: int) -> tuple[float, float, float]:
    """Bytes that one micro-batch leaves in a virtual stage; those that its recompute works on; those that its weight gradients
    need after its input gradients, which have run all recompute: about inputs and output gradients of the linear layers, as
    many bytes as all activations but those of core attention (Qi et al. 2023, table 1)."""
    how, layers = plan.checkpointing, split.end[row] - split.begin[row]
    redone = 0
    if how in (FULL, EVERY):
        redone = layers
    elif how == BLOCK:
        redone = min(plan.checkpoint_layers, layers)
    held, working, waiting = 0.0, 0.0, 0.0
    units = kept.shape[1]
    for unit in range(units):
        passes, of_layers = split.passes[row, unit], split.layers[row, unit]
        ends = passes - of_layers
        column = WITHOUT_CORE if how == SELECTIVE else WHOLE
        again = redone * of_layers / layers if layers > 0 else 0.0
        stored = again / plan.checkpoint_layers if how == EVERY else again
        if how == MODULES and of_layers > 0:
            held -= of_layers * _saved(kept[shape, unit], plan.checkpoint_layers)
            working = max(working, _saved(kept[shape, unit], plan.checkpoint_layers & ~CORE_ATTN))  # as selective
        held += (of_layers - again) * kept[shape, unit, column] + stored * kept[shape, unit, INPUT_ONLY]
        held += ends * kept[shape, unit, WHOLE]
        waiting += of_layers * kept[shape, unit, WITHOUT_CORE]
        if again > 0:
            span = plan.checkpoint_layers if how == EVERY else 1
            working = max(working, span * kept[shape, unit, WHOLE])
    return held, working, waiting
