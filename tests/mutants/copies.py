"""Copies of the checkout, in which faults are planted and tests run: the checkout itself is never changed."""

from __future__ import annotations

import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WALLS = 10
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist")


@dataclass(frozen=True)
class Copy:
    """The checkout, somewhere else: sources, tests and what they read."""

    root: Path

    @classmethod
    def make(cls, root: Path) -> Copy:
        """Copy the checkout to `root`, which must not exist."""
        shutil.copytree(ROOT, root, ignore=_left_out)
        # code compiled from other sources must never answer: checked by content, not by time and size
        compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "sim_core", "sweep"]
        subprocess.run([sys.executable, *compile_all], cwd=root, check=True)
        return cls(root)

    @contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        """One file with another source."""
        path = self.root / file
        original = path.read_bytes()
        path.write_text(source, encoding="utf-8")
        try:
            yield
        finally:
            path.write_bytes(original)

    def run(
        self, arguments: Sequence[str], settings: Mapping[str, str], limit_s: float, memory_bytes: int | None = None
    ) -> tuple[int | None, str]:
        """Run Python in the copy, on its sources, behind all else on the machine: (exit code, output).

        None after `limit_s` seconds of one of its processes on a CPU, or WALLS times as many on the clock: on a busy machine
        seconds on the clock say little.
        """
        own = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        environment = {**os.environ, **settings, **own}  # the plugins that are installed take as long to load as most tests
        output = self.root / ".output"
        with output.open("w+b") as file:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with suppress(ProcessLookupError):  # it may have ended already
                os.setpriority(os.PRIO_PGRP, process.pid, 19)
                most_s = math.ceil(limit_s)
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (most_s, most_s))
                if memory_bytes is not None:
                    resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
            code = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(WALLS * limit_s)
            finally:
                _end(process)
            file.seek(0)
            return None if code in OUT_OF_TIME else code, file.read().decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What is not copied of a folder: some names anywhere, results of our own at the top (tests keep some, too)."""
    of_root = {"results"} if Path(folder) == ROOT else set[str]()
    return shutil.ignore_patterns(*NOT_COPIED)(folder, names) | of_root
