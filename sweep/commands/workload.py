"""`sweep simulate`, `export`, `inspect` and `hardware`: what one file or preset holds, what one plan takes."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sim_core import (
    TRACE,
    hardware_yaml,
    kind_of,
    preset_names,
    read_hardware,
    read_traces,
    read_workload,
)
from sweep.commands.run import EXIT_FAILED_PLANS, prepared_of
from sweep.commands.traces import Sets, warn
from sweep.show.inputs import print_hardware, print_workload
from sweep.show.results import print_plan, print_simai_breakdown
from sweep.show.terminal import own_console
from sweep.show.traces import print_job
from sweep.single import facts_of, prepare_plan, recompute_note, row_of, simai_text, tool_breakdown
from sweep.spec import load_spec


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


class ExportForm(StrEnum):
    """Formats of `export`."""

    simai = "simai"


def simulate_command(
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
        print_simai_breakdown(tool_breakdown(prepared), console)
    row = row_of(prepared)
    print_plan(row, prepared.notes, console, parts=fidelity is Fidelity.event)
    if row["status"] == "failed" or (row["status"] == "infeasible" and fidelity is Fidelity.event):
        raise typer.Exit(EXIT_FAILED_PLANS)


def export_command(
    spec: Annotated[Path, typer.Argument(help="The sweep that the plan is of.")],
    plan: Annotated[int, typer.Option(min=0, help="Its number, as in the results.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")] = None,
    form: Annotated[ExportForm, typer.Option("--format", help="Format of the text.")] = ExportForm.simai,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Overrides that the sweep was run with.")] = None,
) -> None:
    """Write a plan of a sweep as a SimAI workload text, for SimAI's own simulators."""
    loaded = load_spec(spec, sets or [])
    prepared = prepared_of(loaded, spec)
    text = simai_text(prepared, spec.parent / loaded.workload.path, plan)
    told = recompute_note(prepared, plan)
    if told:
        sys.stderr.write(f"note: {told}\n")
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")


def inspect_command(
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
            warn(job.warnings, console)
            print_job(str(path), job, console)
            continue
        workload, warnings = read_workload(str(path), facts)
        warn(warnings, console)
        print_workload(str(path), workload, console)


def hardware_command(
    name: Annotated[str | None, typer.Argument(help="Preset or YAML file; none: list the presets.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="As a YAML file to change and use.")] = False,
) -> None:
    """List the hardware presets, or the numbers of one with their sources."""
    if name and as_yaml:
        sys.stdout.write(hardware_yaml(read_hardware(name)))
        return
    console = own_console()
    print_hardware(read_hardware(name) if name else None, [read_hardware(preset) for preset in preset_names()], console)
