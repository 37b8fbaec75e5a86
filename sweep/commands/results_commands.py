"""`sweep ls`, `sweep status`, `sweep show`, `sweep report`, `sweep compact`: what results hold, and what is made of one."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sim_core import SpecError, plural, short
from sweep.commands.shared import RESULTS, AsJson, Directory, check_output, result_at, there, write_json
from sweep.listing import results_below, standing
from sweep.outputs import write_file
from sweep.ranking.ranking import rank
from sweep.report.content import content_of
from sweep.report.page import report_page
from sweep.results.citation import DIGITS, citation_of
from sweep.results.compaction import compact
from sweep.results.folder import folder_at
from sweep.results.store import Store
from sweep.show.answer import answer_of
from sweep.show.progress import clock
from sweep.show.results import print_reasons
from sweep.show.tables import print_table, say
from sweep.show.terminal import own_console
from sweep.tuning.record import NAME
from sweep.wording import cell

DAY_S = 86_400


def ls_command(
    directory: Annotated[str | None, Argument(help="Folder of results, a path or URI. Default: results/.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the results below a folder: plans done, state, age, best plan."""
    if directory is not None and "://" not in directory and not Path(directory).is_dir():
        found = "is a file" if Path(directory).exists() else "no such folder"
        raise SpecError(f"{directory}: {found}, expected a folder of results")
    folder = folder_at(RESULTS if directory is None else directory)
    results = results_below(folder)
    if as_json:
        write_json([asdict(result) for result in results])
        return
    if not results:
        raise SpecError(f"{folder}: holds no results of a sweep")
    rows = []
    for each in results:
        days, rest = divmod(max(each.age_s, 0), DAY_S)
        best = ["-", "", "-"] if each.plan is None else [each.by, cell(each.by, each.best), str(each.plan)]
        age = f"{days:.0f} d" if days else clock(rest)
        rows.append([each.folder, each.name, f"{each.done:,}", f"{each.total:,}", each.state, age, *best])
    headings = ("result", "sweep", "plans", "of", "state", "age", "best", "", "plan")
    print_table(headings, rows, own_console(), left=(0, 1), gap=2)


def status_command(directory: Directory = None, as_json: AsJson = False) -> None:
    """Say how far a result is: plans done, time left while a run writes, size, plans by reason, best plan."""
    result = standing(result_at(directory, missing=False))
    if as_json:
        write_json(asdict(result))
        return
    left = f", about {clock(result.left_s)} (h:min:s) left" if result.left_s is not None else ""
    part = result.done / result.total if result.total else 1.0
    lines = [
        f"{result.folder}: {result.name}, {result.state}",
        f"  {result.done:,} of {result.total:,} plans ({part:.0%}){left}",
        f"  {short(result.bytes, 'B')} in {plural(result.files, 'file')}, the last written {clock(result.written_s)} ago",
    ]
    if result.plan is not None:
        so_far = " so far" * (result.state != "complete")
        lines.append(f"  best{so_far}: plan {result.plan}, {result.by} {cell(result.by, result.best)}")
    elif result.done:
        lines.append("  none of them can run")
    if result.state == "incomplete":
        lines.append("  the same `sweep run` adds what is missing")
    console = own_console()
    console.print("\n".join(lines))
    if result.done:
        print_reasons({"": result.ok} | result.reasons, console, "Plans by reason")


def show_command(directory: Directory = None, as_json: AsJson = False) -> None:
    """Print a result's short name, what to launch, how sure that is, and a line to cite it by."""
    folder = result_at(directory)
    ranking = rank(folder, per=[], top=1)
    made_from = Store(directory=folder).made_from()
    citation, run = citation_of(made_from), str(made_from["sweep"])[:DIGITS]
    answer = answer_of(ranking, folder)
    if as_json:
        write_json({"folder": str(folder), "run": run, **citation._asdict(), **answer._asdict(), "best": ranking.best})
        return
    console = own_console()
    console.print(citation.short_name)
    told = [f"{answer.launch}."] * bool(answer.launch) + [f"How sure: {answer.sure}."] * bool(answer.sure)
    run = f"Run: {run} in {folder}, the hash of its spec, data and simulator; that of the name is without the simulator"
    for line in (*told, run, f"Cite: {citation.cite}"):
        say(f"  {line}", console)


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
    check_output(output)
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
