"""Work around the pipeline: parameter gather, once-per-step collectives, optimizer.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-per-step collectives and optimizer | [parameter gather, if not overlapped].
"""

import numpy as np

from sim_core.compiled.jit import inner_kernel
from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.costing.case import LATE_COPIES, Case, collective_of, held_factor, once_s, row_of_chunk, shard_ranks
from sim_core.costing.groups import EXPERT_SHARD, SHARD
from sim_core.costing.memory import PARAMETER_BYTES, stage_factor
from sim_core.engine.program import DOWN, STREAMS, UP, message_into, sender_of
from sim_core.engine.schedules import BOTH_WAYS, FORWARDS_FIRST, LOOP, LOOPED_BFS, ORDER, V
from sim_core.metrics import DP_EXPOSED, DP_TOTAL, OFFLOAD_S, OPTIMIZER
from sim_core.planning.split import ends_of_stage
from sim_core.step.gradients import row_of_buckets
from sim_core.step.scratch import Once, Scratch
from sim_core.step.sharing import fill_beside
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, OPTIMIZER_SHARDED
from sim_core.workloads.moving import BY_LAYERS, EXPERT_PARAMETERS, PARAMETERS
from sim_core.workloads.workload import AFTER_GRADIENTS, EMBEDDING, GATHER_PARAMETERS, NO_COMM, ONCE_ON_FIRST_STAGE

HOST_UPDATE_BYTES = 30.0
"""Traffic of Adam on the host per weight: 4 of the gradient read, weight and two moments of 4 each read and written, 2 of the
16-bit weight written (count of DeepSpeed, csrc/adam/cpu_adam_impl.cpp)."""


@inner_kernel
def gather_parameters(case: Case, scratch: Scratch) -> None:
    """Gates of the first forwards if the parameter gather overlaps with them; else its seconds after the optimizer.

    Buckets of a virtual stage arrive one after another, dense and expert parameters interleaved, from when the stage has ended
    the step before; a layer runs once its buckets have arrived. Adds to `after_s` of each stage, which holds its other work.
    Without a barrier a step that has run tells when that was: in it nothing is gathered.
    """
    plan, program, low, buckets, out = case.plan, scratch.program, scratch.low, scratch.gathers, scratch.sums
    pp, split, gather_host_s = plan.pp, case.split, case.arrays.framework.gather_host_s
    overlapped, slowest_s, once = plan.overlap_param == 1, slowest_after_s(case, scratch), scratch.once
    for stage in range(pp):
        early_s = 0.0
        if overlapped and plan.post_validation == 0:
            early_s = slowest_s - low.after_s[stage]
        elif overlapped:
            early_s = scratch.before_s[0] - once.ended_s[stage] if scratch.before_s[0] > 0 else np.inf
        once.early_s[stage] = early_s
        arrived_s, gathered_s, nic_s = -early_s, 0.0, 0.0
        for chunk in range(case.chunks):
            cell, row = stage * case.chunks + chunk, row_of_chunk(case, stage, chunk)
            size = row_of_buckets(case, GATHER_PARAMETERS, row, buckets)
            total_s, of_nics = buckets.total_s[size], buckets.nic_s[size]
            program.gate_start_s[cell] = program.gate_end_s[cell] = 0.0
            if overlapped and total_s > 0:
                program.gate_start_s[cell] = max(arrived_s + buckets.first_s[size], 0.0)
                arrives_s = arrived_s + total_s
                if arrives_s > 0:
                    program.gate_end_s[cell] = arrives_s + program.duration_s[DOWN, cell] / buckets.most[size]
                low.carried_s[stage] += of_nics * min(max(arrives_s, 0.0) / total_s, 1.0)  # in the step
                nic_s += of_nics
            arrived_s += total_s
            gathered_s += total_s
            if total_s > 0:
                gathered_s += gather_host_s * (split.end[row] - split.begin[row]) * case.dp
        shares = overlapped and nic_s > 0 and arrived_s > 0
        fill_beside(case, scratch, DOWN, stage, nic_s / gathered_s if shares else 0.0)
        program.gathered_s[stage] = arrived_s if shares else 0.0
        low.gathered_s[stage] = max(arrived_s, 0.0) - max(-early_s, 0.0) if overlapped else 0.0
        out[DP_TOTAL] += gathered_s / pp
        if not overlapped:
            low.after_s[stage] += gathered_s
            out[DP_EXPOSED] += gathered_s / pp


@inner_kernel
def slow_beside_gather(case: Case, scratch: Scratch) -> float:
    """Add to `reduced_s` what compute takes longer while parameters are gathered behind it: not while stages wait for them.
    Returns the latest.

    A stage, or one before it, has waited for as long as its first forwards end later than if all parameters had been there. One
    that has waited less than another is slower while that one still waits.
    """
    low, once, contention = scratch.low, scratch.once, case.arrays.framework.dp_contention
    contends = case.plan.overlap_param == 1 and contention > 0
    if contends:
        _fill_waited(case, scratch)
    longest_s, barrier_s = 0.0, 0.0
    for stage in range(case.plan.pp):
        longest_s = max(longest_s, once.waited_s[stage])
    for stage in range(case.plan.pp):
        once.slower_s[stage] = 0.0
        if contends:
            arrived_s, waited_s = low.gathered_s[stage], once.waited_s[stage]
            if scratch.program.shares[STREAMS]:
                arrived_s += scratch.times.gathers_late_s[stage]
            once.slower_s[stage] = max(contention * max(arrived_s - waited_s, 0.0) - (longest_s - waited_s), 0.0)
        once.reduced_s[stage] += once.slower_s[stage]
        scratch.sums[DP_EXPOSED] += once.slower_s[stage] / case.plan.pp
        barrier_s = max(barrier_s, once.reduced_s[stage])
    return barrier_s


@inner_kernel
def _fill_waited(case: Case, scratch: Scratch) -> None:
    """Fill `waited_s`. Without waiting, the first micro-batch goes from one virtual stage to the next; where these are
    interleaved, a stage runs a group of micro-batches in one of its chunks before it comes to the next."""
    plan, program, placement, chunks = case.plan, scratch.program, case.placement, case.chunks
    pp, waited_s, free_s = plan.pp, scratch.once.waited_s, scratch.once.free_s
    group = plan.microbatch_group_size if plan.microbatch_group_size > 0 else pp
    between = min(plan.ga, plan.ga if plan.schedule == LOOPED_BFS else group) - 1.0
    waited_s[:pp] = 0.0
    for copy in range(2 if placement == BOTH_WAYS else 1):
        cell, now_s = (pp - 1) * 2 + 1 if copy == 1 else 0, 0.0
        while cell >= 0:
            stage, chunk = cell // chunks, cell % chunks
            seconds = program.duration_s[DOWN, cell]
            now_s += seconds
            if placement == LOOP and chunk > 0:
                now_s = max(now_s, free_s[stage] + seconds)
            free_s[stage] = now_s + between * seconds
            waited_s[stage] = max(waited_s[stage], scratch.times.first_s[cell] - now_s)
            cell = sender_of(placement, UP, stage, chunk, pp, chunks)
            if cell >= 0:
                link = message_into(placement, DOWN, cell // chunks, cell % chunks, pp, chunks)
                now_s += program.message_s[DOWN, link] if link >= 0 else 0.0


@inner_kernel
def slowest_after_s(case: Case, scratch: Scratch) -> float:
    """`after_s` of the slowest stage."""
    slowest_s = 0.0
    for stage in range(case.plan.pp):
        slowest_s = max(slowest_s, scratch.low.after_s[stage])
    return slowest_s


@inner_kernel
def work_after(case: Case, scratch: Scratch) -> None:
    """Fill `after_s` with once-per-step collectives and the optimizer of each stage."""
    pp, plan, once, out, after_s = case.plan.pp, case.plan, scratch.once, scratch.sums, scratch.low.after_s
    role, group = case.arrays.step.role, case.arrays.step.comm_group
    once.costed[:] = False
    together = pp > 1 and case.placement == V  # both ends of the model are on the first stage
    like, late_s = -1, _late_copies_s(case) if pp > 1 and plan.vpp > 1 else 0.0
    for stage in range(pp):
        size = int(case.split.stage_size[case.first_stage + stage])
        if not once.costed[size]:
            _cost(case, case.first_stage + stage, like, once)
            like = size
        slower = plan.straggler_factor if stage == plan.straggler_stage else 1.0
        update_s = once.optimizer_s[size]
        if case.update >= 0:
            update_s = max(update_s + case.blocks.updates.seconds[case.update, stage], 0.0)
        once.update_s[stage] = update_s
        once.host_s[stage] = once.copied_s[size] + late_s
        after_s[stage] = update_s * slower + once.host_s[stage]
        out[OPTIMIZER] += update_s * slower / pp
        out[OFFLOAD_S] += once.host_s[stage] / pp
        for k in range(role.shape[0]):
            if role[k] != AFTER_GRADIENTS and (role[k] != ONCE_ON_FIRST_STAGE or stage > 0):
                continue
            compute_s = once.compute_s[size, k] * slower
            at_end = (stage == 0 or stage == pp - 1) and not together
            seconds = once.comm_s[size, k] if group[k] != EMBEDDING or at_end else 0.0
            if compute_s == 0 and seconds == 0:
                continue
            after_s[stage] += compute_s + seconds
            total = TOTAL_OF[group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + EXPOSED] += seconds / pp


@inner_kernel
def _late_copies_s(case: Case) -> float:
    """By how much copies of activations make an interleaved pipeline fill and drain later.

    Chunk after chunk, a group of micro-batches goes through each stage before any comes back, and a copy that is longer than
    its forward holds up the next; the last chunk's forwards alternate with backwards. Without chunks a stage waits for its
    first backward longer than its copies lag.
    """
    plan, late_s = case.plan, 0.0
    if case.placement != LOOP or ORDER[plan.schedule] == FORWARDS_FIRST:
        return 0.0
    group = min(plan.microbatch_group_size if plan.microbatch_group_size > 0 else plan.pp, plan.ga)
    for stage in range(plan.pp):
        of_stage = 0.0
        for chunk in range(case.chunks - 1):
            row = row_of_chunk(case, stage, chunk)
            for unit in range(case.arrays.unit_layers.shape[0]):
                of_stage += case.split.layers[row, unit] * case.blocks.apart_s[case.block, unit, LATE_COPIES]
        late_s = max(late_s, group * of_stage)
    return late_s


@inner_kernel
def _cost(case: Case, row: int, like: int, once: Once) -> None:
    """Fill the row of `once` for the stage with stage row `row` in the split; `like`: a row that is filled, or -1.

    What does not depend on the layers takes as long as there, and a message as long as the one before it if it is the same.
    """
    plan, step, size = case.plan, case.arrays.step, case.split.stage_size[row]
    kind, group, before, seconds = NO_COMM, 0, 0.0, 0.0
    for k in range(step.role.shape[0]):
        if step.role[k] != AFTER_GRADIENTS and step.role[k] != ONCE_ON_FIRST_STAGE:
            continue
        if like >= 0 and not BY_LAYERS[step.compute_rule[k]]:
            once.compute_s[size, k] = once.compute_s[like, k]
        else:
            scale = _of_stage(case, step.compute_rule[k], row) if step.compute_s[k] > 0 else 0.0
            once.compute_s[size, k] = once_s(step.compute_s[k], scale, case.device, plan)
        if step.comm_kind[k] == NO_COMM:
            once.comm_s[size, k] = 0.0
            continue
        if like >= 0 and not BY_LAYERS[step.comm_rule[k]]:
            once.comm_s[size, k] = once.comm_s[like, k]
            continue
        sent = step.comm_bytes[k] * _of_stage(case, step.comm_rule[k], row)
        if step.comm_kind[k] != kind or step.comm_group[k] != group or sent != before:
            kind, group, before = step.comm_kind[k], step.comm_group[k], sent
            seconds = collective_of(case, kind, group, sent)
        once.comm_s[size, k] = seconds
    optimizer, dense_ranks, expert_ranks = case.arrays.optimizer, 1, 1
    if case.sharding >= OPTIMIZER_SHARDED or (case.sharding == AS_STACK and optimizer.sharded):
        copies = 2 if case.placement == BOTH_WAYS else 1
        dense_ranks, expert_ranks = copies * shard_ranks(case, SHARD), copies * shard_ranks(case, EXPERT_SHARD)
    dense = optimizer.dense_bytes * _of_stage(case, PARAMETERS, row)
    experts = optimizer.expert_bytes * _of_stage(case, EXPERT_PARAMETERS, row)
    moved = dense / dense_ranks + experts / expert_ranks
    moved += (moved if case.sharding >= GRADIENTS_SHARDED else dense + experts) * optimizer.clear
    here_s = moved * (1 - plan.optimizer_offload) / case.device.hbm_bandwidth
    once.copied_s[size] = 0.0
    if plan.optimizer_offload > 0:
        weights = case.arrays.dense_parameters * _of_stage(case, PARAMETERS, row) / dense_ranks
        weights += case.arrays.expert_parameters * _of_stage(case, EXPERT_PARAMETERS, row) / expert_ranks
        updated_s, total_s = _on_host(case, weights)
        # the device's part runs beside the host's, or after it
        total_s = max(total_s, here_s) if plan.overlap_offload == 1 else total_s + here_s
        once.copied_s[size] = total_s - max(updated_s, here_s) if plan.overlap_offload == 1 else total_s - updated_s - here_s
        here_s = total_s - once.copied_s[size]
    once.optimizer_s[size] = here_s + optimizer.step_s + case.device.step_overhead
    once.costed[size] = True


@inner_kernel
def _on_host(case: Case, weights: float) -> tuple[float, float]:
    """Seconds of the host's update of its part of `weights`, and with the copies for it: gradients down, 16-bit weights up.

    Copies go before and after the update, or beside it. Gradients that ranks share are there already, sent as they are reduced
    (ZeRO-Offload, arXiv 2101.06840, section 4.2); parameters that lie on the host stay.
    """
    plan, part = case.plan, case.plan.optimizer_offload * weights
    updated_s = part * HOST_UPDATE_BYTES / case.device.update_bandwidth
    down_s = 0.0 if case.sharding >= GRADIENTS_SHARDED else part * case.arrays.gradient_width / case.device.host_bandwidth
    up_s = 0.0 if plan.parameter_offload == 1 else part * PARAMETER_BYTES / case.device.host_bandwidth
    if plan.overlap_offload == 1:
        return updated_s, max(updated_s, down_s, up_s)
    return updated_s, updated_s + down_s + up_s


@inner_kernel
def _of_stage(case: Case, rule: int, row: int) -> float:
    """Factor from a once-per-step quantity of the workload to that of the stage with stage row `row` in the split."""
    if not BY_LAYERS[rule]:
        return float(case.blocks.scale[case.block, rule])
    plan, stage, total = case.plan, row - case.first_stage, 0.0
    for chunk in range(case.chunks):
        factor = held_factor(case, rule, row_of_chunk(case, stage, chunk))
        if factor < 0:
            layers, without = float(case.split.stage_layers[row]), float(case.split.stage_dense[row])
            ends, scale = ends_of_stage(case.placement, stage, plan.pp), case.blocks.scale[case.block]
            return stage_factor(case.arrays, scale, plan.tp, rule, layers, ends, without)
        total += factor
    return total
