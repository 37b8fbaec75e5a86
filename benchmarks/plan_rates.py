"""Plans a second: of one worker, of spaces of several shapes, of a whole command; and the reader of traces."""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measuring import EXAMPLE, ROOT, SPACES, Figure, Rows, median_s
from sim_core.workloads.traces.text import read_trace_text
from sweep.columns import describe_rows
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.evaluation.slices import SliceTask
from sweep.results.slice_file import Slice
from sweep.spec.spec import load_spec

TRACE: Final = ROOT / "examples" / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SPACE_ROWS: Final = 65_536
BARS: Final = {"gpt175b": ">= 40,000", "gpt7b": ">= 60,000", "llama405b": ">= 25,000", "deep": ">= 850"}


def worker_rows() -> Rows:
    """Plans per second of one worker, from plan numbers to the Parquet file."""
    for fidelity, bar in (("event", ">= 20,000"), ("simai", ">= 50,000")):
        sweep, part = prepare(load_spec(EXAMPLE, [f"fidelity={fidelity}"]), EXAMPLE.parent).sweep, Slice(60_000, 100_000)
        legal = sum(reason == "" for reason in evaluate(sweep, np.arange(part.start, part.stop)).column("reason").to_pylist())
        with tempfile.TemporaryDirectory() as folder:
            task = SliceTask(sweep=sweep, directory=Path(folder), provenance=b"{}")
            second = median_s(partial(task, part), time.process_time)
        yield Figure(f"one worker, {fidelity}, decode to Parquet: plans of the space", part.rows / second, "plans/CPU-s", bar)
        told = f"{legal / part.rows:.0%} are"
        yield Figure("  of it, plans that are legal and simulated", legal / second, "plans/CPU-s", bar, told)


def space_rows() -> Rows:
    """Spaces of other shapes: legal plans per second of one worker's CPU, and how much there is to simulate in each."""
    for path in sorted(SPACES.glob("*.yaml")):
        sweep = prepare(load_spec(path), SPACES).sweep
        rows = min(sweep.space.count, SPACE_ROWS)
        positions = np.arange(rows) + (sweep.space.count - rows) // 2  # the smallest plans come first: of 10^8, none is legal
        legal = np.array(evaluate(sweep, positions).column("reason").to_pylist()) == ""
        plans = describe_rows(sweep.space, positions)[1]
        events = 2.0 * (plans.pp * plans.vpp * plans.ga)[legal].mean()
        second = median_s(partial(evaluate, sweep, positions), time.process_time)
        kept = f"{legal.sum():,} of {len(positions):,} plans are legal, {events:,.0f} block events each"
        yield Figure(f"space {path.stem}", legal.sum() / second, "legal plans/CPU-s", BARS.get(path.stem, ""), kept)
        if path.stem == "mostly_illegal":
            yield Figure("  positions", len(positions) / second, "positions/CPU-s", ">= 250,000")


def reader_rows() -> Rows:
    """The reader of rank traces, on the larger example many times over."""
    data = TRACE.read_bytes() * 200
    rate = len(data) / median_s(lambda: read_trace_text(TRACE.name, data), time.process_time)
    yield Figure("rank trace to rows", rate / 1e6, "MB/CPU-s", ">= 20 MB/s")
