"""Progress of a run: on a terminal one line that changes, in a log a plain line a minute."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn

LINE_EVERY_S = 60.0


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds: 4:22:30, 0:00:13."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def speed(rate: float, left_s: float | None) -> str:
    """Plans per second, and the time left where it is known."""
    return f"{rate:,.0f} plans/s" + (f", {clock(left_s)} left" if left_s is not None and left_s > 0 else "")


@contextmanager
def line_display(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """Yield the function to call with plans done, plans in all, and what else to say."""
    last = time.monotonic()
    columns = (TextColumn("plans"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("", total=None, speed="")

        def update(done: int, total: int, text: str) -> None:
            nonlocal last
            bar.update(row, total=total, completed=done, speed=text)
            if not console.is_terminal and time.monotonic() - last >= LINE_EVERY_S:
                last = time.monotonic()
                console.print(f"{done:,} of {total:,} plans, {text}")

        yield update
