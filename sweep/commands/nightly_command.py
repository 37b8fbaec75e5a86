"""`sweep nightly`: one night of sweeps. Exit codes: 0 nothing beyond the thresholds, 1 regressions, 2 failures."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from sim_core import SimError
from sweep.commands.shared import LogJson, MetricsFile, check_output
from sweep.evaluation.slices import LIMIT_S
from sweep.executors import Executor
from sweep.executors.choice import Kind, check_persistent, opened
from sweep.log import LOG
from sweep.metrics import Metrics
from sweep.nightly.night import EXIT_FAILURES, Runtime, acknowledge, one_line, run_night, status_of
from sweep.nightly.notify import tell_the_end
from sweep.nightly.spec import NightlySpec, listeners_of, load_nightly
from sweep.options import OptionError
from sweep.results.folder import Folder
from sweep.show.terminal import ended_at_once, interruptible, own_console, sigterm_raises

STOPPED = "Interrupted. Run the same command to resume."


def nightly_command(
    words: Annotated[list[Path], Argument(metavar="file", help="The nightly file, YAML; before it status, ack or nothing.")],
    sets: Annotated[list[str] | None, Option("--set", help="Override a key of the file: root=s3://bucket/nightly.")] = None,
    who: Annotated[str | None, Option(help="ack: who accepts the regressions of the last night, or lost nights.")] = None,
    why: Annotated[str | None, Option(help="ack: why.")] = None,
    metrics: MetricsFile = None,
    log_json: LogJson = False,
) -> None:
    """Run the sweeps of a nightly file, compare with last night, notify. Exit code: 0 fine, 1 regressions, 2 failures."""
    console = own_console()
    file, action = words[-1], str(words[0]) if len(words) == 2 else ""
    if (
        len(words) > 2
        or (str(file) in ("ack", "status") and not file.exists())
        or action not in ("", "ack", "status")
        or (action == "ack") != bool(who and why)
    ):
        raise OptionError("expected FILE, status FILE, or ack FILE --who NAME --why TEXT")
    check_output(metrics, option="--metrics")
    with Metrics(None if action else metrics, file.stem) as seen:
        spec: NightlySpec | None = None

        @contextmanager
        def executor(writer: str, out: Folder) -> Iterator[Executor]:
            made = opened(Kind(asked.executor), asked.workers, LIMIT_S, writer, out)
            with made as running, sigterm_raises():  # after Ray's own
                yield running

        try:
            with interruptible(console, STOPPED):
                spec = asked = load_nightly(file, sets or [])
                if action:
                    told = status_of(spec, file.parent)
                    if who and why:
                        told = [f"Acknowledged: {acknowledge(spec, file.parent, who, why, datetime.now(UTC))}"]
                    for line in told:
                        console.print(line)
                    return
                runtime = Runtime(
                    executor=executor,
                    log=console.print,
                    progress=lambda store, sweep: seen.showing(console, store, f"{file.stem}/{sweep}"),
                    making_ready=lambda: ended_at_once(console, STOPPED),
                )
                check_persistent(spec.root, "root")
                outcome = run_night(spec, file.parent, runtime)
        except SystemExit as stop:
            tell_the_end(spec or listeners_of(file), STOPPED, int(stop.code or 0))
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, somebody waits to hear of this night)
            if not isinstance(error, SimError | OSError):
                traceback.print_exc()
            said = one_line(error)
            left = "" if action else tell_the_end(spec or listeners_of(file), said)
            LOG.error("error: %s%s", said, left)
            raise Exit(EXIT_FAILURES) from None
        if not outcome.did_nothing:
            console.print(f"Report: {outcome.folder}")
        console.print(outcome.summary)
        raise Exit(outcome.code)
