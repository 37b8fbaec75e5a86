"""Runs slices in worker processes on this machine. Workers or the driver may die; no finished slice is lost.

Not a `ProcessPoolExecutor`: there, one dead worker breaks the whole pool, and the slice that it held is unknown. Here each
worker has one slice and one pipe, so a closed pipe identifies the lost slice. While it computes a slice, threads of it store
the previous ones. Workers end with their driver, even if it is killed (PR_SET_PDEATHSIG).
"""

import math
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import pyarrow as pa

from sim_core import SimError
from sweep.evaluation.slices import LIMIT_S, START_S, Loss, Receipt, SliceQueue, SliceTask, attempt, resolve
from sweep.executors import check_code
from sweep.exits import end_with
from sweep.results.slice_file import Slice
from sweep.sources import loaded
from sweep.without_pandas import without_pandas

_STOP_S = 5.0
_READY = "ready"
_COMPUTED = "computed"
MOST_STORING = 4
"""Slices that a worker stores at once. It gets no further slice while that many wait for the store."""
MAX_FALSE_STARTS = 5


@dataclass(kw_only=True)
class _Worker:
    """One process, its pipe, the slice it computes (None: idle) and those it stores with their losses, and the deadline."""

    process: SpawnProcess
    pipe: Connection
    deadline: float
    computing: tuple[Slice, int] | None = None
    storing: dict[Slice, int] = field(default_factory=dict)
    ready: bool = False
    dead: bool = False


class LocalExecutor:
    """`workers` processes on this machine. A slice may take `limit_s` seconds, the start of a worker `start_s`."""

    def __init__(self, workers: int, limit_s: float = LIMIT_S, start_s: float = START_S) -> None:
        self.workers = workers
        self.limit_s = limit_s
        self.start_s = start_s
        self.false_starts = 0

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`."""
        pool: list[_Worker] = []
        try:
            while True:
                while len(pool) < self.workers and (taken := queue.take()) is not None:
                    pool.append(_start(taken, time.monotonic() + self.start_s))
                if not pool:
                    return
                for worker in _due(pool):
                    receipt = self._answer(worker, task, queue)
                    if receipt is not None:
                        yield receipt
                    if not worker.dead and (worker.computing is not None or len(worker.storing) >= MOST_STORING):
                        continue  # it is working
                    taken = None if worker.dead else queue.take()
                    if taken is not None:
                        self._hand(worker, taken)
                    elif not worker.storing:  # no slice is left, or it died and a new process replaces it
                        _stop(worker)
                        pool.remove(worker)
        finally:
            for worker in pool:
                worker.process.kill()
            for worker in pool:
                _stop(worker)

    def _answer(self, worker: _Worker, task: SliceTask, queue: SliceQueue) -> Receipt | None:
        """Read one message of a due worker: it is ready, has computed or stored a slice, or is `dead`."""
        try:
            if not worker.pipe.poll():  # it is due because its deadline has passed
                worker.process.kill()
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            return self._died(worker, task, queue)
        if isinstance(answer, dict):  # it has started, with this code
            check_code(task.code, answer, f"a worker process of this machine (PID {worker.process.pid})")
            _send(worker, task)
        elif answer == _READY and worker.computing is not None:
            worker.ready = True
            self.false_starts = 0
            self._hand(worker, worker.computing)
        elif answer == _COMPUTED and worker.computing is not None:
            worker.storing[worker.computing[0]] = worker.computing[1]
            worker.computing, worker.deadline = None, math.inf
        else:
            part, outcome = answer
            losses = worker.storing.pop(part, None)
            if losses is None and worker.computing is not None:
                losses, worker.computing, worker.deadline = worker.computing[1], None, math.inf
            return resolve(outcome, (part, losses or 0), task, queue)
        return None

    def _died(self, worker: _Worker, task: SliceTask, queue: SliceQueue) -> Receipt | None:
        """Take back the slices of a dead worker: the one it computed counts as lost, without one those it stored.

        If a worker dies before it is ready, its slice is not the cause: the slice goes back with no loss counted, and too
        many such false starts in a row end the run.
        """
        taken, storing = worker.computing, list(worker.storing.items())
        worker.dead, worker.computing, worker.storing = True, None, {}
        if taken is None:
            queue.returned.extend((part, max(losses, 1)) for part, losses in storing)
            return None
        queue.returned.extend(storing)
        if worker.ready:
            late = worker.deadline <= time.monotonic()
            return resolve(Loss(reason="timed_out" if late else "worker_lost"), taken, task, queue)
        self.false_starts += 1
        if self.false_starts >= MAX_FALSE_STARTS:
            worker.process.join(_STOP_S)
            raise WorkerStartError(f"worker processes exit before they can work (exit code {worker.process.exitcode})")
        queue.returned.append(taken)
        return None

    def _hand(self, worker: _Worker, taken: tuple[Slice, int]) -> None:
        """Give a worker its next slice."""
        worker.computing = taken
        worker.deadline = time.monotonic() + self.limit_s
        _send(worker, taken[0])


class WorkerStartError(SimError):
    """Worker processes cannot be started on this machine."""


def _start(taken: tuple[Slice, int], deadline: float) -> _Worker:
    """Start a process for a slice. It gets the task when it has started: writing to a process that died would block."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
    can_set = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if can_set else None
    try:
        process.start()  # inherits that: the driver handles Ctrl-C, also while a worker imports
    finally:
        if can_set:
            signal.signal(signal.SIGINT, before)
    theirs.close()
    return _Worker(process=process, pipe=ours, computing=taken, deadline=deadline)


def _send(worker: _Worker, what: SliceTask | Slice) -> None:
    with suppress(OSError):  # it is dead; reading its pipe will show that
        worker.pipe.send(what)


def _due(pool: list[_Worker]) -> list[_Worker]:
    """Wait until workers have sent a message or passed their deadline; returns those workers."""
    first = min(worker.deadline for worker in pool)
    limit = None if first == math.inf else max(first - time.monotonic(), 0.0)
    ready = wait([worker.pipe for worker in pool], limit)
    now = time.monotonic()
    return [worker for worker in pool if worker.pipe in ready or worker.deadline <= now]


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(_STOP_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _work(pipe: Connection, driver: int) -> None:
    """The main function of a worker: receive slices, answer each with a receipt or an error, end when the pipe closes."""
    end_with(driver)
    without_pandas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.send(loaded())
        task = pipe.recv()
        attempt(task.warm_up)  # an input error is raised again by the slice that has it
        pipe.send(_READY)
    except (EOFError, OSError):
        return
    writing = threading.Lock()  # of the pipe

    def tell(message: object) -> None:
        with writing:
            pipe.send(message)

    def store(receipt: Receipt, data: pa.Buffer) -> None:
        outcome = attempt(partial(task.kept, receipt, data))
        with suppress(OSError):  # the driver is gone
            tell((receipt.part, outcome))

    with ThreadPoolExecutor(MOST_STORING) as storing, suppress(EOFError, OSError):
        while True:
            part = pipe.recv()
            outcome = attempt(partial(task.computed, part))
            if isinstance(outcome, tuple):
                tell(_COMPUTED)
                storing.submit(store, *outcome)
            else:
                tell((part, outcome))
