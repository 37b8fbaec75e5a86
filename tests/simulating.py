"""The process that simulates for fuzz tests (`simulated`), from the test's side: a crash or a hang fails with the input."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
FIRST_S, ANSWER_S = 600.0, 120.0
"""Seconds until an answer counts as a hang: the first may have to compile."""


class Simulating:
    """Asks the process, and starts it when there is none."""

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = folder / "stderr.txt"
        self._answered = False

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._running().pid

    def ask(self, shown: object, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; fails, with `shown`, if there is none or it tells of a fault."""
        process = self._running()
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            in_time = bool(waiting.select(ANSWER_S if self._answered else FIRST_S))
        line = process.stdout.readline() if in_time else ""
        if not line:
            status = f"ended with status {process.wait()}" if in_time else "gave no answer in time"
            self.close()
            stack = self._errors.read_text(encoding="utf-8")[-4000:]
            raise AssertionError(f"the simulator {status} on {shown!r}\n{stack}")
        self._answered = True
        answer: dict[str, Any] = json.loads(line)
        assert "raised" not in answer, f"on {shown!r}:\n{answer['raised']}"
        told = answer.get("told", "")
        assert told.splitlines() == [told] * bool(told), f"on {shown!r}: {told!r} is not one line"
        return answer

    def file(self, data: bytes, facts: dict[str, Any] | None = None) -> dict[str, Any]:
        """A file at its own plan and at others, as a file and in a spec."""
        return self.ask(data, {"kind": "file", "data": base64.b64encode(data).decode(), "facts": facts or {}})

    def plans(self, data: bytes, given: dict[str, Any]) -> dict[str, Any]:
        """A file at the plans that `sim_core.plans` builds of `given`."""
        return self.ask(given, {"kind": "plans", "data": base64.b64encode(data).decode(), "facts": {}, "plans": given})

    def spec(self, text: str, sets: list[str]) -> dict[str, Any]:
        """A spec with `--set` assignments."""
        return self.ask((text, sets), {"kind": "spec", "spec": text, "sets": sets})

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._answered = False

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            with self._errors.open("w", encoding="utf-8") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.simulated"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=ROOT,
                    env={**os.environ, "NUMBA_DISABLE_JIT": "0"},  # a wrong index is an exception in Python, a crash compiled
                    text=True,
                )
        return self._process
