"""`sweep run`: run a sweep, or the part of it that is missing, and rank the result."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from sim_core import short
from sweep.commands.shared import (
    Executing,
    Fresh,
    Out,
    SliceLimit,
    SpecSets,
    Workers,
    introduce,
    make_ready,
    prepared_spec,
    results_folder,
    say_if_compiling,
)
from sweep.execution import Progress, cpu_seconds, dry_run, run_sweep
from sweep.executors import Executor, InlineExecutor
from sweep.executors.choice import Kind, check_persistent, opened
from sweep.exits import EXIT_FAILED_PLANS, EXIT_NO_PLAN
from sweep.folder import Folder
from sweep.preparation import Prepared
from sweep.ranking import outcome, rank
from sweep.show.progress import clock, progress_display
from sweep.show.ranked import print_ranking
from sweep.show.results import print_reasons
from sweep.show.tables import rows_text
from sweep.show.terminal import Terminated, exit_code, own_console, sigterm_raises
from sweep.slices import LIMIT_S
from sweep.spec import load_spec
from sweep.store import Store

SHORT_S: Final = 2.0
"""A sweep of fewer CPU seconds runs in this process, unless `--workers` is given: workers need as long to start."""


def command(
    spec: Annotated[Path, typer.Argument(help="The sweep, a YAML file.")],
    out: Out = None,
    executor: Executing = Kind.local,
    workers: Workers = None,
    slice_limit: SliceLimit = LIMIT_S,
    sets: SpecSets = None,
    only_plan: Annotated[bool, typer.Option("--dry-run", help="Print what a run would do; store nothing.")] = False,
    fresh: Fresh = False,
    top: Annotated[int | None, typer.Option(min=0, help="Rows of the final table (per group); 0: no table.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the ranked rows, as JSON.")] = False,
) -> None:
    """Run a sweep, or the part of it that is missing, and rank the result."""
    console = Console(quiet=True) if quiet or as_json else own_console(of_a_run=True)
    loaded = load_spec(spec, sets or [])
    prepared = prepared_spec(loaded, spec)
    introduce(loaded, prepared, console)
    folder = results_folder(out, f"{loaded.name}-{prepared.sweep.identity[:8]}")
    if only_plan:
        _dry_run(prepared, folder, executor, workers, fresh, console, as_json=as_json)
        return
    check_persistent(out)
    Store(directory=folder).check(prepared.provenance, fresh=fresh)
    try:
        begun = time.monotonic()
        with sigterm_raises(), opened(executor, workers, slice_limit, loaded.store.writer, folder) as running:
            if executor is Kind.ray:
                console.print(f"Ray ready in {short(time.monotonic() - begun, 's')}, {running.workers} CPUs.")
            make_ready(prepared, console)
            if _by_default(executor, workers) and cpu_seconds(prepared.sweep, prepared.sweep.space.count) < SHORT_S:
                running = InlineExecutor()
            progress = _run(prepared, Store(directory=folder), running, fresh, console)
    except (KeyboardInterrupt, Terminated) as stop:
        console.print(f"Interrupted. Finished slices are in {folder}; run the same command to resume.")
        raise typer.Exit(exit_code(stop)) from None
    if as_json and top != 0:
        sys.stdout.write(rows_text(rank(folder, top=top).rows, "json") + "\n")
    count = 0 if isinstance(running, InlineExecutor) else running.workers
    _conclude(progress, folder, count, 0 if quiet or as_json else top, console)


def _dry_run(
    prepared: Prepared, folder: Folder, executor: Kind, given: int | None, fresh: bool, console: Console, *, as_json: bool
) -> None:
    store, count = Store(directory=folder), prepared.sweep.space.count
    store.check_held(prepared.provenance, fresh=fresh)
    left = count if fresh or store.provenance() is None else sum(part.rows for part in store.missing(count))
    say_if_compiling(console)
    found = dry_run(prepared)
    short_run = _by_default(executor, given) and count * found.seconds_per_plan < SHORT_S
    workers = 0 if short_run else _at_once(executor, given)
    print_reasons(found.reasons, console, f"Of {found.probed:,} plans spread over the space")
    if left < count:
        console.print(
            f"{folder} holds {count - left:,} of {count:,} plans; {left:,} are left.", soft_wrap=True, highlight=False
        )
    seconds, size = (found.seconds(left, workers), found.size(left, workers)) if left else (0.0, 0.0)
    if as_json:
        data = {"plans": count, "left": left, "probed": found.probed, "reasons": found.reasons, "workers": workers}
        sys.stdout.write(json.dumps(data | {"seconds": seconds, "bytes": size}, indent=1) + "\n")
    simulated = left * found.seconds_per_plan / max(workers, 1)
    console.print(
        f"About {1 / found.seconds_per_plan:,.0f} plans/s per worker: {left:,} plans take about {clock(seconds)} (h:min:s) "
        f"{_with(workers)} on free CPUs, {clock(simulated)} of it to simulate, and "
        f"{short(size, 'B')} of results{_free(folder)}. Nothing was stored.",
        highlight=False,
        soft_wrap=True,
    )
    if "" not in found.reasons:
        console.print("No plan can run." if found.probed == count else "None of these plans can run.")
        raise typer.Exit(EXIT_NO_PLAN)


def _by_default(executor: Kind, workers: int | None) -> bool:
    return executor is Kind.local and workers is None


def _with(workers: int) -> str:
    return f"with {workers} worker{'s' * (workers != 1)}" if workers else "in this process"


def _at_once(executor: Kind, workers: int | None) -> int:
    """Workers that compute at once: on this machine not more than its CPUs."""
    here = len(os.sched_getaffinity(0))
    return here if workers is None else workers if executor is Kind.ray else min(workers, here)


def _free(folder: Folder) -> str:
    """What is free on the disk of a local folder."""
    if folder.local is None:
        return ""
    place = folder.local.absolute()
    while not place.exists():
        place = place.parent
    return f" ({short(shutil.disk_usage(place).free, 'B')} are free)"


def _run(prepared: Prepared, store: Store, executor: Executor, fresh: bool, console: Console) -> Progress:
    with progress_display(console) as watch:
        return run_sweep(
            prepared, store, executor, fresh=fresh, watch=watch, log=lambda text: console.print(text, soft_wrap=True)
        )


def _conclude(progress: Progress, folder: Folder, workers: int, top: int | None, console: Console) -> None:
    resumed = f" ({progress.resumed:,} were already there)" if progress.resumed else ""
    if progress.done:
        took = f"{progress.done:,} plans in {short(progress.seconds, 's')}, {progress.rate:,.0f} plans/s"
        console.print(f"{took} {_with(workers)}{resumed}", highlight=False)
    else:
        console.print(f"Nothing to do: all {progress.total:,} plans are already there.")
    if top != 0:
        print_ranking(rank(folder, top=top), console)
    console.print(f"Results: {folder}  (more: sweep rank --help)", soft_wrap=True)
    ok, failed = outcome(folder)
    if failed:
        console.print(f"{failed:,} plan{'s' * (failed != 1)} failed (see the column reason); --fresh runs all plans again.")
        raise typer.Exit(EXIT_FAILED_PLANS)
    if not ok:
        console.print("No plan can run.")
        raise typer.Exit(EXIT_NO_PLAN)
