"""`sweep tune`: the best plan of a result after a handful of runs."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from sim_core import SpecError, plural, quantity, shown, stack_yaml
from sim_core.documents import Values
from sweep.commands.shared import AsJson, Directory, TryCost, print_warnings, result_at, tell
from sweep.exporting.meant import refusal
from sweep.options import OptionError, of_option
from sweep.outputs import write_file
from sweep.reopening import Reopened, reopened
from sweep.runs.table import read_table
from sweep.show.terminal import own_console
from sweep.show.tuned import added_text, tuned_json, tuned_lines
from sweep.tuning.placing import own_entries
from sweep.tuning.record import FAILURES, NAME, OK, SKIP, SLOW, SMALL, Entry
from sweep.tuning.tuner import REGRET, START_S, STEPS, Proposal, Tuner

GIB = 2**30
FARTHEST = 20.0
"""Percent that a page of small runs may leave: four times what known stacks are off. More is another unit or device."""


def tune_command(
    directory: Directory = None,
    add: Annotated[str | None, Option(help="A run to write down: plan=123, with --step, --log, --failed or --skip.")] = None,
    step: Annotated[str | None, Option(help="Its measured step: '1.93 s'; of a slow one at least so much.")] = None,
    memory: Annotated[str | None, Option(help="Its peak memory on a GPU: '61 GiB'.")] = None,
    log: Annotated[Path | None, Option(help="Its log, of any framework that `sweep inspect` reads.")] = None,
    failed: Annotated[str | None, Option(help="How it failed: oom, crash, or slow (stopped early).")] = None,
    skip: Annotated[bool, Option("--skip", help="It cannot be run here: never proposed, and tells nothing.")] = False,
    note: Annotated[str, Option(help="A remark, kept with the run.")] = "",
    count: Annotated[int, Option("--next", "-n", min=1, max=64, help="Plans to propose.")] = 1,
    regret: Annotated[str, Option(help="Expected regret at which it advises to stop.")] = f"{REGRET:.0%}",
    try_cost: TryCost = None,
    budget: Annotated[int | None, Option(min=1, help="Runs after which nothing more is proposed.")] = None,
    by: Annotated[str | None, Option(help="Column to rank by. Default: the spec's first objective.")] = None,
    where: Annotated[str | None, Option(help="Only plans that meet this condition, in SQL.")] = None,
    measured: Annotated[
        Path | None, Option(help=f"Read the runs from this table, of plans or of `inspect --rows`; {NAME} stays.")
    ] = None,
    small: Annotated[
        Path | None, Option(help="Take in small runs of the same stack, of any model: a table as `calibrate stack` fits.")
    ] = None,
    file: Annotated[Path | None, Option(help=f"Default: {NAME} in the folder of the result.")] = None,
    launching: Annotated[
        str | None, Option("--launch", help="Run this command for plan after plan: 'sbatch run.sh {flags}'.")
    ] = None,
    spec: Annotated[Path | None, Option(help="Where the spec of the result lies now, if its files are not found.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which plan to run next, take in what came out, and say when to stop."""
    limit = _share(regret)
    if measured is not None and (add or launching or file):
        raise OptionError("--measured only reads: it takes no --add, --launch or --file")
    if measured is not None and not measured.is_file():
        raise OptionError(f"--measured {measured}: No such file")
    folder, entries = result_at(directory), None
    opened = reopened(folder, spec)
    if measured is not None:
        entries, others = own_entries(measured, opened)
        print_warnings(others, Console(stderr=True, markup=False, soft_wrap=True))
    if small is not None:
        _take_in(small, opened, as_json)
    tuner = Tuner(
        folder,
        by=by,
        where=where,
        file=measured or file,
        spec=spec,
        read_only=measured is not None,
        opened=opened,
        entries=entries,
        try_cost=try_cost,
        refusal=refusal(opened.prepared),
    )
    of_run = {
        "--step": step,
        "--memory": memory,
        "--log": log,
        "--failed": failed,
        "--skip": skip or None,
        "--note": note or None,
    }
    if add is not None:
        added = _added(tuner, add, of_run)
        if not as_json:
            own_console().print(f"added: {added_text(added)}")
    elif stray := [name for name, value in of_run.items() if value is not None]:
        raise OptionError(f"{stray[0]}: of which run? expected --add plan=NUMBER beside it")

    flags = partial(flags_of, tuner)
    if launching is not None:
        from sweep.tuning.launching import launch

        launch(tuner, launching, flags, own_console().print, limit=limit, budget=budget, count=count)
        count = 1
    left = count if budget is None else min(count, max(budget - len(tuner.made), 0))
    proposals = tuner.ask(left, limit) if left else []
    lines = chain(tuned_lines(tuner, proposals, limit, flags, spent=not left), _small_runs(tuner, proposals))
    tell(tuned_json(tuner, proposals, limit), lines, as_json)


def _take_in(small: Path, opened: Reopened, as_json: bool) -> None:
    """Fit a page to small runs and lay it beside the result. Raises SpecError for runs that tell nothing of other plans."""
    from sweep.calibration.report import page_of_fit
    from sweep.calibration.steps import fit_stack

    job, local = opened.prepared.sweep, opened.folder.local
    if local is None or job.others or job.workload.modelled is None or job.workload.from_file:
        raise OptionError("--small: expected a result in a local folder, of a model by one stack; else `sweep calibrate stack`")
    fit = fit_stack(read_table(small), None, None, str(small))
    before, after, left_out = fit.mean_errors
    errors = f"{before:.1f} % off by page {fit.base.name}, {after:.1f} with what they tell, {left_out:.1f} each left out"
    if left_out >= before or after > FARTHEST:
        raise SpecError(f"{small}: {plural(len(fit.rows), 'run')} {errors}: they tell nothing of other plans")
    write_file(local / SMALL, stack_yaml(page_of_fit(fit, f"{fit.base.name} (small runs)", str(small))))
    if not as_json:
        own_console().print(f"{local / SMALL}: {plural(len(fit.rows), 'small run')} {errors}")


def _small_runs(tuner: Tuner, proposals: Sequence[Proposal]) -> Iterator[str]:
    """Before a step is known: the runs that tell most of a stack, where they cost less than one of this job."""
    from sweep.calibration.stack_launch import PURPOSES, USUAL

    sweep = tuner.opened.prepared.sweep
    job, device = sweep.workload.modelled, sweep.hardware.variants[0]
    if tuner.is_timed or not proposals or job is None or job.model.experts:
        return
    gpus = int(device.value("gpus_per_node")) * sum(purpose.nodes for purpose in PURPOSES[:USUAL])
    hours, own = gpus * (START_S + STEPS) / 3600, proposals[0].gpu_minutes / 60
    if hours < own:
        cost = f"take {hours:.1f} GPU-hours (steps of 1 s), this one {own:.1f}"
        yield f"small runs first: {USUAL} of a small model on two nodes {cost}"
        asks = f"sweep calibrate stack --plan --device {device.name} --stack {job.stack.name.partition(' ')[0]} -o small.csv"
        yield f"  they tell host, rings and messages: {asks}; filled: sweep tune {tuner.file.parent} --small small.csv"


def flags_of(tuner: Tuner, plan: int) -> str:
    """The launch flags of a plan in one line, torchtitan's or Megatron-LM's by its stack; why there are none."""
    from sweep.exporting.launched import launched
    from sweep.exporting.megatron import flags_text
    from sweep.exporting.torchtitan import torchtitan_flags

    try:
        found = launched(tuner.opened.prepared, plan)
        return torchtitan_flags(found) if found.stack.startswith("torchtitan") else flags_text(found)
    except SpecError as error:
        return f"none: {error}"


def _added(tuner: Tuner, add: str, of_run: Values) -> Entry:
    """Write down the run that the options tell of. Raises SpecError."""
    step, memory, log, failed, skip, note = of_run.values()
    name, equals, number = (part.strip() for part in add.partition("="))
    if not equals:
        name, number = "plan", name
    if name != "plan" or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise OptionError(f"--add {add}: found {shown(add)}, expected plan=NUMBER, as in column plan of `sweep rank`")
    plan = int(number)
    chosen = [name for name in ("--log", "--failed", "--skip") if of_run[name]]
    if len(chosen) > 1 or (chosen != ["--failed"] and chosen and step):
        raise OptionError(f"--add {add}: found {' and '.join([*chosen, *(['--step'] if step else [])])}, expected one of them")
    seconds = None if step is None else _quantity("--step", step, "s")
    peak = None if memory is None else _quantity("--memory", memory, "B") / GIB
    if log is not None:
        from sweep.tuning.launching import tell_log

        return tell_log(tuner, plan, log, note or "")
    if failed is not None and failed not in FAILURES:
        raise OptionError(f"--failed {failed}: expected {', '.join(FAILURES)}")
    if failed is not None and seconds is not None and failed != SLOW:
        raise OptionError(f"--failed {failed}: takes no --step, only slow does: at least so much")
    outcome = SKIP if skip else failed or seconds or (OK if peak else None)
    if outcome is None:
        raise OptionError(
            f"--add {add}: how did it go? expected --step '1.93 s', --log FILE, --failed {'|'.join(FAILURES)} or --skip"
        )
    return tuner.tell(plan, outcome, step_time_s=seconds, peak_memory_gib=None if skip else peak, note=note or "")


def _quantity(option: str, text: str, unit: str) -> float:
    if text.strip().replace(".", "", 1).isdecimal():
        raise OptionError(f"{option} {text}: found no unit, expected such as '{text.strip()} {'s' if unit == 's' else 'GiB'}'")
    with of_option(f"{option} {text}"):
        value = quantity(text, unit)
    if not value > 0:
        raise OptionError(f"{option} {text}: expected more than 0")
    return value


def _share(text: str) -> float:
    """`2%` or `0.02` as a share."""
    percent = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise OptionError(f"--regret {text}: expected a share from 0% to 100%, such as 2%")
    return value
