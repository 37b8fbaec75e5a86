"""Trace files of a job: found, read, cut to one step and sorted by time, with exchanges merged and gaps computed."""

import glob
import math
import os
from collections.abc import Iterator, Sequence

import numpy as np

from sim_core.errors import FormatError
from sim_core.places import open_input
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.job import Call, Job, Operation, Rank
from sim_core.workloads.traces.layout import has_experts, job_of_name, layout_of, message_shape
from sim_core.workloads.traces.line import looks_like_trace
from sim_core.workloads.traces.steps import one_step, span, without_repeats
from sim_core.workloads.traces.text import BLOCKS, DTYPE_BYTES, SENDS, TraceRow, TraceText, read_trace_text

BESIDE = "ddp_grad_comm"
"""Runs on its own stream during a backward; not one of the rank's operations in order."""
LEAST_BUSY = 0.01
"""Part of a step that operations fill at least: timestamps in microseconds would leave 0.1 %."""
HEAD_CHARS = 65_536
ALONE = "a profile of a rank by itself (scaling mode, description=simulation or op_semantics=metadata_placeholder)"


def input_paths(path: str) -> list[str]:
    """The files of a job: one file, those of a folder that look like traces, or those that match a glob. Raises OSError."""
    if os.path.isdir(path):
        traces = []
        for entry in os.scandir(path):
            if entry.is_file():
                with open_input(entry.path) as file:
                    traces += [entry.path] * looks_like_trace(file.read(HEAD_CHARS).decode("utf-8", "replace"))
        if not traces:
            raise FormatError(path, 1, "no rank trace in the folder", expected="files of lines like rank:0:forward_step(...)")
        return sorted(traces)
    if not os.path.exists(path) and glob.has_magic(path):
        matches = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not matches:
            raise FormatError(path, 1, "no file matches")
        return matches
    return [path]


def read_job(path: str, facts: Facts) -> Job:
    """The job with the trace(s) at `path` (a file, a folder, a glob). `facts` are the user's (tp, pp, all_gpus, layers ...).

    Raises SimError, OSError.
    """
    warnings: list[str] = []
    files = one_step(_files(path, warnings), facts.step, warnings)
    for file in files:
        if file.stage < 0:
            raise FormatError(file.path, 1, "stage_id is missing", expected="stage_id=N in the lines")
    layout = layout_of(files, facts)
    per_stage, placed = layout.ranks_per_stage, {}
    for file in files:
        rank = file.stage * per_stage if file.rank is None else file.rank
        if rank // per_stage != file.stage:
            expected = f"a rank of stage {file.stage}: {file.stage * per_stage} to {(file.stage + 1) * per_stage - 1}"
            raise FormatError(file.path, file.line, "rank", str(rank), expected)
        placed[rank] = file
    ranks = tuple(
        Rank(
            path=file.path,
            rank=rank,
            stage=file.stage,
            index=rank % per_stage,
            operations=_operations(file, warnings),
            beside=_beside(file),
            has_experts=has_experts(file),
            began_s=(span(file.rows) or (math.nan,))[0],
        )
        for rank, file in sorted(placed.items())
    )
    for one in ranks:
        _check_complete(one, warnings)
    alone = [
        file
        for file in files
        for row in file.rows
        if (row.extra or {}).get("op_semantics") == "metadata_placeholder" or row.description.split(":")[0] == "simulation"
    ]
    if alone:
        warnings.append(f"{alone[0].path}:{alone[0].line}: {ALONE}: compute is taken, messages are those of the model")
    calls = (call for file in files for row in file.rows for call in row.calls)
    tokens = (call for call in calls if (call.group, call.name, len(call.shape)) == ("exp", "all_to_all", 2))
    return Job(
        ranks=ranks,
        layout=layout,
        warnings=tuple(warnings),
        sequence=message_shape(files)[0],
        token_bytes=next((_bytes(call.shape[1:], call.dtype) for call in tokens), 0.0),  # of a row [tokens, hidden]
        alone=bool(alone),
    )


def _files(path: str, warnings: list[str]) -> list[TraceText]:
    """The texts at a path, each rank once; equal files are skipped. Raises FormatError, OSError."""
    paths = input_paths(path)
    jobs = {job_of_name(name) for name in paths} - {""}
    if len(jobs) > 1:
        some = ", ".join(sorted(jobs)[:3])
        raise FormatError(path, 1, "several jobs", f"{len(jobs)}: {some}", "the ranks of one (give a glob)")
    files: dict[tuple[int | None, int], TraceText] = {}
    for name in paths:
        text = read_trace_text(name)
        if not any(row.duration_s for row in text.rows):
            raise FormatError(name, text.line, "all durations are 0", expected="the milliseconds of operations")
        warnings += text.warnings
        twin = files.get((text.rank, text.stage))
        if twin is None:
            files[text.rank, text.stage] = without_repeats(text, warnings)
        elif [(row.name, row.duration_s) for row in twin.rows] == [(row.name, row.duration_s) for row in text.rows]:
            warnings.append(f"{name}:1: equal to {twin.path}: skipped")
        else:
            raise FormatError(name, 1, f"rank {text.rank} is repeated", f"also in {twin.path}", "one file per rank")
    bare = [file for file in files.values() if not any(row.end_s > 0 for row in file.rows)]
    if bare:
        also = f" (nor in {len(bare) - 1} other files)" if len(bare) > 1 else ""
        warnings.append(f"{bare[0].path}:1: no timestamps{also}: operations follow one another in the order of the lines")
    return list(files.values())


def _beside(file: TraceText) -> dict[str, float]:
    """Bytes of gradient buckets, by group, which newer traces have as operations during the backward; each bucket once."""
    buckets = {}
    for k, row in enumerate(file.rows):
        extra = row.extra or {}
        numel = extra.get("bucket_numel", "")
        if row.name == BESIDE and numel.isdigit():
            width = DTYPE_BYTES.get(extra.get("grad_dtype", "").removeprefix("torch."), 4)
            buckets[row.group or "dp", extra.get("buffer_id", ""), extra.get("bucket_id", str(k))] = float(numel) * width
    return {group: sum(size for (of, *_), size in buckets.items() if of == group) for group, *_ in buckets}


def _check_complete(rank: Rank, warnings: list[str]) -> None:
    """Warn if a rank's trace is no complete step. Raises FormatError where its durations and timestamps differ in unit."""
    busy = sum(operation.duration_s for operation in rank.operations) / rank.span_s if rank.span_s > 0 else 1.0
    if busy < LEAST_BUSY:
        found = f"operations fill {busy:.1%} of the time between the first and the last"
        raise FormatError(rank.path, rank.operations[0].line, "timestamps", found, "milliseconds, as in durations")
    forwards, backwards = (len(rank.named(name)) for name in BLOCKS)
    if forwards != backwards:
        where = f"{rank.path}:{rank.operations[-1].line}"
        warnings.append(f"{where}: the step is incomplete: {forwards} forwards, {backwards} backwards")


def _operations(file: TraceText, warnings: list[str]) -> tuple[Operation, ...]:
    """Rows in time order. An exchange, recorded as several rows of equal duration and end, becomes one operation."""
    rows = [row for row in file.rows if row.name != BESIDE]
    if not rows:
        raise FormatError(file.path, 1, "no operations besides ddp_grad_comm", expected="forward_step and others")
    end_of = dict(zip((row.line for row in rows), _ends(rows), strict=True))
    timed = sorted(rows, key=lambda row: end_of[row.line])
    if timed != rows:
        warnings.append(f"{file.path}:{rows[0].line}: lines are not sorted by time: sorted")
    first_s = end_of[timed[0].line] - timed[0].duration_s
    operations = []
    at_s = 0.0
    overlaps = 0
    for together in _exchanges(timed):
        row = together[0]
        start_s = end_of[together[-1].line] - first_s - row.duration_s
        overlaps += start_s < at_s - 1e-3 * max(1.0, row.duration_s)
        gap_s = max(start_s - at_s, 0.0)
        start_s = at_s + gap_s  # timestamps are rounded: an operation does not begin before the previous one ends
        calls, names = _calls(row), tuple(each.name for each in together)
        operation = Operation(
            name="+".join(names),
            parts=names if row.name in SENDS else (),
            state=row.state,
            start_s=start_s,
            duration_s=row.duration_s,
            gap_s=gap_s,
            compute_s=0.0 if row.name in SENDS else max(row.duration_s - sum(call.duration_s for call in calls), 0.0),
            group=row.group,
            bytes=_bytes(row.shape, row.dtype),
            width=float(DTYPE_BYTES.get(row.dtype, 0)),
            calls=calls,
            line=row.line,
        )
        operations.append(operation)
        at_s = operation.end_s
    if overlaps:
        warnings.append(f"{file.path}:{operations[0].line}: {overlaps} operations begin before the previous one ends: moved")
    return tuple(operations)


def _ends(rows: Sequence[TraceRow]) -> list[float]:
    """End of each row; a missing end (absent or 0) follows directly from the previous row, for the first rows from the next.

    Where no end is known, rows follow one another, an exchange once.
    """
    ends = [row.end_s for row in rows]
    known = next((k for k, end_s in enumerate(ends) if end_s > 0), -1)
    if known < 0:
        ends, end_s = [], 0.0
        for together in _exchanges(rows):
            end_s += together[0].duration_s
            ends += [end_s] * len(together)
        return ends
    for k in range(known - 1, -1, -1):
        ends[k] = ends[k + 1] - rows[k + 1].duration_s
    for k in range(known + 1, len(rows)):
        if not ends[k] > 0:
            ends[k] = ends[k - 1] + rows[k].duration_s
    return ends


def _exchanges(rows: Sequence[TraceRow]) -> Iterator[list[TraceRow]]:
    """The rows in order, those of one exchange together: different pipeline messages of equal duration and end."""
    together: list[TraceRow] = []
    for row in rows:
        # an absent end is the same object, math.nan, in all rows
        alike = bool(together) and (together[0].duration_s, together[0].end_s) == (row.duration_s, row.end_s)
        if alike and row.name in SENDS and all(each.name in SENDS and each.name != row.name for each in together):
            together.append(row)
            continue
        if together:
            yield together
        together = [row]
    yield together


def _calls(row: TraceRow) -> tuple[Call, ...]:
    """The communication calls inside a row, sorted by time; where its own timestamp is missing, they lie in its middle."""
    if not row.calls:
        return ()
    start_s = row.end_s - row.duration_s
    if not row.end_s > 0:
        first_s = float(np.min([call.end_s - call.duration_s for call in row.calls]))  # NaN if one of them is
        start_s = (first_s + float(np.max([call.end_s for call in row.calls])) - row.duration_s) / 2
    begun = [(call.end_s - call.duration_s if call.end_s > 0 else -math.inf, call) for call in row.calls]
    calls = []
    for begin_s, call in sorted(begun, key=lambda pair: pair[0]):
        after_s = begin_s - start_s
        after_s = min(max(after_s, 0.0), max(row.duration_s - call.duration_s, 0.0)) if math.isfinite(after_s) else 0.0
        calls.append(Call(call.name, call.group, _bytes(call.shape, call.dtype), after_s, call.duration_s))
    return tuple(calls)


def _bytes(shape: tuple[int, ...], dtype: str) -> float:
    """Bytes of a tensor; 4 an element where the type is unknown."""
    return float(math.prod(shape) * DTYPE_BYTES.get(dtype, 4)) if shape else 0.0
