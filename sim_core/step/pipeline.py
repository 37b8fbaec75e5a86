"""The pipeline of a plan: the engine that its schedule needs, its blocks with their times, steps without a barrier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    INPUT,
    MICRO_BATCH_SHIFT,
    PAIRED,
    PART_MASK,
    PART_SHIFT,
    WEIGHTS,
    WHOLE,
    chunks_of,
    rounds_of,
    row_of,
)
from sim_core.engine.events import DOWN, PAIR, WEIGHT, Program, Times, run
from sim_core.engine.schedules import DEEPSPEED, SPLITS
from sim_core.engine.slots import run_slots
from sim_core.engine.split_events import run_split
from sim_core.jit import inner_kernel
from sim_core.metrics import BUBBLE, PP_EXPOSED, STEP_TIME
from sim_core.planning.columns import Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@inner_kernel
def run_pipeline(plan: Plan, program: Program, times: Times) -> bool:
    """Run the pipeline of a plan. False if some blocks can never run."""
    schedule, pp, vpp, ga = plan.schedule, plan.pp, plan.vpp, plan.ga
    if SPLITS[schedule]:
        return run_split(program, pp, chunks_of(schedule, vpp), rounds_of(schedule, ga), times)
    if schedule == DEEPSPEED:
        return run_slots(program, pp, ga, times)
    return run(program, pp, vpp, ga, plan.overlap_pp == 1, times)


@inner_kernel
def go_on(plan: Plan, program: Program, times: Times, reduced_s: Floats, after_s: Floats, out: Floats) -> None:
    """Post-validation (Qi et al. 2023, arXiv 2401.10241, section 4): a stage begins the next step when it has ended its own.

    The step is then the longest time of a stage from its first block on, no longer that from the first block of all to the end
    of all: what a stage waits for its first micro-batch, and at the end for the others, it does not wait again in each step.
    """
    pp = plan.pp
    chunks, rounds = chunks_of(plan.schedule, plan.vpp), rounds_of(plan.schedule, plan.ga)
    row = row_of(plan.schedule, plan.vpp, plan.ga)
    longest_s, message_s = 0.0, 0.0
    for stage in range(pp):
        first_s, cost_s = 0.0, 0.0
        if SPLITS[plan.schedule]:
            cell = stage * chunks + ((program.order[stage * row] >> CHUNK_SHIFT) & CHUNK_MASK)
            if program.source[DOWN, cell] >= 0:
                cost_s = program.into_s[DOWN, cell]
                first_s = times.end_s[program.source[DOWN, cell] * rounds] + cost_s
        elif stage > 0:
            cost_s = program.message_s[DOWN, stage]
            first_s = times.end_s[(stage - 1) * chunks * rounds] + cost_s
        longest_s = max(longest_s, reduced_s[stage] + after_s[stage] - first_s)
        message_s += min(cost_s, first_s)
    # every stage waited from the start of all to its first block, partly for a message, and to the end of all
    out[PP_EXPOSED] -= message_s / pp
    out[BUBBLE] += longest_s - out[STEP_TIME] + message_s / pp
    out[STEP_TIME] = longest_s


def timed_blocks(
    shape: tuple[int, int, int, int], program: Program, times: Times
) -> tuple[Ints, Ints, Ints, Ints, Ints, Floats, Floats, Floats, Floats]:
    """All blocks: stage, chunk, micro-batch, direction, part, start, end; what they take longer beside streams, and beside
    pipeline messages; `shape` is schedule, pp, vpp, ga."""
    schedule, pp, vpp, ga = shape
    chunks, rounds = chunks_of(schedule, vpp), rounds_of(schedule, ga)
    codes = program.order[: pp * row_of(schedule, vpp, ga)]
    stage = np.repeat(np.arange(pp), len(codes) // pp)
    parts = (codes >> PART_SHIFT) & PART_MASK
    second = np.roll((codes >= 0) & (parts == PAIRED), 1)
    forward = np.where(second, np.roll(codes, 1), codes)  # of a pair
    used = codes >= 0
    codes, stage, parts, second, forward = codes[used], stage[used], parts[used], second[used], forward[used]
    backward, chunk, micro_batch = codes & 1, (codes >> CHUNK_SHIFT) & CHUNK_MASK, codes >> MICRO_BATCH_SHIFT
    cell = stage * chunks + chunk
    part = np.where(parts == PAIRED, WHOLE, parts)
    block = ((backward + (part == WEIGHTS)) * pp * chunks + cell) * rounds + micro_batch
    end = times.end_s[block]
    longer, crowded = times.streams.longer_s[block], times.streams.beside_message_s[block]
    seconds = program.duration_s[backward, cell] - np.where(part == INPUT, program.duration_s[WEIGHT, cell], 0.0)
    seconds = np.where(part == WEIGHTS, program.duration_s[WEIGHT, cell], seconds)
    seconds = seconds + longer + crowded
    of_pair = program.duration_s[PAIR, stage * chunks + ((forward >> CHUNK_SHIFT) & CHUNK_MASK)]
    start = end - np.where(second | (parts == PAIRED), of_pair, seconds)
    return stage, chunk, micro_batch, backward, part, start, end, longer, crowded
