"""Runs slices as Ray tasks: on a cluster, or on a Ray of this machine that is started and stopped with the run.

A task is a slice, about a second of one CPU, so that an autoscaler may add and remove nodes. Lost workers and nodes are
retried by Ray; a slice that comes to no end all the same is halved by the queue, as with every executor. The job lies once in
the object store. Rows come back as one Arrow buffer, the slice's file as the worker has encoded it: the driver only writes
it. Or the worker writes it itself, and a receipt comes back.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from sim_core import SimError
from sweep.store import Slice
from sweep.work import LIMIT_S, START_S, Loss, Receipt, SliceQueue, SliceTask, attempt, settle

RETRIES, SUSPECT_RETRIES = 3, 1
"""Of a slice by Ray, when its worker or node dies; of one that has been lost before: it is under suspicion."""
IN_FLIGHT_PER_CPU: Final = 2
MIN_IN_FLIGHT: Final = 8
"""So that a cluster that has no CPU yet sees demand, and adds nodes."""
CPUS_EVERY_S: Final = 10.0
MAX_QUIET: Final = 2
_REACH_S: Final = 10.0
_GRACE_S: Final = 5.0
_DELIVERY_S: Final = 2.0
_SLICE_THREAD: Final = "sweep-slice"
_BUSY: Final = "busy"

Result = TypeVar("Result")


class ClusterError(SimError):
    """The cluster cannot be reached, or answers no more."""


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A finished slice that the driver has yet to write."""

    receipt: Receipt
    data: pa.Buffer


class RayExecutor:
    """The cluster that this process has joined. `at_driver`: rows are written by the driver, not by the workers."""

    def __init__(self, *, at_driver: bool, limit_s: float = LIMIT_S, start_s: float = START_S) -> None:
        self.at_driver = at_driver
        self.limit_s = limit_s
        self.start_s = start_s
        self.workers = max(_cpus(), 1)
        self._counted = time.monotonic()

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`. Raises ClusterError where nothing is heard for several time limits."""
        shared = ray.put(task)
        held: dict[Any, tuple[Slice, int]] = {}
        quiet = 0
        try:
            while True:
                while len(held) < self._in_flight() and (taken := queue.take()) is not None:
                    held[self._submitted(shared, taken)] = taken
                if not held:
                    return
                done = self._finished(list(held))
                quiet = 0 if done else self._quiet(held, queue, quiet)
                for reference in done:
                    receipt = self._settled(reference, held.pop(reference), task, queue)
                    if receipt is not None:
                        yield receipt
        except SystemError as error:  # what a signal's handler raises inside Ray's own code comes out of it like this
            raise error.__cause__ or error from None
        finally:
            _cancel(held)

    def _in_flight(self) -> int:
        """How many slices to have out at once; follows a cluster that grows or shrinks."""
        now = time.monotonic()
        if now - self._counted > CPUS_EVERY_S:
            self._counted = now
            self.workers = max(_cpus(), 1)
        return max(IN_FLIGHT_PER_CPU * self.workers, MIN_IN_FLIGHT)

    def _submitted(self, shared: Any, taken: tuple[Slice, int]) -> Any:
        part, losses = taken
        options = {"max_retries": SUSPECT_RETRIES if losses else RETRIES, "name": f"slice {part.start}-{part.stop}"}
        return _slice.options(**options).remote(shared, part, self.at_driver, self.limit_s)

    def _finished(self, references: list[Any]) -> list[Any]:
        """Wait for a slice, and take all that are done then; none where nothing was heard for longer than a slice may take."""
        first, others = ray.wait(references, num_returns=1, timeout=self.start_s + self.limit_s + _GRACE_S)
        if not first or not others:
            return list(first)
        return [*first, *ray.wait(others, num_returns=len(others), timeout=0)[0]]

    def _quiet(self, held: dict[Any, tuple[Slice, int]], queue: SliceQueue, before: int) -> int:
        """Nothing was heard for longer than any slice may take: start those slices again; give up after MAX_QUIET times.

        While there are more slices out than CPUs, some may only wait for nodes: that is no fault.
        """
        cpus = _cpus()
        if len(held) > cpus:
            sys.stderr.write(f"waiting for the cluster: {len(held)} slices are out, {cpus} CPUs are there\n")
            return before
        if before + 1 >= MAX_QUIET:
            raise ClusterError("the cluster answers no more: slices are out on CPUs that are there, but none comes back")
        _cancel(held)
        queue.returned.extend(held.values())
        held.clear()
        return before + 1

    def _settled(self, reference: Any, taken: tuple[Slice, int], task: SliceTask, queue: SliceQueue) -> Receipt | None:
        """Take what came of a slice."""
        try:
            answer = ray.get(reference)
        except OutOfMemoryError:
            answer = Loss(reason="out_of_memory")
        except RayTaskError as error:  # our own code cannot run there: packages are missing, or differ
            raise ClusterError(f"a worker cannot run slices: {str(error.cause or error).strip().splitlines()[-1]}") from None
        except RayError:
            answer = Loss(reason="worker_lost")
            taken = (taken[0], max(taken[1], 1))  # Ray has tried it again already
        if answer == _BUSY:
            queue.returned.append(taken)
            return None
        if isinstance(answer, _Rows):
            task.store(taken[0], answer.data)
            answer = answer.receipt
        return settle(answer, taken, task, queue)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def _slice(task: SliceTask, part: Slice, at_driver: bool, limit_s: float) -> object:
    """What a worker does with a slice; every outcome but the worker's death is a value."""
    if any(thread.name == _SLICE_THREAD for thread in threading.enumerate()):
        return _BUSY  # the slice before hangs in this process, which is about to end
    if task.job.identity not in _warm():
        attempt(task.warm_up)  # a fault of the input is told by the slice that has it
        _warm().add(task.job.identity)
    return _within(limit_s, partial(attempt, partial(_rows, task, part) if at_driver else partial(task, part)))


@cache
def _warm() -> set[str]:
    """Sweeps whose engine this process has loaded."""
    return set()


def _rows(task: SliceTask, part: Slice) -> _Rows:
    begun = time.perf_counter()
    data = task.encode(part)
    return _Rows(receipt=Receipt(part=part, seconds=time.perf_counter() - begun), data=data)


def _within(limit_s: float, action: Callable[[], Result]) -> Result | Loss:
    """The action's result, or a loss when it takes too long: then this process is ended by an alarm a moment later.

    The alarm also ends an action that lets no other thread run, and stands for a process that cannot even say so.
    """
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(action()), name=_SLICE_THREAD, daemon=True)
    signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        signal.setitimer(signal.ITIMER_REAL, _DELIVERY_S)
        return Loss(reason="timed_out")
    signal.setitimer(signal.ITIMER_REAL, 0)
    return results[0]


def _cpus() -> int:
    return int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]


def _cancel(references: Any) -> None:
    for reference in references:
        ray.cancel(reference, force=True)


def _reach(address: str) -> None:
    """Raise ClusterError where nobody listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto` and the like are Ray's to find
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster at RAY_ADDRESS={address}: {error.strerror or error}") from None


@contextmanager
def joined(workers: int | None) -> Iterator[bool]:
    """Join the cluster in RAY_ADDRESS, or start a Ray of this machine with `workers` CPUs; yields whether it is our own.

    Raises ClusterError where there is none at that address.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _reach(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        where = f"no Ray cluster at RAY_ADDRESS={address}" if address else "Ray cannot be started"
        raise ClusterError(f"{where}: {' '.join(str(error).split())}") from None
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray has put in its own, which ends the process without a word
        yield not address
    finally:
        ray.shutdown()
