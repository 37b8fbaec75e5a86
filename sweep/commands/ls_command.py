"""`sweep ls`: the results below a folder. It imports what it needs alone: no engine, no database."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sim_core import SpecError
from sweep.commands.shared import RESULTS, AsJson, write_json
from sweep.listing import results_below
from sweep.results.folder import folder_at
from sweep.show.progress import clock
from sweep.show.sections import print_table
from sweep.show.terminal import own_console
from sweep.wording import cell

DAY_S = 86_400


def ls_command(
    directory: Annotated[str | None, Argument(help="Folder of results, a path or URI. Default: results/.")] = None,
    text: Annotated[str, Option("--with", help="Only results with this in their folder, sweep, user or host.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the results in a folder and below: who began them, plans done, state, age, best plan."""
    if directory is not None and "://" not in directory and not Path(directory).is_dir():
        found = "is a file" if Path(directory).exists() else "no such folder"
        raise SpecError(f"{directory}: {found}, expected a folder of results")
    folder = folder_at(RESULTS if directory is None else directory)
    results = results_below(folder, text)
    if as_json:
        write_json([asdict(result) for result in results])
        return
    if not results:
        raise SpecError(f"{folder}: holds no results of a sweep{f' with {text}' * bool(text)}")
    rows = []
    for each in results:
        days, rest = divmod(max(each.age_s, 0), DAY_S)
        best = ["-", "", "-"] if each.plan is None else [each.by, cell(each.by, each.best), str(each.plan)]
        age = f"{days:.0f} d" if days else clock(rest)
        rows.append([each.folder, each.name, each.who, f"{each.done:,}", f"{each.total:,}", each.state, age, *best])
    print_table(
        ("result", "sweep", "who", "plans", "of", "state", "age", "best", "", "plan"),
        rows,
        own_console(),
        left=(0, 1, 2),
        gap=2,
    )
