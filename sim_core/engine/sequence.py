"""All blocks of a pipeline, one after another, each after all that it waits for.

Which block waits for which follows from the order of blocks alone, not from durations. So one sequence serves all plans with
the same order: `lanes` runs several at once, and looks for nothing that is ready. It has the turns of `events`, in which
that engine adds up waiting times; the sums are therefore the same to the last bit.

An end is kept in a slot until the last block that waits for it has read it; then the slot is used again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, MICRO_BATCH_SHIFT
from sim_core.jit import inner_kernel, outer_kernel

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

DURATION, RECEIVED, RECEIVED_COST, POSTED, POSTED_COST, WRITTEN, MARK = range(7)
"""Columns of an event: the row of its duration; the slot of the end whose message it waits for, and the row of the cost of this
message; the slot of the end at which the neighbour has posted the receive for the stage's incomplete send, and the row of the
cost of that (blocking sends); the slot of its own end; FIRST, LAST."""
COLUMNS: Final = 8  # one cache line for two events
FIRST, LAST = 1, 2
"""Marks: the first forward through a cell; the last forward or backward."""
NOTHING, UNREAD = 0, 1
"""Slots: a time of 0, for an event that waits for no message; an end that nobody reads."""


class Sequence(NamedTuple):
    """A sequence, and scratch to find it. One event is one block; with blocking sends each stage's last send is one, too."""

    event: Rows  # [events, COLUMNS]
    turn: Rows  # [turns, 2] stage, and number of its events that follow
    slot: Rows  # [blocks] of the end of each block, at direction * cells * ga + cell * ga + micro-batch; -1: has not run
    posted: Rows  # [blocks] of the end at which the receive for it was posted; -1: was not
    readers: Rows  # [slots] events that are still to read it
    unused: Rows  # [slots] slots that all have read: a stack
    position: Ints  # [stages] next block of the stage
    pending: Ints  # [stages] block that receives the stage's incomplete send; -1: none
    size: Ints  # [3] slots ever used; depth of `unused`; events


def allocate_sequence(blocks: int, stages: int) -> Sequence:
    """Scratch for steps of up to `blocks` blocks and `stages` stages."""
    return Sequence(
        event=np.empty((blocks + stages, COLUMNS), np.int32),
        turn=np.empty((blocks + stages, 2), np.int32),
        slot=np.empty(blocks, np.int32),
        posted=np.empty(blocks, np.int32),
        readers=np.empty(blocks + 2, np.int32),
        unused=np.empty(blocks + 2, np.int32),
        position=np.empty(stages, np.int64),
        pending=np.empty(stages, np.int64),
        size=np.empty(3, np.int64),
    )


@outer_kernel
def fill_sequence(order: Ints, pp: int, vpp: int, ga: int, overlapped: bool, sequence: Sequence) -> int:
    """Fill `sequence` for an order of forwards and whole backwards; returns the number of turns, 0 for a contradictory order.

    Blocking sends need vpp 1.
    """
    blocks = 2 * pp * vpp * ga
    sequence.slot[:blocks] = -1
    sequence.position[:pp] = 0
    sequence.size[0], sequence.size[1], sequence.size[2] = 2, 0, 0
    if overlapped or pp == 1:
        return int(_sequence_overlapped(order, pp, vpp, ga, sequence))
    sequence.posted[:blocks] = -1
    return int(_sequence_blocking(order, pp, ga, sequence))


@inner_kernel
def _read(sequence: Sequence, slot: int) -> None:
    """One of the events that read a slot has read it."""
    if slot <= UNREAD:
        return
    sequence.readers[slot] -= 1
    if sequence.readers[slot] == 0:
        sequence.unused[sequence.size[1]] = slot
        sequence.size[1] += 1


@inner_kernel
def _write(sequence: Sequence, readers: int) -> int:
    """A slot for an end that `readers` events read."""
    if readers == 0:
        return UNREAD
    size = sequence.size
    if size[1] > 0:
        size[1] -= 1
        slot = int(sequence.unused[size[1]])
    else:
        slot = int(size[0])
        size[0] += 1
    sequence.readers[slot] = readers
    return slot


@inner_kernel
def _sequence_overlapped(order: Ints, pp: int, vpp: int, ga: int, sequence: Sequence) -> int:
    """As `events` sweeps over the stages with sends in the background."""
    event, slot_of, position = sequence.event, sequence.slot, sequence.position
    width, cells, blocks = vpp * ga, pp * vpp, 2 * vpp * ga
    half = pp * width
    done, turns, at = 0, 0, 0
    downward = True
    while done < pp * blocks:
        before = done
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            down_from = -width if stage > 0 else half - width - ga
            up_from = width if stage < pp - 1 else ga + width - half
            while k < blocks:
                code = order[stage * blocks + k]
                direction = code & 1
                chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
                micro_batch = code >> MICRO_BATCH_SHIFT
                cell = stage * vpp + chunk
                block = direction * half + cell * ga + micro_batch
                at_start = stage == 0 and chunk == 0
                at_end = stage == pp - 1 and chunk == vpp - 1
                received, cost = NOTHING, 2 * pp
                if not (at_end if direction else at_start):
                    received = slot_of[block + (up_from if direction else down_from)]
                    if received < 0:
                        break
                    cost = direction * pp + stage
                    _read(sequence, received)
                written = _write(sequence, 0 if (at_start if direction else at_end) else 1)
                slot_of[block] = written
                event[at, DURATION] = direction * cells + cell
                event[at, RECEIVED], event[at, RECEIVED_COST] = received, cost
                event[at, WRITTEN] = written
                event[at, MARK] = (FIRST if micro_batch == 0 and direction == 0 else 0) | (LAST if micro_batch == ga - 1 else 0)
                at += 1
                k += 1
            if k > first:
                position[stage] = k
                sequence.turn[turns, 0], sequence.turn[turns, 1] = stage, k - first
                turns += 1
                done += k - first
        if done == before:
            return 0
        downward = not downward
    sequence.size[2] = at
    return turns


@inner_kernel
def _sequence_blocking(order: Ints, pp: int, ga: int, sequence: Sequence) -> int:  # noqa: C901, PLR0915
    """The same with blocking sends and one chunk per stage."""
    event, slot_of, posted_at = sequence.event, sequence.slot, sequence.posted
    position, pending = sequence.position, sequence.pending
    half, blocks = pp * ga, 2 * ga
    for stage in range(pp):
        pending[stage] = -1
        code = order[stage * blocks]
        posted_at[(code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)] = NOTHING
    done, turns, at = 0, 0, 0
    downward = True
    while done < pp * (blocks + 1):
        before = done
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            waiting = pending[stage]
            while k <= blocks:
                posted, posted_cost = NOTHING, 2 * pp
                if waiting >= 0:
                    posted = posted_at[waiting]
                    if posted < 0:
                        break
                    posted_cost = pp + stage - 1 if waiting >= half else stage + 1
                received, cost = NOTHING, 2 * pp
                duration, written, mark, following = 2 * pp, UNREAD, 0, -1
                if k < blocks:
                    code = order[stage * blocks + k]
                    direction = code & 1
                    micro_batch = code >> MICRO_BATCH_SHIFT
                    block = direction * half + stage * ga + micro_batch
                    if stage < pp - 1 if direction else stage > 0:
                        received = slot_of[block + (ga if direction else -ga)]
                        if received < 0:
                            break
                        cost = direction * pp + stage
                    duration = direction * pp + stage
                    mark = (FIRST if micro_batch == 0 and direction == 0 else 0) | (LAST if micro_batch == ga - 1 else 0)
                    if stage > 0 if direction else stage < pp - 1:
                        following = block + (-ga if direction else ga)
                    readers = 1 if following >= 0 else 0
                    upcoming = -1  # the next block, if a neighbour sends to it
                    if k + 1 < blocks:
                        code = order[stage * blocks + k + 1]
                        upcoming = (code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)
                        readers += 1 if (stage < pp - 1 if code & 1 else stage > 0) else 0
                    _read(sequence, received)
                    _read(sequence, posted)
                    written = _write(sequence, readers)
                    slot_of[block] = written
                    if upcoming >= 0:
                        posted_at[upcoming] = written
                else:
                    _read(sequence, posted)
                waiting = following
                event[at, DURATION] = duration
                event[at, RECEIVED], event[at, RECEIVED_COST] = received, cost
                event[at, POSTED], event[at, POSTED_COST] = posted, posted_cost
                event[at, WRITTEN], event[at, MARK] = written, mark
                at += 1
                k += 1
            if k > first:
                position[stage] = k
                pending[stage] = waiting
                sequence.turn[turns, 0], sequence.turn[turns, 1] = stage, k - first
                turns += 1
                done += k - first
        if done == before:
            return 0
        downward = not downward
    sequence.size[2] = at
    return turns
