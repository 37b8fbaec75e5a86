"""A whole step but for its pipeline: what comes before and fills the program, and what follows and adds up the metrics."""

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.blocks import EXPOSED
from sim_core.costing.case import Case
from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, PAIRED, PART_MASK, PART_SHIFT, row_of
from sim_core.engine.program import DOWN, MESSAGES, PAIR, QUEUES, STREAMS, UP, Shape, message_into, sender_of
from sim_core.engine.schedules import PAIRS
from sim_core.metrics import (
    BUBBLE,
    DP_EXPOSED,
    DP_TOTAL,
    EP_EXPOSED,
    LAUNCH_S,
    N_SUMS,
    PP_EXPOSED,
    PP_QUEUED,
    PP_TOTAL,
    STEP_TIME,
)
from sim_core.planning.columns import Plan
from sim_core.step.gradients import reduce_gradients
from sim_core.step.lower import lower
from sim_core.step.once import gather_parameters, slow_beside_gather, slowest_after_s, work_after
from sim_core.step.scratch import Scratch
from sim_core.step.sharding import shard_blocks
from sim_core.step.sharing import cost_last_backwards, count_carried, owner_of, share_sends


@inner_kernel
def begin_step(case: Case, scratch: Scratch) -> None:
    """What comes before the pipeline of a step: fills the program, clears the sums of the metrics and begins them."""
    scratch.sums[:] = 0.0
    scratch.before_s[0] = 0.0
    scratch.gathers.costed[:] = False
    lower(case, scratch)
    count_carried(case, scratch)
    shard_blocks(case, scratch)
    share_sends(case, scratch)
    work_after(case, scratch)
    cost_last_backwards(case, scratch)
    if gathers_ahead(case.plan):
        _copy(scratch.sums, scratch.begun)
        _copy(scratch.low.carried_s, scratch.low.begun_s)
    gather_parameters(case, scratch)


@inner_kernel
def gathers_ahead(plan: Plan) -> bool:
    """Whether a step runs twice: the first run tells when stages begin to gather parameters for the next step."""
    return bool(plan.post_validation == 1 and plan.overlap_param == 1)


@inner_kernel
def begin_again(case: Case, order: Ints, scratch: Scratch) -> None:
    """What comes between the first run of a pipeline and the second: gathers parameters from when each stage has ended."""
    reduce_gradients(case, scratch)
    slow_beside_gather(case, scratch)
    scratch.before_s[0] = _longest_s(case, order, scratch)[0]
    for stage in range(case.plan.pp):
        scratch.once.ended_s[stage] = scratch.once.reduced_s[stage] + scratch.low.after_s[stage]
    _copy(scratch.begun, scratch.sums)
    _copy(scratch.low.begun_s, scratch.low.carried_s)
    gather_parameters(case, scratch)


@inner_kernel
def _copy(values: Floats, into: Floats) -> None:
    for i in range(len(values)):
        into[i] = values[i]


@inner_kernel
def finish_step(case: Case, order: Ints, pairs: Ints, scratch: Scratch) -> None:
    """What follows the pipeline: adds to the sums of the metrics. `pairs`, [cells]: see count_pairs."""
    plan, program, times, low, out = case.plan, scratch.program, scratch.times, scratch.low, scratch.sums
    pp, ga, passes, again = plan.pp, plan.ga, low.passes, low.again
    unit_work, unit_again, key = case.blocks.work, case.blocks.again, case.block
    for unit in range(passes.shape[0]):
        for k in range(N_SUMS):
            out[k] += (passes[unit] * unit_work[key, unit, k] + again[unit] * unit_again[key, unit, k]) * ga / pp
    for k in range(low.extra_s.shape[0]):
        out[k] += low.extra_s[k] * ga / pp
    reduce_gradients(case, scratch)
    barrier_s = slow_beside_gather(case, scratch)
    slowest_s = slowest_after_s(case, scratch)
    reduced_s, after_s, crowded_s = scratch.once.reduced_s, low.after_s, 0.0
    for stage in range(pp):
        crowded_s += scratch.longer.full_s[stage]
        out[PP_TOTAL] += times.message_s[stage] / pp
        out[PP_EXPOSED] += times.exposed_s[stage] / pp
        out[DP_EXPOSED] += times.gated_s[stage] / pp
        if program.shares[STREAMS]:
            out[DP_TOTAL] += times.gathers_late_s[stage] / pp
            out[DP_EXPOSED] += times.slowed_s[stage] / pp
        if program.shares[MESSAGES]:
            crowded_s += times.crowded_s[stage]
        if program.shares[QUEUES]:
            out[PP_QUEUED] += times.queued_s[stage] / pp
        out[BUBBLE] += times.idle_s[stage] / pp
        out[BUBBLE] += (barrier_s - reduced_s[stage] + slowest_s - after_s[stage]) / pp
    if PAIRS[plan.schedule]:
        hidden_s, launched_s, longer_s = _pairs_s(case, pairs, scratch)
        out[EP_EXPOSED] -= hidden_s / pp
        out[LAUNCH_S] -= launched_s / pp
        crowded_s += longer_s
    if crowded_s > 0:
        owner = owner_of(plan, case.groups, case.group)
        out[owner] += crowded_s / pp
        out[owner + EXPOSED] += crowded_s / pp
    out[STEP_TIME] = barrier_s + slowest_s
    if plan.post_validation == 1:
        _go_on(case, order, scratch)


@inner_kernel
def count_pairs(shape: Shape, order: Ints, pairs: Ints) -> None:
    """Fill `pairs`: how many forwards of a cell run beside a backward of the other chunk of its stage."""
    row = row_of(shape.schedule, shape.vpp, shape.ga)
    pairs[:] = 0
    for at in range(shape.pp * row if PAIRS[shape.schedule] else 0):
        code = order[at]
        if code >= 0 and (code >> PART_SHIFT) & PART_MASK == PAIRED:
            pairs[at // row * 2 + ((code >> CHUNK_SHIFT) & CHUNK_MASK)] += 1


@inner_kernel
def _pairs_s(case: Case, pairs: Ints, scratch: Scratch) -> tuple[float, float, float]:
    """Of the pairs of all stages: seconds of messages of experts that one block hides behind the other, and of launching;
    and by which sharing NICs makes them longer."""
    hidden_s, launched_s, crowded_s, duration_s = 0.0, 0.0, 0.0, scratch.program.duration_s
    hideable_s, longer_s = scratch.low.hideable_s, scratch.low.pairs_s
    for cell in range(case.plan.pp * 2):
        beside = cell + 1 - 2 * (cell % 2)
        saved_s = duration_s[DOWN, cell] + duration_s[UP, beside] - duration_s[PAIR, cell] + longer_s[cell]
        hidden_s += pairs[cell] * min(saved_s, hideable_s[cell])
        launched_s += pairs[cell] * max(saved_s - hideable_s[cell], 0.0)
        crowded_s += pairs[cell] * longer_s[cell]
    return hidden_s, launched_s, crowded_s


@inner_kernel
def _go_on(case: Case, order: Ints, scratch: Scratch) -> None:
    """Post-validation (Qi et al. 2023, arXiv 2401.10241, section 4): a stage begins the next step when it has ended its own.

    The step is then the longest time of a stage from its first block on, no longer that from the first block of all to the end
    of all: what a stage waits for its first micro-batch, and at the end for the others, it does not wait again in each step.

    Parameters beside the first forwards are gathered from when a stage has ended the step before. When that is follows from a
    run in which no stage waits for them; each step then takes as much longer as any stage ends later than in that run. In the
    mean of many it takes no longer: what ends later by at most d after one step does so by at most n d after n of them.
    """
    out, pp = scratch.sums, case.plan.pp
    longest_s, message_s, later_s = _longest_s(case, order, scratch)
    if scratch.before_s[0] > 0:
        longest_s = scratch.before_s[0] + later_s
    # every stage waited from the start of all to its first block, partly for a message, and to the end of all
    out[PP_EXPOSED] -= message_s / pp
    out[BUBBLE] += longest_s - out[STEP_TIME] + message_s / pp
    out[STEP_TIME] = longest_s


@inner_kernel
def _longest_s(case: Case, order: Ints, scratch: Scratch) -> tuple[float, float, float]:
    """The longest time of a stage from its first block on; seconds of messages before first blocks, of all stages; by how much
    any stage ends later than in the step of `before_s`."""
    pp, placement, chunks, once = case.plan.pp, case.placement, case.chunks, scratch.once
    row = row_of(case.plan.schedule, case.plan.vpp, case.plan.ga)
    longest_s, message_s, later_s = 0.0, 0.0, 0.0
    for stage in range(pp):
        first_s, cost_s, chunk = 0.0, 0.0, (order[stage * row] >> CHUNK_SHIFT) & CHUNK_MASK
        sender = sender_of(placement, DOWN, stage, chunk, pp, chunks)
        if sender >= 0:
            link = message_into(placement, DOWN, stage, chunk, pp, chunks)
            cost_s = scratch.program.message_s[DOWN, link] if link >= 0 else 0.0
            first_s = scratch.times.first_s[sender] + cost_s
        ended_s = once.reduced_s[stage] + scratch.low.after_s[stage]
        longest_s = max(longest_s, ended_s - first_s)
        later_s = max(later_s, ended_s - once.ended_s[stage])
        message_s += min(cost_s, first_s)
    return longest_s, message_s, later_s
