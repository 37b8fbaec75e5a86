"""One step of the files of a job: those with several are cut, operations that a file holds twice are taken once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim_core.errors import FormatError, SpecError
from sim_core.units import short
from sim_core.workloads.traces.text import BLOCKS, OPTIMIZER, TraceRow, TraceText

Rows = tuple[TraceRow, ...]


def one_step(files: Sequence[TraceText], wanted: int | None, warnings: list[str]) -> list[TraceText]:
    """The files with one step each: `wanted` (from 1), else the one of median span. Raises FormatError, SpecError."""
    steps = [_steps(file) for file in files]
    # steps that end with an optimizer
    counts = [max(sum(any(row.name == OPTIMIZER for row in step) for step in of_file), 1) for of_file in steps]
    for file, count in zip(files, counts, strict=True):
        if count != counts[0]:
            raise FormatError(file.path, 1, "number of steps", found=str(count), expected=f"{counts[0]}, as in {files[0].path}")
    if wanted is not None and wanted > counts[0]:
        raise SpecError(f"workload.step: found {wanted}, expected a whole number from 1 to {counts[0]}, the steps in the files")
    if all(len(of_file) == 1 for of_file in steps):
        return list(files)
    spans = [max(_span_s(of_file[k]) for of_file in steps) for k in range(counts[0])]
    whole = _whole_steps(steps, counts[0])
    by_span = sorted(whole, key=lambda k: (spans[k], k))
    taken = by_span[(len(by_span) - 1) // 2] if wanted is None else wanted - 1
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


def span(rows: Rows) -> tuple[float, float] | None:
    """First start and last end by the host's clock; None where a timestamp is missing."""
    if not all(row.end_s > 0 for row in rows):
        return None
    return min(row.end_s - row.duration_s for row in rows), max(row.end_s for row in rows)


def _span_s(rows: Rows) -> float:
    known = span(rows)
    return known[1] - known[0] if known else float(np.sum([row.duration_s for row in rows]))


def _steps(file: TraceText) -> list[Rows]:
    """The rows of each step: the first operation after an optimizer begins another."""
    order = list(range(len(file.rows)))
    if all(row.end_s > 0 for row in file.rows):
        order.sort(key=lambda k: file.rows[k].end_s)
    steps: list[list[int]] = [[]]
    for k, before in zip(order, (None, *order), strict=False):
        if before is not None and file.rows[before].name == OPTIMIZER != file.rows[k].name:
            steps.append([])
        steps[-1].append(k)
    return [tuple(file.rows[k] for k in sorted(step)) for step in steps]


def _whole_steps(steps: Sequence[list[Rows]], count: int) -> set[int]:
    """Steps with all their blocks: in every file as many as any step has; all steps if there is no such one."""
    whole = set(range(count))
    for of_file in steps:
        blocks = [sum(row.name in BLOCKS for row in step) for step in of_file]
        whole &= {k for k, number in enumerate(blocks) if number == max(blocks)}
    return whole or set(range(count))
