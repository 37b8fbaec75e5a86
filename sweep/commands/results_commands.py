"""`sweep status`, `show`, `report`, `compare`, `compact`: what results hold, and what is made of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from sim_core import plural, short
from sweep.commands.shared import (
    AsJson,
    Directory,
    check_output,
    form_asked,
    groups_in,
    needs,
    result_at,
    there,
    write_json,
    write_text,
)
from sweep.compare.comparison import compare
from sweep.compare.report import paged, sections
from sweep.compare.result import Point
from sweep.listing import Standing, standing
from sweep.nightly.nights import Nights, history_of
from sweep.options import OptionError
from sweep.outputs import write_file
from sweep.ranking.ranking import rank
from sweep.report.content import content_of
from sweep.report.page import report_page
from sweep.results.compaction import compact
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store
from sweep.show.answer import answer_of
from sweep.show.progress import line_display, speed
from sweep.show.sections import markdown, page, print_sections, say
from sweep.show.standing import best_so_far, live_page, reasons_of, standing_lines
from sweep.show.terminal import own_console, screen
from sweep.tuning.record import NAME
from sweep.watching import exit_code, following


def status_command(
    directory: Directory = None,
    watch: Annotated[bool, Option("--watch", help="Follow a run until it ends, and end with its exit code.")] = False,
    live: Annotated[
        Path | None, Option("--page", help="Follow a run on an HTML page, which loads itself anew and ends as the report.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a result is: plans done, time left while a run writes, size, plans by reason, best plan."""
    check_output(live, option="--page")
    folder = result_at(directory, missing=False)
    follow = watch or live is not None
    result = _followed(folder, live, as_json) if follow else standing(folder)
    if not as_json:
        print_sections([*standing_lines(result), *reasons_of(result)], own_console())
    elif not follow:
        write_json(asdict(result))
    if follow:
        raise Exit(exit_code(result))


def _followed(folder: Folder, live: Path | None, as_json: bool) -> Standing:
    """A result once no run writes there any more; until then a line for each change, and the page."""
    told: list[object] = []
    with line_display(own_console(quiet=as_json)) as show:
        for result in following(folder):
            show(
                result.done,
                result.total,
                f"{speed(result.run.get('plans_per_second', 0.0), result.left_s)}; {best_so_far(result)}",
            )
            new = [result.state, result.done, result.plan, result.run.get("slices_lost"), result.run.get("retries")]
            if as_json and new != told:
                print(json.dumps(asdict(result)), flush=True)  # noqa: T201
            told = new
            if live:
                at_work = result.state == "running" or not result.done
                text = live_page(result) if at_work else report_page(content_of(folder, None))
                folder_at(live.absolute().parent).write_bytes(live.name, text.encode())
    return result


def show_command(directory: Directory = None, as_json: AsJson = False) -> None:
    """Print what to launch, how sure that is, and what to do next."""
    folder = result_at(directory)
    ranking = rank(folder, per=[], top=1)
    answer, ranking = answer_of(ranking, folder)
    if as_json:
        write_json({"folder": str(folder), "run": str(ranking.provenance["sweep"]), **answer._asdict(), "best": ranking.best})
        return
    console = own_console()
    console.print(f"{folder}:")
    told = [f"How sure: {answer.sure}", f"Next: {answer.after}", *(f"Running: {line}" for line in answer.running)]
    for line in (answer.launch, *told):
        if not line.endswith(": "):
            say(f"  {line}.", console)


def report_command(
    directory: Annotated[
        str | None, Argument(metavar="RESULT", help="Folder of results, a path or URI. Default: the newest under results/.")
    ] = None,
    output: Annotated[Path, Option("--output", "-o", help="File to write.")] = Path("report.html"),
    measured: Annotated[
        Path | None, Option(help=f"CSV of your own runs, as of `sweep tune`. Default: {NAME} in the folder of the result.")
    ] = None,
) -> None:
    """Write a result as one HTML page: ranking with filters, trade-offs, sensitivity, what cannot run."""
    check_output(output, ".html", ".htm")
    there("--measured", measured)
    folder = result_at(directory)
    content = content_of(folder, measured)
    page = report_page(content)
    write_file(output, page)
    if str(output) != "-":
        own_console().print(f"{output}: {plural(content['rows_total'])} of {folder}, {short(len(page.encode()), 'B')}")


def compact_command(directory: Directory = None) -> None:
    """Join the small files of a result into few large ones; the rows stay as they are."""
    folder = result_at(directory, missing=False)
    before, after = compact(Store(directory=folder))
    own_console().print(f"{folder}: {plural(before, 'file')} before, {after:,} now")


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
        write_text(page(f"{both.name}: {both.old} and {both.new}", [paged(parts, history)]), output)


def _history(root: str, new: str) -> Sequence[Point]:
    """The history of nights up to the last that has the result `new`. Raises SpecError if no night has it."""
    nights, folder = folder_at(root), new.rstrip("/").rpartition("/")[2]
    known = Nights(root=nights).read()
    for k in range(len(known), 0, -1):
        for sweep in known[k - 1].sweeps:
            if sweep.results == folder:
                return history_of(known[:k], sweep.name)
    raise OptionError(f"--nights {nights}: no night there has the result {folder}")
