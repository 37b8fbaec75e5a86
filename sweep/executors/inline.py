"""Runs slices in this process: for debugging, and as the reference that other executors are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sweep.slices import Receipt, SliceQueue, SliceTask, attempt, resolve


class InlineExecutor:
    """One worker, the driver itself: a plan that kills the process or hangs takes the run with it (see the contract)."""

    workers = 1

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`."""
        while (taken := queue.take()) is not None:
            receipt = resolve(attempt(partial(task, taken[0])), taken, task, queue)
            if receipt is not None:
                yield receipt
