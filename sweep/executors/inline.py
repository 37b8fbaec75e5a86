"""Runs slices in this process: for debugging, and as the reference that other executors are compared with."""

from __future__ import annotations

from collections.abc import Iterator

from sweep.work import Receipt, SliceQueue, SliceTask


class InlineExecutor:
    """One worker, no other process; a plan that crashes takes the run with it."""

    workers = 1

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`."""
        while (taken := queue.take()) is not None:
            receipt = task(taken[0])
            queue.finished(receipt)
            yield receipt
