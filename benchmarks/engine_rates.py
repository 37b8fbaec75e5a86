"""Block events a second of the engine alone, beside the same recurrence in C."""

import ctypes
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import ROOT, Figure, Rows, median_s
from sim_core import Ints
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.vectors import LANES
from sim_core.engine.codes import chunks_of, events_of, most_scratch, row_of
from sim_core.engine.lanes import Lanes, allocate_lanes, put, run_lanes
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import WEIGHT, Program, Shape, allocate_program
from sim_core.engine.schedules import DEEPSPEED, DUALPIPE, GPIPE, ONE_F_ONE_B, ZB_H1
from sim_core.engine.sequence import Sequence, allocate_sequence, fill_sequence, rule_of

COMPILERS: Final = ("cc", "gcc", "clang")
BLOCKS: Final = 2_000_000
"""Blocks of all plans in one round, about."""

CASES: Final = (
    ("1F1B, pp 8, 64 micro-batches", Shape(ONE_F_ONE_B, 8, 1, 64, True)),
    ("1F1B, pp 8, 64 micro-batches, blocking sends", Shape(ONE_F_ONE_B, 8, 1, 64, False)),
    ("1F1B of DeepSpeed, pp 8, 64 micro-batches", Shape(DEEPSPEED, 8, 1, 64, False)),
    ("interleaved, pp 8 x vpp 3, 64 micro-batches", Shape(ONE_F_ONE_B, 8, 3, 64, True)),
    ("GPipe, pp 8, 64 micro-batches", Shape(GPIPE, 8, 1, 64, True)),
    ("ZB-H1, pp 8, 64 micro-batches", Shape(ZB_H1, 8, 1, 64, True)),
    ("DualPipe, pp 8, 64 micro-batches", Shape(DUALPIPE, 8, 1, 64, True)),
    ("1F1B, pp 32, 256 micro-batches", Shape(ONE_F_ONE_B, 32, 1, 256, True)),
    ("interleaved, pp 64 x vpp 4, 512 micro-batches", Shape(ONE_F_ONE_B, 64, 4, 512, True)),
)


@outer_kernel
def fill(program: Program, shape: Shape, lanes: Lanes) -> None:
    """Give every lane the times of one plan."""
    for lane in range(LANES):
        put(program, shape, lane, lanes)


@outer_kernel
def together(repeat: int, shape: Shape, order: Ints, sequence: Sequence, lanes: Lanes, ran: Ints) -> None:
    """Run LANES plans many times."""
    for _ in range(repeat):
        run_lanes(shape, 0, order, sequence, False, False, False, False, lanes, ran)


@outer_kernel
def find(repeat: int, shape: Shape, order: Ints, sequence: Sequence) -> None:
    """Find the sequence many times."""
    for _ in range(repeat):
        fill_sequence(shape, order, sequence)


def compiled_recurrence(folder: Path) -> ctypes.CDLL | None:
    """recurrence.c, compiled for this processor; None without a C compiler."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None
    library = folder / "recurrence.so"
    source = ROOT / "benchmarks" / "recurrence.c"
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def rates_in_c(
    library: ctypes.CDLL, lanes: Lanes, sequence: Sequence, numbers: tuple[int, int, int], blocks: int
) -> tuple[float, float]:
    """Block events a second of the recurrence in C: of one plan, of LANES at once. Its ends are the engine's, or it raises."""
    turns, rule, pp = numbers
    ends_s = lanes.free_s[:pp].copy()
    rates = []
    for function, width in ((library.one, 1), (library.eight, LANES)):
        times: list[npt.NDArray[Any]] = [lanes.duration_s, lanes.cost_s, lanes.slot_s, lanes.free_s]
        if width < LANES:  # copies of all lanes would lie in no cache lines of their own
            times = [np.ascontiguousarray(rows[:, :width]) for rows in times]
        repeat = BLOCKS // (blocks * width) + 1
        event, turn, *of_times = (ctypes.c_void_p(array.ctypes.data) for array in (sequence.event, sequence.turn, *times))
        given: list[Any] = [repeat, pp, event, turn, turns, rule, *of_times]
        call = partial(function, *(each if isinstance(each, ctypes.c_void_p) else ctypes.c_int64(each) for each in given))
        seconds = median_s(call, time.process_time)
        if not np.array_equal(times[-1][:pp], ends_s[:, :width]):
            raise SystemExit("recurrence.c: ends that are not those of the engine")
        rates.append(blocks * width * repeat / seconds)
    return rates[0], rates[1]


def engine_rows() -> Rows:
    """The engine on each schedule: one plan, LANES at once, to find their sequence; the recurrence in C."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled_recurrence(Path(folder))
        if library is None:
            yield f"no C compiler ({', '.join(COMPILERS)}): the recurrence in C is left out"
        for name, shape in CASES:
            yield from case_rows(name, shape, library)


def case_rows(name: str, shape: Shape, library: ctypes.CDLL | None) -> Rows:
    """The figures of one pipeline. Python calls the engine once for all repetitions."""
    schedule, pp, vpp, ga, _ = shape
    cells, events = pp * chunks_of(schedule, vpp), events_of(schedule, pp, vpp, ga)
    program, order = allocate_program(pp, cells), np.empty(pp * row_of(schedule, vpp, ga), np.int64)
    program.duration_s[:] = np.random.default_rng(0).uniform(1, 2, program.duration_s.shape)
    program.message_s[:] = 0.1
    program.duration_s[WEIGHT] /= 2  # weight gradients: of the whole backward, a part
    scratch = np.empty(most_scratch(*map(np.array, (schedule, pp, ga))), np.int64)
    fill_order(order_writers(np.array([schedule])), schedule, pp, vpp, ga, 0, order, scratch)
    blocks = int((order >= 0).sum())
    sequence, lanes = allocate_sequence(events, events, pp, cells), allocate_lanes(events, pp, cells)
    ran = np.array([fill_sequence(shape, order, sequence), 0])
    fill(program, shape, lanes)
    repeat, several = BLOCKS // blocks + 1, BLOCKS // (blocks * LANES) + 1
    clock, unit = time.process_time, "M block events/CPU-s"
    together_s = median_s(lambda: together(several, shape, order, sequence, lanes, ran), clock) / several
    find_s = median_s(lambda: find(repeat, shape, order, sequence), clock) / repeat
    yield Figure(f"engine: {name}", blocks / (find_s + together_s) / 1e6, unit, ">= 30 M", "one plan, its sequence included")
    yield Figure(f"  {LANES} plans of one order at once", blocks * LANES / together_s / 1e6, unit, ">= 270 M")
    yield Figure("  to find their sequence", blocks / find_s / 1e6, unit)
    if library is not None:
        one, eight = rates_in_c(library, lanes, sequence, (int(ran[0]), rule_of(shape), pp), blocks)
        yield Figure("  ends alone in C, one plan", one / 1e6, unit)
        yield Figure(f"  ends alone in C, {LANES} plans at once", eight / 1e6, unit)
