"""`sweep inspect`: what workload files and rank traces hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from sim_core import TRACE, SpecError, kind_of, model_names, model_yaml, read_traces, read_workload, suggest_model
from sweep.commands.shared import AsJson, FactSets, MicroBatch, Records, print_warnings, record_sets
from sweep.one_plan import facts_of
from sweep.show.inputs import print_workload, workload_values
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
    as_json: AsJson = False,
) -> None:
    """Print what a workload file holds: plan, layers, parameters, traffic, compute, and which records are doubtful."""
    console, told = own_console(), []
    for path in files:
        if str(path) in model_names() or path.name == "config.json":
            raise SpecError(f"{path}: is a model: `sweep model {path}` shows it")
        given = [*(sets or []), *record_sets(records), *([f"micro_batch={micro_batch}"] if micro_batch else [])]
        facts = facts_of(str(path), given)
        if suggest:
            sys.stdout.write(model_yaml(*suggest_model(str(path), facts)))
            continue
        if kind_of(str(path)) == TRACE:
            job = read_traces(str(path), facts)
            if as_json:
                told.append(job_values(str(path), job))
                continue
            print_warnings(job.warnings, console)
            print_job(str(path), job, console)
            continue
        workload, warnings = read_workload(str(path), facts)
        if as_json:
            told.append(workload_values(str(path), workload, warnings))
            continue
        print_warnings(warnings, console)
        print_workload(str(path), workload, console)
    if as_json and not suggest:
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
