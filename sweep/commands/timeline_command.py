"""`sweep timeline`: one step in a file for Perfetto: that of a plan of a result, or a recorded one beside its replay."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sim_core import recorded_step, replay, short
from sweep.commands.shared import FactSets, Step, check_output, doubted, print_warnings, takes, there, traces_at
from sweep.options import OptionError
from sweep.outputs import write_file
from sweep.reopening import plan_number, reopened
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store
from sweep.show.perfetto import chrome_trace, drawn_plan
from sweep.show.terminal import own_console


def command(
    source: Annotated[str, typer.Argument(help="A folder of results; or rank traces: a file, a folder, or a glob in quotes.")],
    plan: Annotated[str | None, typer.Argument(help="Of a result: the plan's number, as in `rank`, or best.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("timeline.json"),
    stages: Annotated[str | None, typer.Option(help="Of a plan: the stages to draw, 0,7 or 0-3. Default: all.")] = None,
    spec: Annotated[Path | None, typer.Option(help="Of a plan: where its spec lies now, if its files are not found.")] = None,
    step: Step = None,
    sets: FactSets = None,
) -> None:
    """Write the step of a plan of a result, or a recorded step beside its replay, for ui.perfetto.dev."""
    console = own_console()
    check_output(output)
    folder = _result_at(source)
    if folder is not None:
        takes("a folder of results", {"--step": step, "--set": sets}, "PLAN, --stages, --spec and --output")
        _plan(folder, plan, stages, spec, output, console)
        return
    takes(f"{source} (no result of a sweep)", {"PLAN": plan, "--stages": stages, "--spec": spec}, "--step and --set")
    job = traces_at(source, sets, step)
    print_warnings(job.warnings, console)
    replayed = replay(job, of_ranks=job.whole)
    write_file(output, chrome_trace(recorded_step(job), replayed))
    times = f"recorded {short(replayed.recorded_s, 's')}, replayed {short(replayed.step_s, 's')}"
    console.print(f"{output}: {times}; open it in ui.perfetto.dev")
    for note in replayed.notes:
        console.print(f"  note: {note}")


def _result_at(source: str) -> Folder | None:
    """The folder of a result, None if there is none."""
    if "*" in source or Path(source).is_file():
        return None
    folder = folder_at(source)
    return doubted(folder) if Store(directory=folder).started_s() is not None else None


def _plan(folder: Folder, plan: str | None, stages: str | None, spec: Path | None, output: Path, console: Console) -> None:
    if plan is None:
        raise OptionError(
            f"PLAN: found none, and {folder} holds results of a sweep: which plan? its number, as in `sweep rank`, or best"
        )
    opened = reopened(folder, there("--spec", spec))
    number = plan_number(opened, plan)
    drawn = drawn_plan(opened, number, lambda count: _stages(stages, count), output)
    console.print(
        f"{output}: plan {number}, step {short(drawn.step_time_s, 's')}, {drawn.spans:,} spans of {len(drawn.stages)} stages, "
        f"{short(output.stat().st_size, 'B')}; open it in ui.perfetto.dev"
    )
    if drawn.off_s > 1e-9 * drawn.step_time_s:
        console.print(
            f"warning: its parts are off by {short(drawn.off_s, 's')} from those of the result: please report this plan"
        )
    for note in opened.notes:
        console.print(f"note: {note}")


def _stages(text: str | None, stages: int) -> list[int]:
    """The stages to draw. Raises SpecError."""
    if text is None:
        return list(range(stages))
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = [first, last if dash else first]
        if not all(each.isascii() and each.isdecimal() and int(each) < stages for each in ends) or int(ends[0]) > int(ends[1]):
            raise OptionError(
                f"--stages {text}: found {part!r}, expected stages from 0 to {stages - 1}, such as 0,{stages - 1}"
            )
        chosen += range(int(ends[0]), int(ends[1]) + 1)
    return sorted(set(chosen))
