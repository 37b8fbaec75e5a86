"""The interface that every reader of logs fulfils, and the steps that it finds."""

import math
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from sim_core import Floats, whole_of
from sweep.frameworks.plan import Value
from sweep.inputs.told import Job


class Steps:
    """Seconds of logged steps, in order: 17 bytes each, as a log may hold millions."""

    def __init__(self) -> None:
        self._seconds = array("d")
        self._iterations = array("q")
        self._clean = array("b")
        self._disturbed = False
        self.begins = False  # the log holds the start of the job

    def __len__(self) -> int:
        return len(self._seconds)

    def disturb(self) -> None:
        """The interval that is running holds other work: evaluation, a checkpoint, garbage collection, a profiler."""
        self._disturbed = True

    def take(self, iteration: int, seconds: float) -> None:
        """An interval that ended with `iteration`, in seconds a step; one that is logged again is not taken again."""
        before = self._iterations[-1] if self._iterations else None
        if before == iteration:
            return
        self._seconds.append(seconds)
        self._iterations.append(iteration)
        self._clean.append(not self._disturbed and (before is None or before < iteration))
        self._disturbed = False

    def over(self, amount: float) -> "Steps":
        """The same steps with `amount` divided by what is logged: seconds of rates."""
        steps = Steps()
        steps._seconds = array("d", (amount / rate for rate in self._seconds))
        steps._iterations, steps._clean, steps.begins = self._iterations, self._clean, self.begins
        return steps

    @property
    def interval(self) -> int:
        """Steps of an interval: the usual distance of the iterations that are logged."""
        logged = np.frombuffer(self._iterations, dtype=int)
        return max(int(np.median(np.diff(logged) if len(logged) > 1 else logged)), 1) if len(logged) else 1

    def steady(self) -> Floats:
        """Seconds of the steady steps: without the first interval and disturbed ones; a single interval stays unless it is
        that of the job's start."""
        seconds = np.frombuffer(self._seconds, dtype=float)
        if len(seconds) < 2:
            return seconds[:0] if self.begins or (len(seconds) and self._iterations[0] <= 1) else seconds
        rest = seconds[1:][np.frombuffer(self._clean, dtype=bool)[1:]]
        return rest if len(rest) else seconds[1:]

    @property
    def first_s(self) -> float | None:
        """Seconds of the first interval."""
        return self._seconds[0] if self._seconds else None


class Taker(ABC):
    """What takes the lines of a log that contain one of its keys."""

    KEYS: ClassVar[Sequence[bytes]]
    OPENS: ClassVar[Sequence[bytes]] = ()
    """What begins a dump of settings."""
    DUMP: ClassVar[Sequence[bytes]] = ()
    """Further keys, while one is printed."""
    in_dump = False

    def keys(self, text: bytes) -> tuple[bytes, ...]:
        """The keys that some lines together contain."""
        dump = self.DUMP if self.in_dump or any(word in text for word in self.OPENS) else ()
        return tuple(key for key in (*self.KEYS, *dump) if key in text)

    @abstractmethod
    def take(self, line: str) -> None:
        """Read a line."""


class LogReader(Taker):
    """Reads the lines of one family of frameworks into a job.

    `model` and `arguments` of Megatron-LM, as dumped, tell the model's numbers; else `preset` names it, with what it has
    otherwise in `changes`. `told`: whole numbers by name, `settings`: values as they are printed; what lines tell on the way.
    """

    FRAMEWORK: ClassVar[str]
    KNOWN_BY: ClassVar[str]
    """What shows its logs, in words; SIGNS are the patterns."""
    SIGNS: ClassVar[Sequence[str]]
    preset = ""

    def __init__(self) -> None:
        self.job = Job(framework=self.FRAMEWORK)
        self.taken = Steps()
        self.model: dict[str, Value] = {}
        self.changes: Mapping[str, object] = {}
        self.arguments: Mapping[str, str] = {}
        self.told: dict[str, int] = {}
        self.settings: dict[str, str] = {}

    @property
    def steps(self) -> Steps:
        """The steps found so far."""
        return self.taken

    def start_again(self) -> None:
        """Forget the steps: those that follow are of another batch."""
        begins, self.taken = self.taken.begins, Steps()
        self.taken.begins = begins

    def open_dump(self) -> None:
        """A dump of settings begins; one after steps is that of a job that was started again, whose steps count."""
        if len(self.taken) and not self.in_dump:
            self.settings = {}
            self.start_again()
        self.in_dump = self.taken.begins = True

    @abstractmethod
    def found(self) -> bool:
        """Complete the job by what the lines told; False if none was of this family."""


def told_by(line: str, patterns: Mapping[str, re.Pattern[str]]) -> list[tuple[str, str]]:
    """What patterns with a name find in a line."""
    return [(name, match[1]) for name, pattern in patterns.items() if (match := pattern.search(line))]


def numbers_of(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Value]:
    """Settings that are whole numbers, by our names."""
    return {key: value for name, key in names.items() if (value := whole_of(settings, name))}


def product(plan: Mapping[str, Value | None], *names: str) -> int | None:
    """The product of some sizes of a plan; None if one of them is not known."""
    sizes = [plan.get(name) for name in names]
    return math.prod(size for size in sizes if isinstance(size, int)) if None not in sizes else None


def number(text: str) -> float | None:
    """A positive number, with separators of thousands; None if it is none."""
    try:
        value = float(text.replace(",", "")) if text.isascii() and len(text) < 40 else float("nan")
    except ValueError:
        return None
    return value if 0 < value < 1e15 else None


def whole(text: str) -> int | None:
    """A whole number above 0 of digits and separators of thousands; None if it is none."""
    return int(text.replace(",", "") or 0) or None
