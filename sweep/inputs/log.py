"""A log of a training run as one record: framework, plan, model, the steady step with its spread, memory, what is missing."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from sim_core import SimError, SpecError, model_of_dump, read_model
from sweep.frameworks.plan import Plan, Value
from sweep.inputs.launch.megatron import numbers_of, numbers_told
from sweep.inputs.logs.deepspeed import DeepSpeedLog
from sweep.inputs.logs.found import PLAN_FIELDS, Found, LogReader, Taker
from sweep.inputs.logs.machine import Machine, device_of
from sweep.inputs.logs.megatron import MegatronLog
from sweep.inputs.logs.mllog import MllogLog
from sweep.inputs.logs.nanotron import NanotronLog
from sweep.inputs.logs.nemo import NemoLog
from sweep.inputs.logs.torchtitan import TorchtitanLog
from sweep.inputs.text import blocks_of_lines, model_note, plain

READERS: Final[Sequence[type[LogReader]]] = (MllogLog, NemoLog, TorchtitanLog, NanotronLog, MegatronLog, DeepSpeedLog)
"""Readers of logs; of several that find steps the first counts, as its framework runs on those after it."""
OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU) out of memory\. Tried|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
FAILED: Final = re.compile(
    r"^(?:\[?\w*\d+\]?: ?)?Traceback \(most recent call last\)|ChildFailedError|exited with exit code [1-9]"
)


MANY_STEPS: Final = 1000
"""A reader that found so many has found its log: the others need not look at the rest."""


class Log(NamedTuple):
    """A training run as its log tells it. `plan`: every name of PLAN_FIELDS, None where the log does not tell it."""

    path: str
    framework: str
    plan: Mapping[str, Value | None]
    model: Mapping[str, Any]  # as `sim_core.parse_model` takes it, where the log tells it all; else the numbers that it tells
    parameters: int | None
    step_time_s: float | None
    steps: int  # steady intervals that the median is of
    spread: float | None  # (90th - 10th percentile) / median
    peak_memory_gib: float | None
    state: str  # ok, oom, crash
    missing: tuple[str, ...]
    refused: str = ""  # why the plan that the log prints cannot be believed
    notes: tuple[str, ...] = ()
    stack: str = ""  # the preset of that framework
    first_step_s: float | None = None
    interval: int = 1  # steps of an interval
    rounding: float = 0.0  # how far the log's rounding may move a step, as a share
    memory_kind: str = ""
    device: str = ""  # chip, form and memory
    gpus_per_node: int | None = None


def read_log(path: str | Path) -> Log:
    """Read a log of any known framework, plain or gzip, line by line. Raises SpecError, OSError."""
    place = Path(path)
    every = [reader() for reader in READERS]
    readers: Sequence[LogReader] = every
    state, machine = _State(every), Machine()
    for lines in blocks_of_lines(place):
        readers = next(([reader] for reader in readers if len(reader.steps) > MANY_STEPS), readers)
        _take(lines, [*readers, state, machine])
    all_found = [found for reader in every if (found := reader.found()) is not None]
    with_steps = [found for found in all_found if len(found.steps)]
    if not all_found and not state.out_of_memory:
        raise SpecError(f"{path}: found no line of a training log")
    found = (with_steps or all_found or [Found("")])[0]
    for other in all_found:  # DeepSpeed's own lines beside Megatron's
        if found.peak_memory_gib is None:
            found.peak_memory_gib, found.memory_kind = other.peak_memory_gib, other.memory_kind
    return _log(str(path), found, state, machine)


def _take(lines: Sequence[bytes], takers: Sequence[Taker]) -> None:
    """Give each line to those whose keys it contains; a key that no line here contains is looked for only once."""
    text = b"".join(lines)
    there = [(taker, keys) for taker in takers if (keys := taker.keys(text))]
    some = tuple(dict.fromkeys(key for _, keys in there for key in keys))
    for raw in lines:
        if not any(map(raw.__contains__, some)):
            continue
        line = plain(raw)
        for taker, keys in there:
            if len(there) == 1 or any(map(raw.__contains__, keys)):
                taker.take(line)


class _State(Taker):
    """How a run ended."""

    KEYS = (b"OutOfMemory", b"out of memory", b"ALLOC_FAILED", b"Traceback", b"ChildFailed", b"exit code")

    def __init__(self, readers: Sequence[LogReader]) -> None:
        self._readers = readers
        self._steps: int | None = None  # when there was no more memory
        self.failed = False

    def _number(self) -> int:
        return max(len(reader.steps) for reader in self._readers)

    @property
    def out_of_memory(self) -> bool:
        """Whether the run ended so; one that went on was started again."""
        return self._steps is not None and abs(self._number() - self._steps) < 2

    def take(self, line: str) -> None:
        if OUT_OF_MEMORY.search(line):
            self._steps = self._number()
        self.failed = self.failed or bool(FAILED.search(line))

    def word(self, has_step: bool) -> str:
        if self.out_of_memory:
            return "oom"
        return "crash" if self.failed and not has_step else "ok"


def _log(path: str, found: Found, state: _State, machine: Machine) -> Log:
    steady = found.steps.steady()
    step = float(np.median(steady)) if len(steady) else None
    spread = None
    if step and len(steady) > 1:
        low, high = np.percentile(steady, (10, 90), method="inverted_cdf")  # values that were measured
        spread = float((high - low) / step)
    plan: Plan = {name: found.plan.get(name) for name in PLAN_FIELDS}
    model, wrong = _model(path, found)
    device = device_of(found.device) or machine.device()
    return Log(
        path=path,
        framework=found.framework,
        plan=plan,
        model=model,
        parameters=found.parameters,
        step_time_s=step,
        steps=len(steady),
        spread=spread,
        peak_memory_gib=found.peak_memory_gib,
        state=state.word(step is not None),
        missing=_missing(found, plan, model, device, step),
        refused=found.refused,
        notes=(*found.notes, *wrong),
        stack=found.stack,
        first_step_s=found.steps.first_s,
        interval=found.steps.interval,
        rounding=found.precision_share,
        memory_kind=found.memory_kind,
        device=device,
        gpus_per_node=machine.gpus_per_node,
    )


def _model(path: str, found: Found) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The numbers of the model, and why they are not all there."""
    try:
        if found.preset:
            return numbers_of(read_model(found.preset, {**found.changes, "sequence": found.plan.get("sequence")})), ()
        if found.arguments.get("num_layers"):
            own = {"vocabulary": found.model["vocabulary"]} if "vocabulary" in found.model else {}
            told, why = numbers_told(lambda given: model_of_dump(found.arguments, path, {**own, **given}), path)
            return told or dict(found.model), why
    except SimError as error:
        return dict(found.model), (model_note(error, path),)
    return dict(found.model), ()


NEEDED: Final = ("all_gpus", "tp", "pp", "vpp", "dp", "cp", "ep", "micro_batch", "global_batch", "sequence")


def _missing(
    found: Found, plan: Mapping[str, Value | None], model: Mapping[str, Any], device: str, step: float | None
) -> tuple[str, ...]:
    """What a simulation of the run needs, and its own measurements, that the log does not tell."""
    absent = {
        **{name: plan[name] is None for name in NEEDED},
        **{name: name not in model for name in ("layers", "hidden", "heads", "vocabulary")},
        "parameters": found.parameters is None,
        "step_time_s": step is None,
        "memory": found.peak_memory_gib is None,
        "device": not device,
    }
    return tuple(name for name, is_absent in absent.items() if is_absent)
