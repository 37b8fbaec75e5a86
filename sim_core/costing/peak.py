"""Peak memory of a plan: state, activations in flight by the schedule's own order, what recompute works on, buffers, reserve.

On the fullest stage. What an allocator and a context take besides the tensors is a matter of the stack
(`Stack.fragmentation`, `Stack.reserved`).

Activations of a recorded file are estimated from the sizes that it implies: a dense transformer with flash attention.
Korthikanti et al. 2022 (arXiv 2205.05198), eq. 2 and 4 without the scores (5as/h), which flash attention does not keep: of
their 34 bytes per token and hidden element, 10 are inputs of norms, attention and MLP and two dropout masks, and 24 belong to
the weights: each row or column of a matrix keeps 2 bytes per token. So the weights of a layer tell the rest of any MLP.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.compiled.references import reference
from sim_core.costing.calibration import parallel_sequence
from sim_core.costing.case import copies_embedding, sharding_of
from sim_core.costing.memory import PARAMETER_BYTES, passing_widths, stage_factor, state_widths
from sim_core.costing.operators import rows_of_units
from sim_core.costing.stage_activations import (
    BACKWARD,
    LOGITS,
    SAVED,
    SENT,
    InFlight,
    activations_in_flight,
    of_chunks,
)
from sim_core.costing.updates import further_bytes
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import PLACEMENT
from sim_core.metrics import (
    ACTIVATION_BYTES,
    ALLOCATED,
    ALLOCATOR_BYTES,
    COMMUNICATION_BYTES,
    HOST_BYTES,
    LOGITS_BYTES,
    MEMORY,
    PEAK_BYTES,
    RESERVED_BYTES,
    STATE_BYTES,
)
from sim_core.models.activations import (
    LOGIT,
    activation_bytes,
    backward_bytes,
    buffer_bytes,
    logits_bytes,
    module_bytes,
    offload_bytes,
)
from sim_core.models.precision import GATHERED
from sim_core.models.recompute import OFFLOAD_MODULES
from sim_core.models.stack import Stack, read_stack
from sim_core.models.weights import frozen_bytes, held
from sim_core.planning.columns import FILE, Plan, Plans, by_order, plan_at
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.split import Split, ends_of_stage, split_plans
from sim_core.terms import GRADIENTS_SHARDED, PARAMETERS_SHARDED
from sim_core.units import short
from sim_core.workloads.moving import (
    ALL_PARAMETERS,
    EXPERT_PARAMETERS,
    EXPONENTS,
    N_RULES,
    PARAMETERS,
    padded,
    rule_scales,
    times_base,
)
from sim_core.workloads.plausibility import implied_model
from sim_core.workloads.workload import REDUCE_GRADIENTS, Arrays, Workload

INPUTS = 10.0
"""Bytes per token and hidden element that tensor parallelism divides only with sequence parallelism."""


class Estimate(NamedTuple):
    """Sizes of a dense transformer."""

    sequence: int
    hidden: int
    vocabulary: int
    width: float  # elements that the matrices of a layer keep of a token: 12 hidden with a plain MLP
    parallel: bool  # sequence parallelism


def estimate_of(workload: Workload) -> Estimate | str:
    """The sizes that a file implies, or why its activations are unknown."""
    model, arrays = implied_model(workload), workload.arrays
    if workload.has_experts:
        return "how many tokens its experts get"
    if not (model.hidden and model.sequence):
        return "hidden size and sequence"
    if not model.vocabulary or model.active is None:
        return "the vocabulary, or the weights of a layer"
    if arrays.last_unit < 0:
        return "the head (it has no record of logits)"
    weights = (model.active - model.vocabulary * model.hidden) / model.layers
    return Estimate(
        sequence=model.sequence,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        width=weights / model.hidden,
        parallel=bool(parallel_sequence(workload)),
    )


def estimated_bytes(workload: Workload, estimate: Estimate, tp: Ints, micro_batch: Ints) -> tuple[Floats, Floats]:
    """Bytes that one micro-batch keeps of each unit, [n, units, SAVED], and of buffers, [n, 3]: gathered, received, queued.

    The columns are those of `costing/peak.py`.
    """
    arrays = workload.arrays
    tokens = micro_batch.astype(float) * estimate.sequence
    local = tokens / (tp if estimate.parallel else 1)
    layer = INPUTS * local * estimate.hidden + 2.0 * tokens * estimate.width / tp
    kept = np.zeros((len(tp), arrays.unit_layers.shape[0], SAVED))
    kept[:, :, :2] = layer[:, None, None]
    kept[:, :, 2] = 2.0 * (local * estimate.hidden)[:, None]
    if arrays.first_unit >= 0:
        kept[:, arrays.first_unit] = 0.0
        kept[:, arrays.first_unit, :3] = (local * estimate.hidden)[:, None]  # a dropout mask
    rows = np.array([padded(estimate.vocabulary, int(ranks)) for ranks in tp])
    logits = LOGIT * tokens * rows / tp
    kept[:, arrays.last_unit, :3] = (4.0 * local * estimate.hidden + logits)[:, None]
    kept[:, arrays.last_unit, LOGITS] = logits
    gathered = np.where((tp > 1) & estimate.parallel, 2.0 * tokens * estimate.hidden, 0.0)
    return kept, np.stack([gathered, 2.0 * local * estimate.hidden, np.zeros(len(tp))], axis=1)


ASSUMED_STACK = "megatron-core"
"""Whose allocator and reserve are taken for files, which do not tell theirs."""
NO_STAGES = np.empty((5, 0))


class _Held(NamedTuple):
    """Parameters that a rank holds, and bytes of state of each."""

    dense: float  # of the whole model of a file
    experts: float
    dense_width: Floats  # [plans]
    expert_width: Floats  # [plans]
    dense_host: Floats  # [plans] the same on the host
    expert_host: Floats  # [plans]
    passing: Floats  # [4, plans] bytes of each that pass (`passing_widths`)
    layout: Ints  # [plans] row of `further`, -1 for none
    further: Floats  # [layouts, stages] bytes of state that depend on the layout of shards
    shape: Ints  # [rows] row of the following
    trained: Floats  # [shapes, units, 2] of a unit of a model on a rank, dense and of experts
    frozen: Floats  # [shapes, units, 2] bytes of weights that are not trained; no units where all are
    scale: Floats  # [rules] scratch of rule_scales


def peak_memory(workload: Workload, plans: Plans, rows: Ints, of_stages: Floats = NO_STAGES) -> Floats:
    """Bytes by MEMORY of the plans in `rows`, which must be legal, [len(MEMORY), n]; NaN where unknown.

    `of_stages`, if given, is filled with bytes on each stage of the last plan, [5, stages]: tensors without buffers; of these
    activations with logits; of those logits; layers that are not sharded; what lies on the host.
    """
    memory = np.full((len(MEMORY), len(plans.tp)), np.nan)
    estimate = None if workload.modelled else estimate_of(workload)
    if workload.arrays.pieces.rerun.any():  # which activations a file keeps is not known where it runs some forwards again
        rows = rows[plans.checkpointing[rows] != FILE]
    if not len(rows) or isinstance(estimate, str):
        return memory
    arrays, rows = workload.arrays, by_order(plans, rows)
    table = key_table(plans, rows)
    shape, first = distinct_rows(table)
    activations, trained, frozen, buffers = _kept(workload, estimate, table[first])
    split, stack = split_plans(arrays, plans, rows), _stack(workload)
    in_flight = activations_in_flight(arrays, plans, split, rows, shape, activations)
    further = np.full(len(plans.tp), -1, int), np.zeros((0, 0))
    if workload.modelled and plans.optimizer[rows].any():
        further = further_bytes(workload, workload.modelled, plans, split, rows)
    reduced = arrays.step.role == REDUCE_GRADIENTS
    dense, experts = (  # ALL_PARAMETERS are those of a file without experts: with some, its activations are unknown
        float(arrays.step.comm_bytes[reduced & np.isin(arrays.step.comm_rule, rules)].sum()) / arrays.gradient_width
        for rules in ((PARAMETERS, ALL_PARAMETERS), (EXPERT_PARAMETERS,))
    )
    widths, passing, scale = state_widths(workload, plans), passing_widths(workload, plans), np.empty(N_RULES)
    held = _Held(dense, experts, *widths, passing, *further, shape, trained, frozen, scale)
    _fill(arrays, plans, split, held, in_flight, rows, memory, of_stages)
    memory[STATE_BYTES] = memory[PEAK_BYTES] - memory[ACTIVATION_BYTES] - memory[COMMUNICATION_BYTES]
    memory[ACTIVATION_BYTES] -= memory[LOGITS_BYTES]
    received = buffers[shape, 1]
    if stack.receives_apart:  # one of each message: the first and the last virtual stage get none one way
        received *= plans.ga[rows] * (2 * plans.vpp[rows] - 1)
    memory[COMMUNICATION_BYTES, rows] += buffers[shape, 0] + np.where(plans.pp[rows] > 1, received, buffers[shape, 2])
    memory[ALLOCATOR_BYTES] = (stack.fragmentation - 1) * memory[ALLOCATED].sum(axis=0)
    memory[RESERVED_BYTES, rows] = stack.reserved
    for name, of_rows in zip(MEMORY[:PEAK_BYTES], memory[:, rows], strict=False):
        if np.isnan(of_rows).all():
            raise ValueError(f"memory term {name}: sim_core/metrics.py has a row for it, but peak_memory does not fill it")
    memory[PEAK_BYTES] = memory[:PEAK_BYTES].sum(axis=0)
    return memory


def _stack(workload: Workload) -> Stack:
    return workload.modelled.stack if workload.modelled else read_stack(ASSUMED_STACK)


def memory_basis(workload: Workload) -> str:
    """What the peak memory of a workload's plans rests on, in one line."""
    workload = workload.memory_of or workload
    estimate = None if workload.modelled else estimate_of(workload)
    if isinstance(estimate, str):
        return (
            f"only the model's state is checked (state_bytes); activations are unknown: the file does not tell {estimate} "
            "(workload.model would)"
        )
    stack = _stack(workload)
    told = f"{stack.fragmentation - 1:.0%} for the allocator and {short(stack.reserved, 'B')} for context and communicators"
    if estimate is None:
        return f"peak_memory_bytes holds {told}"
    return (
        f"activations are an estimate (hidden {estimate.hidden}, sequence {estimate.sequence}, flash attention, dropout"
        f"{', sequence parallelism' * estimate.parallel}); peak_memory_bytes holds {told}"
    )


def activations_of_chunks(workload: Workload, plans: Plans) -> Floats:
    """Bytes of each chunk of one plan whose memory is known, [stages, chunks, 3]: see `of_chunk`."""
    estimate, row = None if workload.modelled else estimate_of(workload), np.zeros(1, int)
    activations = _kept(workload, estimate, key_table(plans, row))[0]
    return of_chunks(workload.arrays, plans, split_plans(workload.arrays, plans, row), activations[0])


def _kept(workload: Workload, estimate: Estimate | str | None, shapes: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Activations and parameters of each unit, trained and frozen, and buffers, [shapes, ...], of a model or a file's estimate.

    Activations are those of one micro-batch in one pass, by WHOLE to SAVED.
    """
    modelled = workload.modelled
    if modelled is None:
        if not isinstance(estimate, Estimate):
            raise ValueError("activations of a file without an estimate")
        kept, buffers = estimated_bytes(workload, estimate, shapes[:, 0], shapes[:, 2])
        return kept, np.zeros((*kept.shape[:2], 2)), np.zeros((len(shapes), 0, 2)), buffers
    model, stack, units = modelled.model, modelled.stack, workload.arrays.unit_layers.shape[0]
    keys = keys_of(modelled, shapes)
    kept = np.zeros((len(shapes), units, SENT + len(OFFLOAD_MODULES)))
    trained, frozen = np.zeros((len(shapes), units, 2)), np.zeros((len(shapes), units if model.lora else 0, 2))
    for at, times, unit in rows_of_units(model):
        kept[:, at, :LOGITS] += activation_bytes(model, unit, keys, stack) * times
        kept[:, at, SAVED:SENT] += module_bytes(model, unit, keys, stack)
        kept[:, at, SENT:] += offload_bytes(model, unit, keys, stack)
        kept[:, at, LOGITS] += logits_bytes(model, unit, keys, stack) * times
        kept[:, at, BACKWARD] += backward_bytes(model, unit, keys) if stack.gradients_made else 0.0
        for of, weights in ((trained, held), (frozen, frozen_bytes)) if model.lora else ((trained, held),):
            mine = weights(model, unit, keys)
            of[:, at] += np.stack([mine.dense, mine.experts], axis=1) * times
    return kept, trained, frozen, buffer_bytes(model, keys, stack.queued_bytes)


@outer_kernel
def _fill(
    arrays: Arrays, plans: Plans, split: Split, held: _Held, in_flight: InFlight, rows: Ints, memory: Floats, of_stages: Floats
) -> None:
    """Fill bytes of tensors on the fullest stage of each plan into `memory`, by MEMORY: as PEAK_BYTES all of them; of these as
    ACTIVATION_BYTES activations with logits, as LOGITS_BYTES those logits, as COMMUNICATION_BYTES layers that are not sharded.
    """
    arrays, plans, split, held, in_flight = (
        reference(arrays),
        reference(plans),
        reference(split),
        reference(held),
        reference(in_flight),
    )
    scale, filled = held.scale, (PEAK_BYTES, ACTIVATION_BYTES, LOGITS_BYTES, COMMUNICATION_BYTES)
    base = arrays.base
    for k in range(len(rows)):
        row, plan = rows[k], reference(plan_at(plans, rows[k]))
        sizes = plan.micro_batch / base.micro_batch, plan.tp / base.tp, plan.ep / base.ep
        rule_scales(*sizes, 1.0, times_base(plan.experts, arrays.experts), EXPONENTS, scale)
        sharding = sharding_of(arrays, plan)
        trained, still = held.trained[held.shape[k]], held.frozen[held.shape[k]]
        key, first = split.key[row], in_flight.offset[in_flight.key[k]]
        chunks, stages = split.offset[key], split.stage_offset[key]
        for stage in range(plan.pp):
            dense, experts, tensors, on_host = 0.0, 0.0, 0.0, in_flight.host[first + stage]
            if arrays.dense_parameters + arrays.expert_parameters > 0:
                dense, experts, tensors = _of_units(arrays, split, plan, sharding, trained, still, chunks, stage)
            else:  # of a recorded file: its share of all layers; none is frozen
                layers, without = float(split.stage_layers[stages + stage]), float(split.stage_dense[stages + stage])
                ends = ends_of_stage(PLACEMENT[plan.schedule], stage, plan.pp)
                dense = held.dense * stage_factor(arrays, scale, plan.tp, PARAMETERS, layers, ends, without)
                experts = held.experts * stage_factor(arrays, scale, plan.tp, EXPERT_PARAMETERS, layers, ends, without)
            on_host += dense * held.dense_host[row] + experts * held.expert_host[row]
            if plan.parameter_offload == 1:
                on_host, tensors = on_host + tensors, 0.0
            tensors = dense * held.dense_width[row] + experts * held.expert_width[row] + tensors
            if held.layout[row] >= 0:
                tensors += held.further[held.layout[row], stage]
            unsharded = 0.0
            if sharding >= GRADIENTS_SHARDED:  # its schedules have a loop of stages
                unsharded = _unsharded(arrays, split, plan, sharding, trained, still, chunks + stage)
            activations, of_logits = in_flight.bytes[first + stage], in_flight.logits[first + stage]
            coming = held.passing[0, row] * dense + held.passing[2, row] * experts if plan.ga == 1 else 0.0
            updated = held.passing[1, row] * dense + held.passing[3, row] * experts
            coming = min(coming, activations - in_flight.working[first + stage])
            if updated > activations + unsharded - coming:  # the peak is in the optimizer's step
                coming, activations, of_logits, unsharded = -updated, 0.0, 0.0, 0.0
            of_stage = tensors - coming + activations + unsharded, activations, of_logits, unsharded, on_host
            if of_stages.shape[1] > stage:
                for part in range(5):
                    of_stages[part, stage] = of_stage[part]
            memory[HOST_BYTES, row] = max(memory[HOST_BYTES, row], on_host) if stage > 0 else on_host
            if not memory[PEAK_BYTES, row] >= of_stage[0]:
                for part in range(4):
                    memory[filled[part], row] = of_stage[part]


@inner_kernel
def _shards(arrays: Arrays, plan: Plan) -> tuple[float, float]:
    """Ranks that divide a dense weight, and one of experts, where any do."""
    dense = float(plan.dp_shard if plan.dp_shard > 0 else plan.all_gpus // (plan.tp * plan.pp))
    return dense, max(dense * (plan.tp if arrays.shares.whole_experts else 1) / plan.ep, 1.0)


@inner_kernel
def _of_units(
    arrays: Arrays, split: Split, plan: Plan, sharding: int, trained: Floats, still: Floats, row: int, stage: int
) -> tuple[float, float, float]:
    """Parameters that a stage of a model holds, dense and of experts, and bytes of frozen weights, which FSDP alone shards.

    `trained` parameters and bytes `still` of a unit on a rank, [units, 2]; `row`: the first virtual stage in the split.
    """
    placement, last = PLACEMENT[plan.schedule], row + plan.pp * plan.vpp - 1
    of_dense, of_experts = _shards(arrays, plan) if sharding >= PARAMETERS_SHARDED else (1.0, 1.0)  # that divide frozen weights
    dense, experts, rest = 0.0, 0.0, 0.0
    for chunk in range(chunks_of(plan.schedule, plan.vpp)):
        virtual = row + virtual_of(placement, stage, chunk, plan.pp)
        for unit in range(trained.shape[0]):
            dense += split.passes[virtual, unit] * trained[unit, 0]
            experts += split.passes[virtual, unit] * trained[unit, 1]
        for unit in range(still.shape[0]):
            rest += split.passes[virtual, unit] * (still[unit, 0] / of_dense + still[unit, 1] / of_experts)
        if arrays.tied and virtual == last and copies_embedding(plan):
            dense += trained[arrays.first_unit, 0]
    return dense, experts, rest


@inner_kernel
def _unsharded(arrays: Arrays, split: Split, plan: Plan, sharding: int, trained: Floats, still: Floats, first: int) -> float:
    """Bytes of whole layers on a stage whose first virtual stage is in row `first` of the split.

    16-bit parameters: of embedding and head, and of the layer that runs with those gathered ahead, or of all layers if they
    stay. Gradients: those of one unit as the backward writes them, and as they are sent. Only of what several ranks divide.
    """
    of_dense, of_experts = _shards(arrays, plan)
    dense, experts = int(of_dense > 1), int(of_experts > 1)
    largest, widest, gathered, layers = 0.0, 0.0, 0.0, 0
    for unit in range(trained.shape[0]):
        for chunk in range(plan.vpp):
            passes = split.passes[first + chunk * plan.pp, unit]
            if passes == 0:
                continue
            held = dense * trained[unit, 0] + experts * trained[unit, 1]
            largest = max(largest, held)
            if still.shape[0] > 0:
                held += (dense * still[unit, 0] + experts * still[unit, 1]) / PARAMETER_BYTES
            if unit >= trained.shape[0] - 2 or not plan.reshard_after_forward:
                gathered += passes * held
            else:
                layers += passes
                widest = max(widest, held)
    gathered += min(layers, 1 + plan.prefetch_layers) * widest
    whole = PARAMETER_BYTES * GATHERED[plan.precision] * gathered if sharding == PARAMETERS_SHARDED else 0.0
    return whole + (PARAMETER_BYTES + arrays.gradient_width) * largest


def stage_memory(workload: Workload, plans: Plans) -> Floats:
    """Bytes by MEMORY on a rank of each stage of one plan, which must be legal, [len(MEMORY), stages]; NaN where unknown."""
    of_stages = np.full((5, int(plans.pp[0])), np.nan)
    fullest = peak_memory(workload, plans, np.zeros(1, int), of_stages)[:, 0]
    tensors, activations, logits, unsharded, memory_on_host = of_stages
    most = int(np.argmax(tensors))
    memory = np.repeat(fullest[:, None], len(tensors), axis=1)  # buffers and reserve are the same on each stage
    memory[STATE_BYTES] = tensors - activations - unsharded
    memory[ACTIVATION_BYTES] = activations - logits
    memory[LOGITS_BYTES] = logits
    memory[COMMUNICATION_BYTES] += unsharded - unsharded[most]
    memory[HOST_BYTES] = memory_on_host
    memory[ALLOCATOR_BYTES] *= memory[ALLOCATED].sum(axis=0) / fullest[ALLOCATED].sum()
    memory[PEAK_BYTES] = memory[:PEAK_BYTES].sum(axis=0)
    return memory
