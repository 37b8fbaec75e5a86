"""`sweep rank`: the plans of a result in order."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from typer import Option

from sweep.commands.shared import (
    AsJson,
    Directory,
    TryCost,
    Verbose,
    check_output,
    form_asked,
    groups_in,
    names_in,
    print_warnings,
    result_at,
    takes,
    there,
    write_text,
)
from sweep.exporting.meant import believed, by_belief, known_of, refusal
from sweep.options import OptionError
from sweep.outputs import naming
from sweep.ranking.ranking import TOP, rank
from sweep.reopening import reopened
from sweep.show.ranked import print_ranking
from sweep.show.sections import print_sections, rows_text
from sweep.show.terminal import own_console, screen
from sweep.show.tuned import standing_screen
from sweep.tuning.placing import own_entries
from sweep.tuning.tuner import Tuner


class Form(StrEnum):
    """Output formats of `rank`."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def rank_command(
    directory: Directory = None,
    by: Annotated[str | None, Option(help="Column to rank by. Default: the spec's first objective.")] = None,
    top: Annotated[int | None, Option(min=1, help="Rows. Default: 20, or 1 per group.")] = None,
    where: Annotated[str | None, Option(help="Condition in SQL: 'all_gpus <= 512 and tp > 1'.")] = None,
    per: Annotated[
        list[str] | None, Option(help="Rank within each value of this column; '' for one ranking. Default: the spec's.")
    ] = None,
    columns: Annotated[str | None, Option(help="Columns to show, comma-separated; or all.")] = None,
    pareto: Annotated[
        str | None, Option(help="Plans that no other beats in all of these columns: step_time,peak_memory.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Plans with the same numbers apart, not as one row.")] = False,
    descending: Annotated[bool | None, Option("--descending/--ascending", help="Highest first, or lowest first.")] = None,
    form: Annotated[Form | None, Option("--format", help="Default: by the suffix of --output, else a table.")] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="File to write to (needed for parquet).")] = None,
    measured: Annotated[
        Path | None, Option(help="CSV of your own runs: as tune.csv of `sweep tune`; or a table as for `validate`.")
    ] = None,
    try_cost: TryCost = None,
    stable: Annotated[
        bool, Option("--stable", help="In how many draws of all that is not known each plan is the fastest that runs.")
    ] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Rank the plans of a sweep."""
    form = form_asked(Form, form, output, as_json)
    check_output(output)
    there("--measured", measured)
    turned = {"--descending/--ascending": descending is not None}
    if stable or measured:
        shaping = {"--columns": columns, "--pareto": pareto, "--all": every, "--per": per, "--verbose": verbose}
        told = "only --measured, --by, --where, --top, --format and --output"
        takes("--stable" if stable else f"--measured {measured}", {**shaping, "--try-cost": try_cost, **turned}, told)
    elif pareto:
        takes("--pareto", turned | {"--by": by}, "no order: the front is in the order of its first column")
    groups, shown, front = groups_in(per), names_in("--columns", columns), names_in("--pareto", pareto)
    folder, most = result_at(directory), top or TOP
    where = by_belief(where, folder)
    write = partial(_write, form, output)
    if stable or measured:
        opened = reopened(folder)
        entries, others = (None, []) if measured is None else own_entries(measured, opened)
        print_warnings(others, Console(stderr=True, markup=False, soft_wrap=True))
        tuner = Tuner(
            folder,
            by=by,
            where=where,
            file=measured,
            read_only=True,
            opened=opened,
            entries=entries,
            refusal=refusal(opened.prepared),
        )
        standing = tuner.standing(most, by_wins=stable)
        write(standing, partial(print_sections, standing_screen(tuner, standing)))
    else:
        ranking = rank(
            folder,
            by=by,
            top=top,
            where=where,
            per=groups,
            columns=shown,
            descending=descending,
            pareto=front,
            every=every,
        )
        if form is not Form.table:
            ranking = believed(ranking, known_of(folder))
        elif output is None:
            own_console().print(f"{folder}:")
        write(ranking.rows, partial(print_ranking, ranking, folder=folder, where=where, verbose=verbose, try_cost=try_cost))


def _write(form: Form, output: Path | None, rows: pa.Table, show: Callable[[Console], None]) -> None:
    """A table on the screen or in a file; else the rows as csv, json or parquet, with all digits."""
    if form is Form.table:
        with screen(output) as console:
            show(console)
    elif form is not Form.parquet:
        write_text(rows_text(rows, form.value), output)
    elif output is None:
        raise OptionError("--format parquet needs --output FILE")
    else:
        with naming(output):
            pq.write_table(rows, output)
