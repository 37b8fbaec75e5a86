"""Who waits for whom: all blocks of a pipeline in one list, each after what it waits for.

That follows from the order of blocks alone, not from durations. So one sequence serves all plans with the same order: `lanes`
runs several at once, and looks for nothing that is ready. The stages are swept alternately down and up; each runs its blocks
until one must wait for a message. Such a turn of a stage is also where its waiting times are added up.

An end is kept in a slot until the last block that waits for it has read it; then the slot is used again. A sequence with more
events than there is room for is filled piece by piece, between which the lanes run what is there. Others are kept, one after
the other: plans of the next slice mostly have the same orders.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Ints
from sim_core.compiled.jit import inlined_kernel, inner_kernel, kernel, outer_kernel
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
    events_of,
    rounds_of,
    row_of,
)
from sim_core.engine.program import DOWN, OF_INPUTS, OF_WEIGHTS, PAIR, UP, WEIGHT, Shape, message_into, sender_of
from sim_core.engine.schedules import DEEPSPEED, PAIRS, PLACEMENT, SPLITS

Rows = npt.NDArray[np.int32]

DURATION, RECEIVED, RECEIVED_COST, POSTED, POSTED_COST, WRITTEN, FIRST, LAST = range(8)
"""Columns of an event: the row of its duration; the slot of the end whose message it waits for, and the row of the cost of this
message; a second slot and cost: the end at which the neighbour has posted the receive for the stage's incomplete send
(BLOCKING), or that whose message the other block of a pair waits for (IN_PAIRS); the slot of its own end; the cell whose first
forward it is; what ends with it, or is beside it (below), * cells + the cell of which it is a block (both -1: it is none)."""
COLUMNS = 8  # one cache line for two events
NOTHING, UNREAD = 0, 1
"""Slots: a time of 0, for an event that waits for no message; an end that nobody reads."""
ALONE, BLOCKING, IN_PAIRS = 0, 1, 2
"""What an event waits for: at most one message; also that its last send is received; a message for each block of a pair."""
INPUT_GRADIENT = 4
"""A kind of duration; 0 to 3 are those of a Program."""
MEETING = 2
"""A kind of cost: a message down and one up together (DeepSpeed); 0 and 1 are the two directions."""
NO_WORK, NO_MESSAGE = 5, 3
"""The kinds that take no time, of one row. That of all others is kind * cells + cell of a duration, kind * stages + stage of a
cost."""
OF_BOTH, BESIDE_GRADIENTS, BESIDE_GATHER, ARRIVED = 2, 3, 4, 5
"""What ends with a last backward beside OF_INPUTS and OF_WEIGHTS: both. Another block beside which a stage sends: a backward
after the first of these, a forward before the last first one; and that one, at whose end all parameters of its stage have
arrived."""
KEPT = 512
"""Sequences that are kept, at most; they fill half of the room for events. Of more, those that come first,
until as many events as there is room for were filled and none was found."""
EVENTS, PIECE, LEFT, TURN, SWEEP, MOVED, SLOTS, UNUSED, BEGIN = range(9)
"""Numbers of a sequence that is being filled: events of this piece; the pieces before it; codes still to run (of DeepSpeed:
slots); of the present sweep its next turn, its number, and the codes run so far; slots ever used; depth of `unused`; where
it begins among those that are kept."""


class Sequence(NamedTuple):
    """A sequence, and scratch to find it. An event is a block, two that run in a pair, a last send, or a meeting alone."""

    event: Rows  # [events, COLUMNS]
    turn: Rows  # [turns, 2] stage, and number of its events that follow
    slot: Rows  # [blocks] of the end of each block, at (direction * cells + cell) * rounds + micro-batch; -1: has not run
    posted: Rows  # [blocks] of the end at which the receive for it was posted; -1: was not
    readers: Rows  # [slots] events that are still to read it
    unused: Rows  # [slots] slots that all have read: a stack
    sent: Rows  # [2 * cells] index in `slot` of the first block that sends to a cell, by direction and cell; -1: none does
    cost: Rows  # [2 * cells] the row of the cost of such a message
    position: Ints  # [stages] next block of the stage
    pending: Ints  # [stages] block that receives the stage's incomplete send; -1: none
    state: Ints  # [9] EVENTS, PIECE, ...
    known: Ints  # [1 + KEPT, 8] which are kept: a Shape, the group of micro-batches, turns, where it begins. First, how many


def allocate_sequence(events: int, room: int, stages: int, cells: int) -> Sequence:
    """Scratch for steps of up to `events` events (events_of), `stages` stages and `cells` virtual stages.

    `room`: events of a piece, at least those of one stage, and one for each stage.
    """
    event, turn = np.empty((room, COLUMNS), np.int32), np.empty((room, 2), np.int32)
    sizes = events, events, events + 2, events + 2, 2 * cells, 2 * cells
    slot, posted, readers, unused, sent, cost = (np.empty(size, np.int32) for size in sizes)
    position, pending, state = (np.empty(size, int) for size in (stages, stages, 9))
    known = np.zeros((1 + KEPT, 8), int)
    return Sequence(event, turn, slot, posted, readers, unused, sent, cost, position, pending, state, known)


@kernel
def rule_of(shape: Shape) -> int:
    """What the events of a pipeline wait for: ALONE, BLOCKING, IN_PAIRS."""
    if PAIRS[shape.schedule]:
        return IN_PAIRS
    if shape.schedule == DEEPSPEED:
        return BLOCKING
    return ALONE if SPLITS[shape.schedule] or shape.overlapped or shape.pp == 1 else BLOCKING


@inner_kernel
def find_sequence(shape: Shape, group: int, order: Ints, sequence: Sequence) -> int:
    """The turns of the sequence of an order, 0 for a contradictory one; fills it unless it is kept.

    `group` as in the plan: with the shape it makes the order.
    """
    known, state, room = sequence.known, sequence.state, sequence.event.shape[0]
    wanted = shape.ga, shape.vpp, shape.pp, shape.schedule, int(shape.overlapped), group
    count, missed, begin = known[0, :3]
    for row in range(1, count + 1):
        alike = True
        for k in range(6):
            alike = alike and known[row, k] == wanted[k]
        if alike:
            state[EVENTS], state[PIECE], state[LEFT], state[BEGIN], known[0, 1] = 1, 0, 0, known[row, 7], 0
            return int(known[row, 6])
    if missed > room or begin + events_of(shape.schedule, shape.pp, shape.vpp, shape.ga) > room:
        count, missed, begin = 0, 0, 0
    turns = fill_sequence(shape, order, sequence, begin)
    if turns > 0 and state[LEFT] == 0 and count < KEPT and begin + state[EVENTS] <= room // 2:
        count += 1
        known[count] = *wanted, turns, begin
        begin += state[EVENTS]
    known[0, :3] = count, missed + state[EVENTS], begin
    return turns


@outer_kernel
def fill_sequence(shape: Shape, order: Ints, sequence: Sequence, begin: int = 0) -> int:
    """Fill `sequence`, or its first piece, for an order of blocks; returns the number of turns, 0 for a contradictory order.

    From event `begin` on, if that leaves room for all; from the first on over those that are kept. Blocking sends need vpp 1.
    """
    schedule, pp, vpp, ga = shape.schedule, shape.pp, shape.vpp, shape.ga
    chunks, rounds, state = chunks_of(schedule, vpp), rounds_of(schedule, ga), sequence.state
    blocks = pp * chunks * rounds
    sequence.slot[: 2 * blocks] = -1
    sequence.position[:pp] = 0
    sequence.pending[:pp] = 0
    if begin == 0:
        sequence.known[0] = 0
    state[:] = 0
    state[SLOTS], state[BEGIN] = UNREAD + 1, begin
    state[LEFT] = pp * row_of(schedule, vpp, ga)
    if schedule == DEEPSPEED:
        sequence.position[:pp], sequence.pending[:pp] = NOTHING, NOTHING
        state[LEFT], state[SLOTS] = 2 * (ga + pp - 1), 2 + 2 * pp
        return int(_fill(shape, order, sequence))
    _link(PLACEMENT[schedule], pp, chunks, rounds, sequence)
    if rule_of(shape) == BLOCKING:
        state[LEFT] += pp  # each stage's last send
        sequence.posted[: 2 * blocks] = -1
        for stage in range(pp):
            sequence.pending[stage] = -1
            code = order[stage * 2 * ga]
            sequence.posted[((code & 1) * pp + stage) * ga + (code >> MICRO_BATCH_SHIFT)] = NOTHING
    return int(_fill(shape, order, sequence))


@outer_kernel
def fill_next(shape: Shape, order: Ints, sequence: Sequence) -> int:
    """Fill the next piece of a sequence; returns the number of its turns, 0 for a contradictory order."""
    sequence.state[PIECE] += 1
    return int(_fill(shape, order, sequence))


@inner_kernel
def _fill(shape: Shape, order: Ints, sequence: Sequence) -> int:
    """Sweep the stages down and up; each writes events until one must wait for a message."""
    schedule, pp, vpp, ga = shape.schedule, shape.pp, shape.vpp, shape.ga
    if schedule == DEEPSPEED:
        return int(_meet(pp, ga, sequence))
    chunks, rounds, codes = chunks_of(schedule, vpp), rounds_of(schedule, ga), row_of(schedule, vpp, ga)
    state, position, blocking, split = sequence.state, sequence.position, rule_of(shape) == BLOCKING, SPLITS[schedule]
    left, turn, sweep, moved = state[LEFT], state[TURN], state[SWEEP], state[MOVED]
    turns = at = state[BEGIN]
    while left > 0:
        if turn == pp:
            if moved == 0:
                return 0
            turn, moved, sweep = 0, 0, sweep + 1
        stage = turn if sweep % 2 == 0 else pp - 1 - turn
        first, events = position[stage], 0
        if at + codes + int(blocking) - first > sequence.event.shape[0]:
            break
        if blocking:
            while position[stage] <= codes and _block(order, pp, ga, stage, at + events, sequence):
                events += 1
        elif split:  # each call is inlined with its constant: whole backwards pay for no parts
            events = _send(order, codes, stage, at, pp, chunks, rounds, True, sequence)
        else:
            events = _send(order, codes, stage, at, pp, chunks, rounds, False, sequence)
        for _ in range(events if split else min(events, 1)):
            turns = _add_turn(sequence, turns, stage, 1 if split else events)
        at += events
        moved += position[stage] - first
        left -= position[stage] - first
        turn += 1
    state[EVENTS], state[LEFT], state[TURN], state[SWEEP], state[MOVED] = at - state[BEGIN], left, turn, sweep, moved
    return int(turns - state[BEGIN])


@inner_kernel
def _link(placement: int, pp: int, chunks: int, rounds: int, sequence: Sequence) -> None:
    """Fill `sent` and `cost`."""
    cells = pp * chunks
    for way in (DOWN, UP):
        for stage in range(pp):
            for chunk in range(chunks):
                row = way * cells + stage * chunks + chunk
                sender = sender_of(placement, way, stage, chunk, pp, chunks)
                column = message_into(placement, way, stage, chunk, pp, chunks)
                sequence.sent[row] = (way * cells + sender) * rounds if sender >= 0 else -1
                sequence.cost[row] = way * pp + column if column >= 0 else NO_MESSAGE * pp


@inlined_kernel
def _message(sequence: Sequence, row: int, micro_batch: int) -> tuple[int, int]:
    """The slot of the end whose message a block waits for, -1 if that has not run; and the row of its cost."""
    sent = sequence.sent[row]
    return sequence.slot[sent + micro_batch] if sent >= 0 else NOTHING, sequence.cost[row]


@inlined_kernel
def _send(  # noqa: C901, PLR0915
    order: Ints, codes: int, stage: int, begin: int, pp: int, chunks: int, rounds: int, split: bool, sequence: Sequence
) -> int:
    """A turn of a stage that sends in the background, from event `begin` on; returns the number of its events.

    With weight gradients apart (`split`) each event is a turn: each wait is added up by itself.
    """
    event, slot_of, sent, cells = sequence.event, sequence.slot, sequence.sent, pp * chunks
    streams = sequence.pending  # chunks of a stage whose first forward has run, and those whose last backward has
    k, at = sequence.position[stage], begin
    while k < codes:
        code = order[stage * codes + k]
        if code < 0:
            k += 1
            continue
        direction = code & 1
        part = (code >> PART_SHIFT) & PART_MASK if split else WHOLE
        micro_batch = code >> MICRO_BATCH_SHIFT
        cell = stage * chunks + ((code >> CHUNK_SHIFT) & CHUNK_MASK)
        row = direction * cells + cell
        received, cost = NOTHING, NO_MESSAGE * pp
        duration, readers, last = row, 0, -1
        if part == WEIGHTS:
            if slot_of[row * rounds + micro_batch] < 0:
                break
            duration = WEIGHT * cells + cell
            if micro_batch == rounds - 1:
                last = OF_WEIGHTS * cells + cell
        else:
            received, cost = _message(sequence, row, micro_batch)
            if received < 0:
                break
            readers = 1 if sent[(1 - direction) * cells + cell] >= 0 else 0
            if part == INPUT:
                duration = INPUT_GRADIENT * cells + cell
            if direction == UP and micro_batch == rounds - 1:
                last = (OF_INPUTS if part == INPUT else OF_BOTH) * cells + cell
                streams[stage] += 1
            elif direction == DOWN and micro_batch == 0:
                streams[stage] += 1
                if not split and streams[stage] == chunks:
                    last = ARRIVED * cells + cell
            elif not split and direction == DOWN and streams[stage] < chunks:
                last = BESIDE_GATHER * cells + cell
            elif not split and direction == UP and streams[stage] > chunks:
                last = BESIDE_GRADIENTS * cells + cell
        if split:
            event[at, POSTED], event[at, POSTED_COST] = NOTHING, NO_MESSAGE * pp
        if part == PAIRED:
            code = order[stage * codes + k + 1]
            other = stage * chunks + ((code >> CHUNK_SHIFT) & CHUNK_MASK)
            other_micro_batch = code >> MICRO_BATCH_SHIFT
            posted, posted_cost = _message(sequence, UP * cells + other, other_micro_batch)
            if posted < 0:
                break
            event[at, POSTED], event[at, POSTED_COST] = posted, posted_cost
            _read_slot(sequence, posted)
            readers += 1 if sent[DOWN * cells + other] >= 0 else 0
            duration = PAIR * cells + cell
            if other_micro_batch == rounds - 1:
                last = OF_BOTH * cells + other
        written = _write_slot(sequence, received, readers)
        if part != WEIGHTS:
            slot_of[row * rounds + micro_batch] = written
        if part == PAIRED:
            slot_of[(UP * cells + other) * rounds + other_micro_batch] = written
        event[at, DURATION] = duration
        event[at, RECEIVED], event[at, RECEIVED_COST] = received, cost
        event[at, WRITTEN] = written
        event[at, FIRST], event[at, LAST] = cell if micro_batch == 0 and direction == DOWN else -1, last
        at += 1
        k += 2 if part == PAIRED else 1
    sequence.position[stage] = k
    return at - begin


@inlined_kernel
def _block(order: Ints, pp: int, ga: int, stage: int, at: int, sequence: Sequence) -> bool:
    """Write the next block of a stage that blocks while it sends, or its last send, as event `at`.

    One chunk per stage. False if what it waits for has not been.
    """
    event, k, row, waiting = sequence.event, sequence.position[stage], 2 * ga, sequence.pending[stage]
    posted, posted_cost = NOTHING, NO_MESSAGE * pp
    if waiting >= 0:
        posted, posted_cost = sequence.posted[waiting], UP * pp + stage - 1 if waiting >= pp * ga else DOWN * pp + stage + 1
        if posted < 0:
            return False
    received, cost, duration, written = NOTHING, NO_MESSAGE * pp, NO_WORK * pp, UNREAD
    begins, last, following = -1, -1, -1
    if k == row:
        _read_slot(sequence, posted)
    else:
        code = order[stage * row + k]
        direction, micro_batch = code & 1, code >> MICRO_BATCH_SHIFT
        duration = direction * pp + stage
        received, cost = _message(sequence, duration, micro_batch)
        if received < 0:
            return False
        begins = stage if micro_batch == 0 and direction == DOWN else -1
        last = OF_BOTH * pp + stage if micro_batch == ga - 1 and direction == UP else -1
        if sequence.sent[(1 - direction) * pp + stage] >= 0:
            following = (duration + (1 if direction == DOWN else -1)) * ga + micro_batch
        _read_slot(sequence, posted)
        readers, upcoming = 1 if following >= 0 else 0, -1
        if k + 1 < row:  # a neighbour may send to the block after it, whose receive is posted at its end
            code = order[stage * row + k + 1]
            upcoming = ((code & 1) * pp + stage) * ga + (code >> MICRO_BATCH_SHIFT)
            readers += 1 if sequence.sent[(code & 1) * pp + stage] >= 0 else 0
        written = _write_slot(sequence, received, readers)
        sequence.slot[duration * ga + micro_batch] = written
        if upcoming >= 0:
            sequence.posted[upcoming] = written
    event[at, DURATION] = duration
    event[at, RECEIVED], event[at, RECEIVED_COST] = received, cost
    event[at, POSTED], event[at, POSTED_COST] = posted, posted_cost
    event[at, WRITTEN], event[at, FIRST], event[at, LAST] = written, begins, last
    sequence.position[stage], sequence.pending[stage] = k + 1, following
    return True


@inner_kernel
def _meet(pp: int, ga: int, sequence: Sequence) -> int:
    """DeepSpeed's slots: in one, a stage meets a neighbour, computes a block, or both. Each wait is added up by itself.

    DeepSpeed, runtime/pipe/schedule.py, TrainSchedule: in a forward slot a stage sends its last gradient to the stage before
    and receives an activation from it, which in this slot receives the one and sends the other. All sends wait for each other.
    Those who meet both read when the other was free: a stage writes its ends to two places in turn.
    """
    event, latest, earlier, state = sequence.event, sequence.position, sequence.pending, sequence.state
    turns = state[BEGIN]
    while state[LEFT] > 0 and turns + pp <= event.shape[0]:
        slot = 2 * (ga + pp - 1) - state[LEFT]
        state[LEFT] -= 1
        for stage in range(pp):
            forward = (slot - stage) % 2 == 0
            lower = stage if forward else stage + 1  # of the two that meet, the one further down
            down, up = 0 <= (slot - lower) // 2 < ga, 0 <= (slot - 2 * pp + lower) // 2 < ga
            posted, posted_cost = NOTHING, NO_MESSAGE * pp
            if 0 < lower < pp and (down or up):
                posted = earlier[stage - 1] if forward else latest[stage + 1]  # the one above has already had its turn
                posted_cost = MEETING * pp + lower if up else DOWN * pp + lower
                if not down:
                    posted_cost = UP * pp + lower - 1
            micro_batch = (slot - stage) // 2 if forward else (slot - 2 * pp + 1 + stage) // 2
            computes = 0 <= micro_batch < ga
            if not computes and posted_cost == NO_MESSAGE * pp:
                continue
            direction = DOWN if forward else UP
            written = 2 + 2 * stage if latest[stage] != 2 + 2 * stage else 3 + 2 * stage
            event[turns, DURATION] = direction * pp + stage if computes else NO_WORK * pp
            event[turns, RECEIVED], event[turns, RECEIVED_COST] = NOTHING, NO_MESSAGE * pp
            event[turns, POSTED], event[turns, POSTED_COST] = posted, posted_cost
            event[turns, WRITTEN] = written
            event[turns, FIRST] = stage if forward and micro_batch == 0 else -1
            event[turns, LAST] = OF_BOTH * pp + stage if not forward and micro_batch == ga - 1 else -1
            earlier[stage], latest[stage] = latest[stage], written
            turns = _add_turn(sequence, turns, stage, 1)
    state[EVENTS] = turns - state[BEGIN]
    return int(state[EVENTS])


@inlined_kernel
def _add_turn(sequence: Sequence, turns: int, stage: int, events: int) -> int:
    """Append a turn of a stage; returns the number of turns."""
    sequence.turn[turns, 0], sequence.turn[turns, 1] = stage, events
    return turns + 1


@inner_kernel
def _read_slot(sequence: Sequence, slot: int) -> None:
    """One of the events that read a slot has read it."""
    if slot <= UNREAD:
        return
    sequence.readers[slot] -= 1
    if sequence.readers[slot] == 0:
        sequence.unused[sequence.state[UNUSED]] = slot
        sequence.state[UNUSED] += 1


@inlined_kernel
def _write_slot(sequence: Sequence, read: int, readers: int) -> int:
    """A slot for the end of an event that read another; `readers` events read it. Mostly it is the one that was read."""
    if read > UNREAD and readers > 0 and sequence.readers[read] == 1:
        sequence.readers[read] = readers
        return read
    _read_slot(sequence, read)
    return UNREAD if readers == 0 else _free_slot(sequence, readers)


@inner_kernel
def _free_slot(sequence: Sequence, readers: int) -> int:
    state = sequence.state
    if state[UNUSED] > 0:
        state[UNUSED] -= 1
        slot = int(sequence.unused[state[UNUSED]])
    else:
        slot = int(state[SLOTS])
        state[SLOTS] += 1
    sequence.readers[slot] = readers
    return slot
