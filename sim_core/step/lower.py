"""The program of a plan for the engine: durations of blocks, costs of messages."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.case import (
    EXPERTS_BACKWARD,
    EXPERTS_FORWARD,
    LAUNCH_BACKWARD,
    LAUNCH_FORWARD,
    WAIT_APART,
    WAIT_BACKWARD,
    WAIT_FORWARD,
    WEIGHT_COMPUTE,
    WEIGHT_GRADIENTS,
    Case,
    collective_of,
    shares_nics,
)
from sim_core.costing.collectives import send_s
from sim_core.costing.fabric import crowded_send
from sim_core.costing.groups import N_GROUPS
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.program import DOWN, PAIR, UP, WEIGHT, Program
from sim_core.engine.schedules import PAIRS, PLACEMENT, SPLITS
from sim_core.metrics import BACKWARD_S, FORWARD_S, LAUNCH_S, RECOMPUTE_S
from sim_core.planning.columns import BLOCK, FILE, NONE, Plan
from sim_core.planning.placement import crosses_nodes
from sim_core.planning.split import count_layers
from sim_core.workloads.workload import ALL_GATHER, TP, Arrays

JITTER_FROM: Final = 8
"""GPUs up to which no rank waits for a slower one."""


class Longer(NamedTuple):
    """Seconds by which sharing NICs makes blocks and messages longer."""

    sends_s: Floats  # [2, stages] a pipeline message into a stage, by direction
    layers_s: Floats  # [2, cells] a block and its sharded layers' messages
    full_s: Floats  # [stages] the reduction of gradients, until the NICs have sent all that they carry


class Lowered(NamedTuple):
    """Passes of one micro-batch, summed over all stages."""

    passes: Floats  # [units] passes of each unit
    again: Floats  # [units] passes with recompute
    extra_s: Floats  # [4] seconds that stragglers and jitter add to FORWARD_S, BACKWARD_S, RECOMPUTE_S; of LAUNCH_S, apart
    nic_s: Floats  # [2, cells, 2] of NICs that a block's own messages need, by direction; and of those that nothing hides
    carried_s: Floats  # [stages] for which a stage's NICs are needed until its gradients are reduced, as far as is counted yet
    longer: Longer
    pairs_s: Floats  # [cells] by which sharing NICs makes a forward beside a backward longer, with both their pipeline messages
    hideable_s: Floats  # [cells] of messages of experts that a forward beside a backward hides at most
    beside: Floats  # [7] what `beside_stream` was asked last, the rate first, and what it said
    send_nic_s: Floats  # [stages] of NICs for one pipeline message between a stage and the next (of the last: the first)


def allocate_lowered(arrays: Arrays, stages: int, cells: int) -> Lowered:
    """Scratch for one plan at a time, of up to `stages` stages and `cells` virtual stages."""
    units = arrays.unit_layers.shape[0]
    return Lowered(
        passes=np.empty(units),
        again=np.empty(units),
        extra_s=np.empty(4),
        nic_s=np.zeros((2, cells, 2)),
        carried_s=np.zeros(stages),
        longer=Longer(
            sends_s=np.zeros((2, stages)),
            layers_s=np.zeros((2, cells)),
            full_s=np.zeros(stages),
        ),
        pairs_s=np.zeros(cells),
        hideable_s=np.zeros(cells),
        beside=np.zeros(7),
        send_nic_s=np.zeros(stages),
    )


@inner_kernel
def lower(case: Case, low: Lowered, program: Program) -> None:
    """Fill `low`, and the durations and messages of `program`; the schedule fills its order."""
    _cost_sends(case, low, program)
    _fill_blocks(case, low, program)
    if SPLITS[case.plan.schedule]:
        _fill_parts(case, chunks_of(case.plan.schedule, case.plan.vpp), low, program)


@inner_kernel
def jitter_of(case: Case) -> float:
    """Factor by which compute is longer because some rank is always a little late."""
    return float(1 + case.arrays.framework.jitter * max(np.log2(case.plan.all_gpus / JITTER_FROM), 0.0))


@inner_kernel
def slowness(plan: Plan, stage: int, jitter: float) -> float:
    """Part of its compute by which a stage is slower: a straggler, jitter."""
    return float((plan.straggler_factor if stage == plan.straggler_stage else 1.0) * jitter - 1)


@inner_kernel
def _cost_sends(case: Case, low: Lowered, program: Program) -> None:
    """Cost of the message into each stage, from the previous and the next stage; the last stage also sends to the first."""
    pp, all_gpus, gpus_per_node = case.plan.pp, case.plan.all_gpus, case.device.gpus_per_node
    low.send_nic_s[:pp] = 0.0
    if pp == 1:
        program.message_s[:, 0] = 0.0
        return
    size = case.arrays.p2p_bytes * case.blocks.scale[case.block, case.arrays.p2p_rule]
    factor = case.arrays.message_factor
    gather_s = 0.0
    if case.arrays.framework.gathers_sends:
        gather_s = collective_of(case, ALL_GATHER, TP, size * case.plan.tp)
    links, leaves = case.device.links, case.device.gpus_per_leaf + case.device.gpus_per_pod > 0
    for stage in range(pp):
        last = stage == pp - 1
        between_nodes = all_gpus > gpus_per_node if last else crosses_nodes(stage, all_gpus // pp, gpus_per_node)
        crowded = crowded_send(stage, pp, all_gpus, case.device) if leaves else 1.0
        cost = send_s(size, between_nodes, links, crowded) * factor[int(between_nodes), N_GROUPS]
        if between_nodes and shares_nics(case):
            low.send_nic_s[stage] = max(cost - links.nic_latency, 0.0) if size > 0 else 0.0
        cost += gather_s + case.arrays.framework.message_host_s
        program.message_s[DOWN, (stage + 1) % pp] = cost
        program.message_s[UP, stage] = cost


@inner_kernel
def _fill_blocks(case: Case, low: Lowered, program: Program) -> None:
    """Durations of the blocks of each virtual stage, from its layers; and the passes of all stages."""
    plan, key, how = case.plan, case.block, case.plan.checkpointing
    pp, chunks, placement = plan.pp, chunks_of(plan.schedule, plan.vpp), PLACEMENT[plan.schedule]
    share = plan.vpp / chunks  # of the micro-batches
    # local names: inside a loop, numba counts references to every array of a tuple that it accesses
    layers, passes, begin, end = case.split.layers, case.split.passes, case.split.begin, case.split.end
    unit_layers, layer_unit = case.arrays.unit_layers, case.arrays.layer_unit
    unit_forward_s, unit_backward_s, unit_again_s = case.blocks.forward_s, case.blocks.backward_s, case.blocks.again_s
    unit_nic_s, nic_s, sharing = case.blocks.nic_s, low.nic_s, shares_nics(case)
    all_passes, all_again, duration_s = low.passes, low.again, program.duration_s
    begin_s = case.arrays.framework.micro_batch_host_s
    all_passes[:] = 0.0
    all_again[:] = 0.0
    low.extra_s[:] = 0.0
    jitter = jitter_of(case)
    for turn in range(pp * chunks):
        stage, chunk = turn % pp, turn // pp
        row = case.first + virtual_of(placement, stage, chunk, pp)
        forward_s = begin_s
        backward_s = 0.0
        low.extra_s[LAUNCH_S] += begin_s * share
        cell = stage * chunks + chunk
        nic_s[:, cell] = 0.0
        slower = slowness(plan, stage, jitter)
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
                low.extra_s[FORWARD_S] += extra_forward_s * share
                low.extra_s[BACKWARD_S] += extra_backward_s * share
                low.extra_s[RECOMPUTE_S] += extra_again_s * share
            if sharing:
                for k in range(2):
                    nic_s[DOWN, cell, k] += count * unit_nic_s[key, unit, 0, k]
                    nic_s[UP, cell, k] += count * unit_nic_s[key, unit, 1, k] + redone * unit_nic_s[key, unit, 2, k]
            all_passes[unit] += count * share
            all_again[unit] += redone * share
        duration_s[DOWN, cell] = forward_s
        duration_s[UP, cell] = backward_s


@inner_kernel
def _fill_parts(case: Case, chunks: int, low: Lowered, program: Program) -> None:
    """Seconds of the weight gradients of each cell, and of a forward beside a backward of the stage's other chunk.

    Embedding and loss do not split. A pair hides the all-to-alls of the one behind the compute of the other (DeepSeek-AI 2024,
    section 3.2.1) and takes `pair_contention` of them longer: it takes as long as all compute, all exposed all-to-alls, the
    longer of the two alone, or launching both, whichever is most.
    """
    plan, key = case.plan, case.block
    pp, placement = plan.pp, PLACEMENT[plan.schedule]
    jitter, apart_s, duration_s = jitter_of(case), case.blocks.apart_s, program.duration_s
    for stage in range(pp):
        slower = slowness(plan, stage, jitter)
        for chunk in range(chunks):
            cell, row = stage * chunks + chunk, case.first + virtual_of(placement, stage, chunk, pp)
            duration_s[WEIGHT, cell] = 0.0
            duration_s[PAIR, cell] = 0.0
            for unit in range(case.split.passes.shape[1]):
                seconds = apart_s[key, unit, WEIGHT_GRADIENTS] + slower * apart_s[key, unit, WEIGHT_COMPUTE]
                duration_s[WEIGHT, cell] += case.split.layers[row, unit] * seconds
                apart = case.split.layers[row, unit] * apart_s[key, unit, WAIT_APART]
                duration_s[UP, cell] += apart
                low.extra_s[LAUNCH_S] += apart * plan.vpp / chunks
                duration_s[PAIR, cell] += case.split.passes[row, unit] * apart_s[key, unit, EXPERTS_FORWARD]
        if not PAIRS[plan.schedule]:
            continue
        for chunk in range(2):
            cell, beside = stage * 2 + chunk, stage * 2 + 1 - chunk
            row = case.first + virtual_of(placement, stage, 1 - chunk, pp)
            hideable_s = duration_s[PAIR, cell]
            for unit in range(case.split.passes.shape[1]):
                hideable_s += case.split.passes[row, unit] * apart_s[key, unit, EXPERTS_BACKWARD]
            forward_s, backward_s = duration_s[DOWN, cell], duration_s[UP, beside]
            launch_s, waits_s = _launch_s(case, case.first + virtual_of(placement, stage, chunk, pp), row)
            ran_s = forward_s + backward_s - waits_s
            low.hideable_s[cell] = hideable_s
            hidden_s = hideable_s * (1 - case.arrays.framework.pair_contention)
            duration_s[PAIR, cell] = max(ran_s - hidden_s, hideable_s, forward_s, backward_s, launch_s)


@inner_kernel
def _launch_s(case: Case, forward: int, backward: int) -> tuple[float, float]:
    """Of a forward and a backward of two virtual stages, rows of the split: seconds to launch both; those that devices wait."""
    passes, apart_s, key = case.split.passes, case.blocks.apart_s, case.block
    launch_s, waits_s = 0.0, 0.0
    for unit in range(passes.shape[1]):
        launch_s += passes[forward, unit] * apart_s[key, unit, LAUNCH_FORWARD]
        launch_s += passes[backward, unit] * apart_s[key, unit, LAUNCH_BACKWARD]
        waits_s += passes[forward, unit] * apart_s[key, unit, WAIT_FORWARD]
        waits_s += passes[backward, unit] * apart_s[key, unit, WAIT_BACKWARD]
        waits_s += case.split.layers[backward, unit] * apart_s[key, unit, WAIT_APART]
    return launch_s, waits_s
