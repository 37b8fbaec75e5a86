"""`sweep compare`: what changed between two results."""

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sweep.commands.shared import AsJson, check_output, form_asked, groups_in, needs, result_at, write_text
from sweep.compare.comparison import compare
from sweep.compare.report import paged, sections
from sweep.compare.result import Point
from sweep.nightly.nights import Nights, history_of
from sweep.options import OptionError
from sweep.results.folder import folder_at
from sweep.show.sections import markdown, page, print_sections
from sweep.show.terminal import screen


class ComparisonForm(StrEnum):
    """Formats of a comparison."""

    table = "table"
    md = "md"
    json = "json"
    html = "html"


def compare_command(
    old: Annotated[str, Argument(help="Folder of results, a path or URI.")],
    new: Annotated[str, Argument(help="Folder of results to compare with OLD.")],
    top: Annotated[int, Option(min=1, help="Plans to list per kind of change.")] = 10,
    by: Annotated[str | None, Option(help="Column to rank plans by. Default: the new spec's.")] = None,
    per: Annotated[
        list[str] | None,
        Option(help="Compare the best plan per value of this column; '' for no groups. Default: the new spec's."),
    ] = None,
    form: Annotated[ComparisonForm | None, Option("--format", help="Default: by the suffix of --output, else a table.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="File to write to (needed for html).")] = None,
    as_json: AsJson = False,
    nights: Annotated[
        str | None, Option(help="Root of nightly sweeps that NEW belongs to: the page shows its last nights.")
    ] = None,
    last: Annotated[int | None, Option(min=2, help="Nights to show on the page. Default: 30.")] = None,
) -> None:
    """Show what changed between two results: inputs, best plans, step times, plans that appeared or vanished."""
    form = form_asked(ComparisonForm, form, output, as_json)
    check_output(output)
    needs("--nights", nights, {"--last": last})
    if form is ComparisonForm.html and output is None:
        raise OptionError("--format html needs --output FILE")
    history = _history(nights, new)[-(last or 30) :] if nights else ()
    both = compare(result_at(old, missing=False), result_at(new, missing=False), top=top, by=by, per=groups_in(per))
    parts = sections(both)
    if form is ComparisonForm.table:
        with screen(output) as console:
            print_sections(parts, console)
    elif form is ComparisonForm.json:
        write_text(json.dumps(both.as_data(), indent=1), output)
    elif form is ComparisonForm.md:
        write_text(markdown(parts), output)
    else:
        write_text(page(f"{both.name}: {both.old} and {both.new}", [paged(parts, both, history)]), output)


def _history(root: str, new: str) -> Sequence[Point]:
    """The history of nights up to the last that has the result `new`. Raises SpecError if no night has it."""
    nights, folder = folder_at(root), new.rstrip("/").rpartition("/")[2]
    known = Nights(root=nights).read()
    for k in range(len(known), 0, -1):
        for sweep in known[k - 1].sweeps:
            if sweep.results == folder:
                return history_of(known[:k], sweep.name)
    raise OptionError(f"--nights {nights}: no night there has the result {folder}")
