"""How processes end: exit codes of commands (nightly has its own, in nightly/night.py); a process that ends with its parent."""

import os
import signal
import sys

EXIT_INPUT = 1
EXIT_OPTION = 2
EXIT_FAILED_PLANS = 3
EXIT_NO_PLAN = 4
EXIT_UNPROVEN = 5
EXIT_INCOMPLETE = 6
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_PR_SET_PDEATHSIG = 1


def in_words(error: OSError) -> str:
    """An error of the system in one line, the file first."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or ' '.join(str(error).split())}"


def end_with(parent: int) -> None:
    """End this process as soon as `parent`, which started it, has ended; on Linux."""
    if sys.platform == "linux":
        import ctypes  # late: the command line imports this file

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before prctl took effect
            raise SystemExit
