"""`sweep compare`: what changed between two results."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from sweep.commands.shared import AsJson, check_output, existing_result, form_asked, groups_in, needs, write_text
from sweep.compare.comparison import compare
from sweep.compare.report import paged, sections
from sweep.compare.result import Point
from sweep.nightly.nights import Nights, history_of
from sweep.options import OptionError
from sweep.results.folder import folder_at
from sweep.show.sections import markdown, page, print_sections
from sweep.show.terminal import screen

NIGHTS: Final = 30


class ComparisonForm(StrEnum):
    """Formats of a comparison."""

    table = "table"
    md = "md"
    json = "json"
    html = "html"


def command(
    old: Annotated[str, typer.Argument(help="Folder of results, a path or URI.")],
    new: Annotated[str, typer.Argument(help="Folder of results to compare with OLD.")],
    top: Annotated[int, typer.Option(min=1, help="Plans to list per kind of change.")] = 10,
    by: Annotated[str | None, typer.Option(help="Column to rank plans by. Default: the new spec's.")] = None,
    per: Annotated[
        list[str] | None,
        typer.Option(help="Compare the best plan per value of this column; '' for no groups. Default: the new spec's."),
    ] = None,
    form: Annotated[
        ComparisonForm | None, typer.Option("--format", help="Default: by the suffix of --output, else a table.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write to (needed for html).")] = None,
    as_json: AsJson = False,
    nights: Annotated[
        str | None, typer.Option(help="Root of nightly sweeps that NEW belongs to: the page shows its last nights.")
    ] = None,
    last: Annotated[int | None, typer.Option(min=2, help="Nights to show on the page. Default: 30.")] = None,
) -> None:
    """Show what changed between two results: inputs, best plans, step times, plans that appeared or vanished."""
    form = form_asked(ComparisonForm, form, output, as_json)
    check_output(output)
    needs("--nights", nights, {"--last": last})
    if form is ComparisonForm.html and output is None:
        raise OptionError("--format html needs --output FILE")
    history = _history(nights, new, last or NIGHTS) if nights else None
    both = compare(existing_result(old, missing=False), existing_result(new, missing=False), top=top, by=by, per=groups_in(per))
    parts = sections(both)
    if form is ComparisonForm.table:
        with screen(output) as console:
            print_sections(parts, console)
    elif form is ComparisonForm.json:
        write_text(json.dumps(both.as_data(), indent=1), output)
    elif form is ComparisonForm.md:
        write_text(markdown(parts), output)
    else:
        write_text(page(f"{both.name}: {both.old} and {both.new}", [paged(parts, both, history or ())]), output)


def _history(root: str, new: str, last: int) -> Sequence[Point]:
    """The history of nights up to the last that has the result `new`. Raises SpecError if no night has it."""
    nights = folder_at(root)
    known = Nights(root=nights).read()
    folder = new.rstrip("/").rpartition("/")[2]
    for k in range(len(known), 0, -1):
        for sweep in known[k - 1].sweeps:
            if sweep.results == folder:
                return history_of(known[:k], sweep.name)[-last:]
    raise OptionError(f"--nights {nights}: no night there has the result {folder}")
