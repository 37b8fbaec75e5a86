"""Work around the pipeline: parameter gather, once-per-step collectives, optimizer.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-per-step collectives and optimizer | [parameter gather, if not overlapped].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.costing.case import Case, collective_of, shard_ranks
from sim_core.costing.compute import once_s
from sim_core.costing.fabric import shared_s
from sim_core.costing.groups import EXPERT_SHARD, SHARD
from sim_core.costing.parameters import stage_factor
from sim_core.engine.codes import BOTH_WAYS, PLACEMENT, V, chunks_of, virtual_of
from sim_core.engine.events import DOWN, Program
from sim_core.jit import inlined_kernel
from sim_core.metrics import DP_EXPOSED, DP_TOTAL, OPTIMIZER
from sim_core.planning.split import ends_of_stage
from sim_core.step.buckets import Buckets, cost_buckets
from sim_core.step.lower import Lowered
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, OPTIMIZER_SHARDED
from sim_core.workloads.moving import EXPERT_PARAMETERS, PARAMETERS
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    EMBEDDING,
    GATHER_PARAMETERS,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    Arrays,
)

Floats = npt.NDArray[np.float64]


class Once(NamedTuple):
    """Work of a stage once per step, one row for each distinct number of layers per stage of a plan."""

    costed: npt.NDArray[np.bool_]  # [sizes]
    compute_s: Floats  # [sizes, step pieces]
    comm_s: Floats  # [sizes, step pieces]
    optimizer_s: Floats  # [sizes] of a modelled optimizer
    after_s: Floats  # [stages] all work of a stage after the gradients


def allocate_once(arrays: Arrays, sizes: int, stages: int) -> Once:
    """Scratch for one plan at a time; `sizes`: see Split."""
    step_pieces = arrays.step.role.shape[0]
    return Once(
        costed=np.zeros(sizes, np.bool_),
        compute_s=np.empty((sizes, step_pieces)),
        comm_s=np.empty((sizes, step_pieces)),
        optimizer_s=np.empty(sizes),
        after_s=np.empty(stages),
    )


@inlined_kernel
def gather_parameters(case: Case, low: Lowered, program: Program, buckets: Buckets, once: Once, out: Floats) -> None:
    """Gates of the first forwards if the parameter gather overlaps with them; else its seconds after the optimizer.

    Buckets of a virtual stage arrive one after another from the start of the step, dense and expert parameters interleaved;
    a layer runs once its buckets have arrived. Where a forward would begin before, its messages and the gather share NICs; as
    many forwards come before it as virtual stages. Initializes `after_s` of each stage.
    """
    pp, first, size_of = case.plan.pp, case.first, case.split.size
    placement, chunks = PLACEMENT[case.plan.schedule], chunks_of(case.plan.schedule, case.plan.vpp)
    overlapped = case.plan.overlap_param == 1
    gate_start_s, gate_end_s, duration_s = program.gate_start_s, program.gate_end_s, program.duration_s
    costed, total_s, first_s, most = buckets.costed, buckets.total_s, buckets.first_s, buckets.most
    after_s, longer_s = once.after_s, low.longer.gather_s
    costed[:] = False
    for stage in range(pp):
        arrived_s, gathered_s = 0.0, 0.0
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            virtual = virtual_of(placement, stage, chunk, pp)
            row = first + virtual
            size = size_of[row]
            if not costed[size]:
                cost_buckets(case, GATHER_PARAMETERS, row, buckets)
            gate_start_s[cell] = 0.0
            gate_end_s[cell] = 0.0
            longer_s[cell] = 0.0
            if overlapped and total_s[size] > 0:
                gate_start_s[cell] = arrived_s + first_s[size]
                gate_end_s[cell] = arrived_s + total_s[size] + duration_s[DOWN, cell] / most[size]
                block_s = duration_s[DOWN, cell]
                beside_s = arrived_s + total_s[size] - max(gate_start_s[cell], virtual * block_s)
                beside_s = min(max(beside_s, 0.0), block_s) * buckets.nic_s[size] / total_s[size]
                late_s = shared_s(block_s, low.nic_s[DOWN, cell, 1], low.nic_s[DOWN, cell, 0], beside_s)
                longer_s[cell] = late_s
                out[DP_TOTAL] += late_s / pp
                gate_start_s[cell] += late_s
                gate_end_s[cell] += late_s
                arrived_s += late_s
                low.carried_s[stage] += buckets.nic_s[size]
            arrived_s += total_s[size]
            gathered_s += total_s[size]
        after_s[stage] = case.arrays.framework.dp_contention * gathered_s if overlapped else gathered_s
        out[DP_TOTAL] += gathered_s / pp
        out[DP_EXPOSED] += after_s[stage] / pp


@inlined_kernel
def finish_step(case: Case, once: Once, out: Floats) -> float:
    """Add once-per-step collectives and the optimizer to `after_s` of each stage; returns that of the slowest stage."""
    pp, first, size_of = case.plan.pp, case.first_stage, case.split.stage_size
    role, group = case.arrays.step.role, case.arrays.step.comm_group
    costed, work_s, comm_s, after_s = once.costed, once.compute_s, once.comm_s, once.after_s
    optimizer_s = once.optimizer_s
    costed[:] = False
    together = pp > 1 and PLACEMENT[case.plan.schedule] == V  # both ends of the model are on the first stage
    slowest_s = 0.0
    for stage in range(pp):
        size = size_of[first + stage]
        if not costed[size]:
            _cost(case, first + stage, once)
        slower = case.plan.straggler_factor if stage == case.plan.straggler_stage else 1.0
        after_s[stage] += optimizer_s[size] * slower
        out[OPTIMIZER] += optimizer_s[size] * slower / pp
        for k in range(role.shape[0]):
            here = role[k] == AFTER_GRADIENTS or (role[k] == ONCE_ON_FIRST_STAGE and stage == 0)
            if not here:
                continue
            compute_s = work_s[size, k] * slower
            at_end = (stage == 0 or stage == pp - 1) and not together
            seconds = comm_s[size, k] if group[k] != EMBEDDING or at_end else 0.0
            after_s[stage] += compute_s + seconds
            total = TOTAL_OF[group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + EXPOSED] += seconds / pp
        slowest_s = max(slowest_s, after_s[stage])
    return slowest_s


@inlined_kernel
def _cost(case: Case, row: int, once: Once) -> None:
    """Fill the row of `once` for the stage with stage row `row` in the split."""
    plan, arrays, step = case.plan, case.arrays, case.arrays.step
    size, layers = case.split.stage_size[row], float(case.split.stage_layers[row])
    without = float(case.split.stage_dense[row])
    ends = ends_of_stage(PLACEMENT[plan.schedule], row - case.first_stage, plan.pp)
    scale = case.blocks.scale[case.block]
    for k in range(step.role.shape[0]):
        if step.role[k] != AFTER_GRADIENTS and step.role[k] != ONCE_ON_FIRST_STAGE:
            continue
        factor = stage_factor(arrays, scale, plan.tp, step.compute_rule[k], layers, ends, without)
        once.compute_s[size, k] = once_s(step.compute_s[k], factor, case.device, plan)
        sent = step.comm_bytes[k] * stage_factor(arrays, scale, plan.tp, step.comm_rule[k], layers, ends, without)
        seconds = 0.0
        if step.comm_kind[k] != NO_COMM:
            seconds = collective_of(case, step.comm_kind[k], step.comm_group[k], sent)
        once.comm_s[size, k] = seconds
    optimizer = arrays.optimizer
    sharded = case.sharding >= OPTIMIZER_SHARDED or (case.sharding == AS_STACK and optimizer.sharded)
    copies = 2 if PLACEMENT[plan.schedule] == BOTH_WAYS else 1
    dense_ranks = copies * shard_ranks(case, SHARD) if sharded else 1
    expert_ranks = copies * shard_ranks(case, EXPERT_SHARD) if sharded else 1
    dense = optimizer.dense_bytes * stage_factor(arrays, scale, plan.tp, PARAMETERS, layers, ends, without)
    experts = optimizer.expert_bytes * stage_factor(arrays, scale, plan.tp, EXPERT_PARAMETERS, layers, ends, without)
    moved = dense / dense_ranks + experts / expert_ranks
    if case.sharding >= GRADIENTS_SHARDED:
        moved += moved * optimizer.clear
    else:
        moved += (dense + experts) * optimizer.clear
    once.optimizer_s[size] = moved / case.device.hbm_bandwidth + optimizer.step_s + case.device.step_overhead
    once.costed[size] = True
