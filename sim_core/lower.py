"""Workload x hardware x plan -> a program for the engine, and what the engine's times mean for the step.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-a-step collectives and optimizer | [parameter gather, if not overlapped].
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costs import collective_s, send_s
from sim_core.engine import DOWN, UP, Program, Times
from sim_core.hardware import HardwareTable
from sim_core.jit import kernel
from sim_core.moving import BY_LAYERS, COMPUTE, EXPONENTS, N_RULES, rule_scales
from sim_core.plan import (
    BLOCK,
    FILE,
    MEGATRON_BUCKET_PARAMETERS,
    MEGATRON_BUCKET_PARAMETERS_PER_DP,
    NONE,
    SELECTIVE,
    Plans,
    crosses_nodes,
    first_layer,
    place,
)
from sim_core.workload import (
    AFTER_GRADIENTS,
    DP,
    DP_EP,
    EP,
    FORWARD,
    GATHER_PARAMETERS,
    INPUT_GRADIENT,
    NO_COMM,
    REDUCE_GRADIENTS,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
    Pieces,
    StepPieces,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

GRADIENT_BYTES: Final = 4
PARAMETER_BYTES: Final = 2
EDGE_BUCKETS: Final = 16.0

# Sums of one layer pass, and of a step: columns of Lowered.unit_work and rows of METRICS
FWD, BWD, RERUN, TP_TOTAL, TP_EXPOSED, EP_TOTAL, EP_EXPOSED, DP_TOTAL, DP_EXPOSED = 0, 1, 2, 3, 4, 5, 6, 7, 8
N_SUMS: Final = 9
TOTAL_OF: Final = np.array([TP_TOTAL, EP_TOTAL, DP_TOTAL, DP_TOTAL], np.int64)

METRICS: Final = (
    "compute_forward_s",
    "compute_backward_s",
    "compute_recompute_s",
    "tp_total_s",
    "tp_exposed_s",
    "ep_total_s",
    "ep_exposed_s",
    "dp_total_s",
    "dp_exposed_s",
    "pp_total_s",
    "pp_exposed_s",
    "bubble_s",
    "optimizer_s",
    "step_time_s",
)
"""Rows of a result, in seconds, each the mean over the stages. The parts of PARTS add up to step_time_s."""
PP_TOTAL, PP_EXPOSED, BUBBLE, OPTIMIZER, STEP_TIME = 9, 10, 11, 12, 13
PARTS: Final = (
    "compute_forward_s",
    "compute_backward_s",
    "compute_recompute_s",
    "tp_exposed_s",
    "ep_exposed_s",
    "pp_exposed_s",
    "dp_exposed_s",
    "bubble_s",
    "optimizer_s",
)


class Lowered(NamedTuple):
    """Scratch of one plan's lowering."""

    scale: Floats  # [rules]
    ranks: Ints  # [4] size of each kind of group
    nodes: Ints  # [4]
    per_node: Ints  # [4]
    unit_forward_s: Floats  # [units] one pass of a unit, collectives that are not hidden included
    unit_backward_s: Floats
    unit_again_s: Floats  # what recompute adds to the backward
    unit_work: Floats  # [units, N_SUMS] the same in parts
    unit_again: Floats  # [units, N_SUMS]
    passes: Floats  # [units] passes of one micro-batch over all stages
    again: Floats  # [units] of them with recompute
    piece_buckets: Floats  # [step pieces] buckets of a chunk of `chunk_layers` layers ...
    piece_bucket_s: Floats  # ... and the seconds of one
    stream_end_s: Floats  # [stages] end of the gradient reduction
    after_s: Floats  # [stages] work after the gradients


@kernel
def allocate_lowered(units: int, step_pieces: int, stages: int) -> Lowered:
    """Scratch for a workload and up to `stages` stages."""
    return Lowered(
        np.empty(N_RULES),
        np.empty(4, np.int64),
        np.empty(4, np.int64),
        np.empty(4, np.int64),
        np.empty(units),
        np.empty(units),
        np.empty(units),
        np.empty((units, N_SUMS)),
        np.empty((units, N_SUMS)),
        np.empty(units),
        np.empty(units),
        np.empty(step_pieces),
        np.empty(step_pieces),
        np.empty(stages),
        np.empty(stages),
    )


@kernel
def lower(arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, program: Program) -> None:
    """Fill `low` and the durations of `program` for plan `i` (its order is the schedule's)."""
    tp, pp, ep = plans.tp[i], plans.pp[i], plans.ep[i]
    all_gpus = plans.all_gpus[i]
    dp = all_gpus // (tp * pp)
    gpus_per_node = hardware.gpus_per_node[plans.hardware[i]]
    rule_scales(plans.micro_batch[i] / arrays.base[6], tp / arrays.base[0], ep / arrays.base[3], EXPONENTS, low.scale)
    low.ranks[TP], low.ranks[EP], low.ranks[DP], low.ranks[DP_EP] = tp, ep, dp, dp // ep
    low.nodes[TP], low.per_node[TP] = place(tp, 1, tp, all_gpus // tp, gpus_per_node)
    low.nodes[EP], low.per_node[EP] = place(ep, tp, tp * ep, all_gpus // (tp * ep), gpus_per_node)
    low.nodes[DP], low.per_node[DP] = place(dp, tp, tp * dp, pp, gpus_per_node)
    low.nodes[DP_EP], low.per_node[DP_EP] = place(dp // ep, tp * ep, tp * dp, pp, gpus_per_node)
    _cost_units(arrays.pieces, hardware, plans, i, low)
    _cost_sends(arrays, hardware, plans, i, low, program)
    _fill_blocks(arrays, plans, i, low, program)


@kernel
def _group_s(kind: int, group: int, size: float, hardware: HardwareTable, row: int, low: Lowered) -> float:
    """Seconds of a collective on one of the plan's groups."""
    return collective_s(
        kind,
        size,
        low.ranks[group],
        low.nodes[group],
        low.per_node[group],
        hardware.nvlink_bandwidth[row],
        hardware.nvlink_latency[row],
        hardware.nic_bandwidth_per_gpu[row],
        hardware.nic_latency[row],
    )


@kernel
def _cost_units(pieces: Pieces, hardware: HardwareTable, plans: Plans, i: int, low: Lowered) -> None:
    """Sum the pieces of each unit. A collective that may overlap hides behind its own piece: in forward behind the forward
    compute, in backward behind the weight gradient (Megatron-LM's asynchronous tensor-parallel all-reduce)."""
    row = plans.hardware[i]
    compute_scale = low.scale[COMPUTE] * hardware.compute_scale[row]
    low.unit_forward_s[:] = 0.0
    low.unit_backward_s[:] = 0.0
    low.unit_again_s[:] = 0.0
    low.unit_work[:, :] = 0.0
    low.unit_again[:, :] = 0.0
    for p in range(pieces.unit.shape[0]):
        unit = pieces.unit[p]
        again = 1.0
        if plans.checkpointing[i] == FILE:
            again = pieces.rerun[p]
        elif plans.checkpointing[i] == SELECTIVE and not pieces.attention_core[p]:
            again = 0.0
        forward_s = pieces.compute_s[p, FORWARD] * compute_scale
        weight_s = pieces.compute_s[p, WEIGHT_GRADIENT] * compute_scale
        backward_s = pieces.compute_s[p, INPUT_GRADIENT] * compute_scale + weight_s
        low.unit_work[unit, FWD] += forward_s
        low.unit_work[unit, BWD] += backward_s
        low.unit_again[unit, RERUN] += again * forward_s
        low.unit_forward_s[unit] += forward_s
        low.unit_backward_s[unit] += backward_s
        low.unit_again_s[unit] += again * forward_s
        for phase in range(3):
            kind = pieces.comm_kind[p, phase]
            if kind == NO_COMM:
                continue
            group = pieces.comm_group[p, phase]
            size = pieces.comm_bytes[p, phase] * low.scale[pieces.comm_rule[p, phase]]
            seconds = _group_s(kind, group, size, hardware, row, low)
            exposed = seconds
            overlaps = (group == TP and plans.overlap_tp[i] == 1) or (group == EP and plans.overlap_ep[i] == 1)
            if overlaps and phase != WEIGHT_GRADIENT:
                exposed -= min(seconds, forward_s if phase == FORWARD else weight_s)
            total = TOTAL_OF[group]
            low.unit_work[unit, total] += seconds
            low.unit_work[unit, total + 1] += exposed
            if phase == FORWARD:
                low.unit_again[unit, total] += again * seconds
                low.unit_again[unit, total + 1] += again * exposed
                low.unit_forward_s[unit] += exposed
                low.unit_again_s[unit] += again * exposed
            else:
                low.unit_backward_s[unit] += exposed


@kernel
def _cost_sends(arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, program: Program) -> None:
    """Cost of the message into each stage, from the stage before and from the stage after; the ring closes last to first."""
    pp, row = plans.pp[i], plans.hardware[i]
    if pp == 1:
        program.message_s[:, 0] = 0.0
        return
    stage_gpus = plans.all_gpus[i] // pp
    gpus_per_node = hardware.gpus_per_node[row]
    size = arrays.p2p_bytes * low.scale[arrays.p2p_rule]
    for stage in range(pp):
        if stage == pp - 1:
            between_nodes = plans.all_gpus[i] > gpus_per_node
        else:
            between_nodes = crosses_nodes(stage, stage_gpus, gpus_per_node)
        cost = send_s(
            size,
            between_nodes,
            hardware.nvlink_bandwidth[row],
            hardware.nvlink_latency[row],
            hardware.nic_bandwidth_per_gpu[row],
            hardware.nic_latency[row],
        )
        program.message_s[DOWN, (stage + 1) % pp] = cost
        program.message_s[UP, stage] = cost


@kernel
def _fill_blocks(arrays: Arrays, plans: Plans, i: int, low: Lowered, program: Program) -> None:
    """Durations of each virtual stage's blocks, from the layers that it holds, and the passes over all stages."""
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    units = low.passes.shape[0]
    layers = arrays.unit_layers.shape[1] - 1
    checkpointing = plans.checkpointing[i]
    low.passes[:] = 0.0
    low.again[:] = 0.0
    for chunk in range(chunks):
        begin = first_layer(chunk, chunks, layers)
        end = first_layer(chunk + 1, chunks, layers)
        again_end = end
        if checkpointing == NONE:
            again_end = begin
        elif checkpointing == BLOCK:
            again_end = min(begin + plans.checkpoint_layers[i], end)
        forward_s = 0.0
        backward_s = 0.0
        for unit in range(units):
            count = arrays.unit_layers[unit, end] - arrays.unit_layers[unit, begin]
            redone = arrays.unit_layers[unit, again_end] - arrays.unit_layers[unit, begin]
            if (chunk == 0 and unit == arrays.first_unit) or (chunk == chunks - 1 and unit == arrays.last_unit):
                count += 1
                if checkpointing == FILE:
                    redone += 1
            forward_s += count * low.unit_forward_s[unit]
            backward_s += count * low.unit_backward_s[unit] + redone * low.unit_again_s[unit]
            low.passes[unit] += count
            low.again[unit] += redone
        cell = chunk % pp * vpp + chunk // pp
        program.duration_s[DOWN, cell] = forward_s
        program.duration_s[UP, cell] = backward_s


@kernel
def _cost_buckets(
    step: StepPieces,
    role: int,
    layers: int,
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
) -> float:
    """Buckets, and seconds a bucket, of the step pieces of `role` for `layers` layers; returns the seconds of all.

    A message is cut into equal buckets of at most the bucket size.
    """
    bucket = float(plans.bucket_bytes[i])
    if bucket == 0:
        parameters = max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP * low.ranks[DP])
        bucket = float(GRADIENT_BYTES * parameters)
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES / GRADIENT_BYTES  # the same parameters, in fewer bytes
    total_layers = arrays.unit_layers.shape[1] - 1
    share = arrays.base[1] * layers / total_layers
    seconds = 0.0
    for k in range(step.role.shape[0]):
        if step.role[k] != role:
            continue
        rule = step.comm_rule[k]
        size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
        count = max(np.ceil(size / bucket), 1.0)
        low.piece_buckets[k] = count
        low.piece_bucket_s[k] = _group_s(step.comm_kind[k], step.comm_group[k], size / count, hardware, plans.hardware[i], low)
        seconds += count * low.piece_bucket_s[k]
    return seconds


@kernel
def gather_parameters(
    arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, program: Program, out: Floats
) -> None:
    """Gates of the first forwards, if the parameter gather overlaps them; else its seconds after the optimizer.

    Buckets of a chunk arrive one after the other from the start of the step, those of dense and expert parameters in step; a
    layer runs once its buckets are there.
    Leaves the stage's serial seconds in `low.after_s`.
    """
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    layers = arrays.unit_layers.shape[1] - 1
    costed = -1
    chunk_s = 0.0
    for stage in range(pp):
        arrived_s = 0.0
        for chunk in range(vpp):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = _cost_buckets(arrays.step, GATHER_PARAMETERS, held, arrays, hardware, plans, i, low)
                costed = held
            program.gate_start_s[cell] = 0.0
            program.gate_end_s[cell] = 0.0
            if plans.overlap_param[i] == 1 and chunk_s > 0:
                first_s, most = 0.0, 1.0
                for k in range(arrays.step.role.shape[0]):
                    if arrays.step.role[k] == GATHER_PARAMETERS and low.piece_bucket_s[k] > 0:
                        first_s += low.piece_bucket_s[k]
                        most = max(most, low.piece_buckets[k])
                program.gate_start_s[cell] = arrived_s + first_s
                program.gate_end_s[cell] = arrived_s + chunk_s + program.duration_s[DOWN, cell] / most
            arrived_s += chunk_s
        low.after_s[stage] = 0.0 if plans.overlap_param[i] == 1 else arrived_s
        out[DP_TOTAL] += arrived_s / pp
        out[DP_EXPOSED] += low.after_s[stage] / pp


@kernel
def _last_bucket_s(step: StepPieces, end_s: float, backward_s: float, low: Lowered) -> float:
    """End of a stream that was free when this backward began, taking its buckets, of all kinds, as they get ready.

    It is the greatest, over the moments at which a bucket gets ready, of that moment and the work of all buckets that are
    ready then or later. Along the buckets of one kind that sum is linear, so that its ends suffice; with several kinds
    EDGE_BUCKETS from either end are looked at, which is exact but for less than one bucket in between.
    """
    latest = 0.0
    begin_s = end_s - backward_s
    kinds = 0
    for k in range(step.role.shape[0]):
        if step.role[k] == REDUCE_GRADIENTS and low.piece_bucket_s[k] > 0:
            kinds += 1
    for k in range(step.role.shape[0]):
        if step.role[k] != REDUCE_GRADIENTS or low.piece_bucket_s[k] <= 0:
            continue
        count = low.piece_buckets[k]
        edge = 1.0 if kinds == 1 else min(count, EDGE_BUCKETS)
        looked = 0.0
        while looked < 2 * edge:
            bucket = looked if looked < edge else count - 1 - (looked - edge)
            ready = (bucket + 1) / count
            rest_s = 0.0
            for other in range(step.role.shape[0]):
                if step.role[other] == REDUCE_GRADIENTS and low.piece_bucket_s[other] > 0:
                    before = np.ceil(ready * low.piece_buckets[other] - 1e-9) - 1
                    rest_s += (low.piece_buckets[other] - max(before, 0.0)) * low.piece_bucket_s[other]
            latest = max(latest, begin_s + ready * backward_s + rest_s)
            looked += 1
    return latest


@kernel
def reduce_gradients(
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
    program: Program,
    times: Times,
    out: Floats,
) -> float:
    """Reduce each chunk's gradients bucket by bucket, during its last backward or after the pipeline.

    Bucket j of n is ready when (j+1)/n of the backward is done, and the stream takes them as they get ready. Returns when the
    last stage is through (the barrier of the gradient norm).
    """
    pp, vpp, ga = plans.pp[i], plans.vpp[i], plans.ga[i]
    chunks = pp * vpp
    layers = arrays.unit_layers.shape[1] - 1
    overlapped = plans.overlap_grad[i] == 1
    costed = -1
    chunk_s = 0.0
    barrier_s = 0.0
    for stage in range(pp):
        stream_s = 0.0 if overlapped else times.free_s[stage]
        for chunk in range(vpp - 1, -1, -1):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = _cost_buckets(arrays.step, REDUCE_GRADIENTS, held, arrays, hardware, plans, i, low)
                costed = held
            out[DP_TOTAL] += chunk_s / pp
            if not overlapped:
                stream_s += chunk_s
                continue
            last_s = times.end_s[(pp * vpp + cell) * ga + ga - 1]
            stream_s = max(stream_s + chunk_s, _last_bucket_s(arrays.step, last_s, program.duration_s[UP, cell], low))
        low.stream_end_s[stage] = max(stream_s, times.free_s[stage])
        out[DP_EXPOSED] += (low.stream_end_s[stage] - times.free_s[stage]) / pp
        barrier_s = max(barrier_s, low.stream_end_s[stage])
    return barrier_s


@kernel
def after_gradients(arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, out: Floats) -> float:
    """Once-a-step collectives and the optimizer of each stage, added to `low.after_s`; returns the slowest stage's."""
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    layers = arrays.unit_layers.shape[1] - 1
    step = arrays.step
    row = plans.hardware[i]
    slowest_s = 0.0
    for stage in range(pp):
        held = 0
        for chunk in range(vpp):
            virtual = chunk * pp + stage
            held += first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
        share = arrays.base[1] * held / layers
        for k in range(step.role.shape[0]):
            if step.role[k] != AFTER_GRADIENTS:
                continue
            rule = step.compute_rule[k]
            compute_s = step.compute_s[k] * low.scale[rule] * hardware.compute_scale[row]
            compute_s *= share if BY_LAYERS[rule] else 1.0
            rule = step.comm_rule[k]
            size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
            seconds = 0.0
            if step.comm_kind[k] != NO_COMM:
                seconds = _group_s(step.comm_kind[k], step.comm_group[k], size, hardware, row, low)
            low.after_s[stage] += compute_s + seconds
            total = TOTAL_OF[step.comm_group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + 1] += seconds / pp
        slowest_s = max(slowest_s, low.after_s[stage])
    return slowest_s
