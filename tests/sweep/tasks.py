"""Tasks that misbehave on purpose; importable, so that worker processes can run them."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sweep.store import Slice
from sweep.work import Receipt, SliceTask


@dataclass(frozen=True, kw_only=True)
class Poisoned(SliceTask):
    """Kills its process whenever the slice holds one of the `poison` positions."""

    poison: tuple[int, ...]

    def __call__(self, part: Slice) -> Receipt:
        if any(part.start <= position < part.stop for position in self.poison):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(part)


@dataclass(frozen=True, kw_only=True)
class Raising(SliceTask):
    """Raises on the slice that holds `position`."""

    position: int

    def __call__(self, part: Slice) -> Receipt:
        if part.start <= self.position < part.stop:
            raise ArithmeticError("a plan that nobody thought of")
        return super().__call__(part)


@dataclass(frozen=True, kw_only=True)
class DiskFull(SliceTask):
    """The store cannot be written."""

    def __call__(self, part: Slice) -> Receipt:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results")


@dataclass(frozen=True, kw_only=True)
class KilledOnce(SliceTask):
    """Kills its process the first `times` times that any slice is tried (counted by files in `marks`)."""

    marks: Path
    times: int

    def __call__(self, part: Slice) -> Receipt:
        for k in range(self.times):
            try:
                (self.marks / f"{k}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(part)
