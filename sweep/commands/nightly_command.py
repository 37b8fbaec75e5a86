"""`sweep nightly`: one night of sweeps. Exit codes: 0 nothing beyond the thresholds, 1 regressions, 2 failures."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from sim_core import SimError
from sim_core.masking import masked
from sweep.evaluation.slices import LIMIT_S
from sweep.executors import Executor
from sweep.executors.choice import Kind, check_persistent, opened
from sweep.exits import in_words
from sweep.nightly.night import EXIT_FAILURES, Runtime, run_night
from sweep.nightly.spec import load_nightly
from sweep.results.folder import Folder
from sweep.show.progress import progress_display
from sweep.show.terminal import ended_at_once, interruptible, own_console, sigterm_raises

STOPPED = "Interrupted. Run the same command to resume."


def nightly_command(
    file: Annotated[Path, Argument(help="The nightly file, YAML.")],
    sets: Annotated[list[str] | None, Option("--set", help="Override a key of the file: root=s3://bucket/nightly.")] = None,
) -> None:
    """Run the sweeps of a nightly file, compare with last night, notify. Exit code: 0 fine, 1 regressions, 2 failures."""
    console = own_console()

    @contextmanager
    def executor(writer: str, out: Folder) -> Iterator[Executor]:
        with opened(Kind(spec.executor), spec.workers, LIMIT_S, writer, out) as running, sigterm_raises():  # after Ray's own
            yield running

    try:
        with interruptible(console, STOPPED):
            spec = load_nightly(file, sets or [])
            runtime = Runtime(
                executor=executor,
                log=console.print,
                progress=lambda: progress_display(console),
                making_ready=lambda: ended_at_once(console, STOPPED),
            )
            check_persistent(spec.root, "root")
            outcome = run_night(spec, file.parent, runtime)
    except (SimError, OSError) as error:
        where = masked(in_words(error) if isinstance(error, OSError) else str(error))
        sys.stderr.write(f"error: {' '.join(where.split())}\n")
        raise Exit(EXIT_FAILURES) from None
    if not outcome.did_nothing:
        console.print(f"Report: {outcome.folder}")
    console.print(outcome.summary)
    raise Exit(outcome.code)
