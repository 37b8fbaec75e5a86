"""Several pipelines at once: the numbers of each alone, to the last bit."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import SCHEDULES, Floats, HardwareTable, Workload, simulate, slice_plans
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.kept import PLAIN_PYTHON
from sim_core.compiled.vectors import LANES, larger, load, smaller, store, zeros
from sim_core.engine.codes import PAIRED, PART_MASK, PART_SHIFT, row_of
from sim_core.engine.lanes import ALONE_S, CROWDED_S, END_S, READY_S, SLOWED_S, STAGE, WORKS, Lanes, run_lanes
from sim_core.engine.program import (
    CLEARED,
    CROWDED,
    KINDS,
    LATER,
    LONGER,
    MESSAGES,
    OWN,
    PAIR,
    QUEUES,
    READY,
    SENT,
    STREAMS,
    WEIGHT,
    Program,
    Shape,
    Times,
)
from sim_core.engine.schedules import (
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
)
from sim_core.engine.sequence import EVENTS, KEPT, LEFT, PIECE, SLOTS, fill_next, fill_sequence
from tests.conftest import make_plans
from tests.pipelines import cells_of, events_in, pipeline, put_into, run_one, take_from


def drawn(program: Program, shape: Shape, seed: int) -> None:
    """Durations, costs and gates of a plan; some messages cost nothing. Blocks share NICs with streams, with pipeline messages
    where these are sent in the background, with both, or with neither."""
    rng = np.random.default_rng(seed)
    pp, cells = shape.pp, cells_of(shape)
    program.duration_s[:2, :cells] = rng.uniform(1, 2, (2, cells))
    program.duration_s[WEIGHT, :cells] = rng.uniform(0.3, 0.9, cells)
    program.duration_s[PAIR, :cells] = rng.uniform(2, 3.5, cells)
    program.message_s[:, :pp] = np.maximum(rng.uniform(-0.2, 0.8, (2, pp)), 0.0)
    program.gate_start_s[:cells] = rng.uniform(0, 3, cells)
    program.gate_end_s[:cells] = rng.uniform(0, 4, cells)
    program.gathered_s[:pp], program.beside_s[:] = 0.0, np.nan
    program.shares[:] = rng.integers(0, 2, 3)
    _share(program, shape, rng)


def _share(program: Program, shape: Shape, rng: np.random.Generator) -> None:
    """Fill the rows that `shares` says are read; as for a step, those of backwards only where they are whole."""
    pp, cells, rows = shape.pp, cells_of(shape), program.beside_s
    split = bool(SPLITS[shape.schedule])
    if not (split or (shape.overlapped and shape.schedule != DEEPSPEED)):
        program.shares[MESSAGES] = program.shares[QUEUES] = False
    if not program.shares[STREAMS]:
        rows[:CROWDED], rows[[SENT, KINDS + SENT]] = 0.0, 1.0
    else:
        program.gathered_s[:pp] = rng.choice([0.0, 1.0], pp) * rng.uniform(0, 6 * cells / pp, pp)
        rows[[LONGER, KINDS + LONGER, LATER], :cells] = rng.uniform(0, 1, (3, cells)) * [[1], [not split], [1]]
        rows[[SENT, KINDS + SENT], :cells] = np.maximum(rng.uniform(-0.1, 1, (2, cells)), 1e-300)
        rows[OWN, :cells] = 0.0 if split else rng.choice([0.0, 1.0, 4.0], cells) * rng.uniform(0, 3, cells)
        rows[READY, :cells] = rng.uniform(0, 1, cells) * np.minimum(rows[OWN], rows[KINDS + SENT])[:cells]
    if program.shares[MESSAGES]:
        rows[CROWDED : CROWDED + 2, :cells] = rng.choice([0.0, 1.0], (2, cells)) * rng.uniform(0, 0.5, (2, cells))
        rows[CLEARED : CLEARED + 2, :cells] = rows[CROWDED : CROWDED + 2, :cells] / rng.uniform(0.1, 0.9, (2, cells))
    if program.shares[QUEUES]:
        program.sent_s[:, :cells] = rng.choice([0.0, 1.0, 4.0], (2, cells)) * rng.uniform(0, 1, (2, cells))
        program.busy_s[:, :cells] = rng.uniform(0, 1, (2, cells))
        program.left[:, :pp], program.slower[:, :pp] = rng.uniform(0.5, 1, (2, pp)), rng.uniform(1, 2, (2, pp))


def left(program: Program, times: Times, shape: Shape) -> list[bytes]:
    """The bits that the rest of a step reads."""
    columns = [times.free_s, times.message_s, times.exposed_s, times.idle_s, times.gated_s, times.first_s, times.last_s]
    if program.shares[STREAMS]:
        columns += [times.slowed_s, times.gathers_late_s]
        columns += [] if SPLITS[shape.schedule] else [times.shared, times.later_s]
    if program.shares[MESSAGES]:
        columns.append(times.crowded_s)
    if program.shares[QUEUES]:
        columns.append(times.queued_s)
    return [column.tobytes() for column in columns]


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


def used_before(lanes: Lanes, program: Program, shape: Shape, seed: int) -> None:
    """Leave what plans of another shape have put into the lanes, of which some share and some do not."""
    rng = np.random.default_rng(seed)
    for lane in range(LANES):
        program.shares[:] = rng.integers(0, 2, 3)
        program.beside_s[:] = 0.25
        put_into(program, shape._replace(pp=int(rng.integers(1, shape.pp + 1))), lane, lanes)


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20))
def test_each_lane_has_the_bits_of_its_pipeline_alone(shape: Shape, seed: int) -> None:
    """Alone in the first lane; together in one sequence; together in a sequence of as many pieces as there can be."""
    alone = []
    for lane in range(LANES):
        case = pipeline(shape)
        drawn(case.program, shape, seed + lane)
        assert run_one(case)
        alone.append(left(case.program, case.times, shape))
    for room in (2**20, row_of(*shape[:1], shape.vpp, shape.ga) + shape.pp):
        case = pipeline(shape, room=room)
        used_before(case.lanes, case.program, shape, seed)
        shares = []
        for lane in range(LANES):
            drawn(case.program, shape, seed + lane)
            shares.append(case.program.shares.copy())
            put_into(case.program, shape, lane, case.lanes)
        streams, crowds, queues = (bool(any(column)) for column in zip(*shares, strict=True))
        ran = np.zeros(2, np.int64)
        for anew in (True, False):  # the second time the sequence is at its last piece
            for lane in range(LANES):
                drawn(case.program, shape, seed + lane)
                put_into(case.program, shape, lane, case.lanes)
            run_lanes(shape, 0, case.order, case.sequence, anew, streams, crowds, queues, case.lanes, ran)
            assert ran[1] == 1
            for lane in range(LANES):
                take_from(case.lanes, lane, shape.pp, cells_of(shape), case.times)
                case.program.shares[:] = shares[lane]
                assert left(case.program, case.times, shape) == alone[lane]


@pytest.mark.skipif(PLAIN_PYTHON, reason="so many pipelines take minutes without a compiler")
@pytest.mark.parametrize("room", [2**14, 1000])
def test_sequences_that_are_kept_are_those_of_their_orders(room: int) -> None:
    """More orders than are kept, and than there is room for, some of them again and again; one of several pieces among them."""
    rng = np.random.default_rng(room)
    kinds = (ONE_F_ONE_B, LOOPED_BFS, GPIPE, ZB_H1, DEEPSPEED)
    ones = []
    for kind, pp, vpp, groups, overlapped in rng.integers([0, 1, 1, 1, 0], [len(kinds), 5, 4, 40, 2], (2 * KEPT, 5)).tolist():
        chunks = vpp if kinds[kind] in (ONE_F_ONE_B, LOOPED_BFS) and pp > 1 else 1
        ones.append(Shape(kinds[kind], pp, chunks, pp * groups, overlapped == 1 or chunks > 1))
    held = pipeline(Shape(ONE_F_ONE_B, 4, 3, 160, True), room=room)
    found = 0
    twice = [shape for at in range(0, len(ones), 3) for shape in 2 * ones[at : at + 3]]
    for turn, shape in enumerate(twice):
        case = pipeline(shape)
        drawn(case.program, shape, 1)
        assert run_one(case)
        alone = left(case.program, case.times, shape)
        kept = held.sequence.known[0].tolist()
        assert run_one(case._replace(sequence=held.sequence))
        found += kept == held.sequence.known[0].tolist()
        assert left(case.program, case.times, shape) == alone
        if turn % 100 == 99:  # a record is of no order that is kept
            events_in(case._replace(sequence=held.sequence))
    assert found > 0


@settings(max_examples=40, deadline=None)
@given(shape=shapes(), seed=st.integers(0, 2**20))
def test_the_record_of_a_run_is_what_it_leaves(shape: Shape, seed: int) -> None:
    """The same bits; every block once; no event before that of its stage before has ended."""
    case = pipeline(shape)
    drawn(case.program, shape, seed)
    assert run_one(case)
    before = left(case.program, case.times, shape)
    events = events_in(case)
    take_from(case.lanes, 0, shape.pp, cells_of(shape), case.times)
    assert left(case.program, case.times, shape) == before
    codes = case.order.reshape(shape.pp, -1)
    for stage in range(shape.pp):
        mine = events[events[:, STAGE] == stage]
        pairs = ((codes[stage] >> PART_SHIFT) & PART_MASK == PAIRED) & (codes[stage] >= 0)
        assert mine[:, WORKS].sum() == (codes[stage] >= 0).sum() - pairs.sum()
        assert mine[-1, END_S] == case.times.free_s[stage]
        assert (mine[1:, READY_S] >= mine[:-1, END_S]).all()
        seconds = mine[:, ALONE_S] + mine[:, SLOWED_S] + mine[:, CROWDED_S]
        assert (mine[:, END_S] - mine[:, READY_S] >= seconds - 1e-9).all()


@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
@pytest.mark.parametrize("overlapped", [True, False])
def test_an_order_in_which_blocks_wait_for_each_other_has_no_sequence(schedule: int, overlapped: bool) -> None:
    if schedule == DEEPSPEED:
        return  # its slots give the order
    pp, ga = 2, 6
    shape = Shape(schedule, pp, 2 if PLACEMENT[schedule] == V else 1, ga, overlapped)
    for room in (2**20, row_of(schedule, shape.vpp, ga) + pp):
        case = pipeline(shape, room=room)
        drawn(case.program, shape, 0)
        first = case.order[: row_of(schedule, shape.vpp, ga)]
        first[first >= 0] = first[first >= 0][::-1].copy()  # the first stage begins with its last backward
        assert not run_one(case)


def test_slots_are_used_again() -> None:
    """A step of any length needs as many as ends that messages wait for at once: here two for each pair of neighbours."""
    shape = Shape(ONE_F_ONE_B, 4, 1, 64, True)
    case = pipeline(shape)
    assert fill_sequence(shape, case.order, case.sequence) > 0
    assert case.sequence.state[SLOTS] <= 2 + 2 * (shape.pp - 1)
    assert case.sequence.state[EVENTS] == 2 * shape.pp * shape.ga


def test_a_long_sequence_comes_in_pieces() -> None:
    """Each block once in all of them, no piece larger than its room."""
    shape = Shape(ONE_F_ONE_B, 4, 2, 16, True)
    case = pipeline(shape, room=80)
    assert fill_sequence(shape, case.order, case.sequence) > 0
    events = int(case.sequence.state[EVENTS])
    while case.sequence.state[LEFT] > 0:
        assert fill_next(shape, case.order, case.sequence) > 0
        assert 0 < case.sequence.state[EVENTS] <= 80
        events += int(case.sequence.state[EVENTS])
    assert case.sequence.state[PIECE] > 1
    assert events == 2 * shape.pp * shape.vpp * shape.ga


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


def test_groups_of_micro_batches_of_a_batch_keep_apart(gpt7b: Workload, h100: HardwareTable) -> None:
    """Interleaved plans, alike but for the micro-batches that a chunk takes in turn."""
    sizes = [4, 6, 4, 8, 6, 12]
    grid = make_plans(gpt7b, pp=4, vpp=3, ga=24, all_gpus=128, schedule=ONE_F_ONE_B, microbatch_group_size=sizes)
    found = simulate(gpt7b, h100, grid)
    assert not found.reason.any()
    assert len(set(found.named()["step_time_s"].tolist())) == len(set(sizes))
    for row in range(len(sizes)):
        alone = simulate(gpt7b, h100, slice_plans(grid, slice(row, row + 1)))
        assert alone.metrics[:, 0].tobytes() == np.ascontiguousarray(found.metrics[:, row]).tobytes()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "1f1b-deepspeed", "zb-h1", "dualpipe"])
def test_long_steps_run_in_pieces(gpt7b: Workload, h100: HardwareTable, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More plans than lanes, with the smallest pieces that there can be: the same bits."""
    rows = LANES + 3
    sends = schedule not in ("gpipe", "1f1b-deepspeed")
    speeds = np.linspace(0.5, 1.5, rows).tolist()
    grid = make_plans(
        gpt7b, tp=2, pp=4, ga=24, all_gpus=64, schedule=SCHEDULES.index(schedule), overlap_pp=int(sends), device_speed=speeds
    )
    whole = simulate(gpt7b, h100, grid)
    monkeypatch.setattr("sim_core.batch.PIECE", 1)
    pieces = simulate(gpt7b, h100, grid)
    assert (whole.reason == 0).all()
    assert whole.metrics.tobytes() == pieces.metrics.tobytes()
