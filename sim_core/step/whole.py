"""A whole step but for its pipeline: what comes before and fills the program, and what follows and adds up the metrics."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.blocks import EXPOSED
from sim_core.costing.case import Case
from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, PAIRED, PART_MASK, PART_SHIFT, chunks_of, row_of
from sim_core.engine.program import (
    DOWN,
    MESSAGES,
    PAIR,
    STREAMS,
    UP,
    Program,
    Times,
    allocate_program,
    allocate_times,
    message_into,
    sender_of,
)
from sim_core.engine.schedules import PAIRS, PLACEMENT
from sim_core.metrics import (
    BUBBLE,
    DP_EXPOSED,
    DP_TOTAL,
    EP_EXPOSED,
    LAUNCH_S,
    METRICS,
    N_SUMS,
    PP_EXPOSED,
    PP_TOTAL,
    STEP_TIME,
)
from sim_core.planning.columns import Plan
from sim_core.step.gradients import Buckets, allocate_buckets, reduce_gradients
from sim_core.step.lower import Lowered, allocate_lowered, lower
from sim_core.step.once import Once, allocate_once, gather_parameters, slow_beside_gather, slowest_after_s, work_after
from sim_core.step.sharding import Layers, allocate_layers, shard_blocks
from sim_core.step.sharing import cost_last_backwards, count_carried, owner_of, share_sends
from sim_core.workloads.workload import Arrays


class Scratch(NamedTuple):
    """Scratch of one step, which all plans of a batch use in turn."""

    program: Program
    times: Times
    low: Lowered
    layers: Layers
    buckets: Buckets
    reduced_s: Floats  # [stages] end of a stage's gradient reduction
    once: Once
    sums: Floats  # [METRICS]


def allocate_scratch(arrays: Arrays, stages: int, cells: int, layers: int, sizes: int) -> Scratch:
    """Scratch for steps of up to `stages` stages, `cells` virtual stages and `layers` layers; `sizes`: see Split."""
    return Scratch(
        program=allocate_program(stages, cells),
        times=allocate_times(stages, cells),
        low=allocate_lowered(arrays, stages, cells),
        layers=allocate_layers(arrays, layers),
        buckets=allocate_buckets(arrays, sizes),
        reduced_s=np.empty(stages),
        once=allocate_once(arrays, sizes, stages),
        sums=np.zeros(len(METRICS)),
    )


@inner_kernel
def begin_step(case: Case, scratch: Scratch) -> None:
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


@inner_kernel
def finish_step(case: Case, order: Ints, scratch: Scratch) -> None:
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
    slowed_s, late_s = times.slowed_s, times.gathers_late_s
    crowded_s = 0.0
    reduced_s, after_s = scratch.reduced_s, scratch.once.after_s
    for stage in range(pp):
        out[PP_TOTAL] += message_s[stage] / pp
        out[PP_EXPOSED] += exposed_s[stage] / pp
        out[DP_EXPOSED] += gated_s[stage] / pp
        if program.shares[STREAMS]:
            out[DP_TOTAL] += late_s[stage] / pp
            out[DP_EXPOSED] += slowed_s[stage] / pp
        if program.shares[MESSAGES]:
            crowded_s += times.crowded_s[stage]
        out[BUBBLE] += idle_s[stage] / pp
        out[BUBBLE] += (barrier_s - reduced_s[stage] + slowest_s - after_s[stage]) / pp
    if PAIRS[plan.schedule]:
        hidden_s, launched_s, longer_s = _pairs_s(plan, order, program, low)
        out[EP_EXPOSED] -= hidden_s / pp
        out[LAUNCH_S] -= launched_s / pp
        crowded_s += longer_s
    if crowded_s > 0:
        owner = owner_of(plan, case.groups, case.group)
        out[owner] += crowded_s / pp
        out[owner + EXPOSED] += crowded_s / pp
    out[STEP_TIME] = barrier_s + slowest_s
    if plan.post_validation == 1:
        _go_on(plan, order, program, times, reduced_s, after_s, out)


@inner_kernel
def _pairs_s(plan: Plan, order: Ints, program: Program, low: Lowered) -> tuple[float, float, float]:
    """Of the pairs of all stages: seconds of messages of experts that one block hides behind the other, and of launching;
    and by which sharing NICs makes them longer."""
    hidden_s, launched_s, crowded_s, duration_s = 0.0, 0.0, 0.0, program.duration_s
    chunks, row = chunks_of(plan.schedule, plan.vpp), row_of(plan.schedule, plan.vpp, plan.ga)
    hideable_s, longer_s = low.hideable_s, low.pairs_s
    for at in range(plan.pp * row):
        code = order[at]
        if code < 0 or (code >> PART_SHIFT) & PART_MASK != PAIRED:
            continue
        first = at // row * chunks
        cell = first + ((code >> CHUNK_SHIFT) & CHUNK_MASK)
        beside = first + ((order[at + 1] >> CHUNK_SHIFT) & CHUNK_MASK)
        saved_s = duration_s[DOWN, cell] + duration_s[UP, beside] - duration_s[PAIR, cell] + longer_s[cell]
        hidden_s += min(saved_s, hideable_s[cell])
        launched_s += max(saved_s - hideable_s[cell], 0.0)
        crowded_s += longer_s[cell]
    return hidden_s, launched_s, crowded_s


@inner_kernel
def _go_on(plan: Plan, order: Ints, program: Program, times: Times, reduced_s: Floats, after_s: Floats, out: Floats) -> None:
    """Post-validation (Qi et al. 2023, arXiv 2401.10241, section 4): a stage begins the next step when it has ended its own.

    The step is then the longest time of a stage from its first block on, no longer that from the first block of all to the end
    of all: what a stage waits for its first micro-batch, and at the end for the others, it does not wait again in each step.
    """
    pp, placement = plan.pp, PLACEMENT[plan.schedule]
    chunks, row = chunks_of(plan.schedule, plan.vpp), row_of(plan.schedule, plan.vpp, plan.ga)
    longest_s, message_s = 0.0, 0.0
    for stage in range(pp):
        first_s, cost_s, chunk = 0.0, 0.0, (order[stage * row] >> CHUNK_SHIFT) & CHUNK_MASK
        sender = sender_of(placement, DOWN, stage, chunk, pp, chunks)
        if sender >= 0:
            link = message_into(placement, DOWN, stage, chunk, pp, chunks)
            cost_s = program.message_s[DOWN, link] if link >= 0 else 0.0
            first_s = times.first_s[sender] + cost_s
        longest_s = max(longest_s, reduced_s[stage] + after_s[stage] - first_s)
        message_s += min(cost_s, first_s)
    # every stage waited from the start of all to its first block, partly for a message, and to the end of all
    out[PP_EXPOSED] -= message_s / pp
    out[BUBBLE] += longest_s - out[STEP_TIME] + message_s / pp
    out[STEP_TIME] = longest_s
