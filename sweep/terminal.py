"""What every command shares with the terminal it runs in: its width, and an end by SIGTERM that is an end by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from rich.console import Console

WIDE: Final = 250
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143


class Terminated(BaseException):
    """SIGTERM: ends a run as Ctrl-C does."""


def own_console() -> Console:
    """A terminal's own width; in a log or a pipe, wide enough that no row breaks."""
    console = Console(markup=False)
    return console if console.is_terminal else Console(width=WIDE, no_color=True, markup=False)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `Terminated` inside."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(stop: BaseException) -> int:
    """Of a command that Ctrl-C or SIGTERM ended."""
    return EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
