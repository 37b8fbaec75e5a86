"""The command line: parses, calls, prints."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console

from sim_core import (
    TRACE,
    Job,
    SimError,
    SpecError,
    cache_dir,
    hardware_yaml,
    is_compiled,
    kind_of,
    preset_names,
    read_hardware,
    read_traces,
    read_workload,
    recorded,
    replay,
    short,
    source_hash,
)
from sweep import show, show_trace
from sweep.compare_command import compare_command
from sweep.evaluate import warm_up
from sweep.executors import Executor
from sweep.executors.choice import Kind, check_kept, opened
from sweep.fidelity import compare_fidelity
from sweep.job import Prepared, prepare
from sweep.nightly.command import nightly_command
from sweep.place import Place, place
from sweep.progress import shown
from sweep.rank import outcome, rank
from sweep.run import Progress, dry_run, run_sweep
from sweep.single import facts_of, prepare_plan, recompute_note, row_of, simai_text, tool_breakdown
from sweep.spec import SweepSpec, load_spec
from sweep.store import Store, newest
from sweep.terminal import EXIT_INTERRUPTED, WIDE, Terminated, exit_code, own_console, sigterm_raises
from sweep.timeline import chrome_trace
from sweep.work import LIMIT_S

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
RESULTS = Path("results")
EXIT_INPUT, EXIT_FAILED_PLANS, EXIT_NO_PLAN = 1, 3, 4

Sets = Annotated[list[str] | None, typer.Option("--set", help="A fact that the file does not tell: pp=4, ep=2, layers=8.")]


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


class ExportForm(StrEnum):
    """Formats of `export`."""

    simai = "simai"


class Form(StrEnum):
    """Output formats of `rank`."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"{version('training-plan-sweep')}, model {source_hash()}\n")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Say the version.")] = False,
) -> None:
    """Simulate thousands to millions of parallel training plans from one workload, and rank them."""


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(help="The sweep, a YAML file.")],
    out: Annotated[str | None, typer.Option(help="Folder of the results, a path or URI. Default: results/NAME-HASH.")] = None,
    executor: Annotated[
        Kind, typer.Option(help="Processes of this machine, or Ray: the cluster in RAY_ADDRESS, else one of its own.")
    ] = Kind.local,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Worker processes; 0: none, in this process. Default: all cores. A cluster has its own."),
    ] = None,
    slice_limit: Annotated[float, typer.Option(min=1, help="Seconds after which a slice of plans is taken to hang.")] = LIMIT_S,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the spec: axes.tp=[1,2].")] = None,
    only_plan: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; store nothing.")] = False,
    fresh: Annotated[bool, typer.Option(help="Delete what the folder holds, instead of resuming.")] = False,
    top: Annotated[int | None, typer.Option(min=0, help="Rows of the final table (of each group); 0: none.")] = None,
) -> None:
    """Run a sweep, or the part of it that is missing, and rank the result."""
    console = own_console()
    loaded = load_spec(spec, sets or [])
    prepared = _prepare(loaded, spec)
    _introduce(loaded, prepared, console)
    if only_plan:
        _dry_run(prepared, workers or len(os.sched_getaffinity(0)), console)
        return
    check_kept(out)
    directory = place(out or RESULTS / f"{loaded.name}-{prepared.job.identity[:8]}")
    Store(directory=directory).check(prepared.provenance, fresh=fresh)
    try:
        begun = time.monotonic()
        started = opened(executor, workers, slice_limit, loaded.store.writer, directory)
        with sigterm_raises(), started as running, sigterm_raises():  # again: Ray has put in handlers of its own
            if executor is Kind.ray:
                console.print(f"Ray ready in {short(time.monotonic() - begun, 's')}, {running.workers} CPUs.")
            progress = _run(prepared, Store(directory=directory), running, fresh, console)
    except (KeyboardInterrupt, Terminated) as stop:
        console.print(f"Interrupted. What is done lies in {directory}; the same command goes on from there.")
        raise typer.Exit(exit_code(stop)) from None
    _conclude(progress, directory, running.workers, top, console)


def _prepare(loaded: SweepSpec, spec: Path) -> Prepared:
    try:
        return prepare(loaded, spec.parent)
    except SpecError as error:
        raise SpecError(f"{spec}: {error}") from None


def _introduce(spec: SweepSpec, prepared: Prepared, console: Console) -> None:
    space = prepared.job.space
    for warning in prepared.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    axes = " x ".join(f"{key} {len(values)}" for key, values in spec.axes.items())
    plans = f"{space.size:,} plan{'s' * (space.size != 1)}" + (f" ({axes})" if axes else "")
    sampled = f", of which {space.count:,} are drawn" if space.sample else ""
    console.print(f"{spec.name}: {plans}{sampled}", soft_wrap=True)
    console.print(f"  held: {'; '.join(space.defaults)}", soft_wrap=True)
    for note in prepared.notes:
        console.print(f"  note: {note}", soft_wrap=True)


def _dry_run(prepared: Prepared, workers: int, console: Console) -> None:
    found = dry_run(prepared.job)
    show.reasons(found.reasons, console, f"Of {found.probed:,} plans spread over the space")
    count = prepared.job.space.count
    rate = 1 / found.seconds_per_plan
    console.print(
        f"About {rate:,.0f} plans/s a worker: {count:,} plans take about {short(count / rate / workers, 's')} "
        f"with {workers} worker{'s' * (workers != 1)}, and 1 to 3 s to start. Nothing was stored.",
        highlight=False,
    )


def _run(prepared: Prepared, store: Store, executor: Executor, fresh: bool, console: Console) -> Progress:
    if not is_compiled():
        console.print(f"Compiling the engine: once for this version, some 20 s; kept in {cache_dir()}", soft_wrap=True)
    seconds = warm_up(prepared.job)
    console.print(f"Engine ready in {short(seconds, 's')}.")
    with shown(console) as watch:
        return run_sweep(
            prepared, store, executor, fresh=fresh, watch=watch, tell=lambda text: console.print(text, soft_wrap=True)
        )


def _conclude(progress: Progress, directory: Place, workers: int, top: int | None, console: Console) -> None:
    resumed = f" ({progress.resumed:,} were there already)" if progress.resumed else ""
    if progress.done:
        console.print(
            f"{progress.done:,} plans in {short(progress.seconds, 's')}, {progress.rate:,.0f} plans/s with "
            f"{workers} worker{'s' * (workers != 1)}{resumed}",
            highlight=False,
        )
    else:
        console.print(f"Nothing to do: all {progress.total:,} plans are there.")
    if top != 0:
        show.ranking_table(rank(directory, top=top), console)
    console.print(f"Results: {directory}  (more: sweep rank --help)", soft_wrap=True)
    ok, failed = outcome(directory)
    if failed:
        console.print(f"{failed:,} plan{'s' * (failed != 1)} failed (see the column reason); --fresh runs all again.")
        raise typer.Exit(EXIT_FAILED_PLANS)
    if not ok:
        console.print("No plan can run.")
        raise typer.Exit(EXIT_NO_PLAN)


@app.command("rank")
def rank_command(
    directory: Annotated[
        str | None, typer.Argument(help="Folder of results, a path or URI. Default: the newest under results/.")
    ] = None,
    by: Annotated[str | None, typer.Option(help="Column to rank by. Default: the spec's first objective.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows. Default: 20, or 1 of each group.")] = None,
    where: Annotated[str | None, typer.Option(help="Condition in SQL: 'all_gpus <= 512 and tp > 1'.")] = None,
    per: Annotated[
        list[str] | None, typer.Option(help="Rank inside groups of this column; '' for no groups. Default: the spec's.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Columns to show, comma-separated.")] = None,
    descending: Annotated[bool | None, typer.Option("--descending/--ascending", help="Highest or lowest first.")] = None,
    form: Annotated[Form | None, typer.Option("--format", help="Default: by the suffix of --output, else a table.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write to (needed for parquet).")] = None,
    compare: Annotated[bool, typer.Option("--compare-fidelity", help="Where event and simai disagree, widest first.")] = False,
) -> None:
    """Rank the plans of a sweep."""
    found = place(directory) if directory else newest(RESULTS)
    if form is None:
        suffix = output.suffix.removeprefix(".") if output else ""
        form = Form(suffix) if suffix in list(Form) else Form.table
    if compare:
        if by or per or columns or descending is not None:
            raise SpecError("--compare-fidelity: takes --top, --where, --format and --output only")
        _compare(found, top, where, form, output)
        return
    ranking = rank(
        found,
        by=by,
        top=top,
        where=where,
        per=None if per is None else [name for part in per for name in part.split(",") if name],
        columns=columns.split(",") if columns else (),
        descending=descending,
    )
    if form is not Form.table:
        _write_rows(ranking.rows, form, output)
    elif output is None:
        own_console().print(f"{found}:")
        show.ranking_table(ranking, own_console())
    else:
        with output.open("w", encoding="utf-8") as file:
            show.ranking_table(ranking, Console(file=file, width=WIDE, markup=False))


def _write_rows(rows: pa.Table, form: Form, output: Path | None) -> None:
    """Rows as csv, json or parquet, with all digits."""
    if form is Form.parquet:
        if output is None:
            raise SpecError("--format parquet: needs --output FILE")
        pq.write_table(rows, output)
    elif output is None:
        sys.stdout.write(show.rows_text(rows, form.value) + "\n")
    else:
        output.write_text(show.rows_text(rows, form.value) + "\n", encoding="utf-8")


def _compare(directory: Place, top: int | None, where: str | None, form: Form, output: Path | None) -> None:
    found = compare_fidelity(directory, top=top or 20, where=where)
    if form is Form.table and output is None:
        show.disagreement(found, own_console())
    elif form is Form.table and output is not None:
        with output.open("w", encoding="utf-8") as file:
            show.disagreement(found, Console(file=file, width=WIDE, markup=False, highlight=False))
    else:
        _write_rows(found.rows, form, output)


@app.command()
def simulate(
    file: Annotated[Path, typer.Argument(help="Workload file.")],
    hardware: Annotated[str, typer.Option(help="Preset or YAML file.")] = "H100-SXM",
    fidelity: Annotated[Fidelity, typer.Option(help="The event engine, or SimAI-Analytical's cost model.")] = Fidelity.event,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Micro-batch that the file was made with.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Change the file's plan: tp=8, hardware.nic_bandwidth=...")
    ] = None,
) -> None:
    """Simulate one plan (the file's own, unless changed) and print where its time goes."""
    console = own_console()
    prepared = prepare_plan(file, hardware, fidelity.value, micro_batch, sets or [])
    for text in prepared.warnings:
        console.print(f"warning: {text}", soft_wrap=True)
    if fidelity is Fidelity.simai:
        show.tool_breakdown(tool_breakdown(prepared), console)
    row = row_of(prepared)
    show.plan_row(row, prepared.notes, console, parts=fidelity is Fidelity.event)
    if row["status"] == "failed" or (row["status"] == "infeasible" and fidelity is Fidelity.event):
        raise typer.Exit(EXIT_FAILED_PLANS)


@app.command()
def export(
    spec: Annotated[Path, typer.Argument(help="The sweep that the plan is of.")],
    plan: Annotated[int, typer.Option(min=0, help="Its number, as in the results.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")] = None,
    form: Annotated[ExportForm, typer.Option("--format", help="Format of the text.")] = ExportForm.simai,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Overrides that the sweep was run with.")] = None,
) -> None:
    """Write a plan of a sweep as a SimAI workload text, for SimAI's own simulators."""
    loaded = load_spec(spec, sets or [])
    prepared = _prepare(loaded, spec)
    text = simai_text(prepared, spec.parent / loaded.workload.path, plan)
    told = recompute_note(prepared, plan)
    if told:
        sys.stderr.write(f"note: {told}\n")
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


@app.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(help="Workload files; folders of rank traces.")],
    micro_batch: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Micro-batch that the file was made with.")
    ] = None,
    sets: Sets = None,
) -> None:
    """Say what a workload file holds: plan, layers, parameters, traffic, compute."""
    console = own_console()
    for path in files:
        facts = facts_of(str(path), [*(sets or []), *([f"micro_batch={micro_batch}"] if micro_batch else [])])
        if kind_of(str(path)) == TRACE:
            job = read_traces(str(path), facts)
            _warn(job.warnings, console)
            show_trace.job_screen(str(path), job, console)
            continue
        workload, warnings = read_workload(str(path), facts)
        _warn(warnings, console)
        show.workload_screen(str(path), workload, console)


def _warn(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)


def _traces(path: str, sets: list[str] | None, console: Console) -> Job:
    job = read_traces(path, facts_of(path, sets or []))
    _warn(job.warnings, console)
    return job


@app.command("replay")
def replay_command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, a glob in quotes.")],
    ranks: Annotated[
        bool, typer.Option("--ranks/--stages", help="Each rank's own times (needs all ranks), or each stage's mean.")
    ] = False,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Rebuild the recorded step by the event engine, and say how far off it is."""
    console = own_console()
    job = _traces(trace, sets, Console(stderr=True, markup=False) if as_json else console)
    found = replay(job, of_ranks=ranks)
    if as_json:
        sys.stdout.write(json.dumps(show_trace.replay_values(found), indent=1) + "\n")
    else:
        show_trace.replay_screen(trace, found, console)


@app.command()
def timeline(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, a glob in quotes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("timeline.json"),
    sets: Sets = None,
) -> None:
    """Write the recorded and the replayed step side by side, for ui.perfetto.dev."""
    console = own_console()
    job = _traces(trace, sets, console)
    found = replay(job, of_ranks=job.whole)
    output.write_text(chrome_trace(recorded(job), found), encoding="utf-8")
    console.print(
        f"{output}: recorded {short(found.recorded_s, 's')}, replayed {short(found.step_s, 's')}; open it in ui.perfetto.dev",
        soft_wrap=True,
    )
    for note in found.notes:
        console.print(f"  note: {note}", soft_wrap=True)


@app.command()
def hardware(
    name: Annotated[str | None, typer.Argument(help="Preset or YAML file; none: list the presets.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="As a YAML file to change and use.")] = False,
) -> None:
    """List the hardware presets, or the numbers of one with their sources."""
    if name and as_yaml:
        sys.stdout.write(hardware_yaml(read_hardware(name)))
        return
    console = own_console()
    show.hardware(read_hardware(name) if name else None, [read_hardware(preset) for preset in preset_names()], console)


app.command("compare")(compare_command)
app.command("nightly")(nightly_command)


def main() -> None:
    """Entry point: a fault of the input is one line on standard error and exit code 1."""
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
    except SimError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(EXIT_INPUT) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(EXIT_INPUT) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(f"error: {where}{error.strerror or ' '.join(str(error).split())}\n")
        raise SystemExit(EXIT_INPUT) from None
