"""`sweep ls`: the results below a folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sim_core import SpecError
from sweep.commands.shared import RESULTS, AsJson
from sweep.folder import folder_at
from sweep.listing import results_below
from sweep.show.progress import clock
from sweep.show.tables import cell, plain_table
from sweep.show.terminal import own_console

DAY_S = 86_400


def command(
    directory: Annotated[str | None, typer.Argument(help="Folder of results, a path or URI. Default: results/.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the results below a folder: plans done, state, age, best plan."""
    folder = folder_at(RESULTS if directory is None else directory)
    found = results_below(folder)
    if as_json:
        sys.stdout.write(json.dumps([asdict(one) for one in found], indent=1) + "\n")
        return
    if not found:
        raise SpecError(f"{folder}: holds no results of a sweep")
    headings = ["result", "sweep", "plans", "of", "state", "age", "best", "", "plan"]
    lines = [
        [one.folder, one.name, f"{one.done:,}", f"{one.total:,}", one.state, _age(one.age_s)]
        + ([one.by, cell(one.by, one.best), str(one.plan)] if one.plan is not None else ["-", "", "-"])
        for one in found
    ]
    plain_table(headings, list(zip(*lines, strict=True)), own_console(), left=2)


def _age(seconds: float) -> str:
    days, rest = divmod(max(seconds, 0), DAY_S)
    return f"{days:.0f} d" if days else clock(rest)
