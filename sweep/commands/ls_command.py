"""`sweep ls`: the results below a folder."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sim_core import SpecError
from sweep.commands.shared import RESULTS, AsJson, write_json
from sweep.listing import results_below
from sweep.results.folder import folder_at
from sweep.show.progress import clock
from sweep.show.sections import print_table
from sweep.show.terminal import own_console
from sweep.wording import cell

DAY_S = 86_400


def command(
    directory: Annotated[str | None, typer.Argument(help="Folder of results, a path or URI. Default: results/.")] = None,
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
        best = ["-", "", "-"] if each.plan is None else [each.by, cell(each.by, each.best), str(each.plan)]
        rows.append([each.folder, each.name, f"{each.done:,}", f"{each.total:,}", each.state, _age(each.age_s), *best])
    headings = ("result", "sweep", "plans", "of", "state", "age", "best", "", "plan")
    print_table(headings, rows, own_console(), left=(0, 1), gap=2)


def _age(seconds: float) -> str:
    days, rest = divmod(max(seconds, 0), DAY_S)
    return f"{days:.0f} d" if days else clock(rest)
