"""Executors: one protocol, several ways to run a task over slices.

The contract, which the same tests check on every executor:

- Every slice of the queue is finished exactly once, in any order, with the same rows whoever computes it.
- An OSError of the task (a full disk) or a SimError (a bad input) ends the run with that error.
- Anything else that goes wrong with a slice is a *loss*. The queue retries and halves the slice, and at last gives up the
  plan at fault alone (`SliceTask.give_up`), which becomes `failed` with one of these reasons:

  - `simulation_raised`: the plan raised an exception;
  - `out_of_memory`: the plan raised MemoryError, or a memory monitor ended its process;
  - `timed_out`: the slice took longer than the time limit;
  - `worker_lost`: the process died, twice, so that the cause is the plan and not an outside kill.

- A worker whose code is not the driver's (`SliceTask.code`: sources and packages) computes no row: its node is left out, or
  the run ends if there is no other.
- Closing the iterator stops everything that was started.

The inline executor has no process besides the driver's. Of losses it meets the contract only for exceptions:
`simulation_raised`, and `out_of_memory` if Python raises MemoryError. It has no time limit, and a plan that kills the process
ends the run. The finished slices stay, and the same sweep resumed with worker processes finds the plan.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from sim_core import SimError
from sweep.evaluation.slices import Receipt, SliceQueue, SliceTask, attempt, resolve
from sweep.sources import Code, differences


class ClusterLost(SimError):
    """What the executor ran on is gone, and no further slice can come back. Finished slices are stored."""


class OtherCode(SimError):
    """A worker has other code than the driver: its rows would not be those of the sweep."""


def check_code(expected: Code, found: Code, worker: str) -> None:
    """Raise OtherCode if a worker, which `worker` names, has not the code of the driver."""
    if differing := differences(expected, found):
        advice = "use one version everywhere and run the same command again"
        raise OtherCode(f"{worker} has another version of the simulator than this run ({differing}); {advice}")


class Executor(Protocol):
    """Runs a task over a queue of slices, by the contract above."""

    workers: int

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """Yield a receipt for each finished slice, in the order in which they finish."""
        ...


class InlineExecutor:
    """Runs slices in this process, for debugging and as the reference for other executors.

    A plan that kills the process or hangs takes the run with it.
    """

    workers = 1

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`."""
        while (taken := queue.take()) is not None:
            receipt = resolve(attempt(partial(task, taken[0])), taken, task, queue)
            if receipt is not None:
                yield receipt
