"""Slices as work: the task of simulating one, how an attempt can end, and the queue that sizes, retries and halves them."""

import math
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO, WARNING
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from sim_core import REASON, Ints, SimError, SpecError
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Sweep
from sweep.evaluation.warming import warm_up
from sweep.log import LOG
from sweep.results.folder import Location, folder_at
from sweep.results.patience import StoreUnavailable, retries
from sweep.results.slice_file import Slice, encoded
from sweep.sources import DATA, WORKER, Code, loaded, row_code

FIRST_ROWS = 4096
MIN_ROWS = 1024
MAX_ROWS = 65_536
TARGET_S = 1.0
"""A slice should take about this long to compute: handing it out costs little, and little is lost with a worker."""
SLOWEST_S = 10.0
"""Where storing is slow, a slice takes twice as long to compute as to store, up to this."""
MOST_FILES = 20_000
"""Files that are quick to list and to rank: slices of a sweep that would have more take longer, up to LONGEST_S."""
LONGEST_S = 30.0
SHORTEST_S = 0.1
"""Slices get shorter towards the end of a run, so that all workers finish together, but not less than this."""
LIMIT_S = 120.0
"""Default time limit: a slice that takes longer counts as hanging. Its process is ended and the plan at fault is found."""
MOST_LEFT = 4
"""The run ends when the store refuses this many slices in a row, or two for each worker."""
START_S = 300.0
"""Time for a worker to start, and to compile the engine if no process has yet."""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Report of a finished slice, whose rows are in the store."""

    part: Slice
    seconds: float  # of computing
    stored_s: float = 0.0  # of storing
    retries: int = 0  # of requests to the store
    node: str = ""  # where it was computed


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why an attempt failed: a reason code, and a text for the log."""

    reason: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SliceTask:
    """Simulate a slice and store it. Picklable, so that any process that has the same `code` can run it."""

    entry: ClassVar[str] = WORKER
    sweep: Sweep
    directory: Location
    provenance: bytes

    @property
    def run(self) -> str:
        """How the log names its sweep."""
        return self.sweep.identity[:8]

    @property
    def code(self) -> Code:
        """What its rows are made by, and what a worker may read."""
        return {**row_code(self.entry), DATA: loaded()[DATA]}

    def __call__(self, part: Slice) -> Receipt:
        """Raises OSError if the store cannot be written."""
        return self.kept(*self.computed(part))

    def computed(self, part: Slice) -> tuple[Receipt, pa.Buffer]:
        """Simulate a slice; returns its receipt and its file, which is still to be stored."""
        begun = time.perf_counter()
        data = self.encode(part)
        return Receipt(part=part, seconds=time.perf_counter() - begun, node=socket.gethostname()), data

    def kept(self, receipt: Receipt, data: pa.Buffer) -> Receipt:
        """The receipt, once the file is in the store. Raises OSError."""
        begun, before = time.perf_counter(), retries()
        self.store(receipt.part, data)
        return replace(receipt, stored_s=time.perf_counter() - begun, retries=retries() - before)

    def warm_up(self) -> None:
        """Load the engine into this process, so that no slice's time includes it."""
        warm_up(self.sweep)

    def encode(self, part: Slice) -> pa.Buffer:
        """Simulate a slice; returns its file, to be stored."""
        return self.file_of(evaluate(self.sweep, self.positions(part)), part)

    def positions(self, part: Slice) -> Ints:
        """The positions of a slice in the sweep."""
        return np.arange(part.start, part.stop)

    def file_of(self, batch: pa.RecordBatch, part: Slice) -> pa.Buffer:
        """The file of the rows of a slice."""
        return encoded(batch, self.provenance, part)

    def store(self, part: Slice, data: pa.Buffer) -> None:
        """Raises OSError."""
        folder_at(self.directory).write_bytes(part.file_name, data)

    def give_up(self, part: Slice, reason: str) -> Receipt:
        """Store a slice that failed at every attempt: its legal plans become `failed`, with `reason`."""
        begun = time.perf_counter()
        self.store(part, self.file_of(evaluate(self.sweep, self.positions(part), REASON[reason]), part))
        return Receipt(part=part, seconds=time.perf_counter() - begun)


Done = TypeVar("Done")


def attempt(action: Callable[[], Done]) -> Done | Loss | OSError | SimError:
    """The outcome of an action on a slice, as a value that any process can send: a result, a loss or an error of the run.

    OSError (a full disk) and SimError (a bad input) are errors of the run, whatever the plan. Any other exception is a loss,
    and the queue narrows it down to the plan at fault.
    """
    try:
        return action()
    except StoreUnavailable as error:
        return StoreUnavailable(str(error))
    except OSError as error:
        return OSError(error.errno, error.strerror, error.filename) if error.errno else OSError(str(error))
    except SimError as error:
        return SpecError(str(error))
    except MemoryError:
        return Loss(reason="out_of_memory")
    except Exception:  # noqa: BLE001 (whatever a plan raises is a loss)
        return Loss(reason="simulation_raised", text=traceback.format_exc(limit=-3))


@dataclass(kw_only=True)
class SliceQueue:
    """Slices to be done. `take` cuts the next from the gaps; `lost` returns one, first whole, then halved."""

    gaps: deque[Slice]
    workers: int
    width: int = 1  # plans that take the time of one
    returned: deque[tuple[Slice, int]] = field(default_factory=deque)  # slices, each with its number of losses
    rows_per_s: float | None = None
    whole: int = 0  # rows of the run
    losses: int = 0
    stored_s: float = 0.0
    left: list[Slice] = field(default_factory=list)  # computed, but not stored: for the next run
    left_in_a_row: int = 0
    left_why: OSError | None = None

    def take(self) -> tuple[Slice, int] | None:
        """The next slice and the number of its losses so far; None when all are handed out."""
        if self.returned:
            return self.returned.popleft()
        if not self.gaps:
            return None
        rows, gap = self._rows(), self.gaps.popleft()
        stop = min(gap.start + rows, gap.stop)
        if stop < gap.stop:
            self.gaps.appendleft(Slice(stop, gap.stop))
        return Slice(gap.start, stop), 0

    def _rows(self) -> int:
        """Rows of the next slice, by the speed of the workers and by what is left."""
        left = sum(gap.rows for gap in self.gaps)
        self.whole = max(self.whole, left)
        if self.rows_per_s is None:
            return max(MIN_ROWS, min(FIRST_ROWS, left // (2 * self.workers), MAX_ROWS * self.width))
        least, most = self._bounds(self.rows_per_s)
        return max(least, min(most, left // (2 * self.workers)))  # smaller towards the end

    def _bounds(self, rate: float) -> tuple[int, int]:
        """Rows of the smallest and the largest slices of workers that do `rate` plans per second."""
        target_s = min(max(TARGET_S, 2 * self.stored_s), SLOWEST_S)
        rows = max(rate * target_s, min(self.whole / MOST_FILES, rate * LONGEST_S))
        most = max(MIN_ROWS, int(min(rows, MAX_ROWS * self.width)))
        return min(max(MIN_ROWS, int(rate * SHORTEST_S)), most), most

    def expected(self, rate: float) -> int:
        """About how many slices will be cut of the gaps, in closed form: there may be billions."""
        left = self.whole = sum(gap.rows for gap in self.gaps)
        least, most = self._bounds(rate)
        shrinking, smallest = min(left, 2 * self.workers * most), min(left, 2 * self.workers * least)
        by_factor = 2 * self.workers * math.log(shrinking / smallest) if left else 0.0
        return math.ceil((left - shrinking) / most + by_factor + smallest / least)

    def finished(self, receipt: Receipt) -> None:
        """Update the speed of a worker, smoothed over slices."""
        self.left_in_a_row = 0
        self.stored_s = 0.5 * self.stored_s + 0.5 * receipt.stored_s
        rate = receipt.part.rows / max(receipt.seconds, 1e-6)
        self.rows_per_s = rate if self.rows_per_s is None else 0.5 * self.rows_per_s + 0.5 * rate

    def unstored(self, part: Slice, why: OSError) -> None:
        """Leave a slice to the next run, since the store does not take it. Raises `why` if it takes none any more."""
        self.left.append(part)
        self.left_why = why
        self.left_in_a_row += 1
        if self.left_in_a_row >= max(MOST_LEFT, 2 * self.workers):
            raise why

    def lost(self, part: Slice, losses: int) -> bool:
        """Take back a slice that was lost. False if it is one plan, lost for the second time: give it up.

        After its first loss a slice runs again, because the cause may be outside (a killed process). After the second it is
        halved: log2(rows) more losses isolate the plan at fault, and no other plan is given up.
        """
        self.losses += 1
        middle = (part.start + part.stop) // 2
        if losses == 0:
            self.returned.append((part, 1))
        elif part.rows > 1:
            self.returned += [(Slice(part.start, middle), 1), (Slice(middle, part.stop), 1)]
        return losses == 0 or part.rows > 1


def resolve(answer: object, taken: tuple[Slice, int], task: SliceTask, queue: SliceQueue) -> Receipt | None:
    """Act on the outcome of a slice's `attempt`: returns a receipt if it is done, raises an error of the run.

    Only the death of a process (`worker_lost`) may have an outside cause. The slice itself causes every other loss, so it is
    halved at once.
    """
    part, losses = taken
    if isinstance(answer, Receipt):
        queue.finished(answer)
        return answer
    if isinstance(answer, StoreUnavailable):
        LOG.info("slice not stored: %(why)s", {"run": task.run, "slice": part, "why": str(answer)})
        queue.unstored(part, answer)
        return None
    if isinstance(answer, OSError | SimError):
        raise answer
    loss = answer if isinstance(answer, Loss) else Loss(reason="worker_lost")
    told = {"run": task.run, "slice": part, "first": part.start, "last": part.stop - 1, "why": loss.text or loss.reason}
    LOG.log(WARNING if loss.text else INFO, "positions %(first)d to %(last)d: %(why)s", told)
    if queue.lost(part, losses if loss.reason == "worker_lost" else max(losses, 1)):
        return None
    return resolve(attempt(partial(task.give_up, part, loss.reason)), taken, task, queue)
