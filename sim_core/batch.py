"""Batches of legal plans in the event engine: their tables, their steps one by one or several at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.blocks import EXPOSED, cost_blocks
from sim_core.costing.case import Blocks, Case, case_at
from sim_core.costing.groups import Groups, group_plans
from sim_core.costing.recomputed import flops_again
from sim_core.engine.codes import PAIRS, SPLITS, chunks_of, events_of, rounds_of
from sim_core.engine.events import MESSAGES, STREAMS
from sim_core.engine.lanes import put, run_lanes, take, take_beside
from sim_core.engine.schedule import fill_order
from sim_core.engine.sequencing import fill_sequence, rule_of
from sim_core.engine.split_events import pairs_s
from sim_core.hardware.table import HardwareColumns, HardwareTable
from sim_core.jit import inlined_kernel, inner_kernel, outer_kernel
from sim_core.metrics import BUBBLE, DP_EXPOSED, DP_TOTAL, EP_EXPOSED, LAUNCH_S, N_SUMS, PP_EXPOSED, PP_TOTAL, STEP_TIME
from sim_core.planning.columns import Plans, alike_in_order, by_order, plan_at
from sim_core.planning.legality import REASON
from sim_core.planning.split import Split, split_plans
from sim_core.scratch import MOST_TOGETHER, Scratch, Together, scratch_of
from sim_core.step.beside import cost_last_backwards
from sim_core.step.gradients import reduce_gradients
from sim_core.step.lower import lower
from sim_core.step.nics import count_carried, owner_of, share_sends
from sim_core.step.once import gather_parameters, slow_beside_gather, slowest_after_s, work_after
from sim_core.step.pipeline import go_on, run_pipeline
from sim_core.step.sharding import shard_blocks
from sim_core.vectors import LANES
from sim_core.workloads.workload import Arrays, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NOT_FINITE = REASON["result_not_finite"]
BATCH: Final = 8192
"""Plans per batch, which share tables: many, so that they share much; few, so that the tables stay small."""
CELLS: Final = 2**25
"""Numbers in the table of splits of a batch (256 MiB): plans of very many virtual stages come in smaller batches."""


class Tables(NamedTuple):
    """The tables of a batch of plans; each has the row of every plan."""

    groups: Groups
    split: Split
    blocks: Blocks


def batches(arrays: Arrays, plans: Plans, rows: Ints) -> Iterator[Ints]:
    """The rows in batches, sorted by schedule, so that consecutive plans share the order of blocks."""
    ordered = by_order(plans, rows)
    virtual = np.cumsum(plans.pp[ordered] * plans.vpp[ordered])
    most = CELLS // (2 * len(arrays.unit_layers) + 3)  # columns of a Split
    begin = 0
    while begin < len(ordered):
        before = virtual[begin - 1] if begin else 0
        end = min(begin + BATCH, max(begin + 1, int(np.searchsorted(virtual, before + most, side="right"))))
        yield ordered[begin:end]
        begin = end


def tables_of(workload: Workload, hardware: HardwareTable, plans: Plans, rows: Ints) -> Tables:
    groups = group_plans(hardware.columns, plans, rows, workload.arrays.shares.whole_experts)
    split = split_plans(workload.arrays, plans, rows)
    return Tables(groups=groups, split=split, blocks=cost_blocks(workload, hardware, plans, groups, split, rows))


@outer_kernel
def run_rows(
    arrays: Arrays,
    hardware: HardwareColumns,
    plans: Plans,
    tables: Tables,
    rows: Ints,
    together: Together,
    again: Floats,
    reason: Ints,
    metrics: Floats,
    recomputed: Floats,
) -> None:
    """Simulate legal plans; consecutive plans with the same schedule share its order of blocks, and run together."""
    groups, split, blocks = tables.groups, tables.split, tables.blocks
    scratch, kept = together.one, together.kept
    order = scratch.program.order
    begin = 0
    while begin < len(rows):
        i = rows[begin]
        end = begin + 1
        while end < len(rows) and alike_in_order(plans, i, rows[end]):
            end += 1
        schedule, pp, vpp, ga = plans.schedule[i], plans.pp[i], plans.vpp[i], plans.ga[i]
        cells, rounds, apart = pp * chunks_of(schedule, vpp), rounds_of(schedule, ga), SPLITS[schedule]
        overlapped = plans.overlap_pp[i] == 1
        fill_order(schedule, pp, vpp, ga, plans.microbatch_group_size[i], order, scratch.of_order)
        turns = 0
        if end - begin > 1 and events_of(schedule, pp, vpp, ga) <= MOST_TOGETHER:
            turns = fill_sequence(schedule, order, pp, vpp, ga, overlapped, together.sequence)
        while begin < end:
            lanes = min(end - begin, LANES) if turns > 0 else 1
            streams, crowds = False, False
            for lane in range(lanes):
                case = case_at(arrays, hardware, plans, groups, split, blocks, rows[begin + lane])
                own = scratch_of(kept, lane)
                _begin(case, own)
                streams, crowds = streams or own.program.shares[STREAMS] == 1, crowds or own.program.shares[MESSAGES] == 1
                if turns > 0:
                    put(own.program, apart, pp, cells, lane, together.lanes)
            ran = True
            if turns > 0:
                rule = rule_of(schedule, pp, overlapped)
                run_lanes(together.sequence, turns, rule, streams, crowds, pp, cells, together.lanes)
            else:
                ran = run_pipeline(plan_at(plans, i), scratch.program, scratch.times)
            for lane in range(lanes):
                case, own = case_at(arrays, hardware, plans, groups, split, blocks, rows[begin + lane]), scratch_of(kept, lane)
                if turns > 0:
                    take(together.lanes, lane, pp, cells, rounds, apart, scratch.times)
                    if streams or crowds:
                        take_beside(together.lanes, lane, pp, cells, scratch.times.streams)
                if ran:
                    _finish(case, own)
                else:
                    own.sums[STEP_TIME] = np.nan
                _keep(plans, rows[begin + lane], own, again, reason, metrics, recomputed)
            begin += lanes


@inner_kernel
def _keep(plans: Plans, i: int, scratch: Scratch, again: Floats, reason: Ints, metrics: Floats, recomputed: Floats) -> None:
    """Write the result of a plan, or that it has none."""
    sums = scratch.sums
    if not _all_finite(sums) or not sums[STEP_TIME] > 0:
        reason[i] = _NOT_FINITE
        return
    for m in range(metrics.shape[0]):
        metrics[m, i] = sums[m]
    recomputed[i] = flops_again(again, scratch.low.again, plans.checkpointing[i], plans.checkpoint_layers[i])


@inner_kernel
def _all_finite(values: Floats) -> bool:
    for value in values:  # noqa: SIM110 (a generator would allocate)
        if not np.isfinite(value):
            return False
    return True


@inlined_kernel
def _begin(case: Case, scratch: Scratch) -> None:
    """What comes before the pipeline of a step: fills the program, clears the sums of the metrics and begins them."""
    program, low, out = scratch.program, scratch.low, scratch.sums
    out[:] = 0.0
    lower(case, low, program)
    count_carried(case, low)
    shard_blocks(case, low, program, scratch.layers, out)
    share_sends(case, low, program)
    work_after(case, scratch.once, out)
    gather_parameters(case, low, program, scratch.buckets, scratch.once, out)
    cost_last_backwards(case, low, program, scratch.buckets)


@inlined_kernel
def _finish(case: Case, scratch: Scratch) -> None:
    """What follows the pipeline: adds to the sums of the metrics."""
    plan, program, times, low, out = case.plan, scratch.program, scratch.times, scratch.low, scratch.sums
    pp, ga = plan.pp, plan.ga
    passes, again, unit_work, unit_again, key = low.passes, low.again, case.blocks.work, case.blocks.again, case.block
    for unit in range(passes.shape[0]):
        for k in range(N_SUMS):
            out[k] += (passes[unit] * unit_work[key, unit, k] + again[unit] * unit_again[key, unit, k]) * ga / pp
    for k in range(low.extra_s.shape[0]):
        out[k] += low.extra_s[k] * ga / pp
    barrier_s = reduce_gradients(case, low, program, times, scratch.buckets, scratch.reduced_s, out)
    slow_beside_gather(case, program, times, scratch.once, out)
    slowest_s = slowest_after_s(plan, scratch.once)
    message_s, exposed_s, gated_s, idle_s = times.message_s, times.exposed_s, times.gated_s, times.idle_s
    slowed_s, late_s = times.streams.slowed_s, times.streams.gathers_late_s
    crowded_s = 0.0
    reduced_s, after_s = scratch.reduced_s, scratch.once.after_s
    for stage in range(pp):
        out[PP_TOTAL] += message_s[stage] / pp
        out[PP_EXPOSED] += exposed_s[stage] / pp
        out[DP_EXPOSED] += gated_s[stage] / pp
        if program.shares[STREAMS] == 1:
            out[DP_TOTAL] += late_s[stage] / pp
            out[DP_EXPOSED] += slowed_s[stage] / pp
        if program.shares[MESSAGES] == 1:
            crowded_s += times.streams.crowded_s[stage]
        out[BUBBLE] += idle_s[stage] / pp
        out[BUBBLE] += (barrier_s - reduced_s[stage] + slowest_s - after_s[stage]) / pp
    if PAIRS[plan.schedule]:
        chunks, rounds = chunks_of(plan.schedule, plan.vpp), rounds_of(plan.schedule, ga)
        hidden_s, launched_s, longer_s = pairs_s(program, low.hideable_s, low.pairs_s, pp, chunks, rounds)
        out[EP_EXPOSED] -= hidden_s / pp
        out[LAUNCH_S] -= launched_s / pp
        crowded_s += longer_s
    if crowded_s > 0:
        owner = owner_of(plan, case.groups, case.group)
        out[owner] += crowded_s / pp
        out[owner + EXPOSED] += crowded_s / pp
    out[STEP_TIME] = barrier_s + slowest_s
    if plan.post_validation == 1:
        go_on(plan, program, times, reduced_s, after_s, out)
