"""One run of a sweep: prepare, resume, execute, report. What the command line and a job on a cluster both call."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from sim_core import FIRST_FAILURE, REASONS
from sweep.evaluate import Job, Prepared, evaluate
from sweep.executors import Executor
from sweep.store import Slice, Store
from sweep.work import SliceQueue, SliceTask

PROBE_PLANS: Final = 4000
PROBE_PIECES: Final = 40


@dataclass(kw_only=True)
class Progress:
    """Where a run stands; `reasons` counts the rows of this run ('' = with a result)."""

    total: int
    resumed: int
    done: int = 0
    slices: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the executor was started."""
        return time.monotonic() - self.begun

    @property
    def rate(self) -> float:
        """Plans a second of this run."""
        return self.done / max(self.seconds, 1e-9)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at that rate."""
        return (self.total - self.resumed - self.done) / self.rate if self.done else None


def run_sweep(
    prepared: Prepared,
    store: Store,
    executor: Executor,
    *,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Progress:
    """Compute what is missing of a sweep. Raises SimError, OSError; an interrupt leaves a result that can be resumed."""
    count = prepared.job.space.count
    with store.opened(prepared.provenance, fresh=fresh) as provenance:
        for name in store.drop_damaged(prepared.job.identity):
            tell(f"{store.directory / name}: damaged, is computed again")
        missing = store.missing(count)
        left = sum(part.rows for part in missing)
        progress = Progress(total=count, resumed=count - left)
        if not missing:
            return progress
        task = SliceTask(job=prepared.job, directory=store.directory, provenance=provenance)
        queue = SliceQueue(gaps=deque(missing), workers=executor.workers)
        watch(progress)
        for receipt in executor.run(task, queue):
            progress.done += receipt.part.rows
            progress.slices += 1
            progress.reasons.update(receipt.reasons)
            watch(progress)
    return progress


def warm_up(job: Job) -> float:
    """Compile the engine, or load it from the cache, by simulating the first plan; returns seconds."""
    begun = time.perf_counter()
    _probe(job, 1)
    return time.perf_counter() - begun


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a sweep would do, from plans spread over the space: rows by reason, and seconds a plan on one worker."""

    probed: int
    reasons: dict[str, int]
    seconds_per_plan: float


def dry_run(job: Job) -> DryRun:
    """Simulate a sample of the sweep in this process and store nothing."""
    warm_up(job)
    begun = time.perf_counter()
    reasons, probed = _probe(job, PROBE_PLANS)
    return DryRun(
        probed=probed,
        reasons=dict(reasons),
        seconds_per_plan=(time.perf_counter() - begun) / probed,
    )


def _probe(job: Job, plans: int) -> tuple[Counter[str], int]:
    """Simulate about `plans` plans in pieces spread evenly over the positions."""
    count = job.space.count
    plans = min(plans, count)
    pieces = min(PROBE_PIECES, plans)
    starts = np.linspace(0, count - plans // pieces, pieces).astype(np.int64)
    reasons: Counter[str] = Counter()
    parts = [Slice(int(start), int(start) + plans // pieces) for start in starts]
    for part in parts:
        reasons.update(evaluate(job, part.start, part.stop).column("reason").to_pylist())
    return reasons, sum(part.rows for part in parts)


def failures(reasons: Counter[str]) -> int:
    """Rows of status `failed` among counts by reason."""
    return sum(itertools.starmap(lambda reason, n: n * (REASONS.index(reason) >= FIRST_FAILURE), reasons.items()))
