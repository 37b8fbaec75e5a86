"""The engine made ready for a sweep: loaded from the cache, or compiled, by two processes if there are two cores."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile

import numpy as np

from sim_core import FIDELITIES, FIRST_FAILURE, REASONS, HardwareTable, Ints, Plans, Workload
from sim_core.compiling import (
    BOUNDS,
    COMPILE_AFTER_S,
    STEP,
    compiling_alone,
    is_compiled,
    use_kernels,
)
from sim_core.warming import compile_orders, compile_steps, compile_tables, plain_python_s
from sweep.columns import describe_rows
from sweep.evaluation.evaluation import PROBE_PLANS, WARM_UP_PLANS, bounded, evaluate, spread
from sweep.evaluation.preparation import Sweep
from sweep.exits import end_with

BLOCKS = 2**16
"""Of the steps that are simulated to load the kernels: less than a tenth of a second of work."""
LOAD_AFTER_S = 0.5
"""Of plain Python, after which compiled kernels that are in the cache are quicker."""


def load_kernels(sweep: Sweep, numbers: Ints, times: int) -> None:
    """Use compiled kernels where some plans are simulated several times, and each time alone would be too little to."""
    seconds = times * plain_python_s(sweep.workload, describe_rows(sweep.space, numbers)[1])
    if seconds > COMPILE_AFTER_S or (is_compiled() and seconds > LOAD_AFTER_S):
        use_kernels()


def warm_up(sweep: Sweep, what: str = STEP) -> float:
    """Compile the engine, or load it from the cache, by simulating a few plans; returns seconds. BOUNDS: also bounds some.

    At least one plan must be legal, or nothing is compiled and every worker compiles for itself; so more are tried if needed.
    """
    begun = time.perf_counter()
    use_kernels()
    with compiling_alone(what):
        if not is_compiled(what) and len(os.sched_getaffinity(0)) > 1:
            given = sweep.workload, sweep.hardware, describe_rows(sweep.space, spread(sweep.space.count, WARM_UP_PLANS))[1]
            with _steps_compiled_meanwhile(given):
                compile_tables(*given)
        compile_orders(sweep.space.codes("schedule"))  # the few plans below may not have all of them
        for plans in (WARM_UP_PLANS, PROBE_PLANS):
            tried = spread(sweep.space.count, plans)
            if what == BOUNDS:
                bounded(sweep, tried)
            short = _shortest(sweep, tried)
            evaluate(sweep, short if len(short) else tried)
            if len(short):
                break
    return time.perf_counter() - begun


def _shortest(sweep: Sweep, positions: Ints) -> Ints:
    """Those of the plans that can run whose steps have the fewest blocks: BLOCKS in all, or one plan; none if none can run.

    Millions of micro-batches would take minutes, and their kernels are the same.
    """
    reasons = np.array(evaluate(sweep, positions, lost=FIRST_FAILURE).column("reason").to_pylist())
    legal = positions[reasons == REASONS[FIRST_FAILURE]]
    plans = describe_rows(sweep.space, legal)[1]
    blocks = np.where(plans.fidelity == FIDELITIES.index("event"), 2 * plans.pp * plans.vpp * plans.ga, 0)
    order = np.argsort(blocks, kind="stable")
    before = np.cumsum(blocks[order]) - blocks[order]
    return np.sort(legal[order[(before == 0) | (before + blocks[order] <= BLOCKS)]])


@contextmanager
def _steps_compiled_meanwhile(given: tuple[Workload, HardwareTable, Plans]) -> Iterator[None]:
    """Another process compiles the kernel of steps during the block. If it fails, this one does when it needs the kernel."""
    with TemporaryFile() as file:
        pickle.dump((os.getpid(), given), file)
        file.seek(0)
        other = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        yield
        other.wait()
    finally:
        other.kill()
        other.wait()


if __name__ == "__main__":  # the other process
    parent, given = pickle.load(sys.stdin.buffer)
    end_with(parent)
    compile_steps(*given)
