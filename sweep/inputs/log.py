"""A log of a training run as one job: framework, plan, model, the steady step with its spread, memory, what is missing."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim_core import Fields, SpecError, Words, model_of_dump, read_model, short
from sweep.inputs.launch.keys import numbers_or_why
from sweep.inputs.launch.megatron import numbers_told
from sweep.inputs.logs.composer import ComposerLog
from sweep.inputs.logs.deepspeed import DeepSpeedLog
from sweep.inputs.logs.found import LogReader, Taker
from sweep.inputs.logs.machine import Machine, device_of
from sweep.inputs.logs.maxtext import MaxtextLog
from sweep.inputs.logs.megatron import MegatronLog
from sweep.inputs.logs.mllog import MllogLog
from sweep.inputs.logs.nanotron import NanotronLog
from sweep.inputs.logs.nemo import NemoLog
from sweep.inputs.logs.olmo_core import OlmoCoreLog
from sweep.inputs.logs.torchtitan import TorchtitanLog
from sweep.inputs.text import blocks_of_lines, plain
from sweep.inputs.told import NEEDED, PLAN_FIELDS, Job
from sweep.inputs.tracked import job_stated, read_run

READERS: Sequence[type[LogReader]] = (
    MllogLog, NemoLog, OlmoCoreLog, ComposerLog, TorchtitanLog, NanotronLog, MaxtextLog, MegatronLog, DeepSpeedLog,
)  # fmt: skip
"""Readers of logs; of several that find steps the first counts, as its framework runs on those after it."""
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU) out of memory\. Tried|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
FAILED = re.compile(r"^(?:\[?\w*\d+\]?: ?)?Traceback \(most recent call last\)|ChildFailedError|exited with exit code [1-9]")
MANY_STEPS = 1000
"""A reader that found so many has found its log: the others need not look at the rest."""
LEAST_HALVES, DRIFT = 8, 1.3
"""Intervals from which on the two halves of a log are compared, and the ratio of their medians that no steady step has."""
NEEDED_OF_MODEL = ("layers", "hidden", "heads", "vocabulary")


def read_log(path: str | Path) -> Job:
    """Read a log of any known framework, plain or gzip, line by line, or a run of W&B or MLflow. Raises SpecError, OSError."""
    run = read_run(Path(path))
    stated = job_stated(run[0], str(path)) if run else Job()
    every = [reader() for reader in READERS]
    readers = every
    state, machine = _State(every), Machine()
    for lines in run[1] if run else blocks_of_lines(Path(path)):
        readers = next(([reader] for reader in readers if len(reader.steps) > MANY_STEPS), readers)
        _take(lines, [*readers, state, machine])
    told = [reader for reader in every if reader.found()]
    if not (told or state.out_of_memory or stated.plan):
        raise SpecError(f"{path}: found no line of a training log")
    if not told:
        every[0].job.framework = ""
    reader = next((each for each in told if len(each.taken)), (told or every)[0])
    job = reader.job
    for other in every:  # DeepSpeed's own lines beside Megatron's
        if job.peak_memory_gib is None:
            job.peak_memory_gib, job.memory_kind = other.job.peak_memory_gib, other.job.memory_kind
    model, wrong = _model(reader, str(path))
    model = dict(stated.model) or model
    if run:
        reader.taken.begins = False  # a summary holds the last interval
        for name in ("framework", "stack", "facts"):
            setattr(job, name, getattr(stated, name) or getattr(job, name))
        job.plan = {**stated.plan, **{name: value for name, value in job.plan.items() if value is not None}}
    steady = reader.taken.steady()
    job.path, job.model, job.notes = str(path), model, job.notes + wrong + stated.notes
    job.steps, job.interval, job.first_step_s = len(steady), reader.taken.interval, reader.taken.first_s
    job.step_time_s = float(np.median(steady)) if len(steady) else None
    if len(steady) >= LEAST_HALVES:
        early, late = (float(np.median(half)) for half in np.array_split(steady, 2))
        if not 1 / DRIFT < late / early < DRIFT:
            job.step_time_s = None
            job.notes += (f"no steady step: from {short(early, 's')} in the first half to {short(late, 's')} in the second",)
    if job.step_time_s and len(steady) > 1:
        low, high = np.percentile(steady, (10, 90), method="inverted_cdf")  # values that were measured
        job.spread = float((high - low) / job.step_time_s)
    job.plan = {name: job.plan.get(name) for name in PLAN_FIELDS}
    job.device, job.gpus_per_node = device_of(job.device) or machine.device(), machine.gpus_per_node
    if state.out_of_memory or (state.failed and job.step_time_s is None):
        job.state = "oom" if state.out_of_memory else "crash"
    needed = {
        **{name: job.plan[name] for name in NEEDED},
        **{name: model.get(name) for name in NEEDED_OF_MODEL},
        "parameters": job.parameters,
        "step_time_s": job.step_time_s,
        "memory": job.peak_memory_gib,
        "device": job.device or None,
    }
    job.missing = tuple(name for name, value in needed.items() if value is None)
    return job


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

    _steps: int | None = None  # when there was no more memory
    failed = False

    def __init__(self, readers: Sequence[LogReader]) -> None:
        self._readers = readers

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


def _model(reader: LogReader, path: str) -> tuple[Fields, Words]:
    """The numbers of the model, and why they are not all there."""
    own = dict(reader.model)
    if reader.preset:
        changes = {**reader.changes, "sequence": reader.job.plan.get("sequence")}
        told, why = numbers_or_why(lambda: read_model(reader.preset, changes), path)
    elif reader.arguments.get("num_layers"):
        words = {name: value for name, value in own.items() if name == "vocabulary"}
        told, why = numbers_told(lambda given: model_of_dump(reader.arguments, path, {**words, **given}), path)
    else:
        return own, ()
    return told or own, why
