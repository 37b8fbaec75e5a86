"""Executors: one protocol, several ways to run a task over slices.

The contract, whichever executor runs: every slice of the queue is run to its end exactly once, in any order; a slice whose
process dies is run again; a plan that kills its process is given up alone (`SliceTask.give_up`); an OSError of the task
(a full disk) ends the run; closing the iterator stops all that was started.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sweep.work import Receipt, SliceQueue, SliceTask


class Executor(Protocol):
    """Runs a task over a queue of slices."""

    workers: int

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """Yield a receipt for each finished slice, as they finish."""
        ...
