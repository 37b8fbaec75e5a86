"""`sweep explain`, `sweep whatif`: why one plan of a result is as it is, and what a change of it, its job or machine gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sim_core import quantity, read_hardware
from sim_core.limits import LARGEST
from sweep.answers.asked import compared, explained
from sweep.answers.explanation import explain
from sweep.answers.section import Section, values_of
from sweep.answers.whatif import Question, section_of, what_if
from sweep.commands.shared import AsJson, result_at, there, write_json
from sweep.options import of_keys, readable
from sweep.reopening import BEST, plan_number, reopened
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console

Result = Annotated[str, Argument(metavar="RESULT", help="Folder of results, a path or URI.")]
Plan = Annotated[str, Argument(help="Its number, as in `rank`; or best.")]
Spec = Annotated[Path | None, Option(help="Where the spec lies now, if its files are not found from here.")]


def explain_command(
    directory: Result,
    plan: Plan = BEST,
    against: Annotated[str | None, Option(help="Another plan of the result, side by side.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the explanation as JSON.")] = False,
    spec: Spec = None,
) -> None:
    """Explain one plan: where its step and memory go, what holds it back, what each change of one axis gives."""
    opened = reopened(result_at(directory), there("--spec", spec))
    first = explain(opened, plan_number(opened, plan))
    sections = explained(first)
    if against is not None:
        sections.append(compared(first, explain(opened, plan_number(opened, against, "--against"))))
    _tell(sections, as_json=as_json)


def whatif_command(
    directory: Result,
    plan: Plan = BEST,
    gpus: Annotated[int | None, Option(min=1, max=LARGEST["all_gpus"], help="GPUs of the job.")] = None,
    nic: Annotated[str | None, Option(help="Bandwidth of a NIC, per GPU and direction: '200 Gb/s'.")] = None,
    device: Annotated[str | None, Option(help="Hardware preset: B200-SXM.")] = None,
    sequence: Annotated[
        int | None, Option(min=1, max=LARGEST["sequence"], help="Tokens of a sequence; a step keeps its tokens.")
    ] = None,
    tokens: Annotated[str | None, Option(help="Tokens to train on: 15T.")] = None,
    price: Annotated[float | None, Option(min=0, help="USD a GPU-hour.")] = None,
    as_json: AsJson = False,
    spec: Spec = None,
) -> None:
    """Print what a change of the job or its machine does to a plan, and which plan is best then."""
    readable("--device", read_hardware, device)
    readable("--nic", lambda text: quantity(text, "B/s"), nic)
    opened = reopened(result_at(directory), there("--spec", spec))
    question = Question(gpus=gpus, nic=nic, device=device, sequence=sequence, tokens=tokens, price=price)
    with of_keys({"budget.tokens": "--tokens"}):
        answer = what_if(opened, plan_number(opened, plan), question)
    _tell([section_of(answer), Section(notes=opened.notes)], as_json=as_json)


def _tell(sections: Sequence[Section], *, as_json: bool) -> None:
    """Print sections, or their values as JSON."""
    if as_json:
        write_json(values_of(sections))
    else:
        print_sections(sections, own_console())
