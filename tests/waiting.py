"""Waiting for what another process does, without taking its CPU."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOK_EVERY_S = 0.02
PATIENCE_S = 1200.0
"""Longer than compiling all kernels takes on a machine with many times more work than CPUs."""


def until(
    condition: Callable[[], object],
    process: subprocess.Popen[str] | subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> bool:
    """Until the condition holds, or the process has ended; returns whether it holds.

    Raises TimeoutError with the end of the log after PATIENCE_S.
    """
    pause = threading.Event()
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if process is not None and process.poll() is not None:
            return False
        if time.monotonic() > end:
            told = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log else ""
            load = os.getloadavg()[0]
            raise TimeoutError(f"what a test waits for does not come in {PATIENCE_S:g} s (load {load:.1f})\n{told}")
        pause.wait(LOOK_EVERY_S)
    return True
