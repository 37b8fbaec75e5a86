"""`sweep inspect`: what files hold: workloads, rank traces, logs of runs, profiler traces."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sim_core import (
    TRACE,
    SpecError,
    kind_of,
    model_names,
    model_yaml,
    plural,
    read_traces,
    read_workload,
    stage_document,
    suggest_model,
)
from sweep.commands.shared import (
    AsJson,
    FactSets,
    MicroBatch,
    Records,
    needs,
    print_warnings,
    record_sets,
    refuse_result,
    takes,
    write_json,
    write_text,
)
from sweep.evaluation.one_plan import facts_of, of_sets
from sweep.inputs.launches import read_launch
from sweep.inputs.log import Log, read_log
from sweep.inputs.registry import LAUNCH, LOG, MODEL, SPEC, WORKLOAD, cannot, is_trace, recognised, unknown
from sweep.inputs.stages import read_stages
from sweep.inputs.traces.profile import read_profile
from sweep.runs.logs import row_of
from sweep.runs.table import runs_text
from sweep.show.inputs import workload_screen, workload_values
from sweep.show.logs import launch_lines, launch_values, log_lines, log_values
from sweep.show.profiles import profile_screen, profile_values
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console
from sweep.show.traces import durations_lines, job_screen, job_values


def command(
    files: Annotated[
        list[Path], typer.Argument(help="Workload files; folders of rank traces; logs of training runs; profiler traces.")
    ],
    micro_batch: MicroBatch = None,
    sets: FactSets = None,
    records: Records = None,
    suggest: Annotated[
        bool,
        typer.Option("--suggest-model", help="Print the model that a SimAI text suggests, as the model: section of a spec."),
    ] = False,
    without_last_step: Annotated[
        bool, typer.Option("--without-last-step", help="Profiler traces: leave the last step out, as HTA does.")
    ] = False,
    step_name: Annotated[
        str | None, typer.Option(help="Profiler traces: the annotation that is a step, in place of ProfilerStep.")
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="Write the logs as measured runs (CSV) for validate, calibrate, rank --measured and tune."),
    ] = None,
    stages: Annotated[
        Path | None,
        typer.Option(
            help="Write a pipeline's stage durations (JSON), from Megatron's timers in a log or annotations in the traces of "
            "all its stages, for replay, simulate and run."
        ),
    ] = None,
    hardware: Annotated[str, typer.Option(help="With --rows: the device of logs that name none.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print what files hold: plan, layers and traffic of a workload; plan, model and steady step of a log or launch."""
    console, values = own_console(), list[dict[str, object]]()
    if suggest:
        takes("--suggest-model", {"--json": as_json}, "--set, --micro-batch and --record")
    if stages is not None:
        takes("--stages", {"--json": as_json, "--suggest-model": suggest, "--rows": rows is not None}, "--step-name")
        _write_stages(list(map(str, files)), step_name, stages, console)
        return
    needs("--rows", rows, {"--hardware": hardware or None})
    _check_for_traces(files, {"--step-name": step_name, "--without-last-step": without_last_step})
    facts = [*(sets or []), *record_sets(records), *([f"micro_batch={micro_batch}"] if micro_batch else [])]
    logs: list[Log] = []
    for path in map(str, files):
        _check_no_model(path)
        if suggest:
            sys.stdout.write(model_yaml(*suggest_model(path, facts_of(path, facts))))
            continue
        if rows is None and is_trace(path):
            values.append(_profile(path, without_last_step, step_name, None if as_json else console))
            continue
        kind = _kind(path)
        if rows is not None and kind != LOG:
            raise SpecError(f"{path}: is no log of a run; --rows takes only those")
        shown = None if as_json or rows is not None else console
        if kind == LOG:
            logs.append(read_log(path))
            values.append(log_values(logs[-1]))
            if shown:
                print_sections(log_lines(logs[-1]), shown)
        elif kind == LAUNCH:
            launch = read_launch(path)
            values.append(launch_values(launch))
            if shown:
                print_sections(launch_lines(launch), shown)
        else:
            with of_sets(sets or []):
                values.append(_workload(path, facts, shown))
    _write_rows(logs, rows, hardware, console)
    if as_json and not suggest:
        write_json(values)


def _check_for_traces(files: list[Path], options: dict[str, object]) -> None:
    """Raise OptionError if one of these options is given and no file is a profiler trace."""
    if any(options.values()) and not any(map(is_trace, map(str, files))):
        takes(f"{files[0]} (no profiler trace)", options, "--set, --micro-batch, --record and --json")


def _check_no_model(path: str) -> None:
    if path in model_names() or Path(path).name == "config.json":
        raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")


def _kind(path: str) -> str:
    """The kind of a file, by the registry; WORKLOAD for one that is a workload or is not there. Raises SpecError for others."""
    refuse_result(Path(path), "a workload or a log")
    if not Path(path).is_file():
        return WORKLOAD
    row = recognised(path)
    if row is None:
        raise unknown(path)
    if row.kind == MODEL:
        raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")
    if row.kind == SPEC:
        raise cannot(path, row, "a workload or a log")
    return row.kind


def _profile(path: str, without_last_step: bool, step_name: str | None, console: Console | None) -> dict[str, object]:
    """Print what a profiler trace holds, or give it as values where there is no console."""
    profile = read_profile(path, last_step=not without_last_step, step_name=step_name)
    if console is None:
        return profile_values(profile)
    print_warnings(profile.warnings, console)
    print_sections(profile_screen(profile), console)
    return {}


def _workload(path: str, given: list[str], console: Console | None) -> dict[str, object]:
    """Print what a workload holds, or give it as values where there is no console."""
    facts = facts_of(path, given)
    if kind_of(path) == TRACE:
        job = read_traces(path, facts)
        if console is None:
            return job_values(path, job)
        print_warnings(job.warnings, console)
        print_sections(job_screen(path, job), console)
        return {}
    workload, warnings = read_workload(path, facts)
    if console is None:
        return workload_values(path, workload, warnings)
    print_warnings(warnings, console)
    print_sections(workload_screen(path, workload), console)
    return {}


def _write_stages(files: list[str], step_name: str | None, path: Path, console: Console) -> None:
    recorded = read_stages(files, step_name)
    write_text(stage_document(recorded), path)
    print_sections(durations_lines(str(path), recorded), console)


def _write_rows(logs: list[Log], path: Path | None, hardware: str, console: Console) -> None:
    """Write the logs that can be rows if a `path` is given, and say of the others why they cannot."""
    if path is None:
        return
    taken: list[dict[str, object]] = []
    for log in logs:
        row = row_of(log, len(taken) + 1, hardware)
        if isinstance(row, str):
            console.print(f"{log.path}: no row: {row}")
        else:
            taken.append(row)
    if not taken:
        raise SpecError(f"{path}: not written: no log holds a whole run")
    write_text(runs_text(taken), path)
    console.print(f"{path}: {plural(len(taken), 'run')}")
