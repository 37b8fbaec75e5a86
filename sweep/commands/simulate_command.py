"""`sweep simulate`: one plan of a workload file, and where its time goes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweep.commands.shared import EXIT_FAILED_PLANS, MicroBatch, Records, print_warnings, record_sets
from sweep.one_plan import prepare_plan, row_of, simai_parts, utilisation_of
from sweep.show.checks import print_checks, print_plausibility
from sweep.show.results import print_plan, print_simai_parts
from sweep.show.terminal import own_console


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


def command(
    file: Annotated[Path, typer.Argument(help="Workload file.")],
    hardware: Annotated[str, typer.Option(help="Preset or YAML file.")] = "H100-SXM",
    fidelity: Annotated[Fidelity, typer.Option(help="The event engine, or SimAI-Analytical's cost model.")] = Fidelity.event,
    micro_batch: MicroBatch = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Change the file's plan: tp=8, hardware.nic_bandwidth=...")
    ] = None,
    records: Records = None,
) -> None:
    """Simulate one plan (the file's own, unless changed) and print where its time goes."""
    console = own_console()
    given = [*(sets or []), *(f"workload.{each}" for each in record_sets(records))]
    prepared = prepare_plan(file, hardware, fidelity.value, micro_batch, given)
    print_warnings(prepared.warnings, console)
    print_checks(prepared.sweep.workload.checks, console)
    row = row_of(prepared)
    if fidelity is Fidelity.simai and row["reason"] in ("", "model_state_exceeds_memory"):  # the tool checks no memory
        print_simai_parts(simai_parts(prepared), console)
    print_plan(row, prepared.sweep.space.named, prepared.notes, console, parts=fidelity is Fidelity.event)
    facts = prepared.provenance["plausibility"]
    print_plausibility(facts, [found] if (found := utilisation_of(row, facts)) else [], console)
    if row["status"] != "ok":
        raise typer.Exit(EXIT_FAILED_PLANS)
