"""`sweep inspect`: what workload files and rank traces hold."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim_core import TRACE, SpecError, kind_of, model_names, model_yaml, read_traces, read_workload, suggest_model
from sweep.commands.shared import AsJson, FactSets, MicroBatch, Records, print_warnings, record_sets, write_json
from sweep.inputs.registry import is_trace
from sweep.inputs.traces.profile import read_profile
from sweep.one_plan import facts_of
from sweep.show.inputs import print_workload, workload_values
from sweep.show.profiles import print_profile, profile_values
from sweep.show.terminal import own_console
from sweep.show.traces import job_values, print_job


def command(
    files: Annotated[list[Path], typer.Argument(help="Workload files; folders of rank traces.")],
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
    as_json: AsJson = False,
) -> None:
    """Print what a workload file holds: plan, layers, parameters, traffic, compute, and which records are doubtful."""
    console, values = own_console(), list[dict[str, object]]()
    for path in map(str, files):
        if is_trace(path):
            profile = read_profile(path, last_step=not without_last_step, step_name=step_name)
            if as_json:
                values.append(profile_values(profile))
            else:
                print_warnings(profile.warnings, console)
                print_profile(profile, console)
            continue
        if path in model_names() or Path(path).name == "config.json":
            raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")
        facts = facts_of(path, [*(sets or []), *record_sets(records), *([f"micro_batch={micro_batch}"] if micro_batch else [])])
        if suggest:
            sys.stdout.write(model_yaml(*suggest_model(path, facts)))
        elif kind_of(path) == TRACE:
            job = read_traces(path, facts)
            if as_json:
                values.append(job_values(path, job))
            else:
                print_warnings(job.warnings, console)
                print_job(path, job, console)
        else:
            workload, warnings = read_workload(path, facts)
            if as_json:
                values.append(workload_values(path, workload, warnings))
            else:
                print_warnings(warnings, console)
                print_workload(path, workload, console)
    if as_json and not suggest:
        write_json(values)
