"""`sweep run`: run a sweep, or the part of it that is missing, and rank the result."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sim_core import SpecError, cache_dir, is_compiled, short, shown
from sweep.commands.shared import RESULTS, prepared_spec, print_warnings
from sweep.evaluation import warm_up
from sweep.execution import Progress, dry_run, run_sweep
from sweep.executors import Executor
from sweep.executors.choice import Kind, check_persistent, opened
from sweep.exits import EXIT_FAILED_PLANS, EXIT_NO_PLAN
from sweep.folder import Folder, folder_at
from sweep.preparation import Prepared
from sweep.ranking import outcome, rank
from sweep.show.checks import print_checks
from sweep.show.progress import progress_display
from sweep.show.ranked import print_ranking
from sweep.show.results import print_reasons
from sweep.show.terminal import Terminated, exit_code, own_console, sigterm_raises
from sweep.slices import LIMIT_S
from sweep.spec import SweepSpec, load_spec
from sweep.store import Store


def command(
    spec: Annotated[Path, typer.Argument(help="The sweep, a YAML file.")],
    out: Annotated[str | None, typer.Option(help="Folder for the results, a path or URI. Default: results/NAME-HASH.")] = None,
    executor: Annotated[
        Kind, typer.Option(help="Processes on this machine, or Ray: the cluster in RAY_ADDRESS, else one started here.")
    ] = Kind.local,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Worker processes; 0: none, run in this process. Default: all cores. A cluster sets its own."),
    ] = None,
    slice_limit: Annotated[
        float, typer.Option(min=1, help="Seconds after which a slice of plans counts as hanging.")
    ] = LIMIT_S,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the spec: axes.tp=[1,2].")] = None,
    only_plan: Annotated[bool, typer.Option("--dry-run", help="Print what a run would do; store nothing.")] = False,
    fresh: Annotated[bool, typer.Option(help="Delete what the folder holds, instead of resuming.")] = False,
    top: Annotated[int | None, typer.Option(min=0, help="Rows of the final table (per group); 0: no table.")] = None,
) -> None:
    """Run a sweep, or the part of it that is missing, and rank the result."""
    console = own_console()
    if out is not None and not out.strip():
        raise SpecError(f"--out: found {shown(out)}, expected a folder or a URI")
    loaded = load_spec(spec, sets or [])
    prepared = prepared_spec(loaded, spec)
    _introduce(loaded, prepared, console)
    if only_plan:
        _dry_run(prepared, workers or len(os.sched_getaffinity(0)), console)
        return
    check_persistent(out)
    folder = folder_at(out or RESULTS / f"{loaded.name}-{prepared.sweep.identity[:8]}")
    Store(directory=folder).check(prepared.provenance, fresh=fresh)
    try:
        begun = time.monotonic()
        with sigterm_raises(), opened(executor, workers, slice_limit, loaded.store.writer, folder) as running:
            if executor is Kind.ray:
                console.print(f"Ray ready in {short(time.monotonic() - begun, 's')}, {running.workers} CPUs.")
            progress = _run(prepared, Store(directory=folder), running, fresh, console)
    except (KeyboardInterrupt, Terminated) as stop:
        console.print(f"Interrupted. Finished slices are in {folder}; run the same command to resume.")
        raise typer.Exit(exit_code(stop)) from None
    _conclude(progress, folder, running.workers, top, console)


def _introduce(spec: SweepSpec, prepared: Prepared, console: Console) -> None:
    space = prepared.sweep.space
    print_warnings(prepared.warnings, console)
    axes = " x ".join(f"{key} {len(values)}" for key, values in spec.axes.items())
    plans = f"{space.size:,} plan{'s' * (space.size != 1)}" + (f" ({axes})" if axes else "")
    sampled = f", of which {space.count:,} are drawn" if space.sample else ""
    console.print(f"{spec.name}: {plans}{sampled}", soft_wrap=True)
    console.print(f"  held: {'; '.join(space.defaults)}", soft_wrap=True)
    for note in prepared.notes:
        console.print(f"  note: {note}", soft_wrap=True)
    print_checks(prepared.sweep.workload.checks, console)


def _dry_run(prepared: Prepared, workers: int, console: Console) -> None:
    found = dry_run(prepared.sweep)
    print_reasons(found.reasons, console, f"Of {found.probed:,} plans spread over the space")
    count = prepared.sweep.space.count
    rate = 1 / found.seconds_per_plan
    console.print(
        f"About {rate:,.0f} plans/s per worker: {count:,} plans take about {short(count / rate / workers, 's')} "
        f"with {workers} worker{'s' * (workers != 1)}, plus 1 to 3 s to start, "
        f"and {short(count * found.bytes_per_plan, 'B')} of results. "
        "Nothing was stored.",
        highlight=False,
    )


def _run(prepared: Prepared, store: Store, executor: Executor, fresh: bool, console: Console) -> Progress:
    if not is_compiled():
        console.print(f"Compiling the engine: once per version, about a minute; cached in {cache_dir()}", soft_wrap=True)
    seconds = warm_up(prepared.sweep)
    console.print(f"Engine ready in {short(seconds, 's')}.")
    with progress_display(console) as watch:
        return run_sweep(
            prepared, store, executor, fresh=fresh, watch=watch, log=lambda text: console.print(text, soft_wrap=True)
        )


def _conclude(progress: Progress, folder: Folder, workers: int, top: int | None, console: Console) -> None:
    resumed = f" ({progress.resumed:,} were already there)" if progress.resumed else ""
    if progress.done:
        console.print(
            f"{progress.done:,} plans in {short(progress.seconds, 's')}, {progress.rate:,.0f} plans/s with "
            f"{workers} worker{'s' * (workers != 1)}{resumed}",
            highlight=False,
        )
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
