"""The terminal that a command runs in: its width, and its signals: SIGTERM is handled as Ctrl-C."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from sim_core import Fields, one_line
from sweep.exits import EXIT_INTERRUPTED, EXIT_TERMINATED
from sweep.outputs import naming

WIDE = 250
_PLAIN: Fields = {"markup": False, "highlight": False, "soft_wrap": True}
"""Brackets and digits in a line mean nothing; the terminal wraps lines, so that a copied path or command stays whole."""


class _Terminated(BaseException):
    """SIGTERM: ends a run as Ctrl-C does."""


class Visible(Console):
    """A console of lines: what would break one or command the terminal is shown; names and results are others' texts."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(one_line(each) if isinstance(each, str) else each for each in objects), **options)


class _OfARun(Visible):
    """A console whose reader may go away (`| head`): what it prints ends then, not the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write("note: nothing reads the output any more; the run goes on\n")


def own_console(*, of_a_run: bool = False, quiet: bool = False) -> Console:
    """A console as wide as the terminal; in a log or a pipe, wide enough that no row wraps."""
    kind = _OfARun if of_a_run else Visible
    console = kind(quiet=quiet, **_PLAIN)
    return console if console.is_terminal or quiet else kind(width=WIDE, no_color=True, **_PLAIN)


@contextmanager
def screen(output: Path | None) -> Iterator[Console]:
    """The terminal, or a console that writes to the file `output`."""
    if output is None:
        yield own_console()
    else:
        with naming(output), output.open("w", encoding="utf-8") as file:
            yield Visible(file=file, width=WIDE, **_PLAIN)


@contextmanager
def interruptible(console: Console, text: str) -> Iterator[None]:
    """End a command that Ctrl-C or SIGTERM stops inside the block with `text` and its exit code."""
    try:
        with sigterm_raises():
            yield
    except (KeyboardInterrupt, _Terminated) as stop:
        console.print(text)
        raise SystemExit(EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED) from None


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Make SIGTERM raise inside the block, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ended_at_once(console: Console, text: str) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process inside the block with `text` and the exit code of a stop at any other time.

    For compiling: LLVM's callbacks lose what a handler raises, and a handler waits until LLVM is through. The number of the
    signal therefore goes to a thread, which acts while LLVM works.
    """
    told, tells = socket.socketpair()
    tells.setblocking(False)

    def end() -> None:
        number = told.recv(1)
        if number:
            console.print(text)
            sys.stdout.flush()
            os._exit(128 + number[0])

    watching = threading.Thread(target=end, daemon=True)
    watching.start()
    numbers = (signal.SIGINT, signal.SIGTERM)
    woken = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
    before = [signal.signal(number, _leave_to_the_thread) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        tells.close()
        watching.join()
        told.close()


def _leave_to_the_thread(number: int, frame: FrameType | None) -> None:
    """What Python does with a signal that a thread is told of."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated
