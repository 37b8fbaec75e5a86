"""`sweep stack`: the frameworks that can be simulated, and the page of facts of one with their sources."""

from typing import Annotated

import typer

from sim_core import read_stack, stack_names
from sweep.commands.shared import AsJson, write_json
from sweep.show.inputs import stack_lines, stacks_screen
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console


def command(
    name: Annotated[str | None, typer.Argument(help="Stack; default: list them.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the frameworks that can be simulated, or the facts of one with their sources."""
    if as_json:
        documents = [read_stack(each).model_dump(mode="json") for each in ([name] if name else stack_names())]
        write_json(documents[0] if name else documents)
    elif name is None:
        print_sections(stacks_screen([read_stack(each) for each in stack_names()]), own_console())
    else:
        print_sections(stack_lines(read_stack(name)), own_console())
