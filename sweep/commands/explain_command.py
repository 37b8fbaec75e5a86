"""`sweep explain`: why one plan of a result is as it is, and what each change of it would give."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sweep.commands.shared import existing_result, there, write_json
from sweep.explaining.explanation import difference, explain
from sweep.reopening import BEST, plan_number, reopened
from sweep.show.explanation import print_difference, print_explanation, values_of
from sweep.show.terminal import own_console


def command(
    directory: Annotated[str, typer.Argument(metavar="RESULT", help="Folder of results, a path or URI.")],
    plan: Annotated[str, typer.Argument(help="Its number, as in `rank`; or best.")] = BEST,
    against: Annotated[str | None, typer.Option(help="Another plan of the result, side by side.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON.")] = False,
    spec: Annotated[Path | None, typer.Option(help="Where the spec lies now, if its files are not found from here.")] = None,
) -> None:
    """Explain one plan: where its step and memory go, what holds it back, what each change of one axis gives."""
    opened = reopened(existing_result(directory), there("--spec", spec))
    first = explain(opened, plan_number(opened, plan))
    second = None if against is None else explain(opened, plan_number(opened, against, "--against"))
    if as_json:
        values = values_of(first)
        if second is not None:
            values["against"] = values_of(second) | {"difference": asdict(difference(first, second))}
        write_json(values)
        return
    console = own_console()
    print_explanation(first, console)
    if second is not None:
        print_difference(first, second, difference(first, second), console)
