"""`sweep replay`, `sweep timeline`: a recorded step beside that of the event engine, and steps as files for Perfetto."""

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from sim_core import STAGES, Job, SimError, SpecError, kind_of, read_traces, recorded_step, replay, short
from sim_core.limits import LARGEST
from sweep.commands.shared import AsJson, FactSets, check_output, doubted, print_warnings, refuse_result, takes, tell, there
from sweep.evaluation.one_plan import facts_of, stages_replayed
from sweep.exporting.meant import plan_number
from sweep.inputs.registry import explained, is_trace
from sweep.options import OptionError
from sweep.outputs import write_file
from sweep.reopening import reopened
from sweep.results.folder import folder_at
from sweep.results.store import Store
from sweep.show.perfetto import chrome_trace, drawn_plan
from sweep.show.terminal import own_console
from sweep.show.traces import replay_screen, replay_values, stages_lines

Step = Annotated[
    int | None, Option("--step", min=1, max=LARGEST["step"], help="Which of several steps in the files; else the median.")
]


def replay_command(
    trace: Annotated[str, Argument(help="Rank traces: a file, a folder, or a glob in quotes; or stage durations.")],
    ranks: Annotated[
        bool | None,
        Option("--ranks/--stages", help="Each rank's own times (default where all ranks are there), or each stage's mean."),
    ] = None,
    step: Step = None,
    sets: FactSets = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the recorded step with the event engine, and print the error."""
    console = own_console()
    if Path(trace).is_file() and kind_of(trace) == STAGES:
        values = stages_replayed(trace, sets or [])
        tell(values, stages_lines(trace, values), as_json)
        return
    refuse_result(Path(trace), "the traces of a job")
    if is_trace(trace):
        raise SpecError(f"{trace}: is a profiler trace: one file does not hold a step to replay; `sweep inspect` shows it")
    job = _traces_at(trace, sets, step)
    print_warnings(job.warnings, Console(stderr=True, markup=False) if as_json else console)
    replayed = replay(job, of_ranks=job.whole if ranks is None else ranks)
    tell(replay_values(replayed), replay_screen(trace, replayed), as_json)


def timeline_command(
    source: Annotated[str, Argument(help="A folder of results; or rank traces: a file, a folder, or a glob in quotes.")],
    plan: Annotated[str | None, Argument(help="Of a result: the plan's number, as in `rank`, or best.")] = None,
    output: Annotated[Path, Option("--output", "-o", help="File to write.")] = Path("timeline.json"),
    stages: Annotated[str | None, Option(help="Of a plan: the stages to draw, 0,7 or 0-3. Default: all.")] = None,
    spec: Annotated[Path | None, Option(help="Of a plan: where its spec lies now, if its files are not found.")] = None,
    step: Step = None,
    sets: FactSets = None,
) -> None:
    """Write the step of a plan of a result, or a recorded step beside its replay, for ui.perfetto.dev."""
    console = own_console()
    check_output(output, ".json")
    folder = None if "*" in source or Path(source).is_file() else folder_at(source)
    if folder is not None and Store(directory=folder).started_s() is not None:
        doubted(folder)
        takes("a folder of results", {"--step": step, "--set": sets}, "PLAN, --stages, --spec and --output")
        if plan is None:
            raise OptionError(
                f"PLAN: found none, and {folder} holds results of a sweep: which plan? its number, as in `sweep rank`, or best"
            )
        opened = reopened(folder, there("--spec", spec))
        number = plan_number(opened, plan)
        drawn = drawn_plan(opened, number, lambda count: _stages(stages, count), output)
        console.print(
            f"{output}: plan {number}, step {short(drawn.step_time_s, 's')}, {drawn.spans:,} spans of {len(drawn.stages)} "
            f"stages, {short(output.stat().st_size, 'B')}; open it in ui.perfetto.dev"
        )
        if drawn.off_s > 1e-9 * drawn.step_time_s:
            off = short(drawn.off_s, "s")
            console.print(f"warning: its parts are off by {off} from those of the result: please report this plan")
        for note in opened.notes:
            console.print(f"note: {note}")
        return
    takes(f"{source} (no result of a sweep)", {"PLAN": plan, "--stages": stages, "--spec": spec}, "--step and --set")
    job = _traces_at(source, sets, step)
    print_warnings(job.warnings, console)
    replayed = replay(job, of_ranks=job.whole)
    write_file(output, chrome_trace(recorded_step(job), replayed))
    times = f"recorded {short(replayed.recorded_s, 's')}, replayed {short(replayed.step_s, 's')}"
    console.print(f"{output}: {times}; open it in ui.perfetto.dev")
    for note in replayed.notes:
        console.print(f"  note: {note}")


def _traces_at(source: str, sets: list[str] | None, step: int | None) -> Job:
    """The rank traces of a job, with facts given by `--set` and `--step`. Raises SimError, OSError."""
    facts = facts_of(source, [*(sets or []), *([f"step={step}"] if step else [])])
    try:
        return read_traces(source, facts)
    except SimError as error:
        raise explained(source, error) from None


def _stages(text: str | None, stages: int) -> list[int]:
    """The stages to draw. Raises SpecError."""
    chosen = set()
    for part in (f"0-{stages - 1}" if text is None else text).split(","):
        first, dash, last = part.strip().partition("-")
        ends = [int(each) if each.isascii() and each.isdecimal() else stages for each in (first, last if dash else first)]
        if not ends[0] <= ends[1] < stages:
            raise OptionError(
                f"--stages {text}: found {part!r}, expected stages from 0 to {stages - 1}, such as 0,{stages - 1}"
            )
        chosen |= {*range(ends[0], ends[1] + 1)}
    return sorted(chosen)
