"""One run of a sweep: prepare, resume, execute, report. What the command line and a job on a cluster both call."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sim_core import SpecError
from sweep.evaluate import PROBE_PLANS, evaluate, spread, warm_up
from sweep.executors import Executor
from sweep.job import Job, Prepared
from sweep.store import Store
from sweep.work import SliceQueue, SliceTask


@dataclass(kw_only=True)
class Progress:
    """Where a run stands."""

    total: int
    resumed: int
    done: int = 0
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
            tell(f"{store.place / name}: damaged, is computed again")
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
            watch(progress)
        store.drop_doubles()  # of workers that a killed driver left behind
        lost = sum(part.rows for part in store.missing(count))
        if lost:
            raise SpecError(
                f"{store.place}: {lost:,} plans were done but do not lie here: is this folder the same on every node? "
                "With --set store.writer=driver it need not be"
            )
    return progress


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a sweep would do, from plans spread over the space: rows by reason, and seconds a plan on one worker."""

    probed: int
    reasons: dict[str, int]
    seconds_per_plan: float


def dry_run(job: Job) -> DryRun:
    """Simulate some plans in this process and store nothing."""
    warm_up(job)
    positions = spread(job, PROBE_PLANS)
    begun = time.perf_counter()
    batch = evaluate(job, positions)
    seconds = time.perf_counter() - begun
    reasons = Counter(batch.column("reason").to_pylist())
    return DryRun(probed=len(positions), reasons=dict(reasons), seconds_per_plan=seconds / len(positions))
