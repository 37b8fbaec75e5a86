"""Entry point of `python -m sweep` and `sweep`: paths and output in any locale, no traceback for Ctrl-C while it imports."""

import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

_NOT_TO_BE_LEFT = ("numba.", "llvmlite.", "importlib._bootstrap", "_frozen_importlib")
"""Modules that lose what a handler raises, or make another error of it: compilers and imports."""
_INTERRUPTED = b"Interrupted.\n"
_ENDED: list[bool] = []


def main() -> None:
    """Run the command line."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":  # Arrow takes paths in UTF-8 only
        again = [sys.executable, "-m", "sweep", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # shells ignore it for what they start in the background
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from sweep.cli import main as command_line
        from sweep.without_pandas import without_pandas

        without_pandas()
        command_line()
    except KeyboardInterrupt:
        os.write(2, _INTERRUPTED)
        raise SystemExit(130) from None
    finally:
        _ENDED.append(True)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End at once, where nothing is under way that has to be said or kept: a run handles the signal itself."""
    os.write(2, b"Terminated.\n")
    os._exit(143)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt; end at once while modules are imported or kernels compiled, and when the command has ended."""
    while frame is not None and not _ENDED:
        if str(frame.f_globals.get("__name__")).startswith(_NOT_TO_BE_LEFT):
            break
        frame = frame.f_back
    else:
        if not _ENDED:
            raise KeyboardInterrupt
    os.write(2, _INTERRUPTED)
    os._exit(130)


if __name__ == "__main__":
    main()
