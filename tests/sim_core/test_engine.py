"""The event engine against closed forms, an independent simulator, and properties of any schedule."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, MICRO_BATCH_SHIFT
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import DOWN, UP, Shape
from sim_core.engine.schedules import GPIPE, ONE_F_ONE_B
from tests.pipelines import Pipeline, pipeline as empty_pipeline, run_one

F, B = 3.0, 5.0


def pipeline(
    schedule: int,
    pp: int,
    vpp: int,
    ga: int,
    overlapped: bool = True,
    *,
    forward: npt.ArrayLike = F,
    backward: npt.ArrayLike = B,
    send: float = 0.0,
) -> Pipeline:
    """A pipeline with given durations (scalar or [pp * vpp]) and one cost for every message."""
    case = empty_pipeline(Shape(schedule, pp, vpp, ga, overlapped))
    case.program.duration_s[DOWN] = forward
    case.program.duration_s[UP] = backward
    case.program.message_s[:] = send
    return case


def makespan(case: Pipeline) -> float:
    assert run_one(case)
    return float(case.times.free_s.max())


@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
@pytest.mark.parametrize(("pp", "ga"), [(1, 1), (1, 7), (2, 1), (2, 2), (4, 3), (4, 8), (8, 8), (8, 32), (32, 64)])
def test_step_without_messages_is_m_plus_p_minus_1(schedule: int, pp: int, ga: int) -> None:
    """Bubble (p-1)/m of GPipe and 1F1B: Huang et al. 2019; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1."""
    case = pipeline(schedule, pp, 1, ga)
    assert makespan(case) == pytest.approx((ga + pp - 1) * (F + B), rel=1e-12)


@pytest.mark.parametrize(("pp", "vpp", "groups"), [(2, 2, 1), (2, 2, 3), (4, 2, 2), (4, 3, 4), (8, 4, 2), (16, 2, 4)])
def test_interleaving_divides_the_bubble_by_the_chunks(pp: int, vpp: int, groups: int) -> None:
    """Bubble (p-1)/(v m): Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2."""
    ga = pp * groups
    case = pipeline(ONE_F_ONE_B, pp, vpp, ga, forward=F / vpp, backward=B / vpp)
    assert makespan(case) == pytest.approx(ga * (F + B) + (pp - 1) * (F + B) / vpp, rel=1e-12)


@pytest.mark.parametrize("overlapped", [True, False])
@pytest.mark.parametrize("pp", [2, 3, 8])
def test_one_micro_batch_pays_every_message_once(pp: int, overlapped: bool) -> None:
    """With one micro-batch nothing hides: p blocks down, p blocks up, 2(p-1) messages between."""
    case = pipeline(ONE_F_ONE_B, pp, 1, 1, overlapped, send=0.25)
    step = pp * (F + B) + 2 * (pp - 1) * 0.25
    assert makespan(case) == pytest.approx(step, rel=1e-12)


def test_gpipe_with_messages_in_the_background() -> None:
    """The first micro-batch pays p-1 messages on its way down, the last p-1 on its way up; the others hide theirs."""
    pp, ga, send = 4, 6, 0.5
    case = pipeline(GPIPE, pp, 1, ga, send=send)
    assert makespan(case) == pytest.approx((ga + pp - 1) * (F + B) + 2 * (pp - 1) * send)


def test_a_slow_stage_sets_the_pace() -> None:
    """1F1B with one slow stage: its own work, plus the way of the first micro-batch to it and of the last from it.

    The last stage's work hides: the slow one does its one warm-up forward meanwhile.
    """
    pp, ga, slow = 4, 16, 2
    forward, backward = np.full(pp, 1.0), np.full(pp, 2.0)
    forward[slow], backward[slow] = 3.0, 6.0
    case = pipeline(ONE_F_ONE_B, pp, 1, ga, forward=forward, backward=backward)
    way = forward[:slow].sum() + backward[:slow].sum()
    assert makespan(case) == pytest.approx(ga * 9.0 + way, rel=1e-12)


def test_megatron_order_of_interleaved_1f1b() -> None:
    """Two stages, two chunks, four micro-batches: written out by hand from Megatron-Core's rules."""
    order = np.zeros(2 * 2 * 2 * 4, np.int64)
    fill_order(order_writers(np.array([ONE_F_ONE_B])), ONE_F_ONE_B, 2, 2, 4, 0, order, order)
    told = [
        " ".join(f"{'FB'[c & 1]}{(c >> CHUNK_SHIFT) & CHUNK_MASK}{c >> MICRO_BATCH_SHIFT}" for c in row)
        for row in order.reshape(2, -1)
    ]
    assert told == [
        "F00 F01 F10 F11 F02 B10 F03 B11 F12 B00 F13 B01 B12 B13 B02 B03",
        "F00 F01 F10 B10 F11 B11 F02 B00 F03 B01 F12 B12 F13 B13 B02 B03",
    ]


def reference(case: Pipeline) -> list[float]:
    """Ends of the stages by relaxation: start times grow to the least fixed point of all 'not before' rules.

    It shares nothing with the engine but the order: no passes, no state, only the definition of a start.
    """
    (_, pp, vpp, _, overlapped), program = case.shape, case.program
    rows = case.order.reshape(pp, -1)
    blocks = [
        (stage, int(c & 1), int((c >> CHUNK_SHIFT) & CHUNK_MASK), int(c >> MICRO_BATCH_SHIFT))
        for stage in range(pp)
        for c in rows[stage]
    ]
    place = {block: k % rows.shape[1] for k, block in enumerate(blocks)}
    duration = {b: float(program.duration_s[b[1], b[0] * vpp + b[2]]) for b in blocks}

    def neighbour(block: tuple[int, int, int, int], step: int) -> tuple[int, int, int, int] | None:
        stage, way, chunk, micro_batch = block
        virtual = chunk * pp + stage + (step if way == DOWN else -step)
        return (virtual % pp, way, virtual // pp, micro_batch) if 0 <= virtual < pp * vpp else None

    def cost(into: tuple[int, int, int, int]) -> float:
        return float(program.message_s[into[1], into[0]])

    start = dict.fromkeys(blocks, 0.0)
    by_stage = [[b for b in blocks if b[0] == s] for s in range(pp)]
    last_through = [0.0] * pp

    def end(block: tuple[int, int, int, int] | None) -> float:
        return start[block] + duration[block] if block else 0.0

    changed = True
    while changed:
        changed = False
        for stage in range(pp):
            for k in range(len(by_stage[stage]) + 1):
                block = by_stage[stage][k] if k < len(by_stage[stage]) else None
                before = by_stage[stage][k - 1] if k else None
                posted = end(before)
                least = posted
                source = neighbour(block, -1) if block else None
                if block and source:
                    least = max(least, (end(source) if overlapped else max(end(source), posted)) + cost(block))
                target = neighbour(before, 1) if before and not overlapped else None
                if target:
                    at = place[target]
                    other = end(by_stage[target[0]][at - 1]) if at else 0.0
                    least = max(least, max(posted, other) + cost(target))
                if block and least > start[block] + 1e-12:
                    start[block], changed = least, True
                if block is None and least > last_through[stage] + 1e-12:
                    last_through[stage], changed = least, True
    return last_through


@st.composite
def programs(draw: st.DrawFn, vpps: tuple[int, ...] = (1, 2, 3)) -> Pipeline:
    """Random stage times, random message costs, any schedule."""
    pp, vpp = draw(st.integers(1, 5)), draw(st.sampled_from(vpps))
    vpp = 1 if pp == 1 else vpp
    ga = pp * draw(st.integers(1, 3)) if vpp > 1 else draw(st.integers(1, 9))
    schedule = ONE_F_ONE_B if vpp > 1 else draw(st.sampled_from([GPIPE, ONE_F_ONE_B]))
    overlapped = True if vpp > 1 else draw(st.booleans())
    seconds = st.integers(0, 40).map(lambda k: k / 8)
    case = pipeline(schedule, pp, vpp, ga, overlapped)
    case.program.duration_s[:2] = np.array(draw(st.lists(seconds, min_size=2 * pp * vpp, max_size=2 * pp * vpp))).reshape(2, -1)
    case.program.message_s[:] = np.array(draw(st.lists(seconds, min_size=2 * pp, max_size=2 * pp))).reshape(2, -1)
    return case


@given(programs())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_pipeline_agrees_with_the_reference(case: Pipeline) -> None:
    assert run_one(case)
    assert case.times.free_s == pytest.approx(reference(case), abs=1e-9)


@given(programs())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_stage_is_busy_in_messages_or_idle(case: Pipeline) -> None:
    """Every second of a stage is accounted for once; and no stage ends before its own work is done."""
    (_, pp, vpp, ga, _), times = case.shape, case.times
    assert run_one(case)
    work = ga * case.program.duration_s[:2].reshape(2, pp, vpp).sum(axis=(0, 2))
    spent = work + times.exposed_s + times.idle_s + times.gated_s
    assert times.free_s == pytest.approx(spent, abs=1e-9)
    assert (times.exposed_s <= times.message_s + 1e-12).all()
    assert (times.free_s >= work - 1e-9).all()


@given(programs())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_never_faster_than_the_way_of_one_micro_batch(case: Pipeline) -> None:
    (_, pp, vpp, _, _), program = case.shape, case.program
    way = program.duration_s.sum() + vpp * program.message_s.sum()
    way -= program.message_s[DOWN, 0] + program.message_s[UP, pp - 1]  # the ring of chunks is open at both ends
    assert makespan(case) >= way - 1e-9


@given(programs(), st.floats(0, 1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_cheaper_messages_and_blocks_are_never_slower(case: Pipeline, less: float) -> None:
    before = makespan(case)
    case.program.message_s[:] *= less
    cheaper = makespan(case)
    assert cheaper <= before + 1e-9
    case.program.duration_s[:] *= less
    assert makespan(case) <= cheaper + 1e-9


def test_an_order_that_contradicts_itself_is_refused_not_waited_for() -> None:
    """The first stage waits for a backward, the second for a forward: the engine returns False instead of hanging."""
    for overlapped in (True, False):
        case = pipeline(ONE_F_ONE_B, 2, 1, 1, overlapped)
        case.order[:] = case.order[[1, 0, 2, 3]]
        assert not run_one(case)
