"""The ranks of a job: trace files found, read and sorted by time, with exchanges merged and gaps computed."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.errors import FormatError
from sim_core.workloads.readers.trace_text import DTYPE_BYTES, TraceText, looks_like_trace, read_trace_text
from sim_core.workloads.traces.layout import Layout, check_facts, job_of_name, layout_of
from sim_core.workloads.traces.stamps import SENDS, Call, bytes_of, calls_of, ends_of, is_fused
from sim_core.workloads.traces.steps import one_step, without_repeats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COMPUTE: Final = ("get_batch", "forward_step", "loss_func", "backward_step", "optimizer_step")
EXPERT_REDUCTIONS: Final = ("ep_dp_allreduce", "exp_dp_allreduce")
BESIDE: Final = "ddp_grad_comm"
"""Runs on its own stream during a backward; not one of the rank's operations in order."""
LEAST_BUSY: Final = 0.01
"""Part of a step that operations fill at least: timestamps in microseconds would leave 0.1 %."""
HEAD_CHARS: Final = 65_536
ALONE: Final = "a profile of a rank by itself (scaling mode, description=simulation or op_semantics=metadata_placeholder)"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a rank. `parts` are the pipeline messages of an exchange; `start_s` counts from the rank's first start.

    `compute_s` is the duration without the calls inside.
    """

    name: str
    parts: tuple[str, ...]
    state: str
    micro_batch: int
    start_s: float
    duration_s: float
    gap_s: float  # idle before it
    compute_s: float
    group: str
    bytes: float
    width: float  # bytes of an element of the message; 0: unknown
    calls: tuple[Call, ...]
    line: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank of the job; `index` is its position among the ranks of its stage."""

    path: str
    rank: int
    stage: int
    index: int
    operations: tuple[Operation, ...]
    beside: Mapping[str, float]  # bytes of gradients that were reduced during the backward, by group
    began_s: float = np.nan  # its first start by its host's clock; NaN: unknown

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first operation to the end of the last, by the rank's own clock."""
        return max(operation.end_s for operation in self.operations)

    def named(self, *names: str) -> list[Operation]:
        """Operations of these names."""
        return [operation for operation in self.operations if operation.name in names]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All ranks with a trace, by stage and rank; `sequence` is in tokens, 0 if no message has it.

    `token_bytes`: of a token in an all-to-all of experts, 0 without one.
    `alone`: each rank was profiled by itself (Megatron's scaling mode): what its messages took is made up.
    """

    ranks: tuple[Rank, ...]
    layout: Layout
    warnings: tuple[str, ...]
    sequence: int
    token_bytes: float = 0.0
    alone: bool = False

    def of_stage(self, stage: int) -> list[Rank]:
        """The ranks of a stage that have a trace."""
        return [rank for rank in self.ranks if rank.stage == stage]

    @property
    def whole(self) -> bool:
        """Whether every rank of every stage has a trace."""
        return len(self.ranks) == self.layout.pp * self.layout.ranks_per_stage

    @property
    def has_step(self) -> bool:
        """Whether the stages ran one step together: they sent each other messages."""
        return not self.alone and (self.layout.pp == 1 or any(o.parts for rank in self.ranks for o in rank.operations))

    @property
    def has_experts(self) -> bool:
        """Whether the job has experts: their gradients or tokens are communicated."""
        return any(
            o.name in EXPERT_REDUCTIONS or any(call.group == "exp" for call in o.calls)
            for rank in self.ranks
            for o in rank.operations
        )

    @property
    def span_s(self) -> float:
        """Seconds of the recorded step: the longest span of a rank."""
        return max(rank.span_s for rank in self.ranks)


def trace_paths(path: str) -> list[str]:
    """The files of a job: one file, those of a folder that look like traces, or those that match a glob. Raises OSError."""
    if os.path.isdir(path):
        found = sorted(entry.path for entry in os.scandir(path) if entry.is_file() and _is_trace(entry.path))
        if not found:
            raise FormatError(path, 1, "no rank trace in the folder", expected="files of lines like rank:0:forward_step(...)")
        return found
    if not os.path.exists(path) and glob.has_magic(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise FormatError(path, 1, "no file matches")
        return found
    return [path]


def _is_trace(path: str) -> bool:
    with Path(path).open("rb") as file:
        return looks_like_trace(file.read(HEAD_CHARS).decode("utf-8", "replace"))


def read_job(path: str, facts: Mapping[str, int | None]) -> Job:
    """The job with the trace(s) at `path` (a file, a folder, a glob). `facts` are the user's (tp, pp, all_gpus, layers ...).

    Raises SimError, OSError.
    """
    check_facts(facts)
    paths = trace_paths(path)
    jobs = {job_of_name(name) for name in paths} - {""}
    if len(jobs) > 1:
        some = ", ".join(sorted(jobs)[:3])
        raise FormatError(path, 1, "several jobs", found=f"{len(jobs)}: {some}", expected="the ranks of one (give a glob)")
    warnings: list[str] = []
    files: list[TraceText] = []
    for name in paths:
        text = read_trace_text(name)
        if not text.duration_s.any():
            raise FormatError(name, int(text.line[0]), "all durations are 0", expected="the milliseconds of operations")
        warnings += text.warnings
        if _is_new(text, files, warnings):
            files.append(without_repeats(text, warnings))
    warnings += _unstamped(files)
    files = one_step(files, facts.get("step"), warnings)
    stages = [_stage_of(file) for file in files]
    layout = layout_of(files, stages, facts)
    placed: dict[tuple[int, int], TraceText] = {}
    for file, stage in zip(files, stages, strict=True):
        rank = file.rank if file.rank is not None else stage * layout.ranks_per_stage
        index = rank - stage * layout.ranks_per_stage
        if not 0 <= index < layout.ranks_per_stage:
            expected = (
                f"a rank of stage {stage}: {stage * layout.ranks_per_stage} to {(stage + 1) * layout.ranks_per_stage - 1}"
            )
            raise FormatError(file.path, int(file.line[0]), "rank", found=str(rank), expected=expected)
        placed[stage, index] = file
    ranks = tuple(
        Rank(
            path=file.path,
            rank=stage * layout.ranks_per_stage + index,
            stage=stage,
            index=index,
            operations=_operations(file, warnings),
            beside=_beside(file),
            began_s=float(np.min(file.end_s - file.duration_s)) if (file.end_s > 0).all() else np.nan,
        )
        for (stage, index), file in sorted(placed.items())
    )
    for one in ranks:
        _check_stamps(one)
    warnings += [told for one in ranks if (told := _cut_off(one))]
    alone = [file for file in files if _is_alone(file)]
    if alone:
        warnings.append(f"{alone[0].path}:{alone[0].line[0]}: {ALONE}: compute is taken, messages are those of the model")
    return Job(
        ranks=ranks,
        layout=layout,
        warnings=tuple(warnings),
        sequence=_sequence(files),
        token_bytes=next((size for file in files for size in _token_bytes(file)), 0.0),
        alone=bool(alone),
    )


def _token_bytes(file: TraceText) -> Iterator[float]:
    """Bytes of a row of the all-to-alls [tokens, hidden] of experts."""
    for group, name, shape, dtype in zip(file.sub_group, file.sub_name, file.sub_shape, file.sub_dtype, strict=True):
        if (group, name, len(shape)) == ("exp", "all_to_all", 2):
            yield bytes_of(shape[1:], dtype)


def _is_alone(file: TraceText) -> bool:
    told = (f"{description}:".startswith("simulation:") for description in file.description)
    return any(told) or any((extra or {}).get("op_semantics") == "metadata_placeholder" for extra in file.extra)


def _beside(file: TraceText) -> dict[str, float]:
    """Bytes of gradient buckets, by group, which newer traces have as operations during the backward; each bucket once."""
    buckets: dict[tuple[str, str, str], float] = {}
    for k, name in enumerate(file.name):
        told = file.extra[k] or {}
        numel = told.get("bucket_numel", "")
        if name == BESIDE and numel.isdigit():
            width = DTYPE_BYTES.get(told.get("grad_dtype", "").removeprefix("torch."), 4)
            key = (file.group[k] or "dp", told.get("buffer_id", ""), told.get("bucket_id", str(k)))
            buckets[key] = float(numel) * width
    found: dict[str, float] = {}
    for (group, _, _), size in buckets.items():
        found[group] = found.get(group, 0.0) + size
    return found


def _unstamped(files: list[TraceText]) -> Iterator[str]:
    """A warning about files without timestamps of operations."""
    found = [file for file in files if not (file.end_s > 0).any()]
    if found:
        also = f" (nor in {len(found) - 1} other files)" if len(found) > 1 else ""
        yield f"{found[0].path}:1: no timestamps{also}: operations follow one another in the order of the lines"


def _check_stamps(rank: Rank) -> None:
    """Raise FormatError where durations and timestamps are not in the same unit."""
    busy = sum(operation.duration_s for operation in rank.operations) / rank.span_s if rank.span_s > 0 else 1.0
    if busy < LEAST_BUSY:
        found = f"operations fill {busy:.1%} of the time between the first and the last"
        raise FormatError(
            rank.path, rank.operations[0].line, "timestamps", found=found, expected="milliseconds, as in durations"
        )


def _cut_off(rank: Rank) -> str | None:
    """A warning if a rank's trace is not a complete step."""
    forwards, backwards = len(rank.named("forward_step")), len(rank.named("backward_step"))
    if forwards == backwards:
        return None
    return f"{rank.path}:{rank.operations[-1].line}: the step is incomplete: {forwards} forwards, {backwards} backwards"


def _is_new(text: TraceText, files: list[TraceText], warnings: list[str]) -> bool:
    """Whether a file is of a new rank. An equal file is skipped; a different file of the same rank raises FormatError."""
    twin = next((file for file in files if (file.rank, file.stage) == (text.rank, text.stage)), None)
    if twin is None:
        return True
    if (twin.name, twin.duration_s.tolist()) == (text.name, text.duration_s.tolist()):
        warnings.append(f"{text.path}:1: equal to {twin.path}: skipped")
        return False
    raise FormatError(text.path, 1, f"rank {text.rank} is repeated", found=f"also in {twin.path}", expected="one file per rank")


def _stage_of(file: TraceText) -> int:
    if file.stage is None:
        raise FormatError(file.path, 1, "stage_id is missing", expected="stage_id=N in the lines")
    return file.stage


def _sequence(files: list[TraceText]) -> int:
    """Tokens of a sample: the first number of a pipeline message [sequence, micro-batch, hidden]."""
    return next((s[0] for f in files for s, g in zip(f.shape, f.group, strict=True) if g == "pp" and len(s) == 3), 0)


def _operations(file: TraceText, warnings: list[str]) -> tuple[Operation, ...]:
    """Rows in time order. An exchange, recorded as several rows of equal duration and end, becomes one operation."""
    rows = [k for k, name in enumerate(file.name) if name != BESIDE]
    if not rows:
        raise FormatError(file.path, 1, "no operations besides ddp_grad_comm", expected="forward_step and others")
    ends = ends_of(file, rows)
    order = sorted(range(len(rows)), key=lambda k: ends[k])
    if order != list(range(len(rows))):
        warnings.append(f"{file.path}:{file.line[rows[0]]}: lines are not sorted by time: sorted")
    calls = calls_of(file)
    first_s = ends[order[0]] - file.duration_s[rows[order[0]]]
    operations: list[Operation] = []
    at_s = 0.0
    k = 0
    overlaps = 0
    while k < len(order):
        row = rows[order[k]]
        parts: list[str] = [file.name[row]] if file.name[row] in SENDS else []
        duration_s = float(file.duration_s[row])
        while parts and k + 1 < len(order) and is_fused(file, row, rows[order[k + 1]], parts):
            k += 1
            parts.append(file.name[rows[order[k]]])
        end_s = float(ends[order[k]] - first_s)
        start_s = end_s - duration_s
        overlaps += start_s < at_s - 1e-3 * max(1.0, duration_s)
        gap_s = max(start_s - at_s, 0.0)
        start_s = at_s + gap_s  # timestamps are rounded: an operation does not begin before the previous one ends
        inside = calls.get(row, [])
        held_s = sum(call.duration_s for call in inside)
        operations.append(
            Operation(
                name="+".join(parts) if len(parts) > 1 else file.name[row],
                parts=tuple(parts),
                state=file.state[row],
                micro_batch=int(file.micro_batch[row]),
                start_s=start_s,
                duration_s=duration_s,
                gap_s=gap_s,
                compute_s=max(duration_s - held_s, 0.0) if not parts else 0.0,
                group=file.group[row],
                bytes=bytes_of(file.shape[row], file.dtype[row]),
                width=float(DTYPE_BYTES.get(file.dtype[row], 0)),
                calls=tuple(inside),
                line=int(file.line[row]),
            )
        )
        at_s = start_s + duration_s
        k += 1
    if overlaps:
        warnings.append(f"{file.path}:{operations[0].line}: {overlaps} operations begin before the previous one ends: moved")
    return tuple(operations)
