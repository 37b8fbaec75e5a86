"""`sweep replay`: rebuild a recorded step with the event engine."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sim_core import STAGES, SpecError, kind_of, replay
from sweep.commands.shared import AsJson, FactSets, Step, print_warnings, refuse_result, traces_at, write_json
from sweep.evaluation.one_plan import stages_replayed
from sweep.inputs.registry import is_trace
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console
from sweep.show.traces import replay_screen, replay_values, stages_lines


def command(
    trace: Annotated[str, typer.Argument(help="Rank traces: a file, a folder, or a glob in quotes; or stage durations.")],
    ranks: Annotated[
        bool | None,
        typer.Option(
            "--ranks/--stages", help="Each rank's own times (default where all ranks are there), or each stage's mean."
        ),
    ] = None,
    step: Step = None,
    sets: FactSets = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the recorded step with the event engine, and print the error."""
    console = own_console()
    if Path(trace).is_file() and kind_of(trace) == STAGES:
        values = stages_replayed(trace, sets or [])
        if as_json:
            write_json(values)
        else:
            print_sections(stages_lines(trace, values), console)
        return
    refuse_result(Path(trace), "the traces of a job")
    if is_trace(trace):
        raise SpecError(f"{trace}: is a profiler trace: one file does not hold a step to replay; `sweep inspect` shows it")
    job = traces_at(trace, sets, step)
    print_warnings(job.warnings, Console(stderr=True, markup=False) if as_json else console)
    replayed = replay(job, of_ranks=job.whole if ranks is None else ranks)
    if as_json:
        write_json(replay_values(replayed))
    else:
        print_sections(replay_screen(trace, replayed), console)
