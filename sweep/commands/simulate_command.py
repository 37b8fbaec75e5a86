"""`sweep simulate`: one plan of a workload file or a model, and where its time goes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sim_core import model_names, read_hardware, read_model
from sweep.commands.shared import AsJson, MicroBatch, Records, print_warnings, record_sets, refuse_result, takes, write_json
from sweep.evaluation.one_plan import prepare_plan, row_of, simai_parts
from sweep.exits import EXIT_FAILED_PLANS
from sweep.options import of_option, wrong
from sweep.show.checks import check_lines, plausibility_lines
from sweep.show.results import plan_lines, simai_lines
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


def command(
    file: Annotated[Path | None, typer.Argument(help="Workload file; or --model.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model instead of a file: a name (`sweep model`), a config.json, Megatron-LM arguments."),
    ] = None,
    sequence: Annotated[int | None, typer.Option(min=1, max=2**31 - 1, help="Tokens of a sequence.")] = None,
    hardware: Annotated[str, typer.Option(help="Preset or YAML file.")] = "H100-SXM",
    fidelity: Annotated[Fidelity, typer.Option(help="The event engine, or SimAI-Analytical's cost model.")] = Fidelity.event,
    micro_batch: MicroBatch = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Change the plan: tp=8, hardware.nic_bandwidth=...; model.layers=40")
    ] = None,
    records: Records = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one plan (the file's own, or one GPU, unless changed) and print where its time goes."""
    console = own_console()
    if (file is None) == (model is None):
        raise wrong("FILE", "neither it nor --model" if file is None else "it and --model", "one of them")
    if file is not None and not file.exists() and str(file) in model_names():
        raise wrong("FILE", file, f"a workload file; of a model: --model {file}")
    if file is not None:
        refuse_result(file, "a workload")
    with of_option("--hardware"):
        read_hardware(hardware)
    if model is not None:
        takes("--model", {"--record": records, "--micro-batch": micro_batch}, "--sequence, --hardware, --fidelity and --set")
        with of_option("--model"):
            read_model(model)
    workload: dict[str, Any] = {"sequence": sequence}
    if file is not None:
        workload["path"] = str(file.absolute())
    if model is not None:
        workload["model"] = model
    workload["micro_batch"] = micro_batch
    changes = [*(sets or []), *(f"workload.{each}" for each in record_sets(records))]
    prepared = prepare_plan(workload, hardware, fidelity.value, changes)
    if as_json:
        row = row_of(prepared)
        write_json({"result": row, "notes": [*prepared.warnings, *prepared.notes]})
        raise typer.Exit(0 if row["status"] == "ok" else EXIT_FAILED_PLANS)
    print_warnings(prepared.warnings, console)
    print_sections(check_lines(prepared.sweep.workload.checks), console)
    row = row_of(prepared)
    if fidelity is Fidelity.simai and row["reason"] in ("", "memory_exceeds_device"):  # the tool checks no memory
        print_sections(simai_lines(simai_parts(prepared)), console)
    print_sections(plan_lines(row, prepared.sweep.space.named, parts=fidelity is Fidelity.event), console)
    print_sections((f"  note: {note}" for note in prepared.notes), console)
    print_sections(plausibility_lines(prepared.provenance["plausibility"], [row]), console)
    if row["status"] != "ok":
        raise typer.Exit(EXIT_FAILED_PLANS)
