"""A loop that runs by itself: the next plans in the user's own command, their logs read, until nothing more is to be gained.

The log is the record of a run. Before the command begins it names the process group, whatever submits the job prints its
number there, and a line of the table comes last: a launcher that was lost finds the run, its job or its end again.
"""

import fcntl
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sim_core import SpecError
from sweep.inputs.log import read_log
from sweep.inputs.told import Job
from sweep.options import OptionError
from sweep.tuning.record import CRASH, OK, OUT_OF_MEMORY, SKIP, SLOW, Entry
from sweep.tuning.tuner import Tuner

LOGS = "tune-logs"
FIELDS = ("flags", "plan", "log")
_SAME = ("tp", "pp", "vpp", "cp", "ep", "all_gpus", "micro_batch", "global_batch")
"""What a log may tell of a plan that must be as in the result."""
_WHOLE = {"none", "selective", "full"}
"""Kinds of checkpointing that are the same plan only if their word is the same."""
FIRST = 3
"""Steady steps from which on a run is compared with the best."""
LOOKS_S = (0.1, 10.0)
"""Between looks at the runs: at first, and at most."""
GRACE_S = 15.0
"""What a stopped run of this machine has to end by itself."""
ANSWER_S = 60
HEAD = 2**16
"""Characters of a log in which its job is named."""
BEGUN = re.compile(r"\Asweep tune (\w+): on (\S+), process group (\d+)$", re.MULTILINE)
SLURM = re.compile(r"^Submitted batch job (\d+)(?: on cluster (\w+))?$|\Asweep tune .*\n(\d+)(?:;(\w+))?$", re.MULTILINE)
RAY = re.compile(r"Job '([\w.-]+)' submitted successfully")
RAY_END = re.compile(r"Job '\S+' (succeeded|failed|was stopped)|does not exist")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
RAY_ADDRESS = re.compile(r"Job submission server address: ([\w:/.@-]+)")
NO_FAULT = ("CANCELLED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REVOKED", "was stopped", "lost")
"""Ends of a job that tell nothing of its plan."""
ENDS = {*NO_FAULT, "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "DEADLINE"}
GOOD = ("COMPLETED", "succeeded", "exit code 0")


class NoAnswer(SpecError):
    """A scheduler does not say how a job goes."""


class Submitted(NamedTuple):
    """A job of Slurm or Ray: its number, after the options that say on which cluster."""

    name: str
    ray: bool

    @property
    def end(self) -> str | None:
        """How it ended, in a word of its scheduler, "" if that is forgotten; None: it waits or runs.

        Raises NoAnswer if nobody answers.
        """
        failed, text = _answer(f"ray job status {self.name}" if self.ray else f"squeue -h -o %T -j {self.name}")
        if self.ray:
            if found := RAY_END.search(text):
                return found[1] or "lost"
        elif not failed and not set(text.split()) <= ENDS:
            return None
        else:
            code, told = _answer(f"sacct -n -X -P -o State -j {self.name}")
            state = "" if code else told.partition(" ")[0].strip()
            if state in ENDS or not failed or "Invalid job id" in text:
                return state if state in {"", *ENDS} else None
        if failed:
            raise NoAnswer(f"job {self.name}: {text[-200:]}")
        return None


def submitted(text: str) -> Submitted | None:
    """The job that a log names, if any."""
    head = COLOUR.sub("", text[:HEAD])
    if found := RAY.search(head):
        address = RAY_ADDRESS.search(head)
        return Submitted(f"--address {address[1]} {found[1]}" if address else found[1], ray=True)
    if found := SLURM.search(head):
        cluster = found[2] or found[4]
        return Submitted(f"{found[1] or found[3]}{f' -M {cluster}' if cluster else ''}", ray=False)
    return None


def _answer(command: str) -> tuple[int, str]:
    """Exit code of a command and what it says."""
    return subprocess.getstatusoutput(f"timeout {ANSWER_S} {command}")


def told_by_log(tuner: Tuner, plan: int, path: Path) -> Job:
    """The log of a plan. Raises SpecError if it is of another plan, or tells no step, memory or failure; OSError."""
    log = read_log(path)
    row = tuner.row(plan)
    for name in (*_SAME, "checkpointing"):
        told, own = log.plan.get(name), row.get(name)
        comparable = {told, own} <= _WHOLE if name == "checkpointing" else None not in (told, own)
        if comparable and told != own:
            raise SpecError(f"{path}: is a log of another plan: found {name} {told}, expected {own} of plan {plan}")
    if log.state == OK and log.step_time_s is None and log.peak_memory_gib is None:
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
    count: int = 1,
) -> None:
    """Run `count` plans at a time until the loop advises to stop, `budget` runs are done, or no plan is left.

    Runs that were begun before come first. Raises SpecError, OSError.
    """
    try:
        template.format(**dict.fromkeys(FIELDS, ""))
    except (KeyError, IndexError, ValueError):
        raise OptionError(
            f"--launch {template!r}: expected no braces but {', '.join(f'{{{name}}}' for name in FIELDS)}"
        ) from None
    if "{flags}" not in template and "{plan}" not in template:
        raise OptionError(f"--launch {template!r}: expected {{flags}} or {{plan}} in it, which say what is to run")
    loop = _Loop(tuner, template, flags_of, say)
    running, pause = [*loop.begun()], LOOKS_S[0]
    while True:
        begun = len(running)
        while len(running) < count and not tuner.stops(limit) and (budget is None or len(tuner.made) + len(running) < budget):
            proposals = tuner.ask(1, limit, [run.plan for run in running])
            if not proposals:
                if not running:
                    say("no plan is left")
                break
            plan, again = proposals[0].plan, proposals[0].again
            running.append(loop.run(plan, len(tuner.runs[plan].times) + 1 if again else 1))
        if not running:
            return
        running = [run for run in running if not loop.is_done(run)]
        pause = min(1.3 * pause, LOOKS_S[1]) if len(running) == begun else LOOKS_S[0]
        time.sleep(pause)


@dataclass
class _Run:
    """One run of a plan. `log` is locked until it and all copies of it in other processes are closed."""

    plan: int
    number: int  # of the plan's runs
    path: Path
    log: BinaryIO
    process: subprocess.Popen[bytes] | None = None  # that this launcher has begun
    held: bool = True  # another process may have it
    stopped: float | None = None  # when, since it was too slow
    said: str = ""


class _Loop(NamedTuple):
    tuner: Tuner
    template: str
    flags_of: Callable[[int], str]
    say: Callable[[str], None]

    def begun(self) -> Iterator[_Run]:
        """Runs that a launcher has begun and not written down."""
        for path in sorted((self.tuner.file.parent / LOGS).glob("plan-*.log")):
            numbers = [*map(int, re.findall(r"\d+", path.stem)), 1]
            with path.open(errors="replace") as log:
                found = BEGUN.match(log.readline())
            if found and found[1] == self.tuner.identity[:8] and not self._is_known(*numbers[:2]):
                yield self.run(*numbers[:2])

    def run(self, plan: int, number: int) -> _Run:
        """A run of a plan, not begun."""
        path = self.tuner.file.parent / LOGS / f"plan-{plan}{f'-{number}' * (number > 1)}.log"
        path.parent.mkdir(exist_ok=True)
        run = _Run(plan, number, path, path.open("ab"))
        if not self._locks(run):
            self.say(f"plan {plan}: waits for a run that was begun before ({path})")
        return run

    def is_done(self, run: _Run) -> bool:
        """Begin a run, or look at it: whether it is written down."""
        try:
            done = self._look(run)
        except NoAnswer as error:
            if run.said != str(error):
                self.say(f"plan {run.plan}: {error}")
            run.said = str(error)
            return False
        if done:
            run.log.close()
        return done

    def _is_known(self, plan: int, number: int) -> bool:
        runs = self.tuner.runs
        return plan in runs and max(len(runs[plan].times), 1) >= number

    def _look(self, run: _Run) -> bool:
        if run.held and not self._locks(run):
            self._watch(run)
            return False
        if self._is_known(run.plan, run.number):  # another process was as far
            return True
        own = None if run.process is None else run.process.poll()
        if run.process is not None and own is None:
            self._watch(run)
            return False
        text = run.path.read_text(errors="replace")
        job = submitted(text)
        end = f"exit code {own}"
        if job is not None:
            if (state := job.end) is None:
                if job.ray:
                    run.process = self._process(run, f"ray job logs --follow {job.name}")
                self._watch(run)
                return False
            end = f"job {job.name} {state or 'ended'}"
            if job.ray and own is None:
                self._process(run, f"ray job logs {job.name}").wait()
        if job is not None or own is not None:
            log = str(run.path)
            if run.stopped is not None:
                self.tuner.tell(run.plan, SLOW, log=log, note=end)
            elif not self._told(run, good=end.endswith(GOOD)):
                state = SKIP if end.endswith(NO_FAULT) else CRASH
                self.tuner.tell(run.plan, state, log=log, note=f"{end}, no step in its log")
        elif text and self._told(run):
            self.say(f"plan {run.plan}: {self._word(run)}, by the log of a run that was begun before")
            return True
        else:
            return not self._begins(run)
        self.say(f"plan {run.plan}: {self._word(run)}")
        return True

    def _locks(self, run: _Run) -> bool:
        try:
            fcntl.flock(run.log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        run.held = False
        return True

    def _begins(self, run: _Run) -> bool:
        """Begin a run; False if it is skipped."""
        flags = self.flags_of(run.plan)
        if "{flags}" in self.template and flags.startswith("none: "):
            self.tuner.tell(run.plan, SKIP, note=flags)
            self.say(f"plan {run.plan}: skipped, flags {flags}")
            return False
        command = self.template.format(flags=flags, plan=str(run.plan), log=shlex.quote(str(run.path)))
        row = self.tuner.row(run.plan)
        sizes = ", ".join(f"{name} {row[name]}" for name in ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch") if name in row)
        self.say(f"plan {run.plan}: {sizes}: {command}")
        run.log.truncate(0)
        slurm = f"SBATCH_WAIT=1 SBATCH_OPEN_MODE=append SBATCH_OUTPUT={shlex.quote(str(run.path))}"
        first = f"echo 'sweep tune {self.tuner.identity[:8]}: on {socket.gethostname()}, process group' $$"
        run.process = self._process(run, f"{first}\nexport {slurm}\n{command}")
        return True

    def _process(self, run: _Run, command: str) -> subprocess.Popen[bytes]:
        """What writes the log, in a process group of its own, which outlives the launcher."""
        return subprocess.Popen(  # the user's own command
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=run.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _watch(self, run: _Run) -> None:
        """Keep what a log says of its job, whatever becomes of this machine; stop a run whose first steps are too slow."""
        os.fsync(run.log.fileno())
        if run.stopped is None:
            limit = self.tuner.too_slow_s
            with suppress(SpecError):
                log = read_log(run.path)
                if limit and log.steps >= FIRST and (log.step_time_s or 0.0) > limit:
                    run.stopped = time.monotonic()
                    self.say(f"plan {run.plan}: {log.step_time_s:.4g} s a step, stopped: more than {limit:.4g} s")
            if run.stopped is None:
                return
        text = run.path.read_text(errors="replace")
        if (job := submitted(text)) is not None:
            _answer(f"ray job stop --no-wait {job.name}" if job.ray else f"scancel {job.name}")
        elif (found := BEGUN.match(text)) and found[2] == socket.gethostname():
            hard = time.monotonic() - run.stopped > GRACE_S
            with suppress(ProcessLookupError):
                os.killpg(int(found[3]), signal.SIGKILL if hard else signal.SIGTERM)

    def _told(self, run: _Run, *, good: bool = False) -> bool:
        """Whether the log tells how the run went, of a `good` end by its memory alone; one that failed after some steps did
        not crash for its plan."""
        try:
            log = read_log(run.path)
        except SpecError:
            return False
        timed = log.step_time_s is not None and log.steps > 0
        if log.state == OUT_OF_MEMORY or timed or (good and log.state == OK and log.peak_memory_gib is not None):
            tell_log(self.tuner, run.plan, run.path)
            return True
        return False

    def _word(self, run: _Run) -> str:
        known = self.tuner.runs[run.plan]
        return f"{known.step_time_s:.4g} s" if known.state == OK and known.step_time_s else known.state
