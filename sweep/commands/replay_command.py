"""`sweep replay`: rebuild a recorded step with the event engine."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from sim_core import read_traces, replay
from sweep.commands.shared import FactSets, Step, print_warnings
from sweep.one_plan import facts_of
from sweep.show.terminal import own_console
from sweep.show.traces import print_replay, replay_values


def command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, or a glob in quotes.")],
    ranks: Annotated[
        bool | None,
        typer.Option(
            "--ranks/--stages", help="Each rank's own times (default where all ranks are there), or each stage's mean."
        ),
    ] = None,
    step: Step = None,
    sets: FactSets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rebuild the recorded step with the event engine, and print the error."""
    console = own_console()
    job = read_traces(trace, facts_of(trace, [*(sets or []), *([f"step={step}"] if step else [])]))
    print_warnings(job.warnings, Console(stderr=True, markup=False) if as_json else console)
    found = replay(job, of_ranks=job.whole if ranks is None else ranks)
    if as_json:
        sys.stdout.write(json.dumps(replay_values(found), indent=1) + "\n")
    else:
        print_replay(trace, found, console)
