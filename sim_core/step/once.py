"""Work around the pipeline: parameter gather, once-per-step collectives, optimizer.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-per-step collectives and optimizer | [parameter gather, if not overlapped].
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.costing.case import Case, collective_of, held_factor, once_s, shard_ranks
from sim_core.costing.groups import EXPERT_SHARD, SHARD
from sim_core.costing.memory import stage_factor
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.program import DOWN, STREAMS, UP, Program, Times, message_into, sender_of
from sim_core.engine.schedules import BOTH_WAYS, LOOP, LOOPED_BFS, PLACEMENT, V
from sim_core.metrics import DP_EXPOSED, DP_TOTAL, OPTIMIZER
from sim_core.planning.columns import Plan
from sim_core.planning.split import ends_of_stage
from sim_core.step.gradients import Buckets, cost_buckets
from sim_core.step.lower import Lowered
from sim_core.step.sharing import fill_beside
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, OPTIMIZER_SHARDED
from sim_core.workloads.moving import BY_LAYERS, EXPERT_PARAMETERS, PARAMETERS
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    EMBEDDING,
    GATHER_PARAMETERS,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    Arrays,
)


class Once(NamedTuple):
    """Work of a stage once per step, one row for each distinct number of layers per stage of a plan."""

    costed: Bools  # [sizes]
    compute_s: Floats  # [sizes, step pieces]
    comm_s: Floats  # [sizes, step pieces]
    optimizer_s: Floats  # [sizes] of a modelled AdamW
    update_s: Floats  # [stages] of the modelled optimizer
    early_s: Floats  # [stages] by how much a stage is through with its step before the slowest, and gathers parameters
    gathered_s: Floats  # [stages] of the step until all parameters have arrived that are gathered behind first forwards
    waited_s: Floats  # [stages] by how much later first forwards have ended because of parameters ...
    free_s: Floats  # [stages] ... and scratch for it
    after_s: Floats  # [stages] all work of a stage after the gradients


def allocate_once(arrays: Arrays, sizes: int, stages: int) -> Once:
    """Scratch for one plan at a time; `sizes`: see Split."""
    step_pieces = arrays.step.role.shape[0]
    return Once(
        costed=np.zeros(sizes, np.bool_),
        compute_s=np.empty((sizes, step_pieces)),
        comm_s=np.empty((sizes, step_pieces)),
        optimizer_s=np.empty(sizes),
        update_s=np.empty(stages),
        early_s=np.zeros(stages),
        gathered_s=np.zeros(stages),
        waited_s=np.empty(stages),
        free_s=np.empty(stages),
        after_s=np.empty(stages),
    )


@inner_kernel
def gather_parameters(case: Case, low: Lowered, program: Program, buckets: Buckets, once: Once, out: Floats) -> None:
    """Gates of the first forwards if the parameter gather overlaps with them; else its seconds after the optimizer.

    Buckets of a virtual stage arrive one after another, dense and expert parameters interleaved, from when the stage has ended
    the step before; a layer runs once its buckets have arrived. Adds to `after_s` of each stage, which holds its other work.
    """
    pp, first, size_of = case.plan.pp, case.first, case.split.size
    placement, chunks = PLACEMENT[case.plan.schedule], chunks_of(case.plan.schedule, case.plan.vpp)
    overlapped = case.plan.overlap_param == 1
    gate_start_s, gate_end_s, duration_s = program.gate_start_s, program.gate_end_s, program.duration_s
    costed, total_s, first_s, most = buckets.costed, buckets.total_s, buckets.first_s, buckets.most
    after_s, slowest_s = once.after_s, slowest_after_s(case.plan, once)
    costed[:] = False
    for stage in range(pp):
        early_s = slowest_s - after_s[stage] if overlapped and case.plan.post_validation == 0 else 0.0
        arrived_s, gathered_s, nic_s = -early_s, 0.0, 0.0
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            row = first + virtual_of(placement, stage, chunk, pp)
            size = size_of[row]
            if not costed[size]:
                cost_buckets(case, GATHER_PARAMETERS, row, buckets)
            gate_start_s[cell] = 0.0
            gate_end_s[cell] = 0.0
            if overlapped and total_s[size] > 0:
                gate_start_s[cell] = max(arrived_s + first_s[size], 0.0)
                arrives_s = arrived_s + total_s[size]
                gate_end_s[cell] = arrives_s + duration_s[DOWN, cell] / most[size] if arrives_s > 0 else 0.0
                low.carried_s[stage] += buckets.nic_s[size] * min(max(arrives_s, 0.0) / total_s[size], 1.0)  # in the step
                nic_s += buckets.nic_s[size]
            arrived_s += total_s[size]
            gathered_s += total_s[size]
            if total_s[size] > 0:
                gathered_s += case.arrays.framework.gather_host_s * (case.split.end[row] - case.split.begin[row]) * case.dp
        shares = overlapped and nic_s > 0
        fill_beside(case.plan, low, program, DOWN, stage, nic_s / gathered_s if shares else 0.0)
        once.early_s[stage] = early_s
        once.gathered_s[stage] = max(arrived_s, 0.0) if overlapped else 0.0
        program.gathered_s[stage] = once.gathered_s[stage] if shares else 0.0
        out[DP_TOTAL] += gathered_s / pp
        if not overlapped:
            after_s[stage] += gathered_s
            out[DP_EXPOSED] += gathered_s / pp


@inner_kernel
def slow_beside_gather(case: Case, program: Program, times: Times, once: Once, out: Floats) -> None:
    """Add to `after_s` what compute takes longer while parameters are gathered behind it: not while stages wait for them.

    A stage, or one before it, has waited for as long as its first forwards end later than if all parameters had been there. One
    that has waited less than another is slower while that one still waits.
    """
    plan, contention = case.plan, case.arrays.framework.dp_contention
    if plan.overlap_param == 0 or contention == 0:
        return
    _fill_waited(plan, program, times, once)
    longest_s = 0.0
    for stage in range(plan.pp):
        longest_s = max(longest_s, once.waited_s[stage])
    for stage in range(plan.pp):
        arrived_s = once.gathered_s[stage]
        if program.shares[STREAMS]:
            arrived_s += times.gathers_late_s[stage]
        slower_s = contention * max(arrived_s - once.waited_s[stage], 0.0)
        slower_s = max(slower_s - (longest_s - once.waited_s[stage]), 0.0)
        once.after_s[stage] += slower_s
        out[DP_EXPOSED] += slower_s / plan.pp


@inner_kernel
def _fill_waited(plan: Plan, program: Program, times: Times, once: Once) -> None:
    """Fill `waited_s`. Without waiting, the first micro-batch goes from one virtual stage to the next; where these are
    interleaved, a stage runs a group of micro-batches in one of its chunks before it comes to the next."""
    pp, chunks = plan.pp, chunks_of(plan.schedule, plan.vpp)
    placement, waited_s, free_s = PLACEMENT[plan.schedule], once.waited_s, once.free_s
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
            waited_s[stage] = max(waited_s[stage], times.first_s[cell] - now_s)
            cell = sender_of(placement, UP, stage, chunk, pp, chunks)
            if cell >= 0:
                link = message_into(placement, DOWN, cell // chunks, cell % chunks, pp, chunks)
                now_s += program.message_s[DOWN, link] if link >= 0 else 0.0


@inner_kernel
def slowest_after_s(plan: Plan, once: Once) -> float:
    """`after_s` of the slowest stage."""
    slowest_s = 0.0
    for stage in range(plan.pp):
        slowest_s = max(slowest_s, once.after_s[stage])
    return slowest_s


@inner_kernel
def work_after(case: Case, once: Once, out: Floats) -> None:
    """Fill `after_s` with once-per-step collectives and the optimizer of each stage."""
    pp, first, size_of = case.plan.pp, case.first_stage, case.split.stage_size
    role, group = case.arrays.step.role, case.arrays.step.comm_group
    costed, work_s, comm_s, after_s = once.costed, once.compute_s, once.comm_s, once.after_s
    optimizer_s = once.optimizer_s
    costed[:] = False
    together = pp > 1 and PLACEMENT[case.plan.schedule] == V  # both ends of the model are on the first stage
    like = -1
    for stage in range(pp):
        size = size_of[first + stage]
        if not costed[size]:
            _cost(case, first + stage, like, once)
            like = size
        slower = case.plan.straggler_factor if stage == case.plan.straggler_stage else 1.0
        update_s = optimizer_s[size]
        if case.update >= 0:
            update_s = max(update_s + case.blocks.updates.seconds[case.update, stage], 0.0)
        once.update_s[stage] = update_s
        after_s[stage] = update_s * slower
        out[OPTIMIZER] += update_s * slower / pp
        for k in range(role.shape[0]):
            here = role[k] == AFTER_GRADIENTS or (role[k] == ONCE_ON_FIRST_STAGE and stage == 0)
            if not here:
                continue
            compute_s = work_s[size, k] * slower
            at_end = (stage == 0 or stage == pp - 1) and not together
            seconds = comm_s[size, k] if group[k] != EMBEDDING or at_end else 0.0
            if compute_s == 0 and seconds == 0:
                continue
            after_s[stage] += compute_s + seconds
            total = TOTAL_OF[group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + EXPOSED] += seconds / pp


@inner_kernel
def _cost(case: Case, row: int, like: int, once: Once) -> None:
    """Fill the row of `once` for the stage with stage row `row` in the split; `like`: a row that is filled, or -1.

    What does not depend on the layers takes as long as there, and a message as long as the one before it if it is the same.
    """
    plan, arrays, step = case.plan, case.arrays, case.arrays.step
    size = case.split.stage_size[row]
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
    optimizer = arrays.optimizer
    sharded = case.sharding >= OPTIMIZER_SHARDED or (case.sharding == AS_STACK and optimizer.sharded)
    copies = 2 if PLACEMENT[plan.schedule] == BOTH_WAYS else 1
    dense_ranks = copies * shard_ranks(case, SHARD) if sharded else 1
    expert_ranks = copies * shard_ranks(case, EXPERT_SHARD) if sharded else 1
    dense = optimizer.dense_bytes * _of_stage(case, PARAMETERS, row)
    experts = optimizer.expert_bytes * _of_stage(case, EXPERT_PARAMETERS, row)
    moved = dense / dense_ranks + experts / expert_ranks
    if case.sharding >= GRADIENTS_SHARDED:
        moved += moved * optimizer.clear
    else:
        moved += (dense + experts) * optimizer.clear
    once.optimizer_s[size] = moved / case.device.hbm_bandwidth + optimizer.step_s + case.device.step_overhead
    once.costed[size] = True


@inner_kernel
def _of_stage(case: Case, rule: int, row: int) -> float:
    """Factor from a once-per-step quantity of the workload to that of the stage with stage row `row` in the split."""
    if not BY_LAYERS[rule]:
        return float(case.blocks.scale[case.block, rule])
    plan, stage, total = case.plan, row - case.first_stage, 0.0
    placement = PLACEMENT[plan.schedule]
    for chunk in range(chunks_of(plan.schedule, plan.vpp)):
        factor = held_factor(case, rule, case.first + virtual_of(placement, stage, chunk, plan.pp))
        if factor < 0:
            layers, without = float(case.split.stage_layers[row]), float(case.split.stage_dense[row])
            ends, scale = ends_of_stage(placement, stage, plan.pp), case.blocks.scale[case.block]
            return stage_factor(case.arrays, scale, plan.tp, rule, layers, ends, without)
        total += factor
    return total
