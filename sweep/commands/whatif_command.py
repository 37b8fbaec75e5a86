"""`sweep whatif`: a plan on other GPUs, another network, longer sequences, at another price."""

from pathlib import Path
from typing import Annotated

import typer

from sim_core import quantity, read_hardware
from sim_core.limits import LARGEST
from sweep.answers.section import Section
from sweep.answers.whatif import Question, section_of, what_if
from sweep.commands.shared import AsJson, existing_result, tell, there
from sweep.options import of_keys, of_option
from sweep.reopening import BEST, plan_number, reopened


def command(
    directory: Annotated[str, typer.Argument(metavar="RESULT", help="Folder of results, a path or URI.")],
    plan: Annotated[str, typer.Argument(help="Its number, as in `rank`; or best.")] = BEST,
    gpus: Annotated[int | None, typer.Option(min=1, max=LARGEST["all_gpus"], help="GPUs of the job.")] = None,
    nic: Annotated[str | None, typer.Option(help="Bandwidth of a NIC, per GPU and direction: '200 Gb/s'.")] = None,
    device: Annotated[str | None, typer.Option(help="Hardware preset: B200-SXM.")] = None,
    sequence: Annotated[
        int | None, typer.Option(min=1, max=LARGEST["sequence"], help="Tokens of a sequence; a step keeps its tokens.")
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens to train on: 15T.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="USD a GPU-hour.")] = None,
    as_json: AsJson = False,
    spec: Annotated[Path | None, typer.Option(help="Where the spec lies now, if its files are not found from here.")] = None,
) -> None:
    """Print what a change of the job or its machine does to a plan, and which plan is best then."""
    question = Question(gpus=gpus, nic=nic, device=device, sequence=sequence, tokens=tokens, price=price)
    if device is not None:
        with of_option("--device"):
            read_hardware(device)
    if nic is not None:
        with of_option("--nic"):
            quantity(nic, "B/s")
    opened = reopened(existing_result(directory), there("--spec", spec))
    with of_keys({"budget.tokens": "--tokens"}):
        answer = what_if(opened, plan_number(opened, plan), question)
    tell([section_of(answer), Section(notes=opened.notes)], as_json=as_json)
