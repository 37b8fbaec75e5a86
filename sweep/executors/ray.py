"""Runs slices as Ray tasks: on a cluster, or on a Ray that is started on this machine and stopped with the run.

A task is one slice, about a second of one CPU, so an autoscaler may add and remove nodes. Ray retries slices of lost workers
and nodes; the queue halves a slice that is lost even so, as with every executor. The sweep is in the object store once. A
worker either writes its slice's file itself and returns a receipt, or returns the file as one Arrow buffer for the driver to
write.
"""

import pickle
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from sim_core import plural
from sweep.evaluation.slices import LIMIT_S, START_S, Loss, Receipt, SliceQueue, SliceTask, attempt, resolve
from sweep.executors import OtherCode, check_code
from sweep.executors.ray_head import ClusterError, Head, head_of_cluster
from sweep.log import LOG
from sweep.results.slice_file import Slice
from sweep.sources import Code, loaded

Taken = tuple[Slice, int]
"""A slice, and how often it was tried."""

RETRIES, SUSPECT_RETRIES = 3, 1
"""Ray's retries of a slice whose worker or node dies; fewer for a suspect slice, one that was lost before."""
IN_FLIGHT_PER_CPU = 2
MIN_IN_FLIGHT = 8
"""Enough that an autoscaler sees demand, and adds nodes, while the cluster has no CPU yet."""
CPUS_EVERY_S = 10.0
MAX_QUIET = 2
LOOK_EVERY_S = 1.0
"""How often the driver looks whether the head still answers."""
_GRACE_S = 5.0
_DELIVERY_S = 2.0
_SLICE_THREAD = "sweep-slice"
_BUSY = "busy"
_WRITERS = 8
_SETTLE_S = 1.0
_NODE = re.compile(r"\bip=([^,)\s]+)")
"""In the text of an error of a task; the error itself forgets it."""

Result = TypeVar("Result")


class RayExecutor:
    """The cluster that this process has joined. With `at_driver`, the driver writes the rows, not the workers."""

    def __init__(
        self, *, at_driver: bool, limit_s: float = LIMIT_S, start_s: float = START_S, head: Head | None = None
    ) -> None:
        self.at_driver = at_driver
        self.limit_s = limit_s
        self.start_s = start_s
        self.foreign: set[str] = set()
        self.workers = max(self._cpus(), 1)
        self._counted = time.monotonic()
        self._writers = ThreadPoolExecutor(_WRITERS)
        self.head = head or head_of_cluster()

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`. Raises ClusterLost with the head, ClusterError if no slice comes back for several time limits."""
        submitted: dict[Any, Taken] = {}
        quiet = 0
        try:
            self.head.check()
            submit = partial(self._submit, task.code, ray.put(pickle.dumps(task)))
            while True:
                while len(submitted) < self._in_flight() and (taken := queue.take()) is not None:
                    submitted[submit(taken)] = taken
                if not submitted:
                    return
                done = self._finished(list(submitted))
                quiet = 0 if done else self._quiet(submitted, queue, quiet)
                parts = [submitted.pop(reference) for reference in done]
                answers = self._writers.map(partial(_answer, task), done)  # what the driver writes, it writes at once
                for taken, answer in zip(parts, answers, strict=True):
                    receipt = self._resolved(answer, taken, task, queue)
                    if receipt is not None:
                        yield receipt
        except RayError as error:
            raise self.head.loss(error) from None
        except OSError as error:
            raise self.head.caused(error) from None
        except SystemError as error:  # Ray wraps what a signal handler raises inside its own code
            raise self.head.caused(error.__cause__ or error) from None
        finally:
            if not self.head.lost:
                _cancel(submitted)

    def _in_flight(self) -> int:
        """How many slices to submit at once; follows the size of the cluster."""
        now = time.monotonic()
        if now - self._counted > CPUS_EVERY_S and self.head.silent_since is None:
            self._counted = now
            self.workers = max(self._cpus(), 1)
        return max(IN_FLIGHT_PER_CPU * self.workers, MIN_IN_FLIGHT)

    def _submit(self, code: Code, shared: Any, taken: Taken) -> Any:
        part, losses = taken
        options = {"max_retries": SUSPECT_RETRIES if losses else RETRIES, "name": f"slice {part.start}-{part.stop}"}
        if self.foreign:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.foreign)})"}
        return _slice.options(**options).remote(code, shared, part, self.at_driver, self.limit_s)

    def _finished(self, references: list[Any]) -> list[Any]:
        """Wait for a slice, then return all that are done; none if no slice came back for longer than one may take.

        Raises ClusterLost if the head is lost; Ray itself would wait a minute for it, and then end this process.
        """
        done: list[Any] = []
        end = time.monotonic() + self.start_s + self.limit_s + _GRACE_S
        while not done and (left := end - time.monotonic()) > 0:
            done, _ = ray.wait(references, num_returns=1, timeout=min(left, LOOK_EVERY_S))
            self.head.check()
        return list(ray.wait(references, num_returns=len(references), timeout=0)[0]) if done else []

    def _quiet(self, submitted: dict[Any, Taken], queue: SliceQueue, before: int) -> int:
        """No slice came back for longer than one may take: submit them again, and give up after MAX_QUIET times.

        As long as more slices are submitted than there are CPUs, some may only be waiting for nodes; that is not an error.
        """
        cpus = self._cpus()
        if len(submitted) > cpus:
            LOG.warning("waiting for the cluster: %s submitted, %d CPUs available", plural(len(submitted), "slice"), cpus)
            return before
        if before + 1 >= MAX_QUIET:
            raise ClusterError("the cluster has stopped answering: it has CPUs for the submitted slices, but none comes back")
        _cancel(submitted)
        queue.returned.extend(submitted.values())
        submitted.clear()
        return before + 1

    def _resolved(self, answer: object, taken: Taken, task: SliceTask, queue: SliceQueue) -> Receipt | None:
        """Act on the outcome of a slice."""
        if answer == _BUSY:
            queue.returned.append(taken)
            return None
        if isinstance(answer, dict):
            queue.returned.append(taken)
            self._leave_out(**answer)
            return None
        if isinstance(answer, Loss) and answer.reason == "worker_lost":
            taken = (taken[0], max(taken[1], 1))  # Ray has already retried it
        return resolve(answer, taken, task, queue)  # raises a ClusterError

    def _leave_out(self, nodes: list[str], why: str) -> None:
        """Give nodes no more slices, and say so. Raises OtherCode if no other has a CPU."""
        if self.foreign.issuperset(nodes):
            return
        self.foreign.update(nodes)
        self.workers = self._cpus()
        if not self.workers:
            raise OtherCode(why)
        LOG.warning("note: left out: %s", why)

    def _cpus(self) -> int:
        """CPUs of the nodes that are not left out."""
        nodes = (each for each in ray.nodes() if each["Alive"] and each["NodeID"] not in self.foreign)  # type: ignore[no-untyped-call]
        return int(sum(each["Resources"].get("CPU", 0) for each in nodes))


def on_each_node(action: Callable[..., Result], *given: object) -> Iterator[tuple[str, Result | str]]:
    """What an action returns on each node, by its address, one after the other; a text says why it cannot run there."""
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            task: Any = ray.remote(num_cpus=0, label_selector={"ray.io/node-id": node["NodeID"]})(action)
            try:
                answer = ray.get(task.remote(*given), timeout=START_S)
            except RayError as error:
                answer = str(error).strip().splitlines()[-1]
            yield node["NodeManagerAddress"], answer


def _answer(task: SliceTask, reference: Any) -> object:
    """Fetch the outcome of a slice; rows that the worker has not written are written here."""
    try:
        answer = ray.get(reference)
    except OutOfMemoryError:
        return Loss(reason="out_of_memory")
    except RayTaskError as error:  # our code cannot run there: packages are missing, or differ
        node, why = _NODE.search(str(error)), str(error.cause or error).strip().splitlines()[-1]
        where = f" on node {node[1]}" if node else ""
        why = f"a worker{where} cannot run slices, as with another version of the simulator: {why}"
        there = [each["NodeID"] for each in ray.nodes() if node and each["NodeManagerAddress"] == node[1]]  # type: ignore[no-untyped-call]
        own = ray.get_runtime_context().get_node_id()
        return {"nodes": there, "why": why} if there and own not in there else ClusterError(why)
    except RayError:
        return Loss(reason="worker_lost")
    return attempt(partial(task.kept, *answer)) if isinstance(answer, tuple) else answer


@lru_cache(maxsize=1)
def unpacked(packed: bytes) -> SliceTask:
    """The task of a run, whose engine this process has loaded. Ray hands arrays out read-only, a type of their own for numba:
    all kernels would compile again."""
    task: SliceTask = pickle.loads(packed)
    attempt(task.warm_up)  # an input error is raised again by the slice that has it
    return task


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def _slice(code: Code, packed: bytes, part: Slice, at_driver: bool, limit_s: float) -> object:
    """Run one slice on a worker; every outcome but the worker's death is a value.

    Of a node with other code, which is said before the task is unpacked, whose types may be others here: its id and why.
    """
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    try:
        check_code(code, loaded(), f"a worker on node {address} ({socket.gethostname()})")
    except OtherCode as error:
        return {"nodes": [ray.get_runtime_context().get_node_id()], "why": str(error)}
    if any(thread.name == _SLICE_THREAD for thread in threading.enumerate()):
        return _BUSY  # the previous slice hangs in this process, which is about to end
    task = unpacked(packed)
    outcome = _within(limit_s, partial(attempt, partial(task.computed, part)))
    if at_driver or not isinstance(outcome, tuple):
        return outcome
    return attempt(partial(task.kept, *outcome))  # a slow store has no time limit


def _within(limit_s: float, action: Callable[[], Result]) -> Result | Loss:
    """The action's result, or a loss if it takes too long; then an alarm ends this process a moment later.

    The alarm also ends a process whose action lets no other thread run, so that it cannot report the loss itself.
    """
    results = []
    thread = threading.Thread(target=lambda: results.append(action()), name=_SLICE_THREAD, daemon=True)
    signal.setitimer(signal.ITIMER_REAL, limit_s + _GRACE_S)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        signal.setitimer(signal.ITIMER_REAL, _DELIVERY_S)
        return Loss(reason="timed_out")
    signal.setitimer(signal.ITIMER_REAL, 0)
    return results[0]


def _cancel(references: Any) -> None:
    """Cancel slices, but those that end within a moment: Ray 2.5x aborts the driver if a task ends while it is cancelled
    (task_manager.cc, "Check failed: it != submissible_tasks_.end()"), before it can say why the run ends."""
    submitted = list(references)
    for reference in ray.wait(submitted, num_returns=len(submitted), timeout=_SETTLE_S)[1] if submitted else ():
        ray.cancel(reference, force=True)
