"""One run of a sweep: find what is missing, execute it, report progress; and the dry run."""

from __future__ import annotations

import errno
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from sim_core import SpecError, short
from sweep.evaluation import PROBE_PLANS, evaluate, spread, warm_up
from sweep.executors import ClusterLost, Executor
from sweep.preparation import Prepared, Sweep
from sweep.slice_file import encoded
from sweep.slices import FIRST_ROWS, SliceQueue, SliceTask
from sweep.store import Store


@dataclass(kw_only=True)
class Progress:
    """State of a run; counts are plans."""

    total: int
    resumed: int
    done: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Seconds since the executor was started."""
        return time.monotonic() - self.begun

    @property
    def rate(self) -> float:
        """Plans per second of this run."""
        return self.done / max(self.seconds, 1e-9)

    @property
    def eta_s(self) -> float | None:
        """Seconds left at that rate; None before the first slice is done."""
        return (self.total - self.resumed - self.done) / self.rate if self.done else None


def run_sweep(
    prepared: Prepared,
    store: Store,
    executor: Executor,
    *,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    log: Callable[[str], None] = lambda text: None,
) -> Progress:
    """Compute the missing rows of a sweep. Raises SimError, OSError; after an interrupt the result can be resumed."""
    count = prepared.sweep.space.count
    with store.opened(prepared.provenance, fresh=fresh) as provenance:
        for name in store.drop_damaged(prepared.sweep.identity):
            log(f"{store.folder / name}: is damaged and will be recomputed")
        missing = store.missing(count)
        left = sum(part.rows for part in missing)
        progress = Progress(total=count, resumed=count - left)
        if not missing:
            return progress
        task = SliceTask(sweep=prepared.sweep, directory=store.directory, provenance=provenance)
        queue = SliceQueue(gaps=deque(missing), workers=executor.workers)
        watch(progress)
        try:
            for receipt in executor.run(task, queue):
                progress.done += receipt.part.rows
                watch(progress)
        except OSError as error:
            raise _with_need(error, prepared.sweep, count - progress.resumed - progress.done) from None
        except ClusterLost as error:
            kept = sum(part.rows for part in store.slices())
            what = f"{kept:,} of {count:,} plans are kept in {store.folder}"
            raise ClusterLost(f"{error}; {what}; start Ray again and run the same command to resume") from None
        store.drop_doubles()  # written by workers that outlived a killed driver
        if queue.left:
            left = sum(part.rows for part in queue.left)
            why = str(queue.left_why).rpartition(": ")[2]
            raise OSError(f"{store.folder}: the store did not take {left:,} plans ({why}); run the same command to add them")
        lost = sum(part.rows for part in store.missing(count))
        if lost:
            raise SpecError(
                f"{store.folder}: {lost:,} finished plans are not in this folder: do all nodes share it? "
                "If not, use --set store.writer=driver"
            )
    return progress


def _with_need(error: OSError, sweep: Sweep, left: int) -> OSError:
    """The error of a full disk with what the rest of the sweep needs; any other as it is."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    need = left * _bytes_per_plan(evaluate(sweep, spread(sweep, FIRST_ROWS)))
    text = f"{error.strerror}; {left:,} plans are left, about {short(need, 'B')}; then run the same command to resume"
    return OSError(error.errno, text, error.filename)


def _bytes_per_plan(batch: pa.RecordBatch) -> float:
    return float(encoded(batch, b"{}").size / batch.num_rows)


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Estimate of a sweep from plans spread over its space: rows by reason, seconds and bytes per plan on one worker."""

    probed: int
    reasons: dict[str, int]
    seconds_per_plan: float
    bytes_per_plan: float


def dry_run(sweep: Sweep) -> DryRun:
    """Simulate some plans in this process; store nothing."""
    warm_up(sweep)
    positions = spread(sweep, PROBE_PLANS)
    begun = time.perf_counter()
    batch = evaluate(sweep, positions)
    seconds = time.perf_counter() - begun
    reasons = Counter(batch.column("reason").to_pylist())
    return DryRun(
        probed=len(positions),
        reasons=dict(reasons),
        seconds_per_plan=seconds / len(positions),
        bytes_per_plan=_bytes_per_plan(batch),
    )
