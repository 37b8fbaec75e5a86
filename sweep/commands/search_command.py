"""`sweep search`: find the best plans of a sweep, proven, without simulating the others."""

import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from sim_core import plural, short
from sim_core.compiling import BOUNDS
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
    interruptible,
    introduce,
    make_ready,
    prepared_spec,
    results_folder,
    spec_at,
)
from sweep.evaluation.slices import LIMIT_S
from sweep.executors.choice import Kind, check_persistent, check_workers, opened
from sweep.exits import EXIT_NO_PLAN
from sweep.ranking.ranking import objectives_of, rank
from sweep.results.store import Store
from sweep.search.candidates import BEATEN, WORSE
from sweep.search.objective import Objective
from sweep.search.search import Answer, as_search, run_search
from sweep.show.progress import progress_display
from sweep.show.ranked import print_ranking
from sweep.show.sections import rows_text
from sweep.show.terminal import own_console


def command(
    spec: SpecFile,
    out: Out = None,
    best: Annotated[int, typer.Option(min=1, help="How many plans, of each group if the spec has `per`.")] = 1,
    within: Annotated[float, typer.Option(min=0, max=1, help="Also all plans this part worse than the best: 0.03.")] = 0.0,
    executor: Executing = Kind.local,
    workers: Workers = None,
    slice_limit: SliceLimit = LIMIT_S,
    sets: SpecSets = None,
    fresh: Fresh = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the best plans, as JSON.")] = False,
) -> None:
    """Find the best plans of a sweep, proven, without simulating the others."""
    console = own_console(of_a_run=True, quiet=quiet or as_json)
    check_workers(executor, workers)
    loaded = spec_at(spec, sets)
    prepared = prepared_spec(loaded, spec)
    column, descending = objectives_of(loaded)
    objective = Objective(column=column, descending=descending, per=tuple(loaded.per), best=best, within=within)
    whole, prepared = prepared, as_search(prepared, objective)
    folder = results_folder(out, f"{loaded.name}-search-{prepared.sweep.identity[:8]}")
    introduce(loaded, prepared, console, verbose=verbose)
    check_persistent(out)
    store = Store(directory=folder)
    store.check(prepared.provenance, fresh=fresh)
    stopped = f"Interrupted. Finished slices are in {folder}; run the same command to resume."
    with interruptible(console, stopped), opened(executor, workers, slice_limit, loaded.store.writer, folder) as running:
        make_ready(prepared, console, stopped, BOUNDS)
        begun = time.monotonic()
        with progress_display(console) as watch:
            answer = run_search(prepared, objective, store, running, fresh=fresh, watch=watch)
    print_answer(answer, time.monotonic() - begun, console)
    ranked = rank(folder, top=best if within == 0 else None)
    if as_json:
        sys.stdout.write(rows_text(ranked.rows, "json") + "\n")
    if not quiet and not as_json:
        console.print()
        print_ranking(ranked, console, folder=folder, verbose=verbose)
        say_if_better_outside(ranked, loaded, whole, spec, folder, console)
    console.print(f"Results: {folder}  (all of it: `sweep rank -v`)")
    if not answer.rows:
        console.print("No plan can run.")
        raise typer.Exit(EXIT_NO_PLAN)


def print_answer(answer: Answer, seconds: float, console: Console) -> None:
    """How much had to be simulated for the proof, and how near the bounds were."""
    legal = answer.counted.get(BEATEN, 0) + answer.counted.get(WORSE, 0) + answer.rows
    console.print(
        f"{plural(answer.plans)} searched in {short(seconds, 's')}: {legal:,} can run, {answer.simulated:,} were simulated "
        f"({answer.simulated / max(legal, 1):.2%}; their bounds are {answer.tightness:.1%} of the step), "
        "the bounds of the others prove that they are worse."
    )
