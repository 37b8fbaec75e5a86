"""`sweep inspect`: what workload files and rank traces hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim_core import TRACE, kind_of, read_traces, read_workload
from sweep.commands.shared import FactSets, MicroBatch, Records, print_warnings, record_sets
from sweep.one_plan import facts_of
from sweep.show.inputs import print_workload
from sweep.show.terminal import own_console
from sweep.show.traces import print_job


def command(
    files: Annotated[list[Path], typer.Argument(help="Workload files; folders of rank traces.")],
    micro_batch: MicroBatch = None,
    sets: FactSets = None,
    records: Records = None,
) -> None:
    """Print what a workload file holds: plan, layers, parameters, traffic, compute, and which records are doubtful."""
    console = own_console()
    for path in files:
        given = [*(sets or []), *record_sets(records), *([f"micro_batch={micro_batch}"] if micro_batch else [])]
        facts = facts_of(str(path), given)
        if kind_of(str(path)) == TRACE:
            job = read_traces(str(path), facts)
            print_warnings(job.warnings, console)
            print_job(str(path), job, console)
            continue
        workload, warnings = read_workload(str(path), facts)
        print_warnings(warnings, console)
        print_workload(str(path), workload, console)
