"""Workload x hardware x plan -> a program for the engine: groups on nodes, seconds of every block and message."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.collectives import collective_s, send_s
from sim_core.engine.events import DOWN, UP, Program
from sim_core.hardware.table import HardwareTable
from sim_core.jit import kernel
from sim_core.planning.columns import BLOCK, FILE, NONE, SELECTIVE, Plans
from sim_core.planning.placement import crosses_nodes, place
from sim_core.planning.split import first_layer
from sim_core.workloads.moving import COMPUTE, EXPONENTS, N_RULES, rule_scales
from sim_core.workloads.workload import (
    DP,
    DP_EP,
    EMBEDDING,
    EP,
    FORWARD,
    GROUP_NAMES,
    INPUT_GRADIENT,
    NO_COMM,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
    Pieces,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Sums of one layer pass, and of a step: columns of Lowered.unit_work and rows of METRICS
FWD, BWD, RERUN, TP_TOTAL, TP_EXPOSED, EP_TOTAL, EP_EXPOSED, DP_TOTAL, DP_EXPOSED = 0, 1, 2, 3, 4, 5, 6, 7, 8
N_SUMS: Final = 9
N_GROUPS: Final = len(GROUP_NAMES)
TOTAL_OF: Final = np.array([TP_TOTAL, EP_TOTAL, DP_TOTAL, DP_TOTAL, DP_TOTAL], np.int64)

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
    ranks: Ints  # [groups] size of each kind of group
    nodes: Ints  # [groups]
    per_node: Ints  # [groups]
    unit_forward_s: Floats  # [units] one pass of a unit, collectives that are not hidden included
    unit_backward_s: Floats
    unit_again_s: Floats  # what recompute adds to the backward
    unit_work: Floats  # [units, N_SUMS] the same in parts
    unit_again: Floats  # [units, N_SUMS]
    piece_backward_s: Floats  # [pieces] backward of a piece, without recompute
    passes: Floats  # [units] passes of one micro-batch over all stages
    again: Floats  # [units] of them with recompute
    piece_buckets: Floats  # [step pieces] buckets of a chunk of `chunk_layers` layers ...
    piece_bucket_s: Floats  # ... and the seconds of one
    stream_end_s: Floats  # [stages] end of the gradient reduction
    after_s: Floats  # [stages] work after the gradients
    extra_s: Floats  # [3] what a straggler adds to forward, backward and recompute of a micro-batch


@kernel
def allocate_lowered(arrays: Arrays, stages: int) -> Lowered:
    """Scratch for a workload and up to `stages` stages."""
    units, step_pieces = arrays.unit_layers.shape[0], arrays.step.role.shape[0]
    return Lowered(
        np.empty(N_RULES),
        np.empty(N_GROUPS, np.int64),
        np.empty(N_GROUPS, np.int64),
        np.empty(N_GROUPS, np.int64),
        np.empty(units),
        np.empty(units),
        np.empty(units),
        np.empty((units, N_SUMS)),
        np.empty((units, N_SUMS)),
        np.empty(arrays.pieces.unit.shape[0]),
        np.empty(units),
        np.empty(units),
        np.empty(step_pieces),
        np.empty(step_pieces),
        np.empty(stages),
        np.empty(stages),
        np.empty(3),
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
    low.ranks[EMBEDDING] = min(pp, 2)
    low.nodes[EMBEDDING] = 2 if pp > 1 and all_gpus > gpus_per_node else 1
    low.per_node[EMBEDDING] = low.ranks[EMBEDDING] // low.nodes[EMBEDDING]
    _cost_units(arrays.pieces, hardware, plans, i, low)
    _cost_sends(arrays, hardware, plans, i, low, program)
    _fill_blocks(arrays, plans, i, low, program)


@kernel
def group_s(kind: int, group: int, size: float, hardware: HardwareTable, row: int, low: Lowered) -> float:
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
    compute_scale = low.scale[COMPUTE] * hardware.compute_scale[row] / plans.device_speed[i]
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
        low.piece_backward_s[p] = backward_s
        low.unit_again_s[unit] += again * forward_s
        for phase in range(3):
            kind = pieces.comm_kind[p, phase]
            if kind == NO_COMM:
                continue
            group = pieces.comm_group[p, phase]
            size = pieces.comm_bytes[p, phase] * low.scale[pieces.comm_rule[p, phase]]
            seconds = group_s(kind, group, size, hardware, row, low)
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
                low.piece_backward_s[p] += exposed


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
def count_layers(arrays: Arrays, unit: int, begin: int, end: int) -> int:
    """Layers of a unit among the layers `begin` to `end`; beyond the recorded ones all are of the one layer unit."""
    if end >= arrays.unit_layers.shape[1]:
        return end - begin if unit == arrays.layer_unit else 0
    return int(arrays.unit_layers[unit, end] - arrays.unit_layers[unit, begin])


@kernel
def _fill_blocks(arrays: Arrays, plans: Plans, i: int, low: Lowered, program: Program) -> None:
    """Durations of each virtual stage's blocks, from the layers that it holds, and the passes over all stages."""
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    units = low.passes.shape[0]
    layers = plans.layers[i]
    checkpointing = plans.checkpointing[i]
    low.passes[:] = 0.0
    low.again[:] = 0.0
    low.extra_s[:] = 0.0
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
        slower = plans.straggler_factor[i] - 1 if chunk % pp == plans.straggler_stage[i] else 0.0
        for unit in range(units):
            count = count_layers(arrays, unit, begin, end)
            redone = count_layers(arrays, unit, begin, again_end)
            if (chunk == 0 and unit == arrays.first_unit) or (chunk == chunks - 1 and unit == arrays.last_unit):
                count += 1
                if checkpointing == FILE:
                    redone += 1
            forward_s += count * low.unit_forward_s[unit]
            backward_s += count * low.unit_backward_s[unit] + redone * low.unit_again_s[unit]
            if slower != 0:
                extra_forward_s = slower * count * low.unit_work[unit, FWD]
                extra_backward_s = slower * count * low.unit_work[unit, BWD]
                extra_again_s = slower * redone * low.unit_again[unit, RERUN]
                forward_s += extra_forward_s
                backward_s += extra_backward_s + extra_again_s
                low.extra_s[FWD] += extra_forward_s
                low.extra_s[BWD] += extra_backward_s
                low.extra_s[RERUN] += extra_again_s
            low.passes[unit] += count
            low.again[unit] += redone
        cell = chunk % pp * vpp + chunk // pp
        program.duration_s[DOWN, cell] = forward_s
        program.duration_s[UP, cell] = backward_s
