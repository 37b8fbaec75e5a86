"""The program of a plan for the engine: durations of blocks, costs of messages."""

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
    row_of_chunk,
)
from sim_core.costing.collectives import send_s
from sim_core.costing.fabric import crowded_send
from sim_core.costing.groups import N_GROUPS
from sim_core.engine.program import DOWN, PAIR, UP, WEIGHT
from sim_core.engine.schedules import PAIRS, SPLITS
from sim_core.metrics import BACKWARD_S, FORWARD_S, LAUNCH_S, RECOMPUTE_S
from sim_core.planning.columns import BLOCK, FILE, NONE
from sim_core.planning.placement import crosses_nodes
from sim_core.planning.split import count_layers
from sim_core.step.scratch import Scratch
from sim_core.workloads.workload import ALL_GATHER, TP


@inner_kernel
def lower(case: Case, scratch: Scratch) -> None:
    """Fill the durations and messages of the program, and passes, jitter and NICs of blocks; the schedule fills the order."""
    _cost_sends(case, scratch)
    _fill_blocks(case, scratch)
    if SPLITS[case.plan.schedule]:
        _fill_parts(case, scratch)


@inner_kernel
def slowness(case: Case, stage: int) -> float:
    """Part of its compute by which a stage is slower: a straggler, jitter."""
    return float((case.plan.straggler_factor if stage == case.plan.straggler_stage else 1.0) * case.jitter - 1)


@inner_kernel
def _cost_sends(case: Case, scratch: Scratch) -> None:
    """Cost of the message into each stage, from the previous and the next stage; the last stage also sends to the first."""
    pp, all_gpus, device, message_s = case.plan.pp, case.plan.all_gpus, case.device, scratch.program.message_s
    nic_s = scratch.low.send_nic_s
    nic_s[:pp] = 0.0
    if pp == 1:
        message_s[:, 0] = 0.0
        return
    size = case.arrays.p2p_bytes * case.blocks.scale[case.block, case.arrays.p2p_rule]
    gather_s = 0.0
    if case.arrays.framework.gathers_sends:
        gather_s = collective_of(case, ALL_GATHER, TP, size * case.plan.tp)
    leaves = device.gpus_per_leaf + device.gpus_per_pod > 0
    for stage in range(pp):
        last = stage == pp - 1
        between = all_gpus > device.gpus_per_node if last else crosses_nodes(stage, all_gpus // pp, device.gpus_per_node)
        crowded = crowded_send(stage, pp, all_gpus, device) if leaves else 1.0
        cost = send_s(size, between, device, crowded) * case.arrays.message_factor[int(between), N_GROUPS]
        if between and case.shares and size > 0:
            nic_s[stage] = max(cost - device.nic_latency, 0.0)
        cost += gather_s + case.arrays.framework.message_host_s
        message_s[DOWN, (stage + 1) % pp] = message_s[UP, stage] = cost


@inner_kernel
def _fill_blocks(case: Case, scratch: Scratch) -> None:
    """Durations of the blocks of each virtual stage, from its layers; and the passes of all stages."""
    plan, key, how, low = case.plan, case.block, case.plan.checkpointing, scratch.low
    share = plan.vpp / case.chunks  # of the micro-batches
    # local names: inside a loop, each array of a tuple would be loaded anew
    layers, passes, begin, end = case.split.layers, case.split.passes, case.split.begin, case.split.end
    work, again, unit_again_s, unit_nic_s = case.blocks.work, case.blocks.again, case.blocks.again_s, case.blocks.nic_s
    unit_forward_s, unit_backward_s = case.blocks.forward_s, case.blocks.backward_s
    nic_s, all_passes, all_again, extra_s = low.nic_s, low.passes, low.again, low.extra_s
    duration_s, sharing = scratch.program.duration_s, case.shares
    begin_s = case.arrays.framework.micro_batch_host_s if plan.pp > 1 else 0.0
    all_passes[:] = 0.0
    all_again[:] = 0.0
    extra_s[:] = 0.0
    for turn in range(plan.pp * case.chunks):
        stage, chunk = turn % plan.pp, turn // plan.pp
        row, cell = row_of_chunk(case, stage, chunk), stage * case.chunks + chunk
        forward_s, backward_s = begin_s, 0.0
        extra_s[LAUNCH_S] += begin_s * share
        nic_s[:, cell] = 0.0
        slower = slowness(case, stage)
        for unit in range(all_passes.shape[0]):
            count = passes[row, unit]
            redone = 0
            if how == FILE:
                redone = count
            elif how == BLOCK:
                last = min(begin[row] + plan.checkpoint_layers, end[row])
                redone = count_layers(case.arrays.unit_layers, case.arrays.layer_unit, unit, begin[row], last)
            elif how != NONE:
                redone = layers[row, unit]
            forward_s += count * unit_forward_s[key, unit]
            backward_s += count * unit_backward_s[key, unit] + redone * unit_again_s[key, unit]
            if slower != 0:
                extra_forward_s = slower * count * work[key, unit, FORWARD_S]
                extra_backward_s = slower * count * work[key, unit, BACKWARD_S]
                extra_again_s = slower * redone * again[key, unit, RECOMPUTE_S]
                forward_s += extra_forward_s
                backward_s += extra_backward_s + extra_again_s
                extra_s[FORWARD_S] += extra_forward_s * share
                extra_s[BACKWARD_S] += extra_backward_s * share
                extra_s[RECOMPUTE_S] += extra_again_s * share
            if sharing:
                for k in range(2):
                    nic_s[DOWN, cell, k] += count * unit_nic_s[key, unit, 0, k]
                    nic_s[UP, cell, k] += count * unit_nic_s[key, unit, 1, k] + redone * unit_nic_s[key, unit, 2, k]
            all_passes[unit] += count * share
            all_again[unit] += redone * share
        duration_s[DOWN, cell] = forward_s
        duration_s[UP, cell] = backward_s


@inner_kernel
def _fill_parts(case: Case, scratch: Scratch) -> None:
    """Seconds of the weight gradients of each cell, and of a forward beside a backward of the stage's other chunk.

    Embedding and loss do not split. A pair hides the all-to-alls of the one behind the compute of the other (DeepSeek-AI 2024,
    section 3.2.1) and takes `pair_contention` of them longer: it takes as long as all compute, all exposed all-to-alls, the
    longer of the two alone, or launching both, whichever is most.
    """
    plan, key, chunks, low = case.plan, case.block, case.chunks, scratch.low
    passes, layers, apart_s, duration_s = case.split.passes, case.split.layers, case.blocks.apart_s, scratch.program.duration_s
    for stage in range(plan.pp):
        slower = slowness(case, stage)
        for chunk in range(chunks):
            cell, row = stage * chunks + chunk, row_of_chunk(case, stage, chunk)
            duration_s[WEIGHT, cell] = duration_s[PAIR, cell] = 0.0
            for unit in range(passes.shape[1]):
                seconds = apart_s[key, unit, WEIGHT_GRADIENTS] + slower * apart_s[key, unit, WEIGHT_COMPUTE]
                duration_s[WEIGHT, cell] += layers[row, unit] * seconds
                apart = layers[row, unit] * apart_s[key, unit, WAIT_APART]
                duration_s[UP, cell] += apart
                low.extra_s[LAUNCH_S] += apart * plan.vpp / chunks
                duration_s[PAIR, cell] += passes[row, unit] * apart_s[key, unit, EXPERTS_FORWARD]
        if not PAIRS[plan.schedule]:
            continue
        for chunk in range(2):
            cell, beside = stage * 2 + chunk, stage * 2 + 1 - chunk
            down, up = row_of_chunk(case, stage, chunk), row_of_chunk(case, stage, 1 - chunk)
            hideable_s, launch_s, waits_s = duration_s[PAIR, cell], 0.0, 0.0
            for unit in range(passes.shape[1]):
                hideable_s += passes[up, unit] * apart_s[key, unit, EXPERTS_BACKWARD]
                launch_s += passes[down, unit] * apart_s[key, unit, LAUNCH_FORWARD]
                launch_s += passes[up, unit] * apart_s[key, unit, LAUNCH_BACKWARD]
                waits_s += passes[down, unit] * apart_s[key, unit, WAIT_FORWARD]
                waits_s += passes[up, unit] * apart_s[key, unit, WAIT_BACKWARD]
                waits_s += layers[up, unit] * apart_s[key, unit, WAIT_APART]
            forward_s, backward_s = duration_s[DOWN, cell], duration_s[UP, beside]
            low.hideable_s[cell] = hideable_s
            ran_s = forward_s + backward_s - waits_s - hideable_s * (1 - case.arrays.framework.pair_contention)
            duration_s[PAIR, cell] = max(ran_s, hideable_s, forward_s, backward_s, launch_s)
