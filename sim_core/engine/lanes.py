"""The event engine for LANES pipelines with the same order of blocks at once: the bits of the engines for one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.events import DOWN, MESSAGES, PAIR, STREAMS, UP, WEIGHT, Program, Times
from sim_core.engine.sequence import (
    ALONE,
    ARRIVED,
    BESIDE_GATHER,
    BESIDE_GRADIENTS,
    BLOCKING,
    DURATION,
    FIRST,
    INPUT_GRADIENT,
    LAST,
    MEETING,
    NO_MESSAGE,
    NO_WORK,
    NOTHING,
    OF_BOTH,
    OF_INPUTS,
    OF_WEIGHTS,
    POSTED,
    POSTED_COST,
    RECEIVED,
    RECEIVED_COST,
    WRITTEN,
    Sequence,
)
from sim_core.engine.streams import CLEARED, CROWDED, KINDS, LATER, LONGER, OWN, READY, SENT, Streams
from sim_core.jit import inlined_kernel, inner_kernel, outer_kernel
from sim_core.vectors import allocate_rows, any_above, larger, load, smaller, store, zeros

Floats = npt.NDArray[np.float64]


class Lanes(NamedTuple):
    """Programs and their times, one in each lane: the columns of `Program` and `Times`, flat, [..., LANES]."""

    duration_s: Floats  # [NO_WORK * cells + 1] by kind and cell
    cost_s: Floats  # [NO_MESSAGE * cells + 1] of messages, by kind and stage, or cell where weight gradients are apart
    gate_start_s: Floats  # [cells]
    gate_end_s: Floats  # [cells]
    beside_s: Floats  # [cells * CROWDED] the first rows of `Program.beside_s`, cell by cell
    crowded_s: Floats  # [NO_WORK * cells + 1] its rows CROWDED and CLEARED, by rows of `duration_s`
    cleared: Floats
    crowds: Floats  # [1] the most that pipeline messages make a block longer: 0 where they share nothing, else infinity
    slot_s: Floats  # [slots] ends that messages wait for
    first_s: Floats  # [cells] end of the first forward through a cell
    last_s: Floats  # [2 * cells] end of the last input gradient, and of the last weight gradient
    free_s: Floats  # [stages] and what follows as in Times
    sent_s: Floats  # [stages] `Times.message_s`
    exposed_s: Floats
    idle_s: Floats
    gated_s: Floats
    through_s: Floats  # [stages] and what follows as in Streams
    gathers_late_s: Floats
    behind_s: Floats
    slowed_s: Floats
    crowds_s: Floats  # `crowded_s` there
    shared: Floats  # [cells]
    later_s: Floats


def allocate_lanes(events: int, stages: int, cells: int) -> Lanes:
    """Scratch for pipelines of up to `events` events, `stages` stages and `cells` virtual stages."""
    lanes = Lanes(
        duration_s=allocate_rows(NO_WORK * cells + 1),
        cost_s=allocate_rows(NO_MESSAGE * cells + 1),
        gate_start_s=allocate_rows(cells),
        gate_end_s=allocate_rows(cells),
        beside_s=allocate_rows(CROWDED * cells),
        crowded_s=allocate_rows(NO_WORK * cells + 1),
        cleared=allocate_rows(NO_WORK * cells + 1),
        crowds=allocate_rows(1),
        slot_s=allocate_rows(events + 2),
        first_s=allocate_rows(cells),
        last_s=allocate_rows(2 * cells),
        free_s=allocate_rows(stages),
        sent_s=allocate_rows(stages),
        exposed_s=allocate_rows(stages),
        idle_s=allocate_rows(stages),
        gated_s=allocate_rows(stages),
        through_s=allocate_rows(stages),
        gathers_late_s=allocate_rows(stages),
        behind_s=allocate_rows(stages),
        slowed_s=allocate_rows(stages),
        crowds_s=allocate_rows(stages),
        shared=allocate_rows(cells),
        later_s=allocate_rows(cells),
    )
    of_blocks = lanes.duration_s, lanes.cost_s, lanes.gate_start_s, lanes.gate_end_s
    for rows in (*of_blocks, lanes.through_s, lanes.crowded_s, lanes.cleared, lanes.crowds):
        rows[:] = 0.0  # lanes that no plan uses compute, too
    lanes.beside_s[:] = 1.0
    return lanes


@inlined_kernel
def put(program: Program, split: bool, pp: int, cells: int, lane: int, lanes: Lanes) -> None:
    """Write a program into a lane; `split`: whether weight gradients are apart."""
    duration_s, message_s, into_s = program.duration_s, program.message_s, program.into_s
    for cell in range(cells):
        lanes.duration_s[DOWN * cells + cell, lane] = duration_s[DOWN, cell]
        lanes.duration_s[UP * cells + cell, lane] = duration_s[UP, cell]
        lanes.gate_start_s[cell, lane] = program.gate_start_s[cell]
        lanes.gate_end_s[cell, lane] = program.gate_end_s[cell]
    _put_beside(program, split, pp, cells, lane, lanes)
    if split:
        for cell in range(cells):
            lanes.duration_s[WEIGHT * cells + cell, lane] = duration_s[WEIGHT, cell]
            lanes.duration_s[PAIR * cells + cell, lane] = duration_s[PAIR, cell]
            lanes.duration_s[INPUT_GRADIENT * cells + cell, lane] = duration_s[UP, cell] - duration_s[WEIGHT, cell]
            lanes.cost_s[DOWN * cells + cell, lane] = into_s[DOWN, cell]
            lanes.cost_s[UP * cells + cell, lane] = into_s[UP, cell]
        return
    for stage in range(pp):
        lanes.cost_s[DOWN * cells + stage, lane] = message_s[DOWN, stage]
        lanes.cost_s[UP * cells + stage, lane] = message_s[UP, stage]
        lanes.cost_s[MEETING * cells + stage, lane] = message_s[DOWN, stage] + message_s[UP, max(stage - 1, 0)]


@inlined_kernel
def _put_beside(program: Program, split: bool, pp: int, cells: int, lane: int, lanes: Lanes) -> None:
    """What its blocks share NICs with.

    Numbers that nothing is to come of stay those of an earlier plan, or of another cell of it: where `through_s` and `crowds`
    are 0 they count for nothing. SENT is never 0.
    """
    rows, beside_s, streams = lanes.beside_s, program.beside_s, program.shares[STREAMS] == 1
    for stage in range(pp):
        lanes.through_s[stage, lane] = program.gathered_s[stage] if streams else 0.0
    if streams:
        for row in range(CROWDED):
            for cell in range(cells):
                rows[cell * CROWDED + row, lane] = beside_s[row, cell]
    else:
        for cell in range(cells):
            rows[cell * CROWDED + READY : (cell + 1) * CROWDED, lane] = 0.0
    lanes.crowds[0, lane] = np.inf if program.shares[MESSAGES] == 1 else 0.0
    if program.shares[MESSAGES] == 0:
        return
    crowded_s, cleared = lanes.crowded_s, lanes.cleared
    for cell in range(cells):
        for way in (DOWN, UP):
            crowded_s[way * cells + cell, lane] = beside_s[CROWDED + way, cell]
            cleared[way * cells + cell, lane] = beside_s[CLEARED + way, cell]
    if split:
        for cell in range(cells):
            crowded_s[INPUT_GRADIENT * cells + cell, lane] = beside_s[CROWDED + UP, cell]
            cleared[INPUT_GRADIENT * cells + cell, lane] = beside_s[CLEARED + UP, cell]
            for kind in (WEIGHT, PAIR):
                crowded_s[kind * cells + cell, lane] = 0.0
                cleared[kind * cells + cell, lane] = 0.0


@inlined_kernel
def take(lanes: Lanes, lane: int, pp: int, cells: int, rounds: int, split: bool, times: Times) -> None:
    """Read from a lane what the rest of a step needs: of the ends of blocks those of first forwards and last backwards."""
    end_s = times.end_s
    for cell in range(cells):
        end_s[cell * rounds] = lanes.first_s[cell, lane]
        end_s[(cells + cell) * rounds + rounds - 1] = lanes.last_s[OF_INPUTS * cells + cell, lane]
        if split:
            end_s[(2 * cells + cell) * rounds + rounds - 1] = lanes.last_s[OF_WEIGHTS * cells + cell, lane]
    for stage in range(pp):
        times.free_s[stage] = lanes.free_s[stage, lane]
        times.message_s[stage] = lanes.sent_s[stage, lane]
        times.exposed_s[stage] = lanes.exposed_s[stage, lane]
        times.idle_s[stage] = lanes.idle_s[stage, lane]
        times.gated_s[stage] = lanes.gated_s[stage, lane]


@inlined_kernel
def take_beside(lanes: Lanes, lane: int, pp: int, cells: int, out: Streams) -> None:
    """Read from a lane what became of the streams beside its blocks."""
    for cell in range(cells):
        out.shared[cell] = lanes.shared[cell, lane]
        out.later_s[cell] = lanes.later_s[cell, lane]
    for stage in range(pp):
        out.slowed_s[stage] = lanes.slowed_s[stage, lane]
        out.crowded_s[stage] = lanes.crowds_s[stage, lane]
        out.gathers_late_s[stage] = lanes.gathers_late_s[stage, lane]


@outer_kernel
def run_lanes(
    sequence: Sequence, turns: int, rule: int, streams: bool, crowds: bool, pp: int, cells: int, lanes: Lanes
) -> None:
    """Run the pipelines of all lanes; `rule`: what events wait for (rule_of).

    `streams`, `crowds`: whether blocks of any lane share NICs with streams, with pipeline messages.
    """
    lanes.duration_s[NO_WORK * cells] = 0.0
    lanes.cost_s[NO_MESSAGE * cells] = 0.0
    lanes.slot_s[NOTHING] = 0.0
    lanes.free_s[:pp] = 0.0
    lanes.sent_s[:pp] = 0.0
    lanes.exposed_s[:pp] = 0.0
    lanes.idle_s[:pp] = 0.0
    lanes.gated_s[:pp] = 0.0
    lanes.gathers_late_s[:pp] = 0.0
    lanes.behind_s[:pp] = 0.0
    lanes.slowed_s[:pp] = 0.0
    lanes.crowds_s[:pp] = 0.0
    _run(sequence, turns, rule, streams, crowds, cells, lanes)


@inner_kernel
def _run(sequence: Sequence, turns: int, rule: int, streams: bool, crowds: bool, cells: int, lanes: Lanes) -> None:
    """A block without a message waits from 0 on for one that costs nothing."""
    event, turn = sequence.event, sequence.turn
    duration_s, cost_s, slot_s = lanes.duration_s, lanes.cost_s, lanes.slot_s
    at = 0
    for each in range(turns):
        stage = turn[each, 0]
        free = load(lanes.free_s, stage)
        message, exposed, idle, crowded = zeros(), zeros(), zeros(), load(lanes.crowds_s, stage)
        for _ in range(turn[each, 1]):
            cost = load(cost_s, event[at, RECEIVED_COST])
            sent = load(slot_s, event[at, RECEIVED])
            start = larger(free, sent + cost)
            total = cost
            if rule != ALONE:
                other = load(cost_s, event[at, POSTED_COST])
                posted = load(slot_s, event[at, POSTED])
                if rule == BLOCKING:
                    start = larger(larger(free, posted) + other, larger(free, sent) + cost)
                    cost = larger(other, cost)
                    total = cost
                else:
                    start = larger(start, posted + other)
                    total = cost + other
                    cost = larger(cost, other)
            waited = start - free
            message = message + total
            exposed = exposed + smaller(waited, cost)
            idle = idle + larger(waited - cost, zeros())
            alone = load(duration_s, event[at, DURATION])
            seconds = alone
            if crowds:
                row = event[at, DURATION]
                more = larger(load(lanes.crowded_s, row) - load(lanes.cleared, row) * waited, zeros())
                more = smaller(load(lanes.crowds, 0), more)
                seconds = seconds + more
                crowded = crowded + more
            end = start + seconds
            if max(event[at, FIRST], event[at, LAST]) >= 0:
                end = _end_of(event[at, FIRST], event[at, LAST], stage, cells, start, alone, seconds, streams, lanes)
            store(slot_s, event[at, WRITTEN], end)
            free = end
            at += 1
        store(lanes.free_s, stage, free)
        store(lanes.sent_s, stage, load(lanes.sent_s, stage) + message)
        store(lanes.exposed_s, stage, load(lanes.exposed_s, stage) + exposed)
        store(lanes.idle_s, stage, load(lanes.idle_s, stage) + idle)
        if crowds:
            store(lanes.crowds_s, stage, crowded)


@inlined_kernel
def _end_of(
    first: int,
    last: int,
    stage: int,
    cells: int,
    start: Floats,
    alone: Floats,
    seconds: Floats,
    streams: bool,
    lanes: Lanes,
) -> Floats:
    """End of a first forward, which waits for its parameters, or of a block beside a stream; those of last ones are kept."""
    end, gated_s = start + seconds, lanes.gated_s
    if first >= 0:
        if streams:
            gated = _first_forward_end(first, stage, start, alone, seconds, lanes)
        else:
            gated = larger(larger(start, load(lanes.gate_start_s, first)) + seconds, load(lanes.gate_end_s, first))
        store(gated_s, stage, load(gated_s, stage) + (gated - end))
        end = gated
        store(lanes.first_s, first, end)
    if last >= ARRIVED * cells:
        if streams:
            store(lanes.through_s, stage, smaller(load(lanes.through_s, stage), end))
        return end
    if last >= BESIDE_GRADIENTS * cells and not (streams and any_above(load(lanes.through_s, stage), start)):
        return end
    if last >= BESIDE_GATHER * cells:
        end = end + _beside_stream(last - BESIDE_GATHER * cells, DOWN, stage, start, alone, lanes.gathers_late_s, lanes)
    elif last >= BESIDE_GRADIENTS * cells:
        end = end + _beside_stream(last - BESIDE_GRADIENTS * cells, UP, stage, start, alone, lanes.behind_s, lanes)
    elif last >= OF_BOTH * cells:
        cell = last - OF_BOTH * cells
        if streams:
            end = end + _last_backward(cell, stage, start, seconds, lanes)
        store(lanes.last_s, OF_INPUTS * cells + cell, end)
        store(lanes.last_s, OF_WEIGHTS * cells + cell, end)
    elif last >= 0:
        store(lanes.last_s, last, end)
    return end


@inlined_kernel
def _first_forward_end(cell: int, stage: int, start: Floats, alone: Floats, seconds: Floats, lanes: Lanes) -> Floats:
    """As in `streams`."""
    beside_s, row, late = lanes.beside_s, cell * CROWDED, load(lanes.gathers_late_s, stage)
    start = larger(start, load(lanes.gate_start_s, cell) + late)
    through, sent = load(lanes.through_s, stage), load(beside_s, row + SENT)
    part = smaller(larger(through - start, zeros()), sent) / sent
    longer = load(beside_s, row + LONGER)
    behind = part * (alone + longer - sent)
    store(lanes.through_s, stage, through + behind)
    store(lanes.gathers_late_s, stage, late + behind)
    later = part * load(beside_s, row + LATER)
    return larger(start + seconds + part * longer, load(lanes.gate_end_s, cell) + (late + behind) + later)


@inlined_kernel
def _beside_stream(cell: int, way: int, stage: int, start: Floats, alone: Floats, late_s: Floats, lanes: Lanes) -> Floats:
    """`beside_stream_s` of `streams`; `late_s` [stages]: by how much the stream is later."""
    beside_s, row = lanes.beside_s, cell * CROWDED + KINDS * way
    through, sent = load(lanes.through_s, stage), load(beside_s, row + SENT)
    part = smaller(larger(through - start, zeros()), sent) / sent
    longer = load(beside_s, row + LONGER)
    behind = part * (alone + longer - sent)
    store(lanes.through_s, stage, through + behind)
    store(late_s, stage, load(late_s, stage) + behind)
    more = part * longer
    store(lanes.slowed_s, stage, load(lanes.slowed_s, stage) + more)
    return more


@inlined_kernel
def _last_backward(cell: int, stage: int, start: Floats, seconds: Floats, lanes: Lanes) -> Floats:
    """As in `streams`."""
    beside_s, row = lanes.beside_s, cell * CROWDED
    sent, ready = load(beside_s, row + (KINDS + SENT)), load(beside_s, row + READY)
    left = larger(load(lanes.through_s, stage) - start, zeros()) + ready
    gone = smaller(left, sent)
    part = gone / sent
    longer = part * load(beside_s, row + (KINDS + LONGER))
    end = start + seconds + longer
    store(lanes.through_s, stage, end + (left - gone) + (load(beside_s, row + OWN) - ready))
    store(lanes.shared, cell, part)
    store(lanes.later_s, cell, load(lanes.behind_s, stage))
    store(lanes.behind_s, stage, zeros())
    store(lanes.slowed_s, stage, load(lanes.slowed_s, stage) + longer)
    return longer
