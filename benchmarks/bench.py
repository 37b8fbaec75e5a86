"""The measured claims (`make bench`): medians of several rounds, beside what they are held against and what was recorded.

    python benchmarks/bench.py [GROUP ...] [--record]

Every figure is taken on this machine, in this state of the code. Nothing here is asserted: speed is a measurement.
`--record` keeps the figures in benchmarks/recorded.json, with the machine; docs/performance.md says what they mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core.engine.events import Program, Times, allocate, run
from sim_core.engine.lanes import Lanes, allocate_lanes, put, run_lanes
from sim_core.engine.schedule import fill_order
from sim_core.engine.sequence import DURATION, RECEIVED, WRITTEN, Sequence, allocate_sequence, fill_sequence
from sim_core.jit import outer_kernel
from sim_core.vectors import LANES
from sim_core.workloads.readers.trace_text import read_trace_text
from sweep.columns import describe_rows
from sweep.evaluation import evaluate
from sweep.executors.choice import Kind, opened
from sweep.folder import folder_at
from sweep.preparation import Sweep, prepare
from sweep.slice_file import Slice, encoded
from sweep.slices import MAX_ROWS, SliceQueue, SliceTask
from sweep.spec import load_spec

Floats = npt.NDArray[np.float64]
Rows32 = npt.NDArray[np.int32]
ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "gpt7b.yaml"
TRACE = ROOT / "examples" / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SPACES = ROOT / "benchmarks" / "spaces"
SPACE_ROWS = 65_536
BARS = {"gpt175b": ">= 40,000", "gpt7b": ">= 60,000", "llama405b": ">= 25,000", "deep": ">= 850"}
ROUNDS = 5
RECORDED = ROOT / "benchmarks" / "recorded.json"


@dataclass(frozen=True)
class Figure:
    """One measurement: what, the median, its unit, the bar that it is held against."""

    what: str
    value: float
    unit: str
    bar: str = ""


Rows = Iterator[Figure]


def median_s(action: Callable[[], object]) -> float:
    """Median seconds of an action over ROUNDS rounds, after one that is not counted."""
    action()
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def engine_rates(schedule: int, pp: int, vpp: int, ga: int, overlapped: bool) -> tuple[float, float, float]:
    """Block events per second of the engine alone: one plan at a time; LANES at once; the bare recurrence of one plan.

    The order of blocks, or their sequence, is given; Python calls the engine once for all repetitions.
    """
    blocks, cells = 2 * pp * vpp * ga, pp * vpp
    program, times = allocate(blocks, pp, cells)
    program.duration_s[:] = np.random.default_rng(0).uniform(1, 2, program.duration_s.shape)
    program.message_s[:] = 0.1
    sequence, lanes = allocate_sequence(blocks, pp), allocate_lanes(blocks, pp, cells)
    repeat = max(1, 2_000_000 // blocks)

    fill_order(schedule, pp, vpp, ga, 0, program.order, program.order)
    turns = fill_sequence(program.order, pp, vpp, ga, overlapped, sequence)
    for lane in range(LANES):
        put(program, pp, cells, lane, lanes)
    rounds = repeat // LANES + 1
    alone_s = median_s(lambda: alone(repeat, program, pp, vpp, ga, overlapped, times))
    together_s = median_s(lambda: together(rounds, sequence, turns, pp, cells, overlapped, lanes))

    def bare() -> None:
        for _ in range(repeat):
            recurrence(sequence.event, blocks, program.duration_s[:2].reshape(-1), 0.1, lanes.slot_s[:, 0].copy())

    return blocks * repeat / alone_s, blocks * LANES * rounds / together_s, blocks * repeat / median_s(bare)


@outer_kernel
def alone(repeat: int, program: Program, pp: int, vpp: int, ga: int, overlapped: bool, times: Times) -> None:
    """Run one plan many times."""
    for _ in range(repeat):
        run(program, pp, vpp, ga, overlapped, times)


@outer_kernel
def together(repeat: int, sequence: Sequence, turns: int, pp: int, cells: int, overlapped: bool, lanes: Lanes) -> None:
    """Run LANES plans many times."""
    for _ in range(repeat):
        run_lanes(sequence, turns, pp, cells, overlapped, lanes)


@numba.njit(error_model="numpy")
def recurrence(event: Rows32, blocks: int, duration_s: Floats, cost_s: float, slot_s: Floats) -> float:
    """What no engine for one plan can leave out: read an end, take the larger, add a duration, write. It sums no waiting."""
    free_s = 0.0
    for at in range(blocks):
        start_s = max(free_s, slot_s[event[at, RECEIVED]] + cost_s)
        free_s = start_s + duration_s[event[at, DURATION]]
        slot_s[event[at, WRITTEN]] = free_s
    return free_s


def engine_rows() -> Rows:
    """The engine on each schedule."""
    cases: tuple[tuple[str, int, int, int, int, bool], ...] = (
        ("1F1B, pp 8, 64 micro-batches", 1, 8, 1, 64, True),
        ("1F1B, pp 8, 64 micro-batches, blocking sends", 1, 8, 1, 64, False),
        ("interleaved, pp 8 x vpp 3, 64 micro-batches", 1, 8, 3, 64, True),
        ("GPipe, pp 8, 64 micro-batches", 0, 8, 1, 64, True),
        ("1F1B, pp 32, 256 micro-batches", 1, 32, 1, 256, True),
        ("interleaved, pp 64 x vpp 4, 512 micro-batches", 1, 64, 4, 512, True),
    )
    for name, schedule, pp, vpp, ga, overlapped in cases:
        by_one, by_lanes, bare = engine_rates(schedule, pp, vpp, ga, overlapped)
        yield Figure(f"engine: {name}", by_one / 1e6, "M block events/s", ">= 30 M")
        yield Figure(f"  {LANES} plans of one order at once", by_lanes / 1e6, "M block events/s", ">= 270 M")
        yield Figure("  the bare recurrence of one plan", bare / 1e6, "M block events/s")


def worker_rows() -> Rows:
    """Plans per second of one worker, from plan numbers to the Parquet file."""
    for fidelity, bar in (("event", ">= 20,000"), ("simai", ">= 50,000")):
        sweep = prepare(load_spec(EXAMPLE, [f"fidelity={fidelity}"]), EXAMPLE.parent).sweep
        yield from worker_rate(sweep, fidelity, bar)


def worker_rate(sweep: Sweep, fidelity: str, bar: str) -> Rows:
    """The same of one fidelity, all plans of a slice and the legal ones."""
    part = Slice(60_000, 100_000)
    legal = sum(reason == "" for reason in evaluate(sweep, np.arange(part.start, part.stop)).column("reason").to_pylist())
    with tempfile.TemporaryDirectory() as folder:
        task = SliceTask(sweep=sweep, directory=Path(folder), provenance=b"{}")
        seconds = median_s(lambda: task(part))
    yield Figure(f"one worker, {fidelity}, decode to Parquet: plans of the space", part.rows / seconds, "plans/s", bar)
    yield Figure(f"  of it, plans that are legal and simulated ({legal / part.rows:.0%})", legal / seconds, "plans/s", bar)


def space_rows() -> Rows:
    """Spaces of other shapes: legal plans per second of one worker's CPU, and how much there is to simulate in each."""
    for path in sorted(SPACES.glob("*.yaml")):
        sweep = prepare(load_spec(path), SPACES).sweep
        rows = min(sweep.space.count, SPACE_ROWS)
        positions = np.arange(rows) + (sweep.space.count - rows) // 2  # the smallest plans come first: of 10^8, none is legal
        legal = np.array(evaluate(sweep, positions).column("reason").to_pylist()) == ""
        plans = describe_rows(sweep.space, positions)[1]
        events = 2.0 * (plans.pp * plans.vpp * plans.ga)[legal].mean()
        seconds = []
        for _ in range(ROUNDS):
            begun = time.process_time()
            evaluate(sweep, positions)
            seconds.append(time.process_time() - begun)
        second = statistics.median(seconds)
        kept = f"{legal.sum():,} of {len(positions):,} plans legal, {events:,.0f} block events per legal plan"
        yield Figure(f"space {path.stem}: {kept}", legal.sum() / second, "legal plans/CPU-s", BARS.get(path.stem, ""))
        if path.stem == "mostly_illegal":
            yield Figure("  positions", len(positions) / second, "positions/CPU-s", ">= 250,000")


def reader_rows() -> Rows:
    """The reader of rank traces, on the larger example many times over."""
    data = TRACE.read_bytes() * 200
    rate = len(data) / median_s(lambda: read_trace_text(TRACE.name, data))
    yield Figure("one core, rank trace to columns", rate / 1e6, "MB/s", ">= 20 MB/s")


def sweep_once(*options: str) -> tuple[float, str]:
    """Wall seconds and output of a whole `sweep run` of the example into a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sweep", "run", str(EXAMPLE), "--out", f"{folder}/out", "--top", "3", *options]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return time.perf_counter() - begun, done.stdout


def whole_rows() -> Rows:
    """The example from the command line: wall time as a user sees it."""
    seconds = []
    for _ in range(3):
        wall_s, told = sweep_once("--workers", "2")
        seconds.append(wall_s)
    line = next(line for line in told.splitlines() if "plans in" in line)
    yield Figure(f"examples/gpt7b.yaml, whole command, 2 workers: {line}", statistics.median(seconds), "s", "< 60 s")


DRIVER = """
import tempfile, time
from pathlib import Path
from sweep.warming import warm_up
from sweep.executors.choice import Kind, opened
from sweep.preparation import prepare
from sweep.folder import folder_at
from sweep.execution import run_sweep
from sweep.spec import load_spec
from sweep.store import Store
if __name__ == "__main__":
    spec = Path("{spec}")
    sets = ["axes.tp=[4]", "axes.pp=[1,2]", "axes.vpp=[1]", "axes.ga=[1,2]", "where=[]"]
    sets += ["axes.micro_batch={{range: [1, 100000]}}", "sample.n={plans}"]
    prepared = prepare(load_spec(spec, sets), spec.parent)
    warm_up(prepared.sweep)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, opened(Kind("{kind}"), 2, 120.0, "{writer}", folder_at(out)) as executor:
        start_s = time.perf_counter() - begun
        progress = run_sweep(prepared, Store(directory=out), executor)
        seconds = progress.seconds
        status = Path("/proc/self/status").read_text()
    print(progress.done, next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), start_s, seconds)
"""


@dataclass(frozen=True, kw_only=True)
class Driven:
    """What a run of its own process took: seconds to start the executor and to run, peak memory of the driver alone."""

    start_s: float
    seconds: float
    peak_mb: float


def driven(plans: int, kind: str = "local", writer: str = "auto") -> Driven:
    """A sweep of a sample of `plans` plans with 2 workers."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "driver.py"
        script.write_text(DRIVER.format(spec=EXAMPLE, plans=plans, kind=kind, writer=writer), encoding="utf-8")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=ROOT)
    count, peak_kb, start_s, seconds = done.stdout.split()
    if int(count) != plans:
        raise SystemExit(f"{count} of {plans} plans were simulated")
    return Driven(start_s=float(start_s), seconds=float(seconds), peak_mb=int(peak_kb) / 1024)


def memory_rows() -> Rows:
    """The driver's peak memory at growing numbers of plans."""
    for kind in ("local", "ray"):
        for plans in (1_000_000, 10_000_000):
            peak_mb = driven(plans, kind, "driver").peak_mb
            yield Figure(f"driver's peak memory, --executor {kind}, {plans:,} plans", peak_mb, "MB", "flat")


def ray_rows() -> Rows:
    """Ray beside local processes, turn by turn, start-up apart."""
    plans = 1_000_000
    taken: dict[str, list[Driven]] = {"local": [], "driver": [], "worker": []}
    for _ in range(3):
        for writer, runs in taken.items():
            runs.append(driven(plans, "local" if writer == "local" else "ray", writer if writer != "local" else "auto"))
    median = {writer: statistics.median(run.seconds for run in runs) for writer, runs in taken.items()}
    yield Figure(f"{plans:,} plans, 2 workers, --executor local", median["local"], "s")
    for writer in ("driver", "worker"):
        over = median[writer] / median["local"] - 1
        yield Figure(f"  --executor ray, written by the {writer}: {over:+.1%}", median[writer], "s", "<= +10 %")
    start_s = statistics.median(run.start_s for run in taken["driver"] + taken["worker"])
    yield Figure("  Ray's start-up, not in that", start_s, "s")


class Instant(SliceTask):
    """A task whose slices cost nothing to simulate: what is left is the way to the driver, and the driver's work."""

    def encode(self, part: Slice) -> pa.Buffer:
        """The same encoded slice of 65,536 rows for all."""
        return pa.py_buffer(self.provenance)


def intake_rows() -> Rows:
    """Rows a second that one driver can take in and write, with workers that need no time."""
    rows = 400 * MAX_ROWS
    sweep = prepare(load_spec(EXAMPLE), EXAMPLE.parent).sweep
    data = encoded(evaluate(sweep, np.arange(60_000, 60_000 + MAX_ROWS)), b"{}")
    for writer in ("driver", "worker"):
        with tempfile.TemporaryDirectory() as out, opened(Kind.ray, 2, 120.0, writer, folder_at(out)) as executor:
            task = Instant(sweep=sweep, directory=out, provenance=data.to_pybytes())
            queue = SliceQueue(gaps=deque([Slice(0, rows)]), workers=executor.workers, rows_per_s=1e9)
            begun, begun_cpu = time.perf_counter(), time.process_time()
            slices = sum(1 for _ in executor.run(task, queue))
            seconds, cpu_s = time.perf_counter() - begun, time.process_time() - begun_cpu
        yield Figure(f"driver's intake, rows written by the {writer}, {slices} slices", rows / seconds / 1e6, "M rows/s")
        yield Figure(f"  of it, written by the {writer}", rows / cpu_s / 1e6, "M rows/CPU-s of the driver", "hundreds of cores")


GROUPS = (engine_rows, reader_rows, worker_rows, space_rows, whole_rows, ray_rows, intake_rows, memory_rows)


def machine() -> str:
    """The processor, its cores, and the versions that speed depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, numba {numba.__version__}"


def main() -> None:
    """Print every figure (or those of the groups named) beside its bar, and its ratio to the recorded one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(group.__name__ for group in GROUPS))
    parser.add_argument("--record", action="store_true", help="keep these figures as those to compare with")
    given = parser.parse_args()
    unknown = set(given.groups) - {group.__name__ for group in GROUPS}
    if unknown:
        parser.error(f"unknown group {min(unknown)!r}, expected one of {', '.join(group.__name__ for group in GROUPS)}")
    kept: dict[str, Any] = {"machine": "", "figures": {}}
    if RECORDED.exists():
        kept = json.loads(RECORDED.read_text(encoding="utf-8"))
    print(f"{machine()}; medians of {ROUNDS}\nrecorded on: {kept['machine'] or '(nothing is recorded)'}")
    for group in GROUPS:
        if given.groups and group.__name__ not in given.groups:
            continue
        under = ""
        for figure in group():
            under = under if figure.what.startswith(" ") else figure.what.partition(":")[0] + figure.what.partition(":")[2][:50]
            key = f"{group.__name__}: {under}{figure.what if figure.what.startswith(' ') else ''}"
            before = kept["figures"].get(key)
            ratio = f"x {figure.value / before:.2f}" if before else ""
            told = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.1f}"
            print(f"{figure.what:92} {told:>12} {figure.unit:18} {ratio:>7}  {figure.bar}", flush=True)
            kept["figures"][key] = float(f"{figure.value:.4g}")
    if given.record:
        RECORDED.write_text(json.dumps({**kept, "machine": machine()}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
