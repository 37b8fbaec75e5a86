"""The unit of work: simulate a slice and store it. And the queue of slices: sized by measured time, cut down on a loss."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sim_core import REASON
from sweep.evaluate import evaluate
from sweep.job import Job
from sweep.place import Location
from sweep.store import Slice, write_slice

FIRST_ROWS: Final = 4096
MIN_ROWS: Final = 1024
MAX_ROWS: Final = 65_536
TARGET_S: Final = 1.0
"""A slice should take about this long: the cost of handing it out is nothing, and little is lost with a worker."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a finished slice reports; its rows lie in the store already."""

    part: Slice
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """Simulate a slice and store it; picklable, so that any process can run it."""

    job: Job
    directory: Location
    provenance: bytes

    def __call__(self, part: Slice) -> Receipt:
        """Raises OSError where the store cannot be written."""
        return self._store(part, lost=False)

    def give_up(self, part: Slice) -> Receipt:
        """Store a slice whose every attempt killed its process: its legal plans become `failed`."""
        return self._store(part, lost=True)

    def _store(self, part: Slice, *, lost: bool) -> Receipt:
        begun = time.perf_counter()
        batch = evaluate(self.job, np.arange(part.start, part.stop), REASON["worker_lost"] if lost else None)
        write_slice(self.directory, part, batch, self.provenance)
        return Receipt(part=part, seconds=time.perf_counter() - begun)


@dataclass(kw_only=True)
class SliceQueue:
    """Slices still to be done. `take` cuts the next from the gaps; `lost` brings one back, whole at first, then halved."""

    gaps: deque[Slice]
    workers: int
    returned: deque[tuple[Slice, int]] = field(default_factory=deque)  # slices with the processes they have cost
    rows_per_s: float | None = None

    def take(self) -> tuple[Slice, int] | None:
        """The next slice and the number of processes that it has cost so far; None when all are handed out."""
        if self.returned:
            return self.returned.popleft()
        if not self.gaps:
            return None
        rows = self._rows()
        gap = self.gaps.popleft()
        rows = min(rows, gap.rows)
        if gap.rows > rows:
            self.gaps.appendleft(Slice(gap.start + rows, gap.stop))
        return Slice(gap.start, gap.start + rows), 0

    def _rows(self) -> int:
        rows = FIRST_ROWS if self.rows_per_s is None else int(self.rows_per_s * TARGET_S)
        left = sum(gap.rows for gap in self.gaps) // (2 * self.workers)  # so that all end together
        return max(MIN_ROWS, min(rows, left, MAX_ROWS))

    def finished(self, receipt: Receipt) -> None:
        """Learn the speed of a worker, smoothed over slices."""
        rate = receipt.part.rows / max(receipt.seconds, 1e-6)
        self.rows_per_s = rate if self.rows_per_s is None else 0.5 * self.rows_per_s + 0.5 * rate

    def lost(self, part: Slice, losses: int) -> bool:
        """Take back a slice whose process died; False where it is one plan that has now died twice: give it up.

        The first loss may be anybody's (a kill from outside): the slice runs again. After the second it is halved, so that
        the plan at fault is found in log2(rows) more losses and no other is lost with it.
        """
        losses += 1
        if losses == 1:
            self.returned.append((part, losses))
        elif part.rows > 1:
            middle = (part.start + part.stop) // 2
            self.returned.append((Slice(part.start, middle), 1))
            self.returned.append((Slice(middle, part.stop), 1))
        else:
            return False
        return True
