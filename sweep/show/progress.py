"""Progress of a run: a bar on a terminal, a plain line every few seconds in a log."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn

from sweep.execution import Progress

LINE_EVERY_S = 5.0


def _speed(progress: Progress) -> str:
    eta = progress.eta_s
    return f"{progress.rate:,.0f} plans/s" + (f", {clock(eta)} left" if eta is not None and eta > 0 else "")


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds: 4:22:30, 0:00:13."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def progress_display(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Yield the function to call with the state of a run."""
    if not console.is_terminal:
        last = 0.0

        def line(progress: Progress) -> None:
            nonlocal last
            if progress.done and progress.seconds - last >= LINE_EVERY_S:
                last = progress.seconds
                done = progress.resumed + progress.done
                console.print(f"{done:,} of {progress.total:,} plans, {_speed(progress)}")

        yield line
        return
    columns = (TextColumn("plans"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"))
    with Bar(*columns, console=console, transient=True) as bar:
        row = bar.add_task("", total=None, speed="")

        def update(progress: Progress) -> None:
            bar.update(row, total=progress.total, completed=progress.resumed + progress.done, speed=_speed(progress))

        yield update
