"""The ranks of a job: trace files found, read, cut to one step and sorted by time, with exchanges merged and gaps computed."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.errors import FormatError, SpecError
from sim_core.units import short
from sim_core.workloads.readers.trace_text import DTYPE_BYTES, TraceText, looks_like_trace, read_trace_text
from sim_core.workloads.traces.layout import Layout, check_facts, job_of_name, layout_of

SENDS: Final = ("send_forward", "recv_forward", "send_backward", "recv_backward")
BLOCKS: Final = ("forward_step", "backward_step")
OPTIMIZER: Final = "optimizer_step"
EXPERT_REDUCTIONS: Final = ("ep_dp_allreduce", "exp_dp_allreduce")
BESIDE: Final = "ddp_grad_comm"
"""Runs on its own stream during a backward; not one of the rank's operations in order."""
LEAST_BUSY: Final = 0.01
"""Part of a step that operations fill at least: timestamps in microseconds would leave 0.1 %."""
HEAD_CHARS: Final = 65_536
_OF_FILE: Final = ("path", "rank", "stage", "warnings", "truncated")
"""Fields of a `TraceText` that are not columns."""
ALONE: Final = "a profile of a rank by itself (scaling mode, description=simulation or op_semantics=metadata_placeholder)"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call inside an operation; `begin_s` counts from the start of the operation."""

    name: str
    group: str
    bytes: float
    begin_s: float
    duration_s: float


def ends_of(file: TraceText, rows: list[int]) -> Floats:
    """End of each row; a missing end (absent or 0) follows directly from the previous row, for the first rows from the next."""
    ends = file.end_s[rows].copy()
    unknown = ~(ends > 0)
    if unknown.all():
        return _in_line(file, rows)
    known = int(np.flatnonzero(~unknown)[0])
    for k in range(known - 1, -1, -1):
        ends[k] = ends[k + 1] - file.duration_s[rows[k + 1]]
    for k in range(known + 1, len(ends)):
        if unknown[k]:
            ends[k] = ends[k - 1] + file.duration_s[rows[k]]
    return ends


def _in_line(file: TraceText, rows: list[int]) -> Floats:
    """End of each row where none is known: one after another, an exchange once."""
    ends = np.zeros(len(rows))
    parts: list[str] = []
    for k, row in enumerate(rows):
        together = bool(parts) and is_fused(file, rows[k - len(parts)], row, parts)
        parts = [*parts, file.name[row]] if together else [file.name[row]] if file.name[row] in SENDS else []
        ends[k] = (ends[k - 1] if k else 0.0) + (0.0 if together else float(file.duration_s[row]))
    return ends


def is_fused(file: TraceText, row: int, after: int, parts: list[str]) -> bool:
    """Whether `after` is part of one exchange with `row`: same duration and timestamp, another pipeline message."""
    same = file.duration_s[row] == file.duration_s[after] and (
        file.end_s[row] == file.end_s[after] or (np.isnan(file.end_s[row]) and np.isnan(file.end_s[after]))
    )
    return bool(same) and file.name[after] in SENDS and file.name[after] not in parts


def calls_of(file: TraceText) -> dict[int, list[Call]]:
    """The communication calls inside each row, sorted by time."""
    rows: dict[int, list[int]] = {}
    for k, row in enumerate(file.sub_row.tolist()):
        rows.setdefault(row, []).append(k)
    begins = np.where(file.sub_end_s > 0, file.sub_end_s - file.sub_duration_s, np.nan)
    calls: dict[int, list[Call]] = {}
    for row, inside in rows.items():
        start_s = _start_s(file, row, inside)
        for k in sorted(inside, key=lambda k: begins[k] if np.isfinite(begins[k]) else -np.inf):
            duration_s = float(file.sub_duration_s[k])
            begin_s = float(begins[k] - start_s)
            limit_s = max(float(file.duration_s[row]) - duration_s, 0.0)
            begin_s = min(max(begin_s, 0.0), limit_s) if np.isfinite(begin_s) else 0.0
            size = bytes_of(file.sub_shape[k], file.sub_dtype[k])
            call = Call(name=file.sub_name[k], group=file.sub_group[k], bytes=size, begin_s=begin_s, duration_s=duration_s)
            calls.setdefault(row, []).append(call)
    return calls


def _start_s(file: TraceText, row: int, inside: list[int]) -> float:
    """When a row began, on the clock of the calls inside it; where its own timestamp is missing, they lie in its middle."""
    if file.end_s[row] > 0:
        return float(file.end_s[row] - file.duration_s[row])
    ends = file.sub_end_s[inside]
    first_s, last_s = float(np.min(ends - file.sub_duration_s[inside])), float(np.max(ends))
    return (first_s + last_s - float(file.duration_s[row])) / 2


def bytes_of(shape: tuple[int, ...], dtype: str) -> float:
    """Bytes of a tensor; 4 an element where the type is unknown."""
    return float(np.prod(np.array(shape, np.float64))) * DTYPE_BYTES.get(dtype, 4) if shape else 0.0


def one_step(files: Sequence[TraceText], wanted: int | None, warnings: list[str]) -> list[TraceText]:
    """The files with one step each: `wanted` (from 1), else the one of median span. Raises FormatError, SpecError."""
    steps = [_step_of_rows(file) for file in files]
    counts = [_complete(file, step) for file, step in zip(files, steps, strict=True)]
    for file, count in zip(files, counts, strict=True):
        if count != counts[0]:
            raise FormatError(file.path, 1, "number of steps", found=str(count), expected=f"{counts[0]}, as in {files[0].path}")
    if wanted is not None and wanted > counts[0]:
        raise SpecError(f"workload.step: found {wanted}, expected a whole number from 1 to {counts[0]}, the steps in the files")
    if counts[0] == 1 and all(step.max(initial=0) == 0 for step in steps):
        return list(files)
    spans = [max(_span_s(file, step == k) for file, step in zip(files, steps, strict=True)) for k in range(counts[0])]
    whole = _whole_steps(files, steps, counts[0])
    by_span = [k for k in np.argsort(spans, kind="stable").tolist() if k in whole]
    median = by_span[(len(by_span) - 1) // 2]
    taken = median if wanted is None else wanted - 1
    if wanted is None and counts[0] > 1:
        of = f" of {len(whole)} complete ones" if len(whole) < counts[0] else ""
        warnings.append(
            f"{files[0].path}:1: {counts[0]} steps of {short(min(spans), 's')} to {short(max(spans), 's')}: "
            f"step {taken + 1} is taken, the median{of} (set workload.step)"
        )
    return [_rows(file, np.flatnonzero(step == taken)) for file, step in zip(files, steps, strict=True)]


def without_repeats(file: TraceText, warnings: list[str]) -> TraceText:
    """The file without operations that it holds twice: nothing ends twice at one time after as long."""
    first: dict[tuple[object, ...], int] = {}
    kept = []
    for row, name in enumerate(file.name):
        stamp = float(file.end_s[row]), float(file.duration_s[row])
        key = (
            name,
            int(file.micro_batch[row]),
            stamp,
            file.group[row],
            file.shape[row],
            tuple((file.extra[row] or {}).items()),
        )
        twin = first.setdefault(key, row) if min(stamp) > 0 else row
        if twin == row:
            kept.append(row)
        else:
            warnings.append(f"{file.path}:{file.line[row]}: {name} is recorded on line {file.line[twin]}, too: skipped")
    return file if len(kept) == len(file.name) else _rows(file, np.array(kept, np.int64))


def _step_of_rows(file: TraceText) -> Ints:
    """The step of each row: the first operation after an optimizer begins another."""
    stamped = bool((file.end_s > 0).all())
    order = np.argsort(file.end_s, kind="stable") if stamped else np.arange(len(file.name))
    steps = np.zeros(len(file.name), np.int64)
    step, ended = 0, False
    for row in order.tolist():
        if file.name[row] == OPTIMIZER:
            ended = True
        elif ended:
            step, ended = step + 1, False
        steps[row] = step
    return steps


def _complete(file: TraceText, step: Ints) -> int:
    """Steps that end with an optimizer; at least 1."""
    ended = {int(step[row]) for row, name in enumerate(file.name) if name == OPTIMIZER}
    return max(len(ended), 1)


def _whole_steps(files: Sequence[TraceText], steps: Sequence[Ints], count: int) -> set[int]:
    """Steps with all their blocks: in every file as many as any step has; all steps if there is no such one."""
    whole = set(range(count))
    for file, step in zip(files, steps, strict=True):
        blocks = np.array([name in BLOCKS for name in file.name], np.bool_)
        counts = np.bincount(step[blocks], minlength=count)
        whole &= set(np.flatnonzero(counts == counts.max()).tolist())
    return whole or set(range(count))


def _span_s(file: TraceText, of_step: Bools) -> float:
    ends, durations = file.end_s[of_step], file.duration_s[of_step]
    if len(ends) and (ends > 0).all():
        return float(ends.max() - (ends - durations).min())
    return float(durations.sum())


def _rows(file: TraceText, rows: Ints) -> TraceText:
    """The file with some of its rows, and the calls inside them."""
    place = np.full(len(file.name), -1, np.int64)
    place[rows] = np.arange(len(rows))
    calls = np.flatnonzero(place[file.sub_row] >= 0) if len(file.sub_row) else np.zeros(0, np.int64)
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(file) if field.name not in _OF_FILE):
        column, kept = getattr(file, name), calls if name.startswith("sub_") else rows
        columns[name] = column[kept] if isinstance(column, np.ndarray) else tuple(column[k] for k in kept.tolist())
    return replace(file, **{**columns, "sub_row": place[columns["sub_row"]]})


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

    @property
    def expert_exchanges(self) -> list[Call]:
        """The all-to-alls of experts inside it, in order."""
        return [call for call in self.calls if (call.group, call.name) == ("exp", "all_to_all")]


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
    def messages(self) -> list[Operation]:
        """The pipeline messages of all ranks whose size is known."""
        return [o for rank in self.ranks for o in rank.operations if o.parts and o.bytes > 0]

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
        traces = sorted(entry.path for entry in os.scandir(path) if entry.is_file() and _is_trace(entry.path))
        if not traces:
            raise FormatError(path, 1, "no rank trace in the folder", expected="files of lines like rank:0:forward_step(...)")
        return traces
    if not os.path.exists(path) and glob.has_magic(path):
        matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not matches:
            raise FormatError(path, 1, "no file matches")
        return matches
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
    for placed_rank in ranks:
        _check_stamps(placed_rank)
        warnings += _cut_off(placed_rank)
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
    simulated = (f"{description}:".startswith("simulation:") for description in file.description)
    return any(simulated) or any((extra or {}).get("op_semantics") == "metadata_placeholder" for extra in file.extra)


def _beside(file: TraceText) -> dict[str, float]:
    """Bytes of gradient buckets, by group, which newer traces have as operations during the backward; each bucket once."""
    buckets: dict[tuple[str, str, str], float] = {}
    for k, name in enumerate(file.name):
        extra = file.extra[k] or {}
        numel = extra.get("bucket_numel", "")
        if name == BESIDE and numel.isdigit():
            width = DTYPE_BYTES.get(extra.get("grad_dtype", "").removeprefix("torch."), 4)
            key = (file.group[k] or "dp", extra.get("buffer_id", ""), extra.get("bucket_id", str(k)))
            buckets[key] = float(numel) * width
    by_group: dict[str, float] = {}
    for (group, _, _), size in buckets.items():
        by_group[group] = by_group.get(group, 0.0) + size
    return by_group


def _unstamped(files: list[TraceText]) -> Iterator[str]:
    """A warning about files without timestamps of operations."""
    bare = [file for file in files if not (file.end_s > 0).any()]
    if bare:
        also = f" (nor in {len(bare) - 1} other files)" if len(bare) > 1 else ""
        yield f"{bare[0].path}:1: no timestamps{also}: operations follow one another in the order of the lines"


def _check_stamps(rank: Rank) -> None:
    """Raise FormatError where durations and timestamps are not in the same unit."""
    busy = sum(operation.duration_s for operation in rank.operations) / rank.span_s if rank.span_s > 0 else 1.0
    if busy < LEAST_BUSY:
        found = f"operations fill {busy:.1%} of the time between the first and the last"
        raise FormatError(
            rank.path, rank.operations[0].line, "timestamps", found=found, expected="milliseconds, as in durations"
        )


def _cut_off(rank: Rank) -> Iterator[str]:
    """A warning if a rank's trace is not a complete step."""
    forwards, backwards = (len(rank.named(name)) for name in BLOCKS)
    if forwards != backwards:
        yield f"{rank.path}:{rank.operations[-1].line}: the step is incomplete: {forwards} forwards, {backwards} backwards"


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
        calls_s = sum(call.duration_s for call in inside)
        operations.append(
            Operation(
                name="+".join(parts) if len(parts) > 1 else file.name[row],
                parts=tuple(parts),
                state=file.state[row],
                micro_batch=int(file.micro_batch[row]),
                start_s=start_s,
                duration_s=duration_s,
                gap_s=gap_s,
                compute_s=max(duration_s - calls_s, 0.0) if not parts else 0.0,
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
