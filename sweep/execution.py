"""One run of a sweep: find what is missing, execute it, report progress; and the dry run."""

import errno
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from sim_core import SpecError, short
from sim_core.compiling import is_compiled
from sweep.columns import result_schema
from sweep.evaluation.evaluation import PROBE_PLANS, evaluate, spread
from sweep.evaluation.preparation import Prepared, Sweep
from sweep.evaluation.slices import FIRST_ROWS, SliceQueue, SliceTask
from sweep.evaluation.warming import warm_up
from sweep.executors import ClusterLost, Executor
from sweep.log import LOG
from sweep.results.sealing import sealed_text
from sweep.results.slice_file import Slice, encoded
from sweep.results.store import MANIFEST, Store

WARM_S = 3.0
TRIED_PLANS = 1024
TRIED_S = 0.5
PROBE_S = 1.0
GROWTH = 16
ROUNDS = 5
"""How often a run computes what is missing at its end where nothing locks the folder: another run may delete at any moment."""


@dataclass(kw_only=True)
class Progress:
    """State of a run; counts are plans."""

    plans: int
    resumed: int
    done: int = 0
    begun: float = field(default_factory=time.monotonic)
    first: tuple[float, int] | None = None  # when the first slice was done, and its plans
    slices_done: int = 0
    retries: int = 0  # of requests to the store
    queue: SliceQueue = field(default_factory=lambda: SliceQueue(gaps=deque(), workers=1))
    ended: bool = False

    @property
    def seconds(self) -> float:
        """Seconds since the executor was started."""
        return time.monotonic() - self.begun

    @property
    def slices_lost(self) -> int:
        """Attempts at a slice."""
        return self.queue.losses

    @property
    def store_errors(self) -> int:
        """Slices that the store refused."""
        return len(self.queue.left)

    @property
    def plans_done(self) -> int:
        """With those of earlier runs."""
        return self.resumed + self.done

    @property
    def plans_per_second(self) -> float:
        """Of this run."""
        return self.done / max(self.seconds, 1e-9)

    @property
    def eta_s(self) -> float | None:
        """Seconds left; None for WARM_S after the first plans, so that the start of workers does not count as slow work."""
        if self.first is None or (passed := time.monotonic() - self.first[0]) < WARM_S or self.done <= self.first[1]:
            return None
        return (self.plans - self.plans_done) * passed / (self.done - self.first[1])

    def add(self, plans: int) -> None:
        """Count the plans of a slice that is done."""
        self.done += plans
        self.slices_done += 1
        self.first = self.first or (time.monotonic(), self.done)


def run_sweep(
    prepared: Prepared,
    store: Store,
    executor: Executor,
    task_of: Callable[[bytes], SliceTask] | None = None,
    *,
    width: int = 1,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    log: Callable[[str], None] = lambda text: None,
) -> Progress:
    """Compute the rows of a sweep that the store lacks. Raises SimError, OSError; after an interrupt a run can be resumed.

    `task_of`: makes the task of a slice from the provenance (default: simulate it); `width`: plans of its slices that take as
    long as one that is simulated.
    """
    count = prepared.sweep.space.count
    if not fresh and (fault := store.told()[1]):
        log(f"{store.folder / MANIFEST}: {fault} and is written anew")
    with store.opened(prepared.provenance, result_schema(prepared.sweep.space), fresh=fresh) as provenance:
        for name in store.drop_damaged(prepared.sweep.identity):
            log(f"{store.folder / name}: is damaged and will be recomputed")
        missing = store.missing(count)
        progress = Progress(plans=count, resumed=count - sum(part.rows for part in missing))
        if not missing:
            return progress
        plain = SliceTask(sweep=prepared.sweep, directory=store.directory, provenance=provenance)
        task = task_of(provenance) if task_of else plain
        watch(progress)
        LOG.info("run begins", {"run": task.run, "folder": str(store.folder), "plans": count, "left": count - progress.resumed})
        for _ in range(ROUNDS if store.folder.local is None else 1):
            progress.queue = queue = SliceQueue(gaps=deque(missing), workers=executor.workers, width=width)
            try:
                for receipt in executor.run(task, queue):
                    told = {"slice": receipt.part, "node": receipt.node, "seconds": receipt.seconds}
                    LOG.info("slice done", {"run": task.run, **told})
                    progress.add(receipt.part.rows)
                    progress.retries += receipt.retries
                    watch(progress)
            except OSError as error:
                raise _with_need(error, prepared.sweep, count - progress.plans_done) from None
            except ClusterLost as error:
                kept = sum(part.rows for part in store.slices())
                what = f"{kept:,} of {count:,} plans are kept in {store.folder}"
                raise ClusterLost(f"{error}; {what}; start Ray again and run the same command to resume") from None
            store.drop_doubles()  # written by workers that outlived a killed driver, or by another run
            missing = store.missing(count)  # what another run took for doubles at the same moment is among them
            lost = sum(part.rows for part in missing)
            if queue.left or not lost:
                break
            progress.done -= lost
        if queue.left:
            left = sum(part.rows for part in queue.left)
            why = str(queue.left_why).rpartition(": ")[2]
            raise OSError(f"{store.folder}: the store did not take {left:,} plans ({why}); run the same command to add them")
        if lost:
            raise SpecError(f"{store.folder}: {lost:,} finished plans {_why_lost(store)}")
    LOG.info("run ends", {"run": task.run, "plans": progress.done, "seconds": progress.seconds})
    return progress


def _why_lost(store: Store) -> str:
    """What may have become of plans that were stored and are not there, and what to do."""
    if store.folder.is_object_store:
        return "are not in the store, which took them without an error; run the same command to add them"
    return "are not in this folder: do all nodes share it? If not, use --set store.writer=driver"


def cpu_seconds(sweep: Sweep, plans: int) -> float:
    """CPU seconds of so many plans of a sweep whose engine is ready, estimated from a few of them."""
    return _probed(sweep, TRIED_PLANS, TRIED_S)[1] * plans


def _probed(sweep: Sweep, most: int, limit_s: float) -> tuple[pa.RecordBatch, float]:
    """Rows of up to `most` plans spread over the space, and the CPU seconds of one; fewer where they take long.

    The first is tried alone, since it may take seconds; each further batch is larger, as far as `limit_s` lets it be.
    """
    batches = []
    seconds = []
    size, done, left_s = 1, 0, limit_s
    while size:
        begun = time.process_time()
        batches.append(evaluate(sweep, spread(sweep.space.count, size, done)))
        plan_s = max(time.process_time() - begun, 1e-6) / size
        seconds.append((size, plan_s))
        done, left_s = done + size, left_s - plan_s * size
        size = min(GROWTH * size, max(int(left_s / plan_s), 0), min(most, sweep.space.count) - done)
    rows = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()[0]
    return rows, max(seconds)[1]  # of the largest batch: small ones take longer by the plan


def _with_need(error: OSError, sweep: Sweep, left: int) -> OSError:
    """The error of a full disk with what the rest of the sweep needs; any other as it is."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    need = left * _bytes_per_plan(_probed(sweep, FIRST_ROWS, PROBE_S)[0])
    text = f"{error.strerror}; {left:,} plans are left, about {short(need, 'B')}; then run the same command to resume"
    return OSError(error.errno, text, error.filename)


def _bytes_per_plan(batch: pa.RecordBatch) -> float:
    return float(encoded(batch, b"{}", Slice(0, batch.num_rows)).size / batch.num_rows)


class DryRun(NamedTuple):
    """Estimate of a sweep from plans spread over its space: rows by reason, CPU seconds and bytes per plan.

    Seconds are those of a CPU, so that other work on this machine does not count; on a busy one a run takes longer.
    """

    probed: int
    reasons: dict[str, int]
    start_s: float  # until a worker simulates: what this process needed
    seconds_per_plan: float
    bytes_per_plan: float
    bytes_per_file: float

    def seconds(self, plans: int, workers: int) -> float:
        """Duration of a run of so many plans: the start of the command and of its workers (0: none), then the plans."""
        return (2 if workers else 1) * self.start_s + plans * self.seconds_per_plan / max(workers, 1)

    def size(self, plans: int, workers: int) -> float:
        """Bytes that a run stores for so many plans: rows, the provenance in each file, and the manifest."""
        queue = SliceQueue(gaps=deque([Slice(0, plans)]), workers=max(workers, 1))
        files = 1 + queue.expected(1 / self.seconds_per_plan)
        return plans * self.bytes_per_plan + files * self.bytes_per_file


def dry_run(prepared: Prepared) -> DryRun:
    """Simulate some plans in this process; store nothing."""
    sweep = prepared.sweep
    known = is_compiled()
    begun = time.process_time()
    warm_up(sweep)
    start_s = time.process_time() if known else begun  # compiling is not part of a start
    batch, seconds = _probed(sweep, PROBE_PLANS, PROBE_S)
    begun = time.process_time()
    stored = _bytes_per_plan(batch)
    return DryRun(
        probed=batch.num_rows,
        reasons=dict(Counter(batch.column("reason").to_pylist())),
        start_s=start_s,
        seconds_per_plan=seconds + (time.process_time() - begun) / batch.num_rows,
        bytes_per_plan=stored,
        bytes_per_file=len(sealed_text(prepared.provenance)),
    )
