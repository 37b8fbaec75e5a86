"""Runs slices in worker processes of this machine; workers may die, the driver may die, nothing is lost.

Not a `ProcessPoolExecutor`: there, one dead worker breaks the pool for all, and which slice it held is not known. Here each
worker has one slice and one pipe; a closed pipe names the slice that was lost. Workers end with their driver, also when it
is killed (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Final

from sim_core import SimError
from sweep.store import Slice
from sweep.work import LIMIT_S, START_S, Loss, Receipt, SliceQueue, SliceTask, attempt, settle

_PR_SET_PDEATHSIG: Final = 1
_STOP_S: Final = 5.0
_STARTED: Final = "started"
_READY: Final = "ready"
MAX_FALSE_STARTS: Final = 5


@dataclass(kw_only=True)
class _Worker:
    """One process, its pipe and the slice that it holds with the losses of that slice (None: idle), and until when."""

    process: SpawnProcess
    pipe: Connection
    until: float
    held: tuple[Slice, int] | None = None
    ready: bool = False
    dead: bool = False


class LocalExecutor:
    """`workers` processes on this machine; a slice may take `limit_s` seconds."""

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
                for worker in _spoken(pool):
                    receipt = self._answer(worker, task, queue)
                    if receipt is not None:
                        yield receipt
                    if worker.held is not None:
                        continue  # it has said that it is ready, and works
                    taken = None if worker.dead else queue.take()
                    if taken is not None:
                        self._hand(worker, taken)
                    else:  # nothing is left; or it died, and a new process takes its place
                        _stop(worker)
                        pool.remove(worker)
        finally:
            for worker in pool:
                worker.process.kill()
            for worker in pool:
                _stop(worker)

    def _answer(self, worker: _Worker, task: SliceTask, queue: SliceQueue) -> Receipt | None:
        """Take what a ready pipe holds: the worker is ready, done with its slice (`held` is None), or `dead`.

        A worker that dies before it was ready is not its slice's fault: the slice goes back as it was, and too many such
        starts in a row end the run.
        """
        if worker.held is None:  # it was stopped; the pool holds none such
            return None
        taken = worker.held
        try:
            if not worker.pipe.poll():  # it is here because its time is over
                worker.process.kill()
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            worker.dead, worker.held = True, None
            if worker.ready:
                late = worker.until <= time.monotonic()
                return settle(Loss(reason="timed_out" if late else "worker_lost"), taken, task, queue)
            self._false_start(worker)
            queue.returned.append(taken)
            return None
        if answer == _STARTED:
            _send(worker, task)
            return None
        if answer == _READY:
            worker.ready = True
            self.false_starts = 0
            self._hand(worker, taken)
            return None
        worker.held = None
        return settle(answer, taken, task, queue)

    def _false_start(self, worker: _Worker) -> None:
        """A worker ended before it could work; so many in a row that it is no accident end the run."""
        self.false_starts += 1
        if self.false_starts >= MAX_FALSE_STARTS:
            worker.process.join(_STOP_S)
            raise WorkerStartError(f"worker processes end before they can work (exit code {worker.process.exitcode})")

    def _hand(self, worker: _Worker, taken: tuple[Slice, int]) -> None:
        """Give a worker its next slice."""
        worker.held = taken
        worker.until = time.monotonic() + self.limit_s
        _send(worker, taken[0])


class WorkerStartError(SimError):
    """Worker processes cannot be started on this machine."""


def _start(taken: tuple[Slice, int], until: float) -> _Worker:
    """A new process for a slice. It gets the task once it is ready: a process that dies before would leave us writing it."""
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, os.getpid()), daemon=True)
    with _sigint_ignored():  # inherited: a Ctrl-C while the worker still imports is the driver's affair, too
        process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours, held=taken, until=until)


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _send(worker: _Worker, what: SliceTask | Slice) -> None:
    with suppress(OSError):  # it is dead: its pipe will say so
        worker.pipe.send(what)


def _spoken(pool: list[_Worker]) -> list[_Worker]:
    """Wait until workers have something to say, or have held a slice for too long; those."""
    first = min(worker.until for worker in pool)
    ready = wait([worker.pipe for worker in pool], max(first - time.monotonic(), 0.0))
    now = time.monotonic()
    return [worker for worker in pool if worker.pipe in ready or worker.until <= now]


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(_STOP_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _work(pipe: Connection, driver: int) -> None:
    """A worker's life: take a slice, answer with a receipt or an error, end with the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != driver:  # it died before we asked
            return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's affair
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        pipe.send(_STARTED)
        task = pipe.recv()
        attempt(task.warm_up)  # a fault of the input is told by the slice that has it
        pipe.send(_READY)
    except (EOFError, OSError):
        return
    while True:
        try:
            part = pipe.recv()
        except (EOFError, OSError):
            return
        answer = attempt(partial(task, part))
        try:
            pipe.send(answer)
        except OSError:
            return
