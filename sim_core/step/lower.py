"""The program of a plan for the engine: durations of blocks, costs of messages."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Case, collective_of
from sim_core.costing.collectives import send_s
from sim_core.costing.groups import N_GROUPS
from sim_core.engine.events import DOWN, UP, Program
from sim_core.jit import inner_kernel
from sim_core.metrics import BACKWARD_S, FORWARD_S, RECOMPUTE_S
from sim_core.planning.columns import BLOCK, FILE, NONE
from sim_core.planning.placement import crosses_nodes
from sim_core.planning.split import count_layers
from sim_core.workloads.workload import ALL_GATHER, TP, Arrays

Floats = npt.NDArray[np.float64]

JITTER_FROM: Final = 8
"""GPUs up to which no rank waits for a slower one."""


class Lowered(NamedTuple):
    """Passes of one micro-batch, summed over all stages."""

    passes: Floats  # [units] passes of each unit
    again: Floats  # [units] passes with recompute
    extra_s: Floats  # [3] seconds that stragglers and jitter add to FORWARD_S, BACKWARD_S and RECOMPUTE_S


def allocate_lowered(arrays: Arrays) -> Lowered:
    """Scratch for one plan at a time."""
    units = arrays.unit_layers.shape[0]
    return Lowered(passes=np.empty(units), again=np.empty(units), extra_s=np.empty(3))


@inner_kernel
def lower(case: Case, low: Lowered, program: Program) -> None:
    """Fill `low` and the durations and messages of `program`; the schedule fills its order."""
    _cost_sends(case, program)
    _fill_blocks(case, low, program)


@inner_kernel
def _cost_sends(case: Case, program: Program) -> None:
    """Cost of the message into each stage, from the previous and the next stage; the last stage also sends to the first."""
    pp, all_gpus, gpus_per_node = case.plan.pp, case.plan.all_gpus, case.device.gpus_per_node
    if pp == 1:
        program.message_s[:, 0] = 0.0
        return
    size = case.arrays.p2p_bytes * case.blocks.scale[case.block, case.arrays.p2p_rule]
    factor = case.arrays.message_factor
    inside_s = send_s(size, False, case.device.links) * factor[0, N_GROUPS]
    outside_s = send_s(size, True, case.device.links) * factor[1, N_GROUPS]
    if case.arrays.framework.gathers_sends:
        gather_s = collective_of(case, ALL_GATHER, TP, size * case.plan.tp)
        inside_s += gather_s
        outside_s += gather_s
    for stage in range(pp):
        last = stage == pp - 1
        between_nodes = all_gpus > gpus_per_node if last else crosses_nodes(stage, all_gpus // pp, gpus_per_node)
        cost = outside_s if between_nodes else inside_s
        program.message_s[DOWN, (stage + 1) % pp] = cost
        program.message_s[UP, stage] = cost


@inner_kernel
def _fill_blocks(case: Case, low: Lowered, program: Program) -> None:
    """Durations of the blocks of each virtual stage, from its layers; and the passes of all stages."""
    plan, row, key = case.plan, case.first, case.block
    pp, vpp, how = plan.pp, plan.vpp, plan.checkpointing
    # local names: inside a loop, numba counts references to every array of a tuple that it accesses
    layers, passes, begin, end = case.split.layers, case.split.passes, case.split.begin, case.split.end
    unit_layers, layer_unit = case.arrays.unit_layers, case.arrays.layer_unit
    unit_forward_s, unit_backward_s, unit_again_s = case.blocks.forward_s, case.blocks.backward_s, case.blocks.again_s
    all_passes, all_again, duration_s = low.passes, low.again, program.duration_s
    all_passes[:] = 0.0
    all_again[:] = 0.0
    low.extra_s[:] = 0.0
    jitter = 1 + case.arrays.framework.jitter * max(np.log2(plan.all_gpus / JITTER_FROM), 0.0)
    for virtual in range(pp * vpp):
        stage = virtual % pp
        forward_s = 0.0
        backward_s = 0.0
        slower = (plan.straggler_factor if stage == plan.straggler_stage else 1.0) * jitter - 1
        for unit in range(all_passes.shape[0]):
            count = passes[row, unit]
            redone = 0
            if how == FILE:
                redone = count
            elif how == BLOCK:
                last = min(begin[row] + plan.checkpoint_layers, end[row])
                redone = count_layers(unit_layers, layer_unit, unit, begin[row], last)
            elif how != NONE:
                redone = layers[row, unit]
            forward_s += count * unit_forward_s[key, unit]
            backward_s += count * unit_backward_s[key, unit] + redone * unit_again_s[key, unit]
            if slower != 0:
                extra_forward_s = slower * count * case.blocks.work[key, unit, FORWARD_S]
                extra_backward_s = slower * count * case.blocks.work[key, unit, BACKWARD_S]
                extra_again_s = slower * redone * case.blocks.again[key, unit, RECOMPUTE_S]
                forward_s += extra_forward_s
                backward_s += extra_backward_s + extra_again_s
                low.extra_s[FORWARD_S] += extra_forward_s
                low.extra_s[BACKWARD_S] += extra_backward_s
                low.extra_s[RECOMPUTE_S] += extra_again_s
            all_passes[unit] += count
            all_again[unit] += redone
        cell = stage * vpp + virtual // pp
        duration_s[DOWN, cell] = forward_s
        duration_s[UP, cell] = backward_s
        row += 1
