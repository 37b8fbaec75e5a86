"""The unit of work: simulate a slice and store it. And the queue of slices: sized by measured time, cut down on a loss."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa

from sim_core import REASON, SimError, SpecError
from sweep.evaluate import evaluate, warm_up
from sweep.job import Job
from sweep.place import Location, place
from sweep.store import Slice, encoded

FIRST_ROWS: Final = 4096
MIN_ROWS: Final = 1024
MAX_ROWS: Final = 65_536
TARGET_S: Final = 1.0
"""A slice should take about this long: the cost of handing it out is nothing, and little is lost with a worker."""
LIMIT_S: Final = 120.0
"""A slice that takes longer hangs, unless told otherwise: its process is ended, the plan at fault is found."""
START_S: Final = 300.0
"""For a worker to start, and to compile the engine where nobody has."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a finished slice reports; its rows lie in the store already."""

    part: Slice
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why a slice came to no end: a reason code, and what to tell of it."""

    reason: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """Simulate a slice and store it; picklable, so that any process can run it."""

    job: Job
    directory: Location
    provenance: bytes

    def __call__(self, part: Slice) -> Receipt:
        """Raises OSError where the store cannot be written."""
        begun = time.perf_counter()
        self.store(part, self.encode(part))
        return Receipt(part=part, seconds=time.perf_counter() - begun)

    def warm_up(self) -> None:
        """Load the engine into this process, so that no slice's time holds it."""
        warm_up(self.job)

    def encode(self, part: Slice) -> pa.Buffer:
        """Simulate a slice: its file, to be stored."""
        return encoded(evaluate(self.job, np.arange(part.start, part.stop)), self.provenance)

    def store(self, part: Slice, data: pa.Buffer) -> None:
        """Raises OSError."""
        place(self.directory).write_bytes(part.file_name, data)

    def give_up(self, part: Slice, reason: str) -> Receipt:
        """Store a slice whose every attempt was lost: its legal plans become `failed`."""
        begun = time.perf_counter()
        batch = evaluate(self.job, np.arange(part.start, part.stop), REASON[reason])
        self.store(part, encoded(batch, self.provenance))
        return Receipt(part=part, seconds=time.perf_counter() - begun)


Done = TypeVar("Done")


def attempt(action: Callable[[], Done]) -> Done | Loss | OSError | SimError:
    """What came of an action on a slice, as a value that any process can send: a result, a loss, an error of the run.

    A full disk or a fault of the input (OSError, SimError) is nobody's plan; whatever else a plan does is reported, then the
    plan is found.
    """
    try:
        return action()
    except OSError as error:
        return OSError(error.errno, error.strerror or str(error), error.filename)
    except SimError as error:
        return SpecError(str(error))
    except MemoryError:
        return Loss(reason="out_of_memory")
    except Exception:  # noqa: BLE001 (see above)
        return Loss(reason="simulation_raised", text=traceback.format_exc(limit=-3))


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
        """Take back a slice that was lost; False where it is one plan that has now been lost twice: give it up.

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


def settle(answer: object, taken: tuple[Slice, int], task: SliceTask, queue: SliceQueue) -> Receipt | None:
    """Do with a slice what its `attempt` says; returns a receipt where it is done. Raises an error of the run.

    Only a process that died may have been killed from outside: any other loss is the slice's own, and is not tried again whole.
    """
    part, losses = taken
    if isinstance(answer, Receipt):
        queue.finished(answer)
        return answer
    if isinstance(answer, OSError | SimError):
        raise answer
    loss = answer if isinstance(answer, Loss) else Loss(reason="worker_lost")
    if loss.text:
        sys.stderr.write(f"positions {part.start} to {part.stop - 1}: {loss.text}\n")
    again = queue.lost(part, losses if loss.reason == "worker_lost" else max(losses, 1))
    return None if again else task.give_up(part, loss.reason)
