"""`sweep validate`: measured training runs against the same runs simulated."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweep.commands.shared import AsJson, form_asked, rows_of_set, takes
from sweep.uncertainty.evidence import record as record_evidence
from sweep.validation.collectives import as_json as collectives_json
from sweep.validation.collectives import as_markdown as collectives_markdown
from sweep.validation.collectives import compare, published
from sweep.validation.error_bars import as_markdown as error_bars_markdown
from sweep.validation.error_bars import evidence_of, out_of_bounds
from sweep.validation.features import unknown_features
from sweep.validation.figures import Figures, as_json, figures, figures_of, more_simulated, record, worse
from sweep.validation.report import ablation_table, as_markdown, as_networks, as_rows
from sweep.validation.simulation import Run, errors_without, run_rows
from sweep.validation.table import COMMITTED, read_table

EXIT_WORSE = 5


class Form(StrEnum):
    """Output formats of `validate`."""

    md = "md"
    json = "json"


def command(
    table: Annotated[
        Path | None, typer.Argument(help="CSV of runs with the same columns. Default: the published runs.")
    ] = None,
    form: Annotated[Form | None, typer.Option("--format", help="A table for people (md), or a list of objects.")] = None,
    json_too: AsJson = False,
    only: Annotated[str | None, typer.Option("--set", help="Only the runs of this set.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Print every run, and each network.")] = False,
    ablate: Annotated[bool, typer.Option("--ablate", help="Also switch pieces of the physics off, one by one.")] = False,
    of_network: Annotated[
        bool, typer.Option("--collectives", help="Published nccl-tests tables against the cost model.")
    ] = False,
    record_them: Annotated[
        bool, typer.Option("--record", help="Make these figures those that later ones are held to.")
    ] = False,
) -> None:
    """Simulate measured runs, and say how far off the predictions are and how well plans are ranked."""
    form = form_asked(Form, form, None, json_too)
    for_runs: dict[str, object] = {"--rows": rows, "--ablate": ablate}
    if of_network:
        takes("--collectives", for_runs | {"TABLE": table, "--set": only, "--record": record_them}, "--format")
        compared = compare(published())
        sys.stdout.write((collectives_json(compared) if form is Form.json else collectives_markdown(compared)) + "\n")
        return
    if record_them:
        takes("--record", {"TABLE": table, "--set": only}, "no choice: it is for the whole table of published runs")
    if form is Form.json:
        takes("--format json", for_runs, "TABLE, --set, --collectives and --record")
    given = rows_of_set(read_table(table or COMMITTED), only)
    sys.stderr.write("".join(f"note: {line}\n" for line in unknown_features(given)))
    runs = run_rows(given)
    by_set = figures(runs)
    if form is Form.json:
        sys.stdout.write(as_json(by_set) + "\n")
    else:
        sys.stdout.write(as_markdown(by_set, figures_of("all", "", runs)) + "\n")
    if form is Form.md and (table is not None or rows) and any(not run.reason for run in runs):
        sys.stdout.write(f"\nNetworks:\n\n{as_networks(runs)}\n")
    if rows:
        sys.stdout.write("\n" + as_rows(runs) + "\n")
    if ablate:
        sys.stdout.write("\n" + ablation_table(*errors_without([run.row for run in runs if run.timed])) + "\n")
    if table is None and only is None:
        _hold(runs, by_set, form, record_them)


def _hold(runs: list[Run], by_set: list[Figures], form: Form, record_them: bool) -> None:
    """Record figures and error bars of the published runs, or hold them to those recorded."""
    evidence = evidence_of(runs)
    if form is Form.md:
        sys.stdout.write(f"\nError bars:\n\n{error_bars_markdown(evidence)}\n")
    if record_them:
        record(by_set)
        record_evidence(evidence)
    else:
        lines = worse(by_set) + out_of_bounds(evidence)
        sys.stderr.write("".join(f"worse than recorded: {line}\n" for line in lines))
        if not lines and more_simulated(by_set):
            sys.stderr.write("more runs are simulated than when the figures were recorded: sweep validate --record\n")
        if lines:
            raise typer.Exit(EXIT_WORSE)
