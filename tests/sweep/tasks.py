"""Tasks that misbehave on purpose; importable, so that worker processes can run them."""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from sweep.evaluation.slices import SliceTask
from sweep.results.slice_file import Slice
from tests.waiting import until


@dataclass(frozen=True, kw_only=True)
class Poisoned(SliceTask):
    """Kills its process whenever the slice holds one of the `poison` positions."""

    poison: tuple[int, ...]

    def encode(self, part: Slice) -> pa.Buffer:
        if any(part.start <= position < part.stop for position in self.poison):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class Raising(SliceTask):
    """Raises on the slice that holds `position`."""

    position: int

    def encode(self, part: Slice) -> pa.Buffer:
        if part.start <= self.position < part.stop:
            raise ArithmeticError("a plan that nobody thought of")
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class Writable(SliceTask):
    """Raises if the arrays of the workload are read-only: for numba they would be of another type, compiled again."""

    def encode(self, part: Slice) -> pa.Buffer:
        if not self.sweep.workload.arrays.unit_layers.flags.writeable:
            raise ArithmeticError("read-only arrays")
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class DiskFull(SliceTask):
    """The store cannot be written."""

    def store(self, part: Slice, data: pa.Buffer) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results")


@dataclass(frozen=True, kw_only=True)
class KilledOnce(SliceTask):
    """Kills its process the first `times` times that any slice is tried (counted by files in `marks`)."""

    marks: Path
    times: int

    def encode(self, part: Slice) -> pa.Buffer:
        for k in range(self.times):
            try:
                (self.marks / f"{k}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class KilledWhileStoring(SliceTask):
    """Kills its process, once, while it stores one slice and computes the next."""

    marks: Path

    def encode(self, part: Slice) -> pa.Buffer:
        if part.start and not (self.marks / "next").exists():
            (self.marks / "next").touch()
            threading.Event().wait()
        return super().encode(part)

    def store(self, part: Slice, data: pa.Buffer) -> None:
        if not (self.marks / "killed").exists():
            until(lambda: (self.marks / "next").exists())
            (self.marks / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().store(part, data)


@dataclass(frozen=True, kw_only=True)
class Hanging(SliceTask):
    """Never comes to an end on the slice that holds `position`: waits for what nobody sends, or `busy`, lets go of nothing."""

    position: int
    busy: bool = False

    def encode(self, part: Slice) -> pa.Buffer:
        if part.start <= self.position < part.stop:
            while self.busy:
                pass
            threading.Event().wait()
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class Greedy(SliceTask):
    """Asks for more memory than there is on the slice that holds `position`."""

    position: int

    def encode(self, part: Slice) -> pa.Buffer:
        if part.start <= self.position < part.stop:
            np.empty(2**50)
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class StoppedOnce(SliceTask):
    """Stops its process with SIGSTOP (alive but silent) the first time that a slice contains `position`."""

    position: int
    marks: Path

    def encode(self, part: Slice) -> pa.Buffer:
        if part.start <= self.position < part.stop and not (self.marks / "stopped").exists():
            (self.marks / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().encode(part)


@dataclass(frozen=True, kw_only=True)
class Swelling(SliceTask):
    """Takes memory without end on the slice that holds `position`: until somebody ends it, at the latest at `most` bytes."""

    position: int
    most: int

    def encode(self, part: Slice) -> pa.Buffer:
        held: list[object] = []
        while part.start <= self.position < part.stop and len(held) << 24 < self.most:
            held.append(np.ones(2**21))
        if held:
            threading.Event().wait()
        return super().encode(part)


def run_with(task: str, **more: object) -> str:
    """A Python program that is `sweep`, but for one of the tasks above."""
    given = ", ".join(f"{name}={value!r}" for name, value in more.items())
    return f"""
import sys
from functools import partial
from sweep import execution
from sweep.cli import main
from tests.sweep.tasks import {task}
if __name__ == "__main__":
    execution.SliceTask = partial({task}, {given})
    sys.argv = ["sweep", *sys.argv[1:]]
    main()
"""
