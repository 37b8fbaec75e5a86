"""`sweep report`: a result as one HTML page that opens from disk."""

from pathlib import Path
from typing import Annotated

import typer

from sim_core import plural, short
from sweep.commands.shared import check_output, result_at, there
from sweep.outputs import write_file
from sweep.report.content import content_of
from sweep.report.page import report_page
from sweep.show.terminal import own_console
from sweep.tuning.record import NAME


def command(
    directory: Annotated[
        str | None,
        typer.Argument(metavar="RESULT", help="Folder of results, a path or URI. Default: the newest under results/."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
    measured: Annotated[
        Path | None,
        typer.Option(help=f"CSV of your own runs, as of `sweep tune`. Default: {NAME} in the folder of the result."),
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
