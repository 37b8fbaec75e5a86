"""Finds the sequence of an order of blocks, as the engines for one plan go through it: `events`, `split_events`, `slots`."""

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
    following_cell,
    rounds_of,
    row_of,
)
from sim_core.engine.events import DOWN, PAIR, UP, WEIGHT
from sim_core.engine.schedules import DEEPSPEED, PAIRS, PLACEMENT, SPLITS
from sim_core.engine.sequence import (
    ALONE,
    ARRIVED,
    BESIDE_GATHER,
    BESIDE_GRADIENTS,
    BLOCKING,
    DURATION,
    FIRST,
    IN_PAIRS,
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
    UNREAD,
    WRITTEN,
    Sequence,
    add_turn,
    read_slot,
    write_slot,
)
from sim_core.jit import inlined_kernel, inner_kernel, kernel, outer_kernel

Codes = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]


@kernel
def rule_of(schedule: int, pp: int, overlapped: bool) -> int:
    """What the events of a schedule wait for: ALONE, BLOCKING, IN_PAIRS."""
    if PAIRS[schedule]:
        return IN_PAIRS
    if schedule == DEEPSPEED:
        return BLOCKING
    return ALONE if SPLITS[schedule] or overlapped or pp == 1 else BLOCKING


@outer_kernel
def fill_sequence(schedule: int, order: Codes, pp: int, vpp: int, ga: int, overlapped: bool, sequence: Sequence) -> int:
    """Fill `sequence` for the order of a schedule; returns the number of turns, 0 for a contradictory order.

    Blocking sends need vpp 1.
    """
    chunks, rounds = chunks_of(schedule, vpp), rounds_of(schedule, ga)
    sequence.slot[: 2 * pp * chunks * rounds] = -1
    sequence.position[:pp] = 0
    sequence.size[0], sequence.size[1] = UNREAD + 1, 0
    if schedule == DEEPSPEED:
        return int(_meet(pp, ga, sequence))
    if rule_of(schedule, pp, overlapped) == BLOCKING:
        return int(_block(order, pp, ga, sequence))
    _link(PLACEMENT[schedule], pp, chunks, rounds, sequence.sent)
    if SPLITS[schedule]:  # each call is inlined with its constant: whole backwards pay for no parts
        return int(_send(order, row_of(schedule, vpp, ga), pp, chunks, rounds, True, sequence))
    return int(_send(order, row_of(schedule, vpp, ga), pp, chunks, rounds, False, sequence))


@inner_kernel
def _link(placement: int, pp: int, chunks: int, rounds: int, sent: Rows) -> None:
    """Fill `Sequence.sent`."""
    cells = pp * chunks
    sent[: 2 * cells] = -1
    for stage in range(pp):
        for chunk in range(chunks):
            cell, following = stage * chunks + chunk, following_cell(placement, stage, chunk, pp, chunks)
            if following >= 0:
                sent[DOWN * cells + following] = (DOWN * cells + cell) * rounds
                sent[UP * cells + cell] = (UP * cells + following) * rounds


@inlined_kernel
def _send(order: Codes, codes: int, pp: int, chunks: int, rounds: int, split: bool, sequence: Sequence) -> int:  # noqa: C901, PLR0915
    """Sends in the background: as `events` sweeps over the stages, or `split_events`, which adds up each wait by itself."""
    event, slot_of, position, sent = sequence.event, sequence.slot, sequence.position, sequence.sent
    cells = pp * chunks
    streams = sequence.pending  # chunks of a stage whose first forward has run, and those whose last backward has
    streams[:pp] = 0
    done, turns, at = 0, 0, 0
    downward = True
    while done < pp * codes:
        before = done
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            begun = at
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
                received, cost = NOTHING, NO_MESSAGE * cells
                duration, readers, last = row, 0, -1
                if part == WEIGHTS:
                    if slot_of[row * rounds + micro_batch] < 0:
                        break
                    duration = WEIGHT * cells + cell
                    if micro_batch == rounds - 1:
                        last = OF_WEIGHTS * cells + cell
                else:
                    if sent[row] >= 0:
                        received = slot_of[sent[row] + micro_batch]
                        if received < 0:
                            break
                        cost = row if split else direction * cells + stage
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
                    event[at, POSTED], event[at, POSTED_COST] = NOTHING, NO_MESSAGE * cells
                if part == PAIRED:
                    code = order[stage * codes + k + 1]
                    other = stage * chunks + ((code >> CHUNK_SHIFT) & CHUNK_MASK)
                    other_micro_batch = code >> MICRO_BATCH_SHIFT
                    if sent[UP * cells + other] >= 0:
                        posted = slot_of[sent[UP * cells + other] + other_micro_batch]
                        if posted < 0:
                            break
                        event[at, POSTED], event[at, POSTED_COST] = posted, UP * cells + other
                        read_slot(sequence, posted)
                    readers += 1 if sent[DOWN * cells + other] >= 0 else 0
                    duration = PAIR * cells + cell
                    if other_micro_batch == rounds - 1:
                        last = OF_BOTH * cells + other
                written = write_slot(sequence, received, readers)
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
                if split:
                    turns = add_turn(sequence, turns, stage, 1)
            if k > first:
                position[stage] = k
                if not split:
                    turns = add_turn(sequence, turns, stage, at - begun)
                done += k - first
        if done == before:
            return 0
        downward = not downward
    sequence.size[2] = at
    return turns


@inner_kernel
def _block(order: Codes, pp: int, ga: int, sequence: Sequence) -> int:  # noqa: C901, PLR0915
    """Blocking sends and one chunk per stage: each stage's last send is an event, too."""
    event, slot_of, posted_at = sequence.event, sequence.slot, sequence.posted
    position, pending = sequence.position, sequence.pending
    half, row = pp * ga, 2 * ga
    posted_at[: 2 * half] = -1
    for stage in range(pp):
        pending[stage] = -1
        code = order[stage * row]
        posted_at[(code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)] = NOTHING
    done, turns, at = 0, 0, 0
    downward = True
    while done < pp * (row + 1):
        before = done
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            waiting = pending[stage]
            while k <= row:
                posted, posted_cost = NOTHING, NO_MESSAGE * pp
                if waiting >= 0:
                    posted = posted_at[waiting]
                    if posted < 0:
                        break
                    posted_cost = UP * pp + stage - 1 if waiting >= half else DOWN * pp + stage + 1
                received, cost = NOTHING, NO_MESSAGE * pp
                duration, written, begins, last, following = NO_WORK * pp, UNREAD, -1, -1, -1
                if k < row:
                    code = order[stage * row + k]
                    direction = code & 1
                    micro_batch = code >> MICRO_BATCH_SHIFT
                    block = direction * half + stage * ga + micro_batch
                    if stage < pp - 1 if direction else stage > 0:
                        received = slot_of[block + (ga if direction else -ga)]
                        if received < 0:
                            break
                        cost = direction * pp + stage
                    duration = direction * pp + stage
                    begins = stage if micro_batch == 0 and direction == DOWN else -1
                    last = OF_BOTH * pp + stage if micro_batch == ga - 1 and direction == UP else -1
                    if stage > 0 if direction else stage < pp - 1:
                        following = block + (-ga if direction else ga)
                    readers = 1 if following >= 0 else 0
                    upcoming = -1  # the next block, if a neighbour sends to it
                    if k + 1 < row:
                        code = order[stage * row + k + 1]
                        upcoming = (code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)
                        readers += 1 if (stage < pp - 1 if code & 1 else stage > 0) else 0
                    read_slot(sequence, posted)
                    written = write_slot(sequence, received, readers)
                    slot_of[block] = written
                    if upcoming >= 0:
                        posted_at[upcoming] = written
                else:
                    read_slot(sequence, posted)
                waiting = following
                event[at, DURATION] = duration
                event[at, RECEIVED], event[at, RECEIVED_COST] = received, cost
                event[at, POSTED], event[at, POSTED_COST] = posted, posted_cost
                event[at, WRITTEN], event[at, FIRST], event[at, LAST] = written, begins, last
                at += 1
                k += 1
            if k > first:
                position[stage] = k
                pending[stage] = waiting
                turns = add_turn(sequence, turns, stage, k - first)
                done += k - first
        if done == before:
            return 0
        downward = not downward
    sequence.size[2] = at
    return turns


@inner_kernel
def _meet(pp: int, ga: int, sequence: Sequence) -> int:
    """DeepSpeed's slots: in one, a stage meets a neighbour, computes a block, or both. Each wait is added up by itself.

    Those who meet both read when the other was free: a stage writes its ends to two places in turn.
    """
    event, latest, earlier = sequence.event, sequence.position, sequence.pending
    latest[:pp], earlier[:pp] = NOTHING, NOTHING
    turns = 0
    for slot in range(2 * (ga + pp - 1)):
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
            turns = add_turn(sequence, turns, stage, 1)
    sequence.size[0], sequence.size[2] = 2 + 2 * pp, turns
    return turns
