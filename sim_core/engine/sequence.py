"""All blocks of a pipeline, one after another, each after all that it waits for: data that `lanes` runs, `sequencing` fills.

Which block waits for which follows from the order of blocks alone, not from durations. So one sequence serves all plans with
the same order: `lanes` runs several at once, and looks for nothing that is ready. It has the turns in which the engines for one
plan add up waiting times; the sums are therefore the same to the last bit.

An end is kept in a slot until the last block that waits for it has read it; then the slot is used again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.jit import inlined_kernel, inner_kernel

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

DURATION, RECEIVED, RECEIVED_COST, POSTED, POSTED_COST, WRITTEN, FIRST, LAST = range(8)
"""Columns of an event: the row of its duration; the slot of the end whose message it waits for, and the row of the cost of this
message; a second slot and cost: the end at which the neighbour has posted the receive for the stage's incomplete send
(BLOCKING), or that whose message the other block of a pair waits for (IN_PAIRS); the slot of its own end; the cell whose first
forward it is; what ends with it, or is beside it (below), * cells + the cell of which it is a block (both -1: it is none)."""
COLUMNS: Final = 8  # one cache line for two events
NOTHING, UNREAD = 0, 1
"""Slots: a time of 0, for an event that waits for no message; an end that nobody reads."""
ALONE, BLOCKING, IN_PAIRS = 0, 1, 2
"""What an event waits for: at most one message; also that its last send is received; a message for each block of a pair."""
INPUT_GRADIENT: Final = 4
"""A kind of duration; 0 to 3 are those of a Program."""
MEETING: Final = 2
"""A kind of cost: a message down and one up together (slots); 0 and 1 are the two directions."""
NO_WORK, NO_MESSAGE = 5, 3
"""The kinds that take no time, of one row. That of all other durations and costs is kind * cells + cell (or stage)."""
OF_INPUTS, OF_WEIGHTS, OF_BOTH = 0, 1, 2
"""What ends with a last backward: input gradients, weight gradients, both."""
BESIDE_GRADIENTS, BESIDE_GATHER, ARRIVED = 3, 4, 5
"""Another block beside which a stage sends: a backward after the first of these, a forward before the last first one; and that
one, at whose end all parameters of its stage have arrived."""


class Sequence(NamedTuple):
    """A sequence, and scratch to find it. An event is a block, two that run in a pair, a last send, or a meeting alone."""

    event: Rows  # [events, COLUMNS]
    turn: Rows  # [turns, 2] stage, and number of its events that follow
    slot: Rows  # [blocks] of the end of each block, at (direction * cells + cell) * rounds + micro-batch; -1: has not run
    posted: Rows  # [blocks] of the end at which the receive for it was posted; -1: was not
    readers: Rows  # [slots] events that are still to read it
    unused: Rows  # [slots] slots that all have read: a stack
    sent: Rows  # [2 * cells] index in `slot` of the first block that sends to a cell, by direction and cell; -1: none does
    position: Ints  # [stages] next block of the stage
    pending: Ints  # [stages] block that receives the stage's incomplete send; -1: none
    size: Ints  # [3] slots ever used; depth of `unused`; events


def allocate_sequence(events: int, stages: int, cells: int) -> Sequence:
    """Scratch for steps of up to `events` events (events_of), `stages` stages and `cells` virtual stages."""
    return Sequence(
        event=np.empty((events, COLUMNS), np.int32),
        turn=np.empty((events, 2), np.int32),
        slot=np.empty(events, np.int32),
        posted=np.empty(events, np.int32),
        readers=np.empty(events + 2, np.int32),
        unused=np.empty(events + 2, np.int32),
        sent=np.empty(2 * cells, np.int32),
        position=np.empty(stages, np.int64),
        pending=np.empty(stages, np.int64),
        size=np.empty(3, np.int64),
    )


@inner_kernel
def read_slot(sequence: Sequence, slot: int) -> None:
    """One of the events that read a slot has read it."""
    if slot <= UNREAD:
        return
    sequence.readers[slot] -= 1
    if sequence.readers[slot] == 0:
        sequence.unused[sequence.size[1]] = slot
        sequence.size[1] += 1


@inlined_kernel
def write_slot(sequence: Sequence, read: int, readers: int) -> int:
    """A slot for the end of an event that read another; `readers` events read it. Mostly it is the one that was read."""
    if read > UNREAD and readers > 0 and sequence.readers[read] == 1:
        sequence.readers[read] = readers
        return read
    read_slot(sequence, read)
    return UNREAD if readers == 0 else _free_slot(sequence, readers)


@inner_kernel
def _free_slot(sequence: Sequence, readers: int) -> int:
    size = sequence.size
    if size[1] > 0:
        size[1] -= 1
        slot = int(sequence.unused[size[1]])
    else:
        slot = int(size[0])
        size[0] += 1
    sequence.readers[slot] = readers
    return slot


@inlined_kernel
def add_turn(sequence: Sequence, turns: int, stage: int, events: int) -> int:
    """Append a turn of a stage; returns the number of turns."""
    sequence.turn[turns, 0], sequence.turn[turns, 1] = stage, events
    return turns + 1
