"""`sweep fit`: will it fit?"""

from typing import Annotated

from typer import Argument, Exit, Option

from sim_core import model_names, preset_names, read_hardware, read_model, read_stack, stack_names
from sim_core.limits import LARGEST
from sweep.answers.fitting import fit, fit_sections
from sweep.answers.section import values_of
from sweep.commands.shared import AsJson, Tokens, tell
from sweep.exits import EXIT_FAILED_PLANS
from sweep.options import readable


def fit_command(
    model: Annotated[
        str, Argument(help="A name (`sweep model`), a config.json, Megatron-LM arguments.", autocompletion=model_names)
    ],
    hardware: Annotated[str, Option(help="Preset or YAML file.", autocompletion=preset_names)] = "H100-SXM",
    gpus: Annotated[int, Option(min=1, max=LARGEST["all_gpus"], help="GPUs of the job.")] = 8,
    sequence: Tokens = None,
    stack: Annotated[str | None, Option(help="The framework that runs it (`sweep stack`).", autocompletion=stack_names)] = None,
    sets: Annotated[
        list[str] | None, Option("--set", help="What the plan is: tp=8, checkpointing=full, sharding=parameters.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a plan fits, of what its memory is made, and the cheapest changes with which it does."""
    readable("--hardware", read_hardware, hardware)
    readable("MODEL", read_model, model)
    workload = {"model": model, **({"sequence": sequence} if sequence else {})}
    if stack is not None:
        readable("--stack", read_stack, stack)
        workload["stack"] = stack
    found = fit(workload, hardware, gpus, sets or [])
    sections = list(fit_sections(found))
    tell(values_of(sections), sections, as_json)
    if found.row["status"] != "ok":
        raise Exit(EXIT_FAILED_PLANS)
