"""Several pipelines at once: the numbers of each alone, to the last bit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_core import HardwareTable, Workload, simulate, slice_plans
from sim_core.engine.codes import DEEPSPEED, GPIPE, LOOPED_BFS, ONE_F_ONE_B
from sim_core.engine.events import Program, Times, allocate, run
from sim_core.engine.lanes import allocate_lanes, put, run_lanes, take
from sim_core.engine.schedule import fill_order
from sim_core.engine.sequence import allocate_sequence, fill_sequence
from sim_core.jit import outer_kernel
from sim_core.vectors import LANES, larger, load, smaller, store, zeros
from tests.conftest import make_plans

Floats = npt.NDArray[np.float64]


def drawn(program: Program, cells: int, pp: int, seed: int) -> None:
    """Durations, costs and gates of a plan; some messages cost nothing."""
    rng = np.random.default_rng(seed)
    program.duration_s[:2, :cells] = rng.uniform(1, 2, (2, cells))
    program.message_s[:, :pp] = np.maximum(rng.uniform(-0.2, 0.8, (2, pp)), 0.0)
    program.gate_start_s[:cells] = rng.uniform(0, 3, cells)
    program.gate_end_s[:cells] = rng.uniform(0, 4, cells)
    program.late_s[:cells] = rng.uniform(0, 0.3, cells)


def left(program: Program, times: Times, cells: int, pp: int, ga: int) -> list[bytes]:
    """The bits that the rest of a step reads."""
    columns = (times.free_s, times.message_s, times.exposed_s, times.idle_s, times.gated_s)
    ends = times.end_s[: 2 * cells * ga].reshape(-1, ga)[:, -1]
    return [column[:pp].tobytes() for column in columns] + [
        ends.tobytes(),
        program.duration_s[1, :cells].tobytes(),
        program.late_s[:cells].tobytes(),
    ]


@settings(max_examples=25, deadline=None)
@given(
    schedule=st.sampled_from([GPIPE, ONE_F_ONE_B, LOOPED_BFS]),
    pp=st.integers(1, 5),
    vpp=st.integers(1, 3),
    groups=st.integers(1, 3),
    overlapped=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_each_lane_has_the_bits_of_its_pipeline_alone(
    schedule: int, pp: int, vpp: int, groups: int, overlapped: bool, seed: int
) -> None:
    vpp = vpp if pp > 1 and overlapped and schedule != GPIPE else 1
    ga = pp * groups if vpp > 1 and schedule == ONE_F_ONE_B else groups + seed % 4
    cells, blocks = pp * vpp, 2 * pp * vpp * ga
    program, times = allocate(blocks, pp, cells)
    fill_order(schedule, pp, vpp, ga, 0, program.order, program.order)
    sequence, lanes = allocate_sequence(blocks, pp), allocate_lanes(blocks, pp, cells)
    turns = fill_sequence(program.order, pp, vpp, ga, overlapped, sequence)
    alone = []
    for lane in range(LANES):
        drawn(program, cells, pp, seed + lane)
        assert run(program, pp, vpp, ga, overlapped, times)
        alone.append(left(program, times, cells, pp, ga))
        put(program, pp, cells, lane, lanes)
    run_lanes(sequence, turns, pp, cells, overlapped, lanes)
    for lane in range(LANES):
        take(lanes, lane, pp, cells, ga, program, times)
        assert left(program, times, cells, pp, ga) == alone[lane]


@pytest.mark.parametrize("overlapped", [True, False])
def test_an_order_in_which_blocks_wait_for_each_other_has_no_sequence(overlapped: bool) -> None:
    pp, ga = 2, 2
    program, times = allocate(2 * pp * ga, pp, pp)
    fill_order(ONE_F_ONE_B, pp, 1, ga, 0, program.order, program.order)
    program.order[:4] = program.order[:4][::-1].copy()  # the first stage begins with its last backward
    assert not run(program, pp, 1, ga, overlapped, times)
    assert fill_sequence(program.order, pp, 1, ga, overlapped, allocate_sequence(2 * pp * ga, pp)) == 0


def test_slots_are_used_again() -> None:
    """A step of any length needs as many as ends that messages wait for at once: here two for each pair of neighbours."""
    pp, ga = 4, 64
    order = np.empty(2 * pp * ga, np.int64)
    fill_order(ONE_F_ONE_B, pp, 1, ga, 0, order, order)
    sequence = allocate_sequence(2 * pp * ga, pp)
    assert fill_sequence(order, pp, 1, ga, True, sequence) > 0
    assert sequence.size[0] <= 2 + 2 * (pp - 1)
    assert sequence.size[2] == 2 * pp * ga


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
    """Shapes of one, a few, and more than LANES plans; both kinds of sends; a schedule that does not run together."""
    rng = np.random.default_rng(0)
    rows = 60
    grid = make_plans(
        gpt7b,
        tp=rng.choice([1, 2, 4], rows).tolist(),
        pp=rng.choice([1, 2, 4], rows, p=[0.1, 0.1, 0.8]).tolist(),
        ga=rng.choice([2, 4, 8], rows, p=[0.1, 0.2, 0.7]).tolist(),
        all_gpus=rng.choice([64, 128], rows).tolist(),
        schedule=rng.choice([GPIPE, ONE_F_ONE_B, DEEPSPEED], rows, p=[0.2, 0.7, 0.1]).tolist(),
        overlap_pp=rng.integers(0, 2, rows).tolist(),
        overlap_grad=rng.integers(0, 2, rows).tolist(),
        overlap_param=rng.integers(0, 2, rows).tolist(),
        straggler_factor=rng.choice([1.0, 1.3], rows).tolist(),
        checkpointing=rng.integers(0, 2, rows).tolist(),
    )
    found = simulate(gpt7b, h100, grid)
    assert (found.reason == 0).sum() > rows // 2
    for row in range(rows):
        alone = simulate(gpt7b, h100, slice_plans(grid, slice(row, row + 1)))
        assert alone.reason[0] == found.reason[row]
        assert alone.metrics[:, 0].tobytes() == np.ascontiguousarray(found.metrics[:, row]).tobytes()
        assert np.array_equal(alone.recomputed_flops, found.recomputed_flops[row : row + 1], equal_nan=True)
