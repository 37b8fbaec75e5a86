"""`sweep validate`: measured training runs against the same runs simulated."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sim_core.documents import Fields
from sweep.commands.shared import AsJson, form_asked, takes, write_json
from sweep.runs.simulation import Run, run_rows
from sweep.runs.table import OK, published_rows, read_table, rows_of_set
from sweep.validation.figures import Figures, as_objects, by_quality, by_release, figures, figures_of
from sweep.validation.report import (
    as_markdown,
    as_networks,
    as_qualities,
    as_releases,
    as_rows,
    row_objects,
    summary,
)


class Form(StrEnum):
    """Output formats of `validate`."""

    md = "md"
    json = "json"


class By(StrEnum):
    """What an object, or a line of a table, is of."""

    set = "set"
    quality = "quality"
    release = "release"


def validate_command(
    table: Annotated[Path | None, Argument(help="CSV of runs with the same columns. Default: the published runs.")] = None,
    form: Annotated[Form | None, Option("--format", help="A table for people (md), or a list of objects.")] = None,
    json_too: AsJson = False,
    only: Annotated[str | None, Option("--set", help="Only the runs of this set.")] = None,
    rows: Annotated[bool, Option("--rows", help="Print every run, and each network; as JSON: an object a run.")] = False,
    by: Annotated[By | None, Option("--by", help="One table alone. As JSON, what an object is of; default: a set.")] = None,
) -> None:
    """Simulate measured runs, and say how far off the predictions are and how well plans are ranked."""
    form = form_asked(Form, form, None, json_too)
    if by:
        takes("--by", {"--rows": rows}, "TABLE, --set and --format")
    runs = run_rows(rows_of_set(published_rows() if table is None else read_table(table), only))
    by_set = figures(runs)
    if form is Form.json:
        write_json(row_objects(runs) if rows else _objects(runs, by_set, by or By.set))
    elif by:
        sys.stdout.write(_table(runs, by_set, by) + "\n")
    else:
        networks = (table is not None or rows) and any(not run.reason for run in runs)
        sys.stdout.write("\n".join(_sections(runs, by_set, rows=rows, networks=networks)) + "\n")


def _objects(runs: list[Run], by_set: list[Figures], by: By) -> list[Fields]:
    if by is By.set:
        return as_objects(by_set)
    return as_objects(by_quality(runs) if by is By.quality else by_release(runs), by.value)


def _table(runs: list[Run], by_set: list[Figures], by: By) -> str:
    if by is By.set:
        return as_markdown(by_set, figures_of("all", "", runs))
    return as_qualities(by_quality(runs)) if by is By.quality else as_releases(by_release(runs))


def _sections(runs: list[Run], by_set: list[Figures], *, rows: bool, networks: bool) -> Iterator[str]:
    """The first screen: what is known in a few lines, then the details."""
    yield summary(figures_of("all", "", runs))
    yield f"\nBy set, runs of quality ok:\n\n{_table(runs, by_set, By.set)}"
    if any(run.row.quality != OK for run in runs):
        yield f"\nBy quality; only ok is scored:\n\n{_table(runs, by_set, By.quality)}"
    if any(run.scored and run.row.text("release") for run in runs):
        yield f"\nBy release of the framework, where a run states it:\n\n{_table(runs, by_set, By.release)}"
    if networks:
        yield f"\nNetworks:\n\n{as_networks(runs)}"
    if rows:
        yield f"\n{as_rows(runs)}"
