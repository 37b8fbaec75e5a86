"""`sweep timeline`: a recorded and a replayed step side by side in one file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sim_core import read_traces, recorded_step, replay, short
from sweep.commands.shared import FactSets, Step, print_warnings
from sweep.one_plan import facts_of
from sweep.show.perfetto import chrome_trace
from sweep.show.terminal import own_console


def command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, or a glob in quotes.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("timeline.json"),
    step: Step = None,
    sets: FactSets = None,
) -> None:
    """Write the recorded and the replayed step side by side, for ui.perfetto.dev."""
    console = own_console()
    job = read_traces(trace, facts_of(trace, [*(sets or []), *([f"step={step}"] if step else [])]))
    print_warnings(job.warnings, console)
    found = replay(job, of_ranks=job.whole)
    output.write_text(chrome_trace(recorded_step(job), found), encoding="utf-8")
    console.print(
        f"{output}: recorded {short(found.recorded_s, 's')}, replayed {short(found.step_s, 's')}; open it in ui.perfetto.dev",
        soft_wrap=True,
    )
    for note in found.notes:
        console.print(f"  note: {note}", soft_wrap=True)
