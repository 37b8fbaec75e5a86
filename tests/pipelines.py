"""Pipelines for tests of the engine: an order of blocks with durations, run in one lane."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim_core import Floats, Ints
from sim_core.compiled.jit import outer_kernel
from sim_core.engine.codes import chunks_of, events_of, most_scratch, row_of
from sim_core.engine.lanes import RECORDED, Lanes, allocate_lanes, put, record, run_lanes, take
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import Program, Shape, Times, allocate_program, allocate_times
from sim_core.engine.sequence import Sequence, allocate_sequence


class Pipeline(NamedTuple):
    """What the engine needs to run one shape."""

    shape: Shape
    order: Ints
    program: Program
    sequence: Sequence
    lanes: Lanes
    times: Times


def cells_of(shape: Shape) -> int:
    """Virtual stages of a shape."""
    return int(shape.pp * chunks_of(shape.schedule, shape.vpp))


def pipeline(shape: Shape, group: int = 0, room: int = 2**20) -> Pipeline:
    """A pipeline in which nothing takes time yet; `room`: events of a piece of its sequence."""
    schedule, pp, vpp, ga, _ = shape
    order = np.empty(pp * row_of(schedule, vpp, ga), np.int64)
    scratch = np.empty(most_scratch(*(np.array([value]) for value in (schedule, pp, ga))), np.int64)
    fill_order(order_writers(np.array([schedule])), schedule, pp, vpp, ga, group, order, scratch)
    events, cells = events_of(schedule, pp, vpp, ga), cells_of(shape)
    sequence, lanes = allocate_sequence(events, room, pp, cells), allocate_lanes(events, pp, cells + 3)
    return Pipeline(shape, order, allocate_program(pp, cells), sequence, lanes, allocate_times(pp, cells))


@outer_kernel
def put_into(program: Program, shape: Shape, lane: int, lanes: Lanes) -> None:
    """`put` for Python."""
    put(program, shape, lane, lanes)


@outer_kernel
def take_from(lanes: Lanes, lane: int, pp: int, cells: int, times: Times) -> None:
    """`take` for Python."""
    take(lanes, lane, pp, cells, True, times)


def run_one(given: Pipeline, lane: int = 0) -> bool:
    """Run the program in one lane and fill the times; False for a contradictory order."""
    shape, order, program, sequence, lanes, times = given
    put_into(program, shape, lane, lanes)
    ran = np.zeros(2, np.int64)
    streams, crowds, queues = map(bool, program.shares)
    run_lanes(shape, 0, order, sequence, True, streams, crowds, queues, lanes, ran)
    if ran[1]:
        take_from(lanes, lane, shape.pp, cells_of(shape), times)
    return bool(ran[1])


def events_in(given: Pipeline) -> Floats:
    """The record of a run, [events, RECORDED]."""
    events = np.empty((events_of(*given.shape[:4]), RECORDED))
    return events[: record(given.shape, given.order, given.program, given.sequence, given.lanes, events)]
