"""Waiting for what another process does, without taking its CPU."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

LOOK_EVERY_S = 0.02


def until(condition: Callable[[], object], process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None) -> None:
    """Until the condition holds, or the process has ended. Raises TimeoutError after five minutes."""
    pause = threading.Event()
    end = time.monotonic() + 300
    while not condition() and (process is None or process.poll() is None):
        if time.monotonic() > end:
            raise TimeoutError("what a test waits for does not come")
        pause.wait(LOOK_EVERY_S)
