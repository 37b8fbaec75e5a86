"""`sweep explain`: why one plan of a result is as it is, and what each change of it would give."""

from pathlib import Path
from typing import Annotated

import typer

from sweep.answers.against import compared
from sweep.answers.asked import explained
from sweep.answers.explanation import explain
from sweep.commands.shared import existing_result, tell, there
from sweep.reopening import BEST, plan_number, reopened


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
    sections = explained(first)
    if against is not None:
        sections.append(compared(first, explain(opened, plan_number(opened, against, "--against"))))
    tell(sections, as_json=as_json)
