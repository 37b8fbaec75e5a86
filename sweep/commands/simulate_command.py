"""`sweep simulate`: one plan of a workload file or a model, and where its time goes."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from sim_core import model_names, read_hardware, read_model
from sweep.commands.shared import AsJson, MicroBatch, Records, print_warnings, record_sets, refuse_result, takes, write_json
from sweep.evaluation.one_plan import prepare_plan, row_of, simai_parts
from sweep.exits import EXIT_FAILED_PLANS
from sweep.options import readable, wrong
from sweep.show.checks import plausibility_lines, print_checks
from sweep.show.results import print_plan, print_simai_parts
from sweep.show.terminal import own_console


class Fidelity(StrEnum):
    """How a plan is simulated."""

    event = "event"
    simai = "simai"


def simulate_command(
    file: Annotated[Path | None, Argument(help="Workload file; or --model.")] = None,
    model: Annotated[
        str | None, Option(help="A model instead of a file: a name (`sweep model`), a config.json, Megatron-LM arguments.")
    ] = None,
    sequence: Annotated[int | None, Option(min=1, max=2**31 - 1, help="Tokens of a sequence.")] = None,
    hardware: Annotated[str, Option(help="Preset or YAML file.")] = "H100-SXM",
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
    changes = [*(sets or []), *(f"workload.{each}" for each in record_sets(records))]
    prepared = prepare_plan(workload, hardware, fidelity.value, changes)
    if not as_json:
        print_warnings(prepared.warnings, console)
        print_checks(prepared.sweep.workload.checks, console)
    row = row_of(prepared)
    if as_json:
        write_json({"result": row, "notes": [*prepared.warnings, *prepared.notes]})
    else:
        if fidelity is Fidelity.simai and row["reason"] in ("", "memory_exceeds_device"):  # the tool checks no memory
            print_simai_parts(simai_parts(prepared), console)
        print_plan(row, prepared.sweep.space.named, prepared.notes, console, parts=fidelity is Fidelity.event)
        utilisation = [] if row["mfu"] is None else [(row["tflops_per_gpu"], row["mfu"])]
        hfu = [] if row["hfu"] in (None, row["mfu"]) else [row["hfu"]]
        measured = [] if row["measured_share"] is None else [row["measured_share"]]
        for line in plausibility_lines(prepared.provenance["plausibility"], utilisation, hfu, measured):
            console.print(line)
    if row["status"] != "ok":
        raise Exit(EXIT_FAILED_PLANS)
