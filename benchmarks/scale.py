"""What a sweep of 10^9 plans on 1,000 workers costs its driver: `python -m benchmarks.scale [--plans N] [--workers N]`.

No plan is simulated: a fleet that exists on paper takes slices from the queue, and returns a receipt when its clock says so.
The run itself (`sweep.execution`), its queue and its store are the real ones; each slice leaves an empty file of its name.
"""

import argparse
import heapq
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.measuring import EXAMPLE
from sweep.evaluation.preparation import prepare
from sweep.evaluation.slices import Receipt, SliceQueue, SliceTask
from sweep.execution import run_sweep
from sweep.results.sealing import sealed_text
from sweep.results.store import Store
from sweep.spec.spec import load_spec

RATES: Final = (150_000, 20_000, 4_000, 300)
"""Plans a second of a worker: mostly illegal or small plans, 175B, steps of 10^5 events, steps of 10^6."""
STORED_S: Final = 0.1
"""Seconds to store a slice: one PUT."""
_UNEVEN: Final = 0.2  # standard deviation of ln(seconds) of a slice


@dataclass(kw_only=True)
class Fleet:
    """An executor without processes: workers of one speed, slices whose times differ, a clock of its own."""

    workers: int
    rate: float
    folder: Path
    now_s: float = 0.0

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `sweep.executors.Executor`."""
        del task
        rng = np.random.default_rng(1)
        under_way: list[tuple[float, int, Receipt]] = []
        while True:
            while len(under_way) < self.workers and (taken := queue.take()) is not None:
                part = taken[0]
                seconds = part.rows / self.rate * float(rng.lognormal(0.0, _UNEVEN))
                ends_s = self.now_s + seconds + STORED_S
                heapq.heappush(under_way, (ends_s, part.start, Receipt(part=part, seconds=seconds, stored_s=STORED_S)))
            if not under_way:
                return
            self.now_s, _, receipt = heapq.heappop(under_way)
            (self.folder / receipt.part.file_name).touch()
            queue.finished(receipt)
            yield receipt


def simulated(plans: int, workers: int, rate: float) -> None:
    """Drive one sweep, then list what it left as a resumed run would, and print what that took."""
    sets = ["axes.tp=[4]", "axes.vpp=[1]", "axes.micro_batch={range: [1, 1000]}", "axes.ga={range: [1, 1000]}"]
    sets += ["axes.all_gpus={range: [128, 128000, 128]}", "where=[]", f"sample.n={plans}"]
    sweep = prepare(load_spec(EXAMPLE, sets), EXAMPLE.parent)
    with tempfile.TemporaryDirectory() as place:
        store, folder = Store(directory=place), Path(place)
        fleet = Fleet(workers=workers, rate=rate, folder=folder)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun = time.process_time()
        run_sweep(sweep, store, fleet)
        driver_s = time.process_time() - begun
        files = len(store.slices())
        grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
        begun = time.perf_counter()
        missing = store.missing(plans)
        listed_s = time.perf_counter() - begun
    ideal_s = plans / rate / workers
    provenance = len(sealed_text(sweep.provenance))
    print(
        f"{rate:>9,.0f} plans/s a worker: {fleet.now_s:>8,.0f} s ({fleet.now_s / ideal_s - 1:+.0%} to {ideal_s:,.0f}), "
        f"{files:>9,} files, driver {driver_s:.1f} CPU-s, {grown_mb:+.0f} MB; listing {listed_s:.2f} s, {len(missing)} gaps; "
        f"provenance {files * provenance / 1e6:,.0f} MB ({provenance / 1e3:.0f} kB a file)",
        flush=True,
    )


def main() -> None:
    """Print a line for each speed of the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=10**9)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="plans a second of a worker")
    given = parser.parse_args()
    print(f"{given.plans:,} plans, {given.workers:,} workers")
    for rate in given.rates:
        simulated(given.plans, given.workers, rate)


if __name__ == "__main__":
    main()
