"""The event engine for LANES pipelines with the same order of blocks at once: the numbers of `events`, to the last bit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.events import DOWN, UP, Program, Times
from sim_core.engine.sequence import (
    DURATION,
    FIRST,
    LAST,
    MARK,
    NOTHING,
    POSTED,
    POSTED_COST,
    RECEIVED,
    RECEIVED_COST,
    WRITTEN,
    Sequence,
)
from sim_core.jit import inner_kernel, outer_kernel
from sim_core.vectors import LANES, larger, load, smaller, store, zeros

Floats = npt.NDArray[np.float64]


class Lanes(NamedTuple):
    """Programs and their times, one in each lane: the columns of `Program` and `Times`, flat, [..., LANES]."""

    duration_s: Floats  # [2 cells + 1] of forwards, then backwards; 0 at the end
    message_s: Floats  # [2 stages + 1] down, then up; 0 at the end
    gate_start_s: Floats  # [cells]
    gate_end_s: Floats  # [cells]
    late_s: Floats  # [cells]
    slot_s: Floats  # [slots] ends that messages wait for
    last_s: Floats  # [2 cells] end of the last forward and of the last backward through a cell
    free_s: Floats  # [stages] and what follows as in Times
    sent_s: Floats  # [stages] `Times.message_s`
    exposed_s: Floats
    idle_s: Floats
    gated_s: Floats


def allocate_lanes(blocks: int, stages: int, cells: int) -> Lanes:
    """Scratch for pipelines of up to `blocks` blocks, `stages` stages and `cells` virtual stages."""
    return Lanes(
        duration_s=np.zeros((2 * cells + 1, LANES)),
        message_s=np.zeros((2 * stages + 1, LANES)),
        gate_start_s=np.zeros((cells, LANES)),
        gate_end_s=np.zeros((cells, LANES)),
        late_s=np.zeros((cells, LANES)),
        slot_s=np.empty((blocks + 2, LANES)),
        last_s=np.zeros((2 * cells, LANES)),
        free_s=np.zeros((stages, LANES)),
        sent_s=np.zeros((stages, LANES)),
        exposed_s=np.zeros((stages, LANES)),
        idle_s=np.zeros((stages, LANES)),
        gated_s=np.zeros((stages, LANES)),
    )


@outer_kernel
def put(program: Program, pp: int, cells: int, lane: int, lanes: Lanes) -> None:
    """Write a program into a lane."""
    duration_s, message_s = program.duration_s, program.message_s
    gate_start_s, gate_end_s, late_s = program.gate_start_s, program.gate_end_s, program.late_s
    for cell in range(cells):
        lanes.duration_s[cell, lane] = duration_s[DOWN, cell]
        lanes.duration_s[cells + cell, lane] = duration_s[UP, cell]
        lanes.gate_start_s[cell, lane] = gate_start_s[cell]
        lanes.gate_end_s[cell, lane] = gate_end_s[cell]
        lanes.late_s[cell, lane] = late_s[cell]
    for stage in range(pp):
        lanes.message_s[stage, lane] = message_s[DOWN, stage]
        lanes.message_s[pp + stage, lane] = message_s[UP, stage]


@outer_kernel
def take(lanes: Lanes, lane: int, pp: int, cells: int, ga: int, program: Program, times: Times) -> None:
    """Read from a lane what follows the pipeline: the backwards of its program; its times, of blocks the last ones' ends."""
    for cell in range(cells):
        program.duration_s[UP, cell] = lanes.duration_s[cells + cell, lane]
        program.late_s[cell] = lanes.late_s[cell, lane]
        for direction in (DOWN, UP):
            times.end_s[(direction * cells + cell) * ga + ga - 1] = lanes.last_s[direction * cells + cell, lane]
    for stage in range(pp):
        times.free_s[stage] = lanes.free_s[stage, lane]
        times.message_s[stage] = lanes.sent_s[stage, lane]
        times.exposed_s[stage] = lanes.exposed_s[stage, lane]
        times.idle_s[stage] = lanes.idle_s[stage, lane]
        times.gated_s[stage] = lanes.gated_s[stage, lane]


@outer_kernel
def run_lanes(sequence: Sequence, turns: int, pp: int, cells: int, overlapped: bool, lanes: Lanes) -> None:
    """Run the pipelines of all lanes."""
    lanes.duration_s[2 * cells] = 0.0
    lanes.message_s[2 * pp] = 0.0
    lanes.slot_s[NOTHING] = 0.0
    lanes.free_s[:pp] = 0.0
    lanes.sent_s[:pp] = 0.0
    lanes.exposed_s[:pp] = 0.0
    lanes.idle_s[:pp] = 0.0
    lanes.gated_s[:pp] = 0.0
    if overlapped or pp == 1:
        _run_overlapped(sequence, turns, cells, lanes)
    else:
        _run_blocking(sequence, turns, cells, lanes)


@inner_kernel
def _run_overlapped(sequence: Sequence, turns: int, cells: int, lanes: Lanes) -> None:
    """As `events` runs sends in the background. A block without a message waits from 0 on for one that costs nothing."""
    event, turn = sequence.event, sequence.turn
    duration_s, cost_s, slot_s, last_s, gated_s = lanes.duration_s, lanes.message_s, lanes.slot_s, lanes.last_s, lanes.gated_s
    at = 0
    for each in range(turns):
        stage = turn[each, 0]
        free = load(lanes.free_s, stage)
        message, exposed, idle = zeros(), zeros(), zeros()
        for _ in range(turn[each, 1]):
            row, mark = event[at, DURATION], event[at, MARK]
            cost = load(cost_s, event[at, RECEIVED_COST])
            start = larger(free, load(slot_s, event[at, RECEIVED]) + cost)
            waited = start - free
            message = message + cost
            exposed = exposed + smaller(waited, cost)
            idle = idle + larger(waited - cost, zeros())
            seconds = load(duration_s, row)
            end = start + seconds
            if mark & FIRST:
                gated = larger(larger(start, load(lanes.gate_start_s, row)) + seconds, load(lanes.gate_end_s, row))
                store(gated_s, stage, load(gated_s, stage) + (gated - end))
                end = gated
            elif mark & LAST and row >= cells:
                late = load(lanes.late_s, row - cells)
                store(gated_s, stage, load(gated_s, stage) + late)
                end = end + late
            if mark & LAST:
                store(last_s, row, end)
            store(slot_s, event[at, WRITTEN], end)
            free = end
            at += 1
        store(lanes.free_s, stage, free)
        store(lanes.sent_s, stage, load(lanes.sent_s, stage) + message)
        store(lanes.exposed_s, stage, load(lanes.exposed_s, stage) + exposed)
        store(lanes.idle_s, stage, load(lanes.idle_s, stage) + idle)


@inner_kernel
def _run_blocking(sequence: Sequence, turns: int, cells: int, lanes: Lanes) -> None:
    """As `events` runs blocking sends."""
    event, turn = sequence.event, sequence.turn
    duration_s, cost_s, slot_s, last_s, gated_s = lanes.duration_s, lanes.message_s, lanes.slot_s, lanes.last_s, lanes.gated_s
    at = 0
    for each in range(turns):
        stage = turn[each, 0]
        free = load(lanes.free_s, stage)
        message, exposed, idle = zeros(), zeros(), zeros()
        for _ in range(turn[each, 1]):
            row, mark = event[at, DURATION], event[at, MARK]
            sent_s = load(cost_s, event[at, POSTED_COST])
            received_s = load(cost_s, event[at, RECEIVED_COST])
            start = larger(free, load(slot_s, event[at, POSTED])) + sent_s
            start = larger(start, larger(free, load(slot_s, event[at, RECEIVED])) + received_s)
            cost = larger(sent_s, received_s)
            waited = start - free
            message = message + cost
            exposed = exposed + smaller(waited, cost)
            idle = idle + larger(waited - cost, zeros())
            seconds = load(duration_s, row)
            end = start + seconds
            if mark & FIRST:
                gated = larger(larger(start, load(lanes.gate_start_s, row)) + seconds, load(lanes.gate_end_s, row))
                store(gated_s, stage, load(gated_s, stage) + (gated - end))
                end = gated
            elif mark & LAST and row >= cells:
                late = load(lanes.late_s, row - cells)
                store(gated_s, stage, load(gated_s, stage) + late)
                end = end + late
            if mark & LAST:
                store(last_s, row, end)
            store(slot_s, event[at, WRITTEN], end)
            free = end
            at += 1
        store(lanes.free_s, stage, free)
        store(lanes.sent_s, stage, load(lanes.sent_s, stage) + message)
        store(lanes.exposed_s, stage, load(lanes.exposed_s, stage) + exposed)
        store(lanes.idle_s, stage, load(lanes.idle_s, stage) + idle)
