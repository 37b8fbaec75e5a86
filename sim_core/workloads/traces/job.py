"""The ranks of a job: trace files found, read, cut to one step and sorted by time, with exchanges merged and gaps computed."""

import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from sim_core.errors import FormatError, SpecError
from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.layout import Layout, job_of_name, layout_of, message_shape
from sim_core.workloads.traces.text import DTYPE_BYTES, TraceRow, TraceText, looks_like_trace, read_trace_text

SENDS: Final = ("send_forward", "recv_forward", "send_backward", "recv_backward")
BLOCKS: Final = ("forward_step", "backward_step")
OPTIMIZER: Final = "optimizer_step"
EXPERT_REDUCTIONS: Final = ("ep_dp_allreduce", "exp_dp_allreduce")
BESIDE: Final = "ddp_grad_comm"
"""Runs on its own stream during a backward; not one of the rank's operations in order."""
LEAST_BUSY: Final = 0.01
"""Part of a step that operations fill at least: timestamps in microseconds would leave 0.1 %."""
HEAD_CHARS: Final = 65_536
ALONE: Final = "a profile of a rank by itself (scaling mode, description=simulation or op_semantics=metadata_placeholder)"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call inside an operation; `begin_s` counts from the start of the operation."""

    name: str
    group: str
    bytes: float
    begin_s: float
    duration_s: float


def ends_of(rows: Sequence[TraceRow]) -> list[float]:
    """End of each row; a missing end (absent or 0) follows directly from the previous row, for the first rows from the next."""
    ends = [row.end_s for row in rows]
    known = [k for k, end_s in enumerate(ends) if end_s > 0]
    if not known:
        return _in_line(rows)
    for k in range(known[0] - 1, -1, -1):
        ends[k] = ends[k + 1] - rows[k + 1].duration_s
    for k in range(known[0] + 1, len(rows)):
        if not ends[k] > 0:
            ends[k] = ends[k - 1] + rows[k].duration_s
    return ends


def _in_line(rows: Sequence[TraceRow]) -> list[float]:
    """End of each row where none is known: one after another, an exchange once."""
    ends: list[float] = []
    end_s = 0.0
    for together in exchanges(rows):
        end_s += together[0].duration_s
        ends += [end_s] * len(together)
    return ends


def exchanges(rows: Sequence[TraceRow]) -> Iterator[list[TraceRow]]:
    """The rows in order, those of one exchange together: pipeline messages of equal duration and end."""
    together: list[TraceRow] = []
    for row in rows:
        if together and _is_fused(together, row):
            together.append(row)
            continue
        if together:
            yield together
        together = [row]
    yield together


def _is_fused(together: list[TraceRow], after: TraceRow) -> bool:
    """Whether `after` is another message of the same exchange."""
    first, names = together[0], {row.name for row in together}
    if first.name not in SENDS or after.name not in SENDS or after.name in names:
        return False
    same_end = first.end_s == after.end_s or (math.isnan(first.end_s) and math.isnan(after.end_s))
    return same_end and first.duration_s == after.duration_s


def calls_of(row: TraceRow) -> tuple[Call, ...]:
    """The communication calls inside a row, sorted by time."""
    if not row.calls:
        return ()
    start_s = _start_s(row)
    begun = [(call.end_s - call.duration_s if call.end_s > 0 else -math.inf, call) for call in row.calls]
    calls = []
    for begin_s, call in sorted(begun, key=lambda pair: pair[0]):
        after_s = begin_s - start_s
        limit_s = max(row.duration_s - call.duration_s, 0.0)
        after_s = min(max(after_s, 0.0), limit_s) if math.isfinite(after_s) else 0.0
        size = bytes_of(call.shape, call.dtype)
        calls.append(Call(name=call.name, group=call.group, bytes=size, begin_s=after_s, duration_s=call.duration_s))
    return tuple(calls)


def _start_s(row: TraceRow) -> float:
    """When a row began, on the clock of the calls inside it; where its own timestamp is missing, they lie in its middle."""
    if row.end_s > 0:
        return row.end_s - row.duration_s
    first_s = float(np.min([call.end_s - call.duration_s for call in row.calls]))  # NaN if one of them is
    last_s = float(np.max([call.end_s for call in row.calls]))
    return (first_s + last_s - row.duration_s) / 2


def bytes_of(shape: tuple[int, ...], dtype: str) -> float:
    """Bytes of a tensor; 4 an element where the type is unknown."""
    return float(np.prod(np.array(shape, np.float64))) * DTYPE_BYTES.get(dtype, 4) if shape else 0.0


def one_step(files: Sequence[TraceText], wanted: int | None, warnings: list[str]) -> list[TraceText]:
    """The files with one step each: `wanted` (from 1), else the one of median span. Raises FormatError, SpecError."""
    steps = [_steps(file) for file in files]
    counts = [_complete(of_file) for of_file in steps]
    for file, count in zip(files, counts, strict=True):
        if count != counts[0]:
            raise FormatError(file.path, 1, "number of steps", found=str(count), expected=f"{counts[0]}, as in {files[0].path}")
    if wanted is not None and wanted > counts[0]:
        raise SpecError(f"workload.step: found {wanted}, expected a whole number from 1 to {counts[0]}, the steps in the files")
    if all(len(of_file) == 1 for of_file in steps):
        return list(files)
    spans = [max(_span_s(of_file[k]) for of_file in steps) for k in range(counts[0])]
    whole = _whole_steps(steps, counts[0])
    by_span = [k for k in sorted(range(counts[0]), key=spans.__getitem__) if k in whole]
    median = by_span[(len(by_span) - 1) // 2]
    taken = median if wanted is None else wanted - 1
    if wanted is None and counts[0] > 1:
        of = f" of {len(whole)} complete ones" if len(whole) < counts[0] else ""
        warnings.append(
            f"{files[0].path}:1: {counts[0]} steps of {short(min(spans), 's')} to {short(max(spans), 's')}: "
            f"step {taken + 1} is taken, the median{of} (set workload.step)"
        )
    return [replace(file, rows=of_file[taken]) for file, of_file in zip(files, steps, strict=True)]


def without_repeats(file: TraceText, warnings: list[str]) -> TraceText:
    """The file without operations that it holds twice: nothing ends twice at one time after as long."""
    first: dict[tuple[object, ...], TraceRow] = {}
    kept = []
    for row in file.rows:
        extra = tuple((row.extra or {}).items())
        key = (row.name, row.micro_batch, row.end_s, row.duration_s, row.group, row.shape, extra)
        twin = first.setdefault(key, row) if min(row.end_s, row.duration_s) > 0 else row
        if twin is row:
            kept.append(row)
        else:
            warnings.append(f"{file.path}:{row.line}: {row.name} is recorded on line {twin.line}, too: skipped")
    return replace(file, rows=tuple(kept))


Rows = tuple[TraceRow, ...]


def _steps(file: TraceText) -> list[Rows]:
    """The rows of each step: the first operation after an optimizer begins another."""
    order = list(range(len(file.rows)))
    if all(row.end_s > 0 for row in file.rows):
        order.sort(key=lambda k: file.rows[k].end_s)
    steps: list[list[int]] = [[]]
    ended = False
    for k in order:
        if file.rows[k].name == OPTIMIZER:
            ended = True
        elif ended:
            steps.append([])
            ended = False
        steps[-1].append(k)
    return [tuple(file.rows[k] for k in sorted(step)) for step in steps]


def _complete(steps: list[Rows]) -> int:
    """Steps that end with an optimizer; at least 1."""
    return max(sum(any(row.name == OPTIMIZER for row in step) for step in steps), 1)


def _whole_steps(steps: Sequence[list[Rows]], count: int) -> set[int]:
    """Steps with all their blocks: in every file as many as any step has; all steps if there is no such one."""
    whole = set(range(count))
    for of_file in steps:
        blocks = [sum(row.name in BLOCKS for row in step) for step in of_file]
        whole &= {k for k, number in enumerate(blocks) if number == max(blocks)}
    return whole or set(range(count))


def _span(rows: Rows) -> tuple[float, float] | None:
    """First start and last end by the host's clock; None where a timestamp is missing."""
    if not all(row.end_s > 0 for row in rows):
        return None
    return min(row.end_s - row.duration_s for row in rows), max(row.end_s for row in rows)


def _span_s(rows: Rows) -> float:
    span = _span(rows)
    return span[1] - span[0] if span else float(np.sum([row.duration_s for row in rows]))


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
    def operations(self) -> list[Operation]:
        """Those of all ranks."""
        return [operation for rank in self.ranks for operation in rank.operations]

    def named(self, name: str) -> list[Operation]:
        """Operations of this name on all ranks."""
        return [operation for rank in self.ranks for operation in rank.named(name)]

    @property
    def whole(self) -> bool:
        """Whether every rank of every stage has a trace."""
        return len(self.ranks) == self.layout.pp * self.layout.ranks_per_stage

    @property
    def has_step(self) -> bool:
        """Whether the stages ran one step together: they sent each other messages."""
        return not self.alone and (self.layout.pp == 1 or any(o.parts for o in self.operations))

    @property
    def messages(self) -> list[Operation]:
        """The pipeline messages of all ranks whose size is known."""
        return [o for o in self.operations if o.parts and o.bytes > 0]

    @property
    def has_experts(self) -> bool:
        """Whether the job has experts: their gradients or tokens are communicated."""
        return any(o.name in EXPERT_REDUCTIONS or any(call.group == "exp" for call in o.calls) for o in self.operations)

    @property
    def span_s(self) -> float:
        """Seconds of the recorded step: the longest span of a rank."""
        return max(rank.span_s for rank in self.ranks)


def input_paths(path: str) -> list[str]:
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


def read_job(path: str, facts: Facts) -> Job:
    """The job with the trace(s) at `path` (a file, a folder, a glob). `facts` are the user's (tp, pp, all_gpus, layers ...).

    Raises SimError, OSError.
    """
    paths = input_paths(path)
    jobs = {job_of_name(name) for name in paths} - {""}
    if len(jobs) > 1:
        some = ", ".join(sorted(jobs)[:3])
        raise FormatError(path, 1, "several jobs", found=f"{len(jobs)}: {some}", expected="the ranks of one (give a glob)")
    warnings: list[str] = []
    files: list[TraceText] = []
    for name in paths:
        text = read_trace_text(name)
        if not any(row.duration_s for row in text.rows):
            raise FormatError(name, text.line, "all durations are 0", expected="the milliseconds of operations")
        warnings += text.warnings
        if _is_new(text, files, warnings):
            files.append(without_repeats(text, warnings))
    warnings += _unstamped(files)
    files = one_step(files, facts.step, warnings)
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
            raise FormatError(file.path, file.line, "rank", found=str(rank), expected=expected)
        placed[stage, index] = file
    ranks = tuple(
        Rank(
            path=file.path,
            rank=stage * layout.ranks_per_stage + index,
            stage=stage,
            index=index,
            operations=_operations(file, warnings),
            beside=_beside(file),
            began_s=(_span(file.rows) or (math.nan,))[0],
        )
        for (stage, index), file in sorted(placed.items())
    )
    for placed_rank in ranks:
        _check_stamps(placed_rank)
        warnings += _cut_off(placed_rank)
    alone = [file for file in files if _is_alone(file)]
    if alone:
        warnings.append(f"{alone[0].path}:{alone[0].line}: {ALONE}: compute is taken, messages are those of the model")
    return Job(
        ranks=ranks,
        layout=layout,
        warnings=tuple(warnings),
        sequence=message_shape(files)[0],
        token_bytes=next((size for file in files for size in _token_bytes(file)), 0.0),
        alone=bool(alone),
    )


def _token_bytes(file: TraceText) -> Iterator[float]:
    """Bytes of a row of the all-to-alls [tokens, hidden] of experts."""
    for call in (call for row in file.rows for call in row.calls):
        if (call.group, call.name, len(call.shape)) == ("exp", "all_to_all", 2):
            yield bytes_of(call.shape[1:], call.dtype)


def _is_alone(file: TraceText) -> bool:
    return any(
        f"{row.description}:".startswith("simulation:") or (row.extra or {}).get("op_semantics") == "metadata_placeholder"
        for row in file.rows
    )


def _beside(file: TraceText) -> dict[str, float]:
    """Bytes of gradient buckets, by group, which newer traces have as operations during the backward; each bucket once."""
    buckets: dict[tuple[str, str, str], float] = {}
    for k, row in enumerate(file.rows):
        extra = row.extra or {}
        numel = extra.get("bucket_numel", "")
        if row.name == BESIDE and numel.isdigit():
            width = DTYPE_BYTES.get(extra.get("grad_dtype", "").removeprefix("torch."), 4)
            key = (row.group or "dp", extra.get("buffer_id", ""), extra.get("bucket_id", str(k)))
            buckets[key] = float(numel) * width
    by_group: dict[str, float] = {}
    for (group, _, _), size in buckets.items():
        by_group[group] = by_group.get(group, 0.0) + size
    return by_group


def _unstamped(files: list[TraceText]) -> Iterator[str]:
    """A warning about files without timestamps of operations."""
    bare = [file for file in files if not any(row.end_s > 0 for row in file.rows)]
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
    if [(row.name, row.duration_s) for row in twin.rows] == [(row.name, row.duration_s) for row in text.rows]:
        warnings.append(f"{text.path}:1: equal to {twin.path}: skipped")
        return False
    raise FormatError(text.path, 1, f"rank {text.rank} is repeated", found=f"also in {twin.path}", expected="one file per rank")


def _stage_of(file: TraceText) -> int:
    if file.stage is None:
        raise FormatError(file.path, 1, "stage_id is missing", expected="stage_id=N in the lines")
    return file.stage


def _operations(file: TraceText, warnings: list[str]) -> tuple[Operation, ...]:
    """Rows in time order. An exchange, recorded as several rows of equal duration and end, becomes one operation."""
    rows = [row for row in file.rows if row.name != BESIDE]
    if not rows:
        raise FormatError(file.path, 1, "no operations besides ddp_grad_comm", expected="forward_step and others")
    timed = sorted(zip(ends_of(rows), rows, strict=True), key=lambda pair: pair[0])
    if [row.line for _, row in timed] != [row.line for row in rows]:
        warnings.append(f"{file.path}:{rows[0].line}: lines are not sorted by time: sorted")
    first_s = timed[0][0] - timed[0][1].duration_s
    operations: list[Operation] = []
    at_s = 0.0
    done = overlaps = 0
    for together in exchanges([row for _, row in timed]):
        row = together[0]
        done += len(together)
        start_s = timed[done - 1][0] - first_s - row.duration_s
        overlaps += start_s < at_s - 1e-3 * max(1.0, row.duration_s)
        gap_s = max(start_s - at_s, 0.0)
        start_s = at_s + gap_s  # timestamps are rounded: an operation does not begin before the previous one ends
        calls = calls_of(row)
        parts = tuple(each.name for each in together) if row.name in SENDS else ()
        operations.append(
            Operation(
                name="+".join(each.name for each in together),
                parts=parts,
                state=row.state,
                micro_batch=row.micro_batch,
                start_s=start_s,
                duration_s=row.duration_s,
                gap_s=gap_s,
                compute_s=0.0 if parts else max(row.duration_s - sum(call.duration_s for call in calls), 0.0),
                group=row.group,
                bytes=bytes_of(row.shape, row.dtype),
                width=float(DTYPE_BYTES.get(row.dtype, 0)),
                calls=calls,
                line=row.line,
            )
        )
        at_s = start_s + row.duration_s
    if overlaps:
        warnings.append(f"{file.path}:{operations[0].line}: {overlaps} operations begin before the previous one ends: moved")
    return tuple(operations)
