"""Entry point of `python -m sweep` and `sweep`: paths and output in any locale, no traceback for Ctrl-C while it imports."""

import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Run the command line."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":  # Arrow takes paths in UTF-8 only
        again = [sys.executable, "-m", "sweep", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONUTF8": "1"})
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show
    signal.signal(signal.SIGTERM, _end)
    try:
        from sweep.cli import main as command_line
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    command_line()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End at once, where nothing is under way that has to be said or kept: a run handles the signal itself."""
    os.write(2, b"Terminated.\n")
    os._exit(143)


if __name__ == "__main__":
    main()
