"""Files that hold several training steps: one of them is taken, the same in every file of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.errors import FormatError, SpecError
from sim_core.units import short
from sim_core.workloads.readers.trace_text import TraceText

LAST: Final = "optimizer_step"
BLOCKS: Final = ("forward_step", "backward_step")
Ints = npt.NDArray[np.int64]


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
    found = np.zeros(len(file.name), np.int64)
    step, ended = 0, False
    for row in order.tolist():
        if file.name[row] == LAST:
            ended = True
        elif ended:
            step, ended = step + 1, False
        found[row] = step
    return found


def _complete(file: TraceText, step: Ints) -> int:
    """Steps that end with an optimizer; at least 1."""
    ended = {int(step[row]) for row, name in enumerate(file.name) if name == LAST}
    return max(len(ended), 1)


def _whole_steps(files: Sequence[TraceText], steps: Sequence[Ints], count: int) -> set[int]:
    """Steps with all their blocks: in every file as many as any step has; all steps if there is no such one."""
    whole = set(range(count))
    for file, step in zip(files, steps, strict=True):
        blocks = np.array([name in BLOCKS for name in file.name], np.bool_)
        counts = np.bincount(step[blocks], minlength=count)
        whole &= set(np.flatnonzero(counts == counts.max()).tolist())
    return whole or set(range(count))


def _span_s(file: TraceText, of_step: npt.NDArray[np.bool_]) -> float:
    ends, durations = file.end_s[of_step], file.duration_s[of_step]
    if len(ends) and (ends > 0).all():
        return float(ends.max() - (ends - durations).min())
    return float(durations.sum())


def _rows(file: TraceText, rows: Ints) -> TraceText:
    """The file with some of its rows, and the calls inside them."""
    at = rows.tolist()
    place = np.full(len(file.name), -1, np.int64)
    place[rows] = np.arange(len(rows))
    calls = np.flatnonzero(place[file.sub_row] >= 0) if len(file.sub_row) else np.zeros(0, np.int64)
    inside = calls.tolist()
    return replace(
        file,
        name=tuple(file.name[k] for k in at),
        line=file.line[rows],
        micro_batch=file.micro_batch[rows],
        state=tuple(file.state[k] for k in at),
        duration_s=file.duration_s[rows],
        end_s=file.end_s[rows],
        group=tuple(file.group[k] for k in at),
        shape=tuple(file.shape[k] for k in at),
        dtype=tuple(file.dtype[k] for k in at),
        description=tuple(file.description[k] for k in at),
        extra=tuple(file.extra[k] for k in at),
        sub_row=place[file.sub_row[calls]],
        sub_name=tuple(file.sub_name[k] for k in inside),
        sub_group=tuple(file.sub_group[k] for k in inside),
        sub_function=tuple(file.sub_function[k] for k in inside),
        sub_duration_s=file.sub_duration_s[calls],
        sub_end_s=file.sub_end_s[calls],
        sub_shape=tuple(file.sub_shape[k] for k in inside),
        sub_dtype=tuple(file.sub_dtype[k] for k in inside),
        sub_extra=tuple(file.sub_extra[k] for k in inside),
    )
