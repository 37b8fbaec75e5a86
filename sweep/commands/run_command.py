"""`sweep run`: run a sweep, or the part of it that is missing, and rank the result."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from sim_core import plural, short
from sweep.commands.outside import say_if_better_outside
from sweep.commands.shared import (
    Executing,
    Fresh,
    Out,
    Quiet,
    SliceLimit,
    SpecFile,
    SpecSets,
    Verbose,
    Workers,
    ended_at_once,
    interruptible,
    introduce,
    make_ready,
    prepared_spec,
    results_folder,
    say_if_compiling,
    spec_at,
    write_json,
)
from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import LIMIT_S
from sweep.execution import Progress, cpu_seconds, dry_run, run_sweep
from sweep.executors import InlineExecutor
from sweep.executors.choice import Kind, check_persistent, check_workers, opened
from sweep.exits import EXIT_FAILED_PLANS, EXIT_NO_PLAN
from sweep.ranking.ranking import outcome, rank
from sweep.results.folder import Folder
from sweep.results.store import Store
from sweep.show.progress import clock, progress_display
from sweep.show.ranked import print_ranking
from sweep.show.results import reason_lines
from sweep.show.sections import print_sections, rows_text
from sweep.show.terminal import own_console
from sweep.spec.spec import SweepSpec

SHORT_S: Final = 2.0
"""A sweep of fewer CPU seconds runs in this process, unless `--workers` is given: workers need as long to start."""


def command(
    spec: SpecFile,
    out: Out = None,
    executor: Executing = Kind.local,
    workers: Workers = None,
    slice_limit: SliceLimit = LIMIT_S,
    sets: SpecSets = None,
    only_plan: Annotated[bool, typer.Option("--dry-run", help="Print what a run would do; store nothing.")] = False,
    fresh: Fresh = False,
    top: Annotated[int | None, typer.Option(min=0, help="Rows of the final table (per group); 0: no table.")] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the ranked rows, as JSON.")] = False,
) -> None:
    """Run a sweep, or the part of it that is missing, and rank the result."""
    console = own_console(of_a_run=True, quiet=quiet or as_json)
    check_workers(executor, workers)
    loaded = spec_at(spec, sets)
    prepared = prepared_spec(loaded, spec)
    folder = results_folder(out, f"{loaded.name}-{prepared.sweep.identity[:8]}")
    introduce(loaded, prepared, console, verbose=verbose)
    if only_plan:
        _dry_run(prepared, folder, executor, workers, fresh, console, as_json=as_json)
        return
    check_persistent(out)
    Store(directory=folder).check(prepared.provenance, fresh=fresh)
    stopped = f"Interrupted. Finished slices are in {folder}; run the same command to resume."
    begun = time.monotonic()
    with interruptible(console, stopped), opened(executor, workers, slice_limit, loaded.store.writer, folder) as running:
        if executor is Kind.ray:
            console.print(f"Ray ready in {short(time.monotonic() - begun, 's')}, {running.workers} CPUs.")
        make_ready(prepared, console, stopped)
        if _by_default(executor, workers) and cpu_seconds(prepared.sweep, prepared.sweep.space.count) < SHORT_S:
            running = InlineExecutor()
        with progress_display(console) as watch:
            progress = run_sweep(prepared, Store(directory=folder), running, fresh=fresh, watch=watch, log=console.print)
    if as_json and top != 0:
        sys.stdout.write(rows_text(rank(folder, top=top).rows, "json") + "\n")
    count = 0 if isinstance(running, InlineExecutor) else running.workers
    _conclude(progress, folder, count, 0 if quiet or as_json else top, console, (loaded, prepared, spec), verbose=verbose)


def _dry_run(
    prepared: Prepared, folder: Folder, executor: Kind, workers: int | None, fresh: bool, console: Console, *, as_json: bool
) -> None:
    store, count = Store(directory=folder), prepared.sweep.space.count
    store.check_held(prepared.provenance, fresh=fresh)
    left = count if fresh or store.provenance() is None else sum(part.rows for part in store.missing(count))
    with ended_at_once(console, "Interrupted. Nothing was stored."):
        say_if_compiling(console)
        sample = dry_run(prepared)
    short_run = _by_default(executor, workers) and count * sample.seconds_per_plan < SHORT_S
    at_once = 0 if short_run else _at_once(executor, workers)
    print_sections(reason_lines(sample.reasons, f"Of {sample.probed:,} plans spread over the space"), console)
    if left < count:
        console.print(f"{folder} holds {count - left:,} of {count:,} plans; {left:,} are left.")
    seconds, size = (sample.seconds(left, at_once), sample.size(left, at_once)) if left else (0.0, 0.0)
    if as_json:
        data = {"plans": count, "left": left, "probed": sample.probed, "reasons": sample.reasons, "workers": at_once}
        write_json(data | {"seconds": seconds, "bytes": size})
    simulated = left * sample.seconds_per_plan / max(at_once, 1)
    console.print(
        f"About {1 / sample.seconds_per_plan:,.0f} plans/s per worker: {left:,} plans take about {clock(seconds)} (h:min:s) "
        f"{_with(at_once)} on free CPUs, {clock(simulated)} of it to simulate, and "
        f"{short(size, 'B')} of results{_free(folder)}. Nothing was stored."
    )
    if "" not in sample.reasons:
        console.print("No plan can run." if sample.probed == count else "None of these plans can run.")
        raise typer.Exit(EXIT_NO_PLAN)


def _by_default(executor: Kind, workers: int | None) -> bool:
    return executor is Kind.local and workers is None


def _with(workers: int) -> str:
    return f"with {plural(workers, 'worker')}" if workers else "in this process"


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


def _conclude(
    progress: Progress,
    folder: Folder,
    workers: int,
    top: int | None,
    console: Console,
    of: tuple[SweepSpec, Prepared, Path],
    *,
    verbose: bool,
) -> None:
    resumed = f" ({progress.resumed:,} were already there)" if progress.resumed else ""
    if progress.done:
        took = f"{plural(progress.done)} in {short(progress.seconds, 's')}, {progress.rate:,.0f} plans/s"
        console.print(f"{took} {_with(workers)}{resumed}")
    else:
        console.print(f"Nothing to do: all {progress.total:,} plans are already there.")
    if top != 0:
        console.print()
        ranking = rank(folder, top=top)
        print_ranking(ranking, console, folder=folder, verbose=verbose)
        say_if_better_outside(ranking, *of, folder, console)
    console.print(f"Results: {folder}  (all of it: `sweep rank -v`)")
    ok, failed = outcome(folder)
    if failed:
        console.print(f"{plural(failed)} failed (see the column reason); --fresh runs all plans again.")
        raise typer.Exit(EXIT_FAILED_PLANS)
    if not ok:
        console.print("No plan can run.")
        raise typer.Exit(EXIT_NO_PLAN)
