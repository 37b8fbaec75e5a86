"""A loop that runs by itself: the next plan in the user's own command, its log read, until nothing more is to be gained.

A run leaves its log before its line: one that was begun when this process was killed is read, or run again if its log tells
nothing.
"""

import fcntl
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from sim_core import SpecError, Values
from sweep.inputs.log import read_log
from sweep.inputs.told import Job
from sweep.options import OptionError
from sweep.tuning.record import CRASH, OK, OUT_OF_MEMORY, SKIP, Entry
from sweep.tuning.tuner import Proposal, Tuner

LOGS = "tune-logs"
FIELDS = ("flags", "plan", "log")
_SAME = ("tp", "pp", "vpp", "cp", "ep", "all_gpus", "micro_batch", "global_batch")
"""What a log may tell of a plan that must be as in the result."""
_WHOLE = {"none", "selective", "full"}
"""Kinds of checkpointing that are the same plan only if their word is the same."""


def check_template(template: str) -> None:
    """Raise SpecError unless it is a command with {flags} or {plan}."""
    try:
        template.format(**dict.fromkeys(FIELDS, ""))
    except (KeyError, IndexError, ValueError):
        raise OptionError(
            f"--launch {template!r}: expected no braces but {', '.join(f'{{{name}}}' for name in FIELDS)}"
        ) from None
    if "{flags}" not in template and "{plan}" not in template:
        raise OptionError(f"--launch {template!r}: expected {{flags}} or {{plan}} in it, which say what is to run")


def told_by_log(tuner: Tuner, plan: int, path: Path) -> Job:
    """The log of a plan. Raises SpecError if it is of another plan, or tells neither a step nor a failure; OSError."""
    log = read_log(path)
    row = tuner.row(plan)
    for name in (*_SAME, "checkpointing"):
        told, own = log.plan.get(name), row.get(name)
        comparable = {told, own} <= _WHOLE if name == "checkpointing" else None not in (told, own)
        if comparable and told != own:
            raise SpecError(f"{path}: is a log of another plan: found {name} {told}, expected {own} of plan {plan}")
    if log.state == OK and log.step_time_s is None:
        raise SpecError(f"{path}: found no steady step; --failed crash, if it did not run")
    return log


def tell_log(tuner: Tuner, plan: int, path: Path, note: str = "") -> Entry:
    """Write down what a log says of a plan, and return it. Raises SpecError, OSError."""
    log = told_by_log(tuner, plan, path)
    outcome = log.step_time_s if log.state == OK and log.step_time_s is not None else log.state
    return tuner.tell(plan, outcome, peak_memory_gib=log.peak_memory_gib, log=str(path), note=note)


def launch(
    tuner: Tuner,
    template: str,
    flags_of: Callable[[int], str],
    say: Callable[[str], None],
    *,
    limit: float,
    budget: int | None,
) -> None:
    """Run one plan after the other until the loop advises to stop, `budget` runs are done, or no plan is left.

    A command ends when its run ends: sbatch is told to wait, by its own environment. Raises SpecError, OSError.
    """
    check_template(template)
    while not (budget is not None and len(tuner.made) >= budget) and not tuner.stops(limit):
        proposals = tuner.ask(limit=limit)
        if not proposals:
            say("no plan is left")
            return
        _run(tuner, proposals[0], template, flags_of, say)


def _run(tuner: Tuner, proposal: Proposal, template: str, flags_of: Callable[[int], str], say: Callable[[str], None]) -> None:
    """One run, or what a run that was begun before has left.

    The log is locked until it and all copies of it in other processes are closed: one that outlived its launcher is waited for.
    """
    plan, times = proposal.plan, len(tuner.runs[proposal.plan].times) if proposal.again else 0
    path = tuner.file.parent / LOGS / f"plan-{plan}{f'-{times + 1}' * proposal.again}.log"
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"plan {plan}: waits for a run that was begun before ({path})")
            fcntl.flock(log, fcntl.LOCK_EX)
        if plan in tuner.runs and not 0 < len(tuner.runs[plan].times) == times:  # another process was as far
            return
        if path.stat().st_size and _told(tuner, plan, path):
            say(f"plan {plan}: {_word(tuner, plan)}, by the log of a run that was begun before")
            return
        log.truncate(0)
        flags = flags_of(plan)
        if "{flags}" in template and flags.startswith("none: "):
            tuner.tell(plan, SKIP, note=flags)
            say(f"plan {plan}: skipped, flags {flags}")
            return
        command = template.format(flags=flags, plan=str(plan), log=shlex.quote(str(path)))
        say(f"plan {plan}: {values_of(proposal.row)}: {command}")
        slurm = {"SBATCH_WAIT": "1", "SBATCH_OUTPUT": str(path), "SBATCH_OPEN_MODE": "append"}
        ended = subprocess.run(  # the user's own command
            command, shell=True, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **slurm}
        ).returncode
        if not _told(tuner, plan, path):
            tuner.tell(plan, CRASH, log=str(path), note=f"exit code {ended}, no step in its log")
    say(f"plan {plan}: {_word(tuner, plan)}")


def _told(tuner: Tuner, plan: int, path: Path) -> bool:
    """Whether the log tells how the run went; a run that failed after some steps did not crash for its plan."""
    try:
        log = read_log(path)
    except SpecError:
        return False
    if log.state == OUT_OF_MEMORY or (log.step_time_s is not None and log.steps > 0):
        tell_log(tuner, plan, path)
        return True
    return False


def _word(tuner: Tuner, plan: int) -> str:
    run = tuner.runs[plan]
    return f"{run.step_time_s:.4g} s" if run.state == OK else run.state


def values_of(row: Values) -> str:
    """A plan by the columns that say most."""
    return ", ".join(f"{name} {row[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch") if name in row)
