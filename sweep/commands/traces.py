"""`sweep replay` and `timeline`: what was measured, rebuilt."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sim_core import (
    Job,
    read_traces,
    recorded,
    replay,
    short,
)
from sweep.show.perfetto import chrome_trace
from sweep.show.terminal import own_console
from sweep.show.traces import print_replay, replay_values
from sweep.single import facts_of

Sets = Annotated[list[str] | None, typer.Option("--set", help="A fact that the file does not tell: pp=4, ep=2, layers=8.")]


def warn(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)


def _traces(path: str, sets: list[str] | None, console: Console) -> Job:
    job = read_traces(path, facts_of(path, sets or []))
    warn(job.warnings, console)
    return job


def replay_command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, a glob in quotes.")],
    ranks: Annotated[
        bool, typer.Option("--ranks/--stages", help="Each rank's own times (needs all ranks), or each stage's mean.")
    ] = False,
    sets: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Rebuild the recorded step by the event engine, and say how far off it is."""
    console = own_console()
    job = _traces(trace, sets, Console(stderr=True, markup=False) if as_json else console)
    found = replay(job, of_ranks=ranks)
    if as_json:
        sys.stdout.write(json.dumps(replay_values(found), indent=1) + "\n")
    else:
        print_replay(trace, found, console)


def timeline_command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, a glob in quotes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("timeline.json"),
    sets: Sets = None,
) -> None:
    """Write the recorded and the replayed step side by side, for ui.perfetto.dev."""
    console = own_console()
    job = _traces(trace, sets, console)
    found = replay(job, of_ranks=job.whole)
    output.write_text(chrome_trace(recorded(job), found), encoding="utf-8")
    console.print(
        f"{output}: recorded {short(found.recorded_s, 's')}, replayed {short(found.step_s, 's')}; open it in ui.perfetto.dev",
        soft_wrap=True,
    )
    for note in found.notes:
        console.print(f"  note: {note}", soft_wrap=True)
