"""What a reader of logs finds: plan, model, steps, memory; and the interface that every reader of logs fulfils."""

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from sim_core import whole_of
from sweep.frameworks.plan import Plan, Value

PLAN_FIELDS: Final = (
    "tp", "pp", "vpp", "dp", "cp", "ep", "all_gpus", "micro_batch", "global_batch", "sequence", "sequence_parallel",
    "checkpointing", "sharding", "precision", "overlap_tp", "overlap_grad", "overlap_param", "schedule",
)  # fmt: skip
"""What a log may tell of a plan, by the names of plan fields."""
SIZES: Final = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch")
"""The fields without which a plan is not known."""


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
        if self._iterations and iteration == self._iterations[-1]:
            return
        restarted = bool(self._iterations) and iteration < self._iterations[-1]
        self._seconds.append(seconds)
        self._iterations.append(iteration)
        self._clean.append(not (self._disturbed or restarted))
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
        if len(self._iterations) < 2:
            return max(self._iterations[0], 1) if self._iterations else 1
        apart = np.diff(np.frombuffer(self._iterations, dtype=np.int64))
        return max(int(np.median(apart)), 1)

    def steady(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Seconds of the steady steps: without the first interval and disturbed ones; a single interval stays unless it is
        that of the job's start."""
        seconds = np.frombuffer(self._seconds, dtype=np.float64)
        if len(seconds) < 2:
            return seconds[:0] if self.begins or (len(seconds) and self._iterations[0] <= 1) else seconds
        clean = np.frombuffer(self._clean, dtype=np.int8).astype(bool)
        rest = seconds[1:][clean[1:]]
        return rest if len(rest) else seconds[1:]

    @property
    def first_s(self) -> float | None:
        """Seconds of the first interval."""
        return self._seconds[0] if self._seconds else None


class Found:
    """What one reader found in a log."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.plan: Plan = {}
        self.refused = ""  # why the plan that the log prints cannot be believed
        self.model: dict[str, Value] = {}
        self.preset = ""  # the model by name, where the log states no numbers
        self.changes: Mapping[str, object] = {}  # what it has otherwise
        self.parameters: int | None = None
        self.steps = Steps()
        self.precision_share = 0.0  # how far rounding of the log may move a step
        self.peak_memory_gib: float | None = None
        self.memory_kind = ""
        self.device = ""
        self.stack = ""  # the preset that simulates it
        self.arguments: Mapping[str, str] = {}  # of Megatron-LM, as dumped
        self.notes: list[str] = []

    def memory(self, gib: float, kind: str) -> None:
        """Memory of a GPU, by the words of `memory_kind`; the most counts."""
        self.peak_memory_gib, self.memory_kind = max(self.peak_memory_gib or 0.0, gib), kind

    def start_again(self) -> None:
        """Forget the steps: those that follow are of another batch."""
        begins, self.steps = self.steps.begins, Steps()
        self.steps.begins = begins


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
    """Reads the lines of one family of frameworks."""

    FRAMEWORK: ClassVar[str]
    SIGNS: ClassVar[Sequence[str]]
    """Patterns of which one in a file means a log of this family."""

    def __init__(self) -> None:
        self._found = Found(self.FRAMEWORK)

    @property
    def steps(self) -> Steps:
        """The steps found so far."""
        return self._found.steps

    @abstractmethod
    def found(self) -> Found | None:
        """What the lines told; None if none was of this family."""


def numbers_of(settings: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Value]:
    """Settings that are whole numbers, by our names."""
    found = {key: whole_of(settings, name) for name, key in names.items()}
    return {key: value for key, value in found.items() if value}


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
