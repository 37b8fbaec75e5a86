"""`sweep inspect`, `sweep simulate`: what files hold, and one plan of a workload file or a model."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Exit, Option

from sim_core import (
    TRACE,
    SpecError,
    kind_of,
    model_names,
    plural,
    preset_names,
    read_hardware,
    read_model,
    read_traces,
    read_workload,
    stage_document,
)
from sim_core.documents import Fields
from sim_core.limits import LARGEST
from sweep.answers.section import Screen
from sweep.commands.shared import AsJson, FactSets, Tokens, needs, print_warnings, refuse_result, takes, write_json, write_text
from sweep.evaluation.one_plan import facts_of, of_sets, prepare_plan, row_of, simai_parts
from sweep.exits import EXIT_FAILED_PLANS
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.registry import LAUNCH, LOG, MODEL, SPEC, WORKLOAD, cannot, is_trace, recognised, unknown
from sweep.inputs.stages import read_stages
from sweep.inputs.told import Job
from sweep.inputs.traces.profile import read_profile
from sweep.options import readable, wrong
from sweep.runs.logs import row_of as row_of_log
from sweep.runs.table import runs_text
from sweep.show.checks import check_lines, plausibility_lines
from sweep.show.inputs import workload_screen, workload_values
from sweep.show.logs import launch_values, log_lines, log_values, told_screen
from sweep.show.profiles import profile_screen, profile_values
from sweep.show.results import plan_lines, simai_lines
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console
from sweep.show.traces import durations_lines, job_screen, job_values

MicroBatch = Annotated[int | None, Option(min=1, max=LARGEST["micro_batch"], help="Micro-batch that the file was made with.")]
Records = Annotated[
    list[str] | None,
    Option(
        "--record", help="A value in place of the file's: embedding_layer='0.05 ms', layernorm='0 B', NAME=keep, NAME=model."
    ),
]

Told = tuple[Sequence[str], Callable[[], Fields], Screen]
"""Of a file: warnings, its values, and what is printed of it."""


def inspect_command(
    files: Annotated[
        list[Path], Argument(help="Workload files; folders of rank traces; logs of training runs; profiler traces.")
    ],
    micro_batch: MicroBatch = None,
    sets: FactSets = None,
    records: Records = None,
    without_last_step: Annotated[
        bool, Option("--without-last-step", help="Profiler traces: leave the last step out, as HTA does.")
    ] = False,
    step_name: Annotated[
        str | None, Option(help="Profiler traces: the annotation that is a step, in place of ProfilerStep.")
    ] = None,
    rows: Annotated[
        Path | None, Option(help="Write the logs as measured runs (CSV) for validate, calibrate, rank --measured and tune.")
    ] = None,
    stages: Annotated[
        Path | None,
        Option(
            help="Write a pipeline's stage durations (JSON), from Megatron's timers in a log or annotations in the traces of "
            "all its stages, for replay, simulate and run."
        ),
    ] = None,
    hardware: Annotated[str, Option(help="With --rows: the device of logs that name none.")] = "",
    as_json: AsJson = False,
) -> None:
    """Print what files hold: plan, layers and traffic of a workload; plan, model and steady step of a log or launch."""
    console, paths = own_console(), list(map(str, files))
    if stages is not None:
        takes("--stages", {"--json": as_json, "--rows": rows is not None}, "--step-name")
        recorded = read_stages(paths, step_name)
        write_text(stage_document(recorded), stages)
        print_sections(durations_lines(str(stages), recorded), console)
        return
    needs("--rows", rows, {"--hardware": hardware or None})
    if not any(map(is_trace, paths)):
        of_traces = {"--step-name": step_name, "--without-last-step": without_last_step}
        takes(f"{files[0]} (no profiler trace)", of_traces, "--set, --micro-batch, --record and --json")
    facts = [*(sets or []), *_record_sets(records), *([f"micro_batch={micro_batch}"] if micro_batch else [])]
    values, logs = list[Fields](), list[Job]()
    for path in paths:
        if path in model_names() or Path(path).name == "config.json":
            raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")
        if rows is not None:
            if _kind(path) != LOG:
                raise SpecError(f"{path}: is no log of a run; --rows takes only those")
            logs.append(read_log(path))
            values.append(log_values(logs[-1]))
            continue
        warnings, values_of, screen = _told(path, facts, sets or [], step_name, last_step=not without_last_step)
        if as_json:
            values.append(values_of())
        else:
            print_warnings(warnings, console)
            print_sections(screen, console)
    if rows is not None:
        _write_rows(logs, rows, hardware, console)
    if as_json:
        write_json(values)


def _record_sets(records: Sequence[str] | None) -> list[str]:
    """`--record NAME=VALUE` as assignments to `workload.records`. Raises SpecError."""
    for record in records or ():
        if "=" not in record:
            raise wrong("--record", record, "NAME=VALUE, such as embedding_layer='0.05 ms'")
    return [f"records.{record}" for record in records or ()]


def _kind(path: str) -> str:
    """The kind of a file, by the registry; WORKLOAD for one that is a workload or is not there. Raises SpecError for others."""
    refuse_result(Path(path), "a workload or a log")
    row = recognised(path)
    if row is None and not Path(path).is_file():
        return WORKLOAD
    if row is None:
        raise unknown(path)
    if row.kind == MODEL:
        raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")
    if row.kind == SPEC:
        raise cannot(path, row, "a workload or a log")
    return row.kind


def _told(path: str, facts: list[str], sets: list[str], step_name: str | None, *, last_step: bool) -> Told:
    """What a file holds, by its kind."""
    if is_trace(path):
        profile = read_profile(path, last_step=last_step, step_name=step_name)
        return profile.warnings, partial(profile_values, profile), profile_screen(profile)
    kind = _kind(path)
    if kind == LOG:
        log = read_log(path)
        return (), partial(log_values, log), log_lines(log)
    if kind == LAUNCH:
        launch = read_launch(path)
        return (), partial(launch_values, launch), told_screen(launch)
    with of_sets(sets):
        stated = facts_of(path, facts)
        if kind_of(path) == TRACE:
            job = read_traces(path, stated)
            return job.warnings, partial(job_values, path, job), job_screen(path, job)
        workload, warnings = read_workload(path, stated)
        return warnings, partial(workload_values, path, workload, warnings), workload_screen(path, workload)


def _write_rows(logs: list[Job], path: Path, hardware: str, console: Console) -> None:
    """Write the logs that can be rows, and say of the others why they cannot."""
    taken: list[Fields] = []
    for log in logs:
        row = row_of_log(log, len(taken) + 1, hardware)
        if isinstance(row, str):
            console.print(f"{log.path}: no row: {row}")
        else:
            taken.append(row)
    if not taken:
        raise SpecError(f"{path}: not written: no log holds a whole run")
    write_text(runs_text(taken), path)
    console.print(f"{path}: {plural(len(taken), 'run')}")


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


def simulate_command(
    file: Annotated[Path | None, Argument(help="Workload file; or --model.")] = None,
    model: Annotated[
        str | None,
        Option(
            help="A model instead of a file: a name (`sweep model`), a config.json, Megatron-LM arguments.",
            autocompletion=model_names,
        ),
    ] = None,
    sequence: Tokens = None,
    hardware: Annotated[str, Option(help="Preset or YAML file.", autocompletion=preset_names)] = "H100-SXM",
    fidelity: Annotated[Fidelity, Option(help="The event engine, or SimAI-Analytical's cost model.")] = Fidelity.event,
    micro_batch: MicroBatch = None,
    sets: Annotated[
        list[str] | None, Option("--set", help="Change the plan: tp=8, hardware.nic_bandwidth=...; model.layers=40")
    ] = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one plan (the file's own, or one GPU, unless changed) and print where its time goes."""
    console = own_console()
    if (file is None) == (model is None):
        raise wrong("FILE", "neither it nor --model" if file is None else "it and --model", "one of them")
    if file is not None:
        if not file.exists() and str(file) in model_names():
            raise wrong("FILE", file, f"a workload file; of a model: --model {file}")
        refuse_result(file, "a workload")
    readable("--hardware", read_hardware, hardware)
    if model is not None:
        takes("--model", {"--record": records, "--micro-batch": micro_batch}, "--sequence, --hardware, --fidelity and --set")
        readable("--model", read_model, model)
    source = {"model": model} if file is None else {"path": str(file.absolute())}
    workload = {"sequence": sequence, **source, "micro_batch": micro_batch}
    changes = [*(sets or []), *(f"workload.{each}" for each in _record_sets(records))]
    prepared = prepare_plan(workload, hardware, fidelity.value, changes)
    if not as_json:
        print_warnings(prepared.warnings, console)
        print_sections(check_lines(prepared.sweep.workload.checks), console)
    row = row_of(prepared)
    if as_json:
        write_json({"result": row, "notes": [*prepared.warnings, *prepared.notes]})
    else:
        if fidelity is Fidelity.simai and row["reason"] in ("", "memory_exceeds_device"):  # the tool checks no memory
            print_sections(simai_lines(simai_parts(prepared)), console)
        print_sections(plan_lines(row, prepared.sweep.space.named, parts=fidelity is Fidelity.event), console)
        print_sections((f"  note: {note}" for note in prepared.notes), console)
        print_sections(plausibility_lines(prepared.provenance["plausibility"], [row]), console)
    if row["status"] != "ok":
        raise Exit(EXIT_FAILED_PLANS)
