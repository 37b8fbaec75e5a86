"""The measured claims (`make bench`): medians of several rounds, printed with what they are held against.

Every figure is taken on this machine, in this state of the code. Nothing here is asserted: speed is a measurement.
"""

from __future__ import annotations

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

import numpy as np
import pyarrow as pa

from sim_core.engine.events import allocate, run
from sim_core.engine.schedule import fill_order
from sim_core.workloads.readers.trace_text import read_trace_text
from sweep.columns import describe_rows
from sweep.evaluation import evaluate
from sweep.executors.choice import Kind, opened
from sweep.folder import folder_at
from sweep.preparation import Sweep, prepare
from sweep.slice_file import Slice, encoded
from sweep.slices import MAX_ROWS, SliceQueue, SliceTask
from sweep.spec import load_spec

Rows = Iterator[tuple[str, str, str]]
ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "gpt7b.yaml"
TRACE = ROOT / "examples" / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SPACES = ROOT / "benchmarks" / "spaces"
SPACE_ROWS = 65_536
ROUNDS = 5


def median_s(action: Callable[[], object]) -> float:
    """Median seconds of an action over ROUNDS rounds, after one that is not counted."""
    action()
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def engine_rate(schedule: int, pp: int, vpp: int, ga: int, overlapped: bool) -> float:
    """Block events per second of the engine alone: the order is filled and run, durations are given."""
    blocks = 2 * pp * vpp * ga
    program, times = allocate(blocks, pp, pp * vpp)
    program.duration_s[:] = np.random.default_rng(0).uniform(1, 2, program.duration_s.shape)
    program.message_s[:] = 0.1
    repeat = max(1, 2_000_000 // blocks)

    def go() -> None:
        for _ in range(repeat):
            fill_order(schedule, pp, vpp, ga, 0, program.order, program.order)
            run(program, pp, vpp, ga, overlapped, times)

    return repeat * blocks / median_s(go)


def engine_rows() -> list[tuple[str, str, str]]:
    """The engine on each schedule."""
    cases = (
        ("1F1B, pp 8, 64 micro-batches", 1, 8, 1, 64, True),
        ("1F1B, pp 8, 64 micro-batches, blocking sends", 1, 8, 1, 64, False),
        ("interleaved, pp 8 x vpp 3, 64 micro-batches", 1, 8, 3, 64, True),
        ("GPipe, pp 8, 64 micro-batches", 0, 8, 1, 64, True),
        ("1F1B, pp 32, 256 micro-batches", 1, 32, 1, 256, True),
    )
    return [
        (f"engine: {name}", f"{engine_rate(schedule, pp, vpp, ga, overlapped) / 1e6:.0f} M block events/s", ">= 30 M")
        for name, schedule, pp, vpp, ga, overlapped in cases
    ]


def worker_rows() -> list[tuple[str, str, str]]:
    """Plans per second of one worker, from plan numbers to the Parquet file."""
    rows = []
    for fidelity, bar in (("event", ">= 20,000"), ("simai", ">= 50,000")):
        sweep = prepare(load_spec(EXAMPLE, [f"fidelity={fidelity}"]), EXAMPLE.parent).sweep
        rows += worker_rate(sweep, fidelity, bar)
    return rows


def worker_rate(sweep: Sweep, fidelity: str, bar: str) -> list[tuple[str, str, str]]:
    """The same of one fidelity, all plans of a slice and the legal ones."""
    part = Slice(60_000, 100_000)
    legal = sum(reason == "" for reason in evaluate(sweep, np.arange(part.start, part.stop)).column("reason").to_pylist())
    with tempfile.TemporaryDirectory() as folder:
        task = SliceTask(sweep=sweep, directory=Path(folder), provenance=b"{}")
        seconds = median_s(lambda: task(part))
    return [
        (f"one worker, {fidelity}, decode to Parquet: plans of the space", f"{part.rows / seconds:,.0f} plans/s", bar),
        (f"  of it, plans that are legal and simulated ({legal / part.rows:.0%})", f"{legal / seconds:,.0f} plans/s", bar),
    ]


def space_rows() -> Rows:
    """Spaces of other shapes: legal plans per second of one worker's CPU, and how much there is to simulate in each."""
    for path in sorted(SPACES.glob("*.yaml")):
        sweep = prepare(load_spec(path), SPACES).sweep
        positions = np.arange(min(sweep.space.count, SPACE_ROWS))
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
        yield f"space {path.stem}: {kept}", f"{legal.sum() / second:,.0f} legal plans/s", ""


def reader_rows() -> list[tuple[str, str, str]]:
    """The reader of rank traces, on the larger example many times over."""
    data = TRACE.read_bytes() * 200
    rate = len(data) / median_s(lambda: read_trace_text(TRACE.name, data))
    return [("one core, rank trace to columns", f"{rate / 1e6:.0f} MB/s", ">= 20 MB/s")]


def sweep_once(*options: str) -> tuple[float, str]:
    """Wall seconds and output of a whole `sweep run` of the example into a fresh folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sweep", "run", str(EXAMPLE), "--out", f"{folder}/out", "--top", "3", *options]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return time.perf_counter() - begun, done.stdout


def whole_rows() -> list[tuple[str, str, str]]:
    """The example from the command line: wall time as a user sees it."""
    seconds = []
    for _ in range(3):
        wall_s, told = sweep_once("--workers", "2")
        seconds.append(wall_s)
    line = next(line for line in told.splitlines() if "plans in" in line)
    return [
        ("examples/gpt7b.yaml, whole command, 2 workers", f"{statistics.median(seconds):.1f} s", "< 60 s"),
        ("  " + line, "", ""),
    ]


DRIVER = """
import tempfile, time
from pathlib import Path
from sweep.evaluation import warm_up
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
            yield f"driver's peak memory, --executor {kind}, {plans:,} plans", f"{peak_mb:.0f} MB", "flat"


def ray_rows() -> Rows:
    """Ray beside local processes, turn by turn, start-up apart."""
    plans = 1_000_000
    taken: dict[str, list[Driven]] = {"local": [], "driver": [], "worker": []}
    for _ in range(3):
        for writer, runs in taken.items():
            runs.append(driven(plans, "local" if writer == "local" else "ray", writer if writer != "local" else "auto"))
    median = {writer: statistics.median(run.seconds for run in runs) for writer, runs in taken.items()}
    yield f"{plans:,} plans, 2 workers, --executor local", f"{median['local']:.1f} s", ""
    for writer in ("driver", "worker"):
        over = median[writer] / median["local"] - 1
        yield f"  --executor ray, written by the {writer}", f"{median[writer]:.1f} s, {over:+.1%}", "<= +10 %"
    start_s = statistics.median(run.start_s for run in taken["driver"] + taken["worker"])
    yield "  Ray's start-up, not in that", f"{start_s:.1f} s", ""


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
        yield f"driver's intake, rows written by the {writer}, {slices} slices", f"{rows / seconds / 1e6:.1f} M rows/s", ""
        yield "  of it, a second of the driver's CPU", f"{rows / cpu_s / 1e6:.1f} M rows", "hundreds of cores"


def main() -> None:
    """Print every figure (or those of the groups named as arguments) beside the bar it is held against."""
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for group in (engine_rows, reader_rows, worker_rows, space_rows, whole_rows, ray_rows, intake_rows, memory_rows):
        if sys.argv[1:] and group.__name__ not in sys.argv[1:]:
            continue
        for what, found, bar in group():
            print(f"{what:88} {found:>24}  {bar}", flush=True)


if __name__ == "__main__":
    main()
