"""`sweep run`, `sweep search`: run a sweep, or the part that is missing, or what proves its best plans; and rank the result."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Exit, Option

from sim_core import SpecError, model_names, plural, short
from sim_core.compiling import BOUNDS, STEP as STEPS, cache_dir, is_compiled
from sweep.answers.neighbours import best_outside
from sweep.answers.variation import STEP
from sweep.columns import LONGER, SHORTER
from sweep.commands.shared import (
    RESULTS,
    LogJson,
    MetricsFile,
    Verbose,
    check_output,
    print_warnings,
    refuse_result,
    write_json,
)
from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import LIMIT_S
from sweep.evaluation.warming import warm_up
from sweep.execution import cpu_seconds, dry_run, run_sweep
from sweep.executors import Executor, InlineExecutor
from sweep.executors.choice import Kind, check_persistent, check_workers, opened
from sweep.exits import EXIT_FAILED_PLANS, EXIT_NO_PLAN, EXIT_UNPROVEN
from sweep.exporting.meant import believed, known_of
from sweep.inputs.registry import SPEC_SIGN, recognised
from sweep.inputs.text import head_of
from sweep.listing import keep_best
from sweep.metrics import Metrics
from sweep.options import OptionError, of_option, wrong
from sweep.ranking.ranking import Ranking, failed, objectives_of, rank
from sweep.reopening import Reopened, prepared_spec
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store
from sweep.search.candidates import BEATEN, WORSE
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search, seconds_of
from sweep.search.verifying import SEED, verify
from sweep.show.checks import check_lines
from sweep.show.progress import clock
from sweep.show.ranked import print_ranking
from sweep.show.results import reason_lines
from sweep.show.sections import print_sections, rows_text, say
from sweep.show.terminal import ended_at_once, interruptible, own_console
from sweep.spec.spec import SweepSpec, load_spec
from sweep.tuning.candidates import failing

SHORT_S = 2.0
"""A sweep of fewer CPU seconds runs in this process, unless `--workers` is given: workers need as long to start."""
_ALWAYS = ("warning:", "hardware ", "stack ", "sample")
"""What notes begin with that say what was taken for what a user did not state."""

SpecFile = Annotated[Path, Argument(help="The sweep, a YAML file.")]
Out = Annotated[str | None, Option("--out", "-o", help="Folder for the results, a path or URI. Default: results/NAME-HASH.")]
Executing = Annotated[
    Kind, Option(help="Processes on this machine, or Ray: the cluster in RAY_ADDRESS, else one started here.")
]
Workers = Annotated[
    int | None,
    Option(
        min=0,
        max=100_000,
        help="Worker processes; 0: none, run in this process. Default: all cores, but none to run less than 2 s of plans."
        " A cluster sets its own.",
    ),
]
SliceLimit = Annotated[float, Option(min=1, help="Seconds after which a slice of plans counts as hanging.")]
SpecSets = Annotated[list[str] | None, Option("--set", help="Override a key of the spec: axes.tp=[1,2].")]
Fresh = Annotated[bool, Option(help="Delete what the folder holds, instead of resuming.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")]


def run_command(
    spec: SpecFile,
    out: Out = None,
    executor: Executing = Kind.local,
    workers: Workers = None,
    slice_limit: SliceLimit = LIMIT_S,
    sets: SpecSets = None,
    only_plan: Annotated[bool, Option("--dry-run", help="Print what a run would do; store nothing.")] = False,
    fresh: Fresh = False,
    top: Annotated[int | None, Option(min=0, help="Rows of the final table (per group); 0: no table.")] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Annotated[bool, Option("--json", help="Print only the ranked rows, as JSON.")] = False,
    metrics: MetricsFile = None,
    log_json: LogJson = False,
) -> None:
    """Run a sweep, or the part of it that is missing, and rank the result."""
    check_output(metrics, option="--metrics")
    with Metrics(None if only_plan else metrics, spec.stem) as told:
        console = own_console(of_a_run=True, quiet=quiet or as_json)
        check_workers(executor, workers)
        loaded = _spec_at(spec, sets)
        prepared = prepared_spec(loaded, spec)
        folder = _introduced(loaded, loaded.name, prepared, out, console, verbose=verbose)
        if only_plan:
            _dry_run(prepared, folder, executor, workers, fresh, console, as_json=as_json)
            return
        of_workers = (loaded, prepared, out, folder, executor, workers, slice_limit, fresh, console)
        with _working(*of_workers, what=STEPS) as running:
            in_this_process = _is_short(executor, workers, lambda: cpu_seconds(prepared.sweep, prepared.sweep.space.count))
            by = InlineExecutor() if in_this_process else running
            with told.showing(console, folder) as watch:
                progress = run_sweep(prepared, Store(directory=folder), by, fresh=fresh, watch=watch, log=console.print)
        if progress.done:
            resumed = f" ({progress.resumed:,} were already there)" if progress.resumed else ""
            took = f"{plural(progress.done)} in {short(progress.seconds, 's')}, {progress.plans_per_second:,.0f} plans/s"
            console.print(f"{took} {_with(0 if isinstance(by, InlineExecutor) else by.workers)}{resumed}")
        else:
            console.print(f"Nothing to do: all {progress.plans:,} plans are already there.")
        if top != 0 and (as_json or not quiet):
            _show(rank(folder, top=top), loaded, prepared, spec, folder, console, verbose=verbose, as_json=as_json)
        console.print(f"Results: {folder}  (all of it: `sweep rank -v`)")
        first = keep_best(folder)
        if lost := failed(first.reasons):
            console.print(f"{plural(lost)} failed (see the column reason); --fresh runs all plans again.")
            raise Exit(EXIT_FAILED_PLANS)
        if not first.ranked:
            console.print("No plan can run.")
            raise Exit(EXIT_NO_PLAN)


def search_command(
    spec: SpecFile,
    out: Out = None,
    best: Annotated[
        int, Option(min=1, help="How many plans, of each group if the spec has `per`; those with the same numbers count once.")
    ] = 1,
    within: Annotated[float, Option(min=0, max=1, help="Also all plans this part worse than the best: 0.03.")] = 0.0,
    verify_plans: Annotated[
        int, Option("--verify", min=0, help="Simulate so many random plans of those left out, and say if one should not be.")
    ] = 0,
    executor: Executing = Kind.local,
    workers: Workers = None,
    slice_limit: SliceLimit = LIMIT_S,
    sets: SpecSets = None,
    fresh: Fresh = False,
    only_time: Annotated[bool, Option("--dry-run", help="Say how long it takes, by a few slices; store nothing.")] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    as_json: Annotated[
        bool, Option("--json", help="Print only the best plans, as JSON; with --verify in `rows`, beside `verified`.")
    ] = False,
    metrics: MetricsFile = None,
    log_json: LogJson = False,
) -> None:
    """Find the best plans of a sweep, proven, without simulating the others."""
    check_output(metrics, option="--metrics")
    with Metrics(None if only_time else metrics, spec.stem) as told:
        console = own_console(of_a_run=True, quiet=quiet or as_json)
        check_workers(executor, workers)
        loaded = _spec_at(spec, sets)
        whole = prepared_spec(loaded, spec)
        objective = sought(loaded, whole, best, within)
        prepared = as_search(whole, objective)
        if only_time:
            with ended_at_once(console, "Interrupted. Nothing was stored."):
                _say_if_compiling(console, BOUNDS)
                warm_up(prepared.sweep, BOUNDS)
                first, then = seconds_of(prepared, objective)
            at_once = workers or len(os.sched_getaffinity(0))
            lasts = f"{plural(whole.sweep.space.count)} take about {clock(first + then / at_once)} (h:min:s) {_with(at_once)}"
            return console.print(f"{lasts} on free CPUs, {clock(first)} of it until the search begins. Nothing was stored.")
        folder = _introduced(loaded, f"{loaded.name}-search", prepared, out, console, verbose=verbose)
        of_workers = (loaded, prepared, out, folder, executor, workers, slice_limit, fresh, console)
        with _working(*of_workers, what=BOUNDS) as running:
            begun = time.monotonic()
            with told.showing(console, folder) as watch:
                answer = run_search(prepared, objective, Store(directory=folder), running, fresh=fresh, watch=watch)
        seconds, legal = time.monotonic() - begun, answer.counted.get(BEATEN, 0) + answer.counted.get(WORSE, 0) + answer.rows
        console.print(
            f"{plural(answer.plans)} searched in {short(seconds, 's')}: at most {legal:,} can run, {answer.simulated:,} were "
            f"simulated ({answer.simulated / max(legal, 1):.2%}; their bounds are {answer.tightness:.1%} of the step), "
            "the bounds of the others prove that they are worse."
        )
        if answer.apart < answer.rows:
            console.print(f"{answer.rows:,} are in the answer; those with the same numbers count once, so as {answer.apart:,}.")
        verified = verify(prepared, objective, Store(directory=folder), verify_plans) if verify_plans else None
        if verified is not None:
            say(str(verified), console)
        if as_json or not quiet:
            ranking = rank(folder, top=best if within == 0 else None)
            if as_json and verified is not None:
                ranking = believed(ranking, known_of(folder))
                write_json({"rows": ranking.rows.to_pylist(), "verified": {"seed": SEED, **verified._asdict()}})
            else:
                _show(ranking, loaded, whole, spec, folder, console, verbose=verbose, as_json=as_json)
        keep_best(folder)
        console.print(f"Results: {folder}  (all of it: `sweep rank -v`)")
        if verified is not None and not verified.holds:
            raise Exit(EXIT_UNPROVEN)
        if not answer.rows:
            console.print("No plan can run.")
            raise Exit(EXIT_NO_PLAN)


def sought(loaded: SweepSpec, prepared: Prepared, best: int, within: float) -> Objective:
    """What a search of a spec looks for: `best` plans of each group, and those that are worse by a part `within`."""
    column, descending = objectives_of(loaded)
    objective = Objective(column=column, descending=descending, per=tuple(loaded.per), best=best, within=within)
    return replace(objective, dear=failing(prepared)) if objective.follows_step else objective


def _spec_at(path: Path, sets: list[str] | None) -> SweepSpec:
    """The spec in a file, or what the file is instead, and what would make a spec of it. Raises SpecError."""
    refuse_result(path, "the spec of a sweep")
    if (path / "config.json").is_file() or (not path.exists() and str(path) in model_names()):
        raise SpecError(f"{path}: is a model, not the spec of a sweep; `sweep init {path}` writes one for it")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise SpecError(f"{path}: {found}, expected the spec of a sweep, a YAML file (`sweep init` writes one)")
    try:
        return load_spec(path, sets or [])
    except OptionError:
        raise
    except SpecError:
        row = recognised(path)
        if row is None or "init" not in row.does or SPEC_SIGN.search(head_of(path).decode("utf-8", "replace")):
            raise
        raise SpecError(f"{path}: is {row.with_article}, not a sweep; `sweep init {path}` writes one for it") from None


def _introduced(
    loaded: SweepSpec, name: str, prepared: Prepared, out: str | None, console: Console, *, verbose: bool
) -> Folder:
    """The folder of the results, `out` or one of this name under results/, once it is said what will be simulated: the space
    and doubts; `verbose`: what is held and all notes, too. Raises SpecError."""
    with of_option("--out"):
        folder = folder_at(out or RESULTS / f"{name}-{prepared.sweep.identity[:8]}")
    if folder.local is not None and folder.local.is_file():
        raise wrong("--out", str(folder), "a folder; it is a file")
    space = prepared.sweep.space
    print_warnings(prepared.warnings, console)
    axes = " x ".join(f"{key} {len(values)}" for key, values in loaded.axes.items())
    sampled = f", of which {space.count:,} are drawn" if space.sample else ""
    say(f"{loaded.name}: {plural(space.size)}{f' ({axes})' if axes else ''}{sampled}", console)
    if verbose:
        say(f"  held: {'; '.join(space.defaults)}", console)
    for note in prepared.notes:
        if verbose or note.startswith(_ALWAYS):
            say(f"  note: {note}", console)
    print_sections(check_lines(prepared.sweep.workload.checks), console)
    return folder


@contextmanager
def _working(
    loaded: SweepSpec, prepared: Prepared, out: str | None, folder: Folder, executor: Kind, workers: int | None,
    slice_limit: float, fresh: bool, console: Console, *, what: str,
) -> Iterator[Executor]:  # fmt: skip
    """An executor with the engine for STEPS or BOUNDS, if the folder may hold these results. Raises SimError."""
    check_persistent(out)
    Store(directory=folder).check(prepared.provenance, fresh=fresh)
    stopped = f"Interrupted. Finished slices are in {folder}; run the same command to resume."
    begun = time.monotonic()
    with interruptible(console, stopped), opened(executor, workers, slice_limit, loaded.store.writer, folder) as running:
        if executor is Kind.ray and what == STEPS:
            console.print(f"Ray ready in {short(time.monotonic() - begun, 's')}, {running.workers} CPUs.")
        with ended_at_once(console, stopped):
            _say_if_compiling(console, what)
            seconds = warm_up(prepared.sweep, what)
        console.print(f"Engine ready in {short(seconds, 's')}.")
        yield running


def _say_if_compiling(console: Console, what: str = STEPS) -> None:
    if not is_compiled(what):
        console.print(f"Compiling the engine: once per version, about half a minute; cached in {cache_dir()}")


def _is_short(executor: Kind, workers: int | None, seconds: Callable[[], float]) -> bool:
    """Whether a sweep that takes so many CPU seconds runs in this process, as no number of workers is given."""
    return executor is Kind.local and workers is None and seconds() < SHORT_S


def _with(workers: int) -> str:
    return f"with {plural(workers, 'worker')}" if workers else "in this process"


def _dry_run(
    prepared: Prepared, folder: Folder, executor: Kind, workers: int | None, fresh: bool, console: Console, *, as_json: bool
) -> None:
    store, count = Store(directory=folder), prepared.sweep.space.count
    store.check_held(prepared.provenance, fresh=fresh)
    left = count if fresh or store.provenance() is None else sum(part.rows for part in store.missing(count))
    with ended_at_once(console, "Interrupted. Nothing was stored."):
        _say_if_compiling(console)
        sample = dry_run(prepared)
    here = len(os.sched_getaffinity(0))
    at_once = here if workers is None else workers if executor is Kind.ray else min(workers, here)
    if _is_short(executor, workers, lambda: count * sample.seconds_per_plan):
        at_once = 0
    print_sections(reason_lines(sample.reasons, f"Of {sample.probed:,} plans spread over the space"), console)
    if left < count:
        console.print(f"{folder} holds {count - left:,} of {count:,} plans; {left:,} are left.")
    seconds, size = (sample.seconds(left, at_once), sample.size(left, at_once)) if left else (0.0, 0.0)
    if as_json:
        data = {"plans": count, "left": left, "probed": sample.probed, "reasons": sample.reasons, "workers": at_once}
        write_json({**data, "seconds": seconds, "bytes": size})
    free = ""
    if folder.local is not None:
        place = folder.local.absolute()
        there = next(each for each in (place, *place.parents) if each.exists())
        free = f" ({short(shutil.disk_usage(there).free, 'B')} are free)"
    simulated = left * sample.seconds_per_plan / max(at_once, 1)
    console.print(
        f"About {1 / sample.seconds_per_plan:,.0f} plans/s per worker: {left:,} plans take about {clock(seconds)} (h:min:s) "
        f"{_with(at_once)} on free CPUs, {clock(simulated)} of it to simulate, and "
        f"{short(size, 'B')} of results{free}. Nothing was stored."
    )
    if "" not in sample.reasons:
        console.print("No plan can run." if sample.probed == count else "None of these plans can run.")
        raise Exit(EXIT_NO_PLAN)


def _show(
    ranking: Ranking, loaded: SweepSpec, prepared: Prepared, spec: Path, folder: Folder, console: Console,
    *, verbose: bool, as_json: bool,
) -> None:  # fmt: skip
    """The ranked rows as JSON; or a table, and a line if a plan just outside the space is clearly faster than its best."""
    if as_json:
        sys.stdout.write(rows_text(believed(ranking, known_of(folder)).rows, "json") + "\n")
        return
    console.print()
    print_ranking(ranking, console, folder=folder, verbose=verbose)
    if ranking.best is None or ranking.by not in (*LONGER, *SHORTER):  # no step's time decides
        return
    number, whole = int(ranking.best["plan"]), prepared.without_sample()
    of_now = Reopened(folder=folder, spec=loaded, base=spec.parent, prepared=whole, provenance=whole.provenance, notes=())
    if (better := best_outside(of_now, number)) is not None:
        gain = f"{better.change} would be {better.gain(STEP):.1%} faster than plan {number}"
        say(f"outside: {gain}, but is not in this space", console)
