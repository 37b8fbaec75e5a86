"""Several pipelines at once: the numbers of each alone, to the last bit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_core.engine.events import MESSAGES, PAIR, STREAMS, WEIGHT, Program, Times, allocate, run
from sim_core.engine.sequencing import fill_sequence, rule_of
from sim_core.engine.slots import run_slots
from sim_core.engine.split_events import run_split, set_links
from sim_core.engine.streams import CLEARED, CROWDED, KINDS, LATER, LONGER, OWN, READY, SENT

from sim_core import SCHEDULES, HardwareTable, Workload, simulate, slice_plans
from sim_core.engine.codes import (
    DEEPSPEED,
    DUALPIPE,
    DUALPIPEV,
    GPIPE,
    INTERLEAVED_ZB,
    LOOPED_BFS,
    ONE_F_ONE_B,
    PLACEMENT,
    SPLITS,
    ZB_H1,
    V,
    chunks_of,
    events_of,
    most_scratch,
    rounds_of,
    row_of,
)
from sim_core.engine.lanes import Lanes, allocate_lanes, put, run_lanes, take, take_beside
from sim_core.engine.schedule import fill_order
from sim_core.engine.sequence import Sequence, allocate_sequence
from sim_core.jit import outer_kernel
from sim_core.vectors import LANES, larger, load, smaller, store, zeros
from tests.conftest import make_plans

Floats = npt.NDArray[np.float64]


class Shape(NamedTuple):
    """A pipeline without its durations."""

    schedule: int
    pp: int
    vpp: int
    ga: int
    overlapped: bool

    @property
    def chunks(self) -> int:
        return chunks_of(self.schedule, self.vpp)

    @property
    def rounds(self) -> int:
        return rounds_of(self.schedule, self.ga)


def drawn(program: Program, shape: Shape, seed: int) -> None:
    """Durations, costs and gates of a plan; some messages cost nothing. Blocks share NICs with streams, with pipeline messages
    where these are sent in the background, with both, or with neither."""
    rng = np.random.default_rng(seed)
    pp, cells = shape.pp, shape.pp * shape.chunks
    program.duration_s[:2, :cells] = rng.uniform(1, 2, (2, cells))
    program.duration_s[WEIGHT, :cells] = rng.uniform(0.3, 0.9, cells)
    program.duration_s[PAIR, :cells] = rng.uniform(2, 3.5, cells)
    program.message_s[:, :pp] = np.maximum(rng.uniform(-0.2, 0.8, (2, pp)), 0.0)
    program.gate_start_s[:cells] = rng.uniform(0, 3, cells)
    program.gate_end_s[:cells] = rng.uniform(0, 4, cells)
    program.gathered_s[:pp], program.beside_s[:] = 0.0, np.nan
    program.shares[:] = rng.integers(0, 2, 2)
    _share(program, shape, rng)
    if SPLITS[shape.schedule]:
        set_links(PLACEMENT[shape.schedule], pp, shape.chunks, program)


def _share(program: Program, shape: Shape, rng: np.random.Generator) -> None:
    """Fill the rows that `shares` says are read; as for a step, those of backwards only where they are whole."""
    pp, cells, rows = shape.pp, shape.pp * shape.chunks, program.beside_s
    split = bool(SPLITS[shape.schedule])
    if not (split or (shape.overlapped and shape.schedule != DEEPSPEED)):
        program.shares[MESSAGES] = 0
    if program.shares[STREAMS] == 0:
        rows[:CROWDED], rows[[SENT, KINDS + SENT]] = 0.0, 1.0
    else:
        program.gathered_s[:pp] = rng.choice([0.0, 1.0], pp) * rng.uniform(0, 6 * shape.chunks, pp)
        rows[[LONGER, KINDS + LONGER, LATER], :cells] = rng.uniform(0, 1, (3, cells)) * [[1], [not split], [1]]
        rows[[SENT, KINDS + SENT], :cells] = np.maximum(rng.uniform(-0.1, 1, (2, cells)), 1e-300)
        rows[OWN, :cells] = 0.0 if split else rng.choice([0.0, 1.0, 4.0], cells) * rng.uniform(0, 3, cells)
        rows[READY, :cells] = rng.uniform(0, 1, cells) * np.minimum(rows[OWN], rows[KINDS + SENT])[:cells]
    if program.shares[MESSAGES] == 1:
        rows[CROWDED : CROWDED + 2, :cells] = rng.choice([0.0, 1.0], (2, cells)) * rng.uniform(0, 0.5, (2, cells))
        rows[CLEARED : CLEARED + 2, :cells] = rows[CROWDED : CROWDED + 2, :cells] / rng.uniform(0.1, 0.9, (2, cells))


def run_alone(program: Program, shape: Shape, times: Times) -> bool:
    if SPLITS[shape.schedule]:
        return run_split(program, shape.pp, shape.chunks, shape.rounds, times)
    if shape.schedule == DEEPSPEED:
        return run_slots(program, shape.pp, shape.ga, times)
    return run(program, shape.pp, shape.vpp, shape.ga, shape.overlapped, times)


def left(program: Program, times: Times, shape: Shape) -> list[bytes]:
    """The bits that the rest of a step reads."""
    columns = [times.free_s, times.message_s, times.exposed_s, times.idle_s, times.gated_s]
    of_cells, streams = [], times.streams
    if program.shares[STREAMS] == 1:
        columns += [streams.slowed_s, streams.gathers_late_s]
        of_cells = [] if SPLITS[shape.schedule] else [streams.shared, streams.later_s]
    if program.shares[MESSAGES] == 1:
        columns.append(streams.crowded_s)
    thirds = 3 if SPLITS[shape.schedule] else 2
    ends = times.end_s[: thirds * shape.pp * shape.chunks * shape.rounds].reshape(thirds, -1, shape.rounds)
    found = [column[: shape.pp].tobytes() for column in columns]
    found += [column[: shape.pp * shape.chunks].tobytes() for column in of_cells]
    return [*found, ends[0, :, 0].tobytes(), ends[1:, :, -1].tobytes()]


def ordered(shape: Shape) -> tuple[Program, Times]:
    """Scratch with the order of blocks."""
    schedule, pp, vpp, ga, _ = shape
    program, times = allocate(pp * row_of(schedule, vpp, ga), pp, pp * shape.chunks)
    scratch = np.empty(most_scratch(*(np.array([value]) for value in (schedule, pp, ga))), np.int64)
    fill_order(schedule, pp, vpp, ga, 0, program.order, scratch)
    return program, times


def sequence_of(shape: Shape) -> Sequence:
    return allocate_sequence(events_of(shape.schedule, shape.pp, shape.vpp, shape.ga), shape.pp, shape.pp * shape.chunks)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Small pipelines that their schedule runs."""
    schedule = draw(st.integers(0, len(SCHEDULES) - 1))
    pp, vpp, groups = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    overlapped = draw(st.booleans()) or SPLITS[schedule]
    if schedule in (DUALPIPE, DUALPIPEV):
        pp = 2 * (pp // 2) + 2 if schedule == DUALPIPE else pp
        return Shape(schedule, pp, 1 if schedule == DUALPIPE else 2, 2 * pp + 2 * groups, True)
    if PLACEMENT[schedule] == V:
        return Shape(schedule, pp + 1, 2, groups, True)
    chunked = pp > 1 and overlapped and schedule in (ONE_F_ONE_B, LOOPED_BFS, INTERLEAVED_ZB)
    vpp = vpp if chunked else 1
    return Shape(schedule, pp, vpp, pp * groups if vpp > 1 and schedule != LOOPED_BFS else groups, bool(overlapped))


@outer_kernel
def put_into(program: Program, split: bool, pp: int, cells: int, lane: int, lanes: Lanes) -> None:
    """`put` for Python."""
    put(program, split, pp, cells, lane, lanes)


@outer_kernel
def take_from(lanes: Lanes, lane: int, pp: int, cells: int, rounds: int, split: bool, times: Times) -> None:
    """`take` and `take_beside` for Python."""
    take(lanes, lane, pp, cells, rounds, split, times)
    take_beside(lanes, lane, pp, cells, times.streams)


def used_before(lanes: Lanes, program: Program, split: bool, seed: int) -> None:
    """Leave what plans with another number of cells have put into the lanes, of which some share and some do not."""
    rng = np.random.default_rng(seed)
    for lane in range(LANES):
        program.shares[:] = rng.integers(0, 2, 2)
        program.beside_s[:] = 0.25
        put_into(program, split, 1, int(rng.integers(1, program.beside_s.shape[1] + 1)), lane, lanes)


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20))
def test_each_lane_has_the_bits_of_its_pipeline_alone(shape: Shape, seed: int) -> None:
    schedule, pp, vpp, ga, overlapped = shape
    split = bool(SPLITS[schedule])
    program, times = ordered(shape)
    sequence = sequence_of(shape)
    cells, lanes = pp * shape.chunks, allocate_lanes(len(sequence.event), pp, pp * shape.chunks + 3)
    turns = fill_sequence(schedule, program.order, pp, vpp, ga, overlapped, sequence)
    used_before(lanes, program, split, seed)
    alone, shares = [], []
    for lane in range(LANES):
        drawn(program, shape, seed + lane)
        assert run_alone(program, shape, times)
        alone.append(left(program, times, shape))
        shares.append(program.shares.copy())
        put_into(program, split, pp, cells, lane, lanes)
    streams, crowds = (bool(any(column)) for column in zip(*shares, strict=True))
    run_lanes(sequence, turns, rule_of(schedule, pp, overlapped), streams, crowds, pp, cells, lanes)
    for lane in range(LANES):
        times.end_s[:] = np.nan
        take_from(lanes, lane, pp, cells, shape.rounds, split, times)
        program.shares[:] = shares[lane]
        assert left(program, times, shape) == alone[lane]


@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
@pytest.mark.parametrize("overlapped", [True, False])
def test_an_order_in_which_blocks_wait_for_each_other_has_no_sequence(schedule: int, overlapped: bool) -> None:
    if schedule == DEEPSPEED:
        return  # its slots give the order
    pp, ga = 2, 6
    shape = Shape(schedule, pp, 2 if PLACEMENT[schedule] == V else 1, ga, overlapped)
    program, times = ordered(shape)
    drawn(program, shape, 0)
    row = row_of(schedule, shape.vpp, ga)
    first = program.order[:row]
    first[first >= 0] = first[first >= 0][::-1].copy()  # the first stage begins with its last backward
    assert not run_alone(program, shape, times)
    assert fill_sequence(schedule, program.order, pp, shape.vpp, ga, overlapped, sequence_of(shape)) == 0


def test_slots_are_used_again() -> None:
    """A step of any length needs as many as ends that messages wait for at once: here two for each pair of neighbours."""
    shape = Shape(ONE_F_ONE_B, 4, 1, 64, True)
    program, _ = ordered(shape)
    sequence = sequence_of(shape)
    assert fill_sequence(ONE_F_ONE_B, program.order, shape.pp, 1, shape.ga, True, sequence) > 0
    assert sequence.size[0] <= 2 + 2 * (shape.pp - 1)
    assert sequence.size[2] == 2 * shape.pp * shape.ga


@outer_kernel
def combined(rows: Floats) -> None:
    """Write of rows 0 and 1 the sum, the difference, the larger and the smaller into the next four, and zeros."""
    a, b = load(rows, 0), load(rows, 1)
    store(rows, 2, a + b)
    store(rows, 3, a - b)
    store(rows, 4, larger(a, b))
    store(rows, 5, smaller(a, b))
    store(rows, 6, zeros())


def test_vectors_round_and_choose_as_floats_do() -> None:
    found = (0.0, -0.0, 0.1, 1e308, 1e-320, math.inf, -math.inf, math.nan)
    pairs = list(itertools.product(found, found))
    for at in range(0, len(pairs), LANES):
        rows = np.zeros((7, LANES))
        rows[:2] = np.array(pairs[at : at + LANES]).T
        combined(rows)
        for lane, (a, b) in enumerate(pairs[at : at + LANES]):
            expected = np.array([a + b, a - b, max(a, b), min(a, b), 0.0])
            assert np.isnan(expected).tolist() == np.isnan(rows[2:, lane]).tolist()
            same = np.isnan(expected) | (expected.view(np.int64) == rows[2:, lane].view(np.int64))
            assert same.all(), (a, b, rows[2:, lane])


def test_a_batch_has_the_bits_of_each_plan_alone(gpt7b: Workload, h100: HardwareTable) -> None:
    """Shapes of one, a few, and more than LANES plans; both kinds of sends; every engine, with and without a barrier."""
    rng = np.random.default_rng(0)
    rows = 90
    schedules = [GPIPE, ONE_F_ONE_B, DEEPSPEED, ZB_H1, DUALPIPE]
    grid = make_plans(
        gpt7b,
        tp=rng.choice([1, 2, 4], rows).tolist(),
        pp=rng.choice([1, 2, 4], rows, p=[0.1, 0.2, 0.7]).tolist(),
        ga=rng.choice([4, 8], rows, p=[0.1, 0.9]).tolist(),
        all_gpus=rng.choice([64, 128], rows).tolist(),
        schedule=rng.choice(schedules, rows, p=[0.1, 0.3, 0.1, 0.25, 0.25]).tolist(),
        overlap_pp=rng.integers(0, 2, rows).tolist(),
        overlap_grad=rng.integers(0, 2, rows).tolist(),
        overlap_param=rng.integers(0, 2, rows).tolist(),
        post_validation=rng.choice([0, 1], rows, p=[0.7, 0.3]).tolist(),
        straggler_factor=rng.choice([1.0, 1.3], rows).tolist(),
        checkpointing=rng.integers(0, 2, rows).tolist(),
    )
    found = simulate(gpt7b, h100, grid)
    ran = found.reason == 0
    assert ran.sum() > rows // 2
    together = Counter(
        zip(grid.schedule[ran], grid.pp[ran], grid.ga[ran], grid.overlap_pp[ran], grid.post_validation[ran], strict=True)
    )
    assert {key[0] for key, plans in together.items() if plans > 1} == set(schedules)
    assert any(key[-1] == 1 and plans > 1 for key, plans in together.items())
    for row in range(rows):
        alone = simulate(gpt7b, h100, slice_plans(grid, slice(row, row + 1)))
        assert alone.reason[0] == found.reason[row]
        assert alone.metrics[:, 0].tobytes() == np.ascontiguousarray(found.metrics[:, row]).tobytes()
        assert np.array_equal(alone.recomputed_flops, found.recomputed_flops[row : row + 1], equal_nan=True)
