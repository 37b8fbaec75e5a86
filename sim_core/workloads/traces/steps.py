"""One step of the files of a job: those with several are cut, operations that a file holds twice are taken once."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sim_core.errors import FormatError, SpecError
from sim_core.units import short
from sim_core.workloads.traces.text import BLOCKS, OPTIMIZER, TraceRow, TraceText

Rows = tuple[TraceRow, ...]


def one_step(files: list[TraceText], wanted: int | None, warnings: list[str]) -> list[TraceText]:
    """The files with one step each: `wanted` (from 1), else the one of median span. Raises FormatError, SpecError."""
    steps = [_steps(file.rows) for file in files]
    # steps that end with an optimizer
    counts = [max(sum(any(row.name == OPTIMIZER for row in step) for step in of_file), 1) for of_file in steps]
    count = counts[0]
    for file, own in zip(files, counts, strict=True):
        if own != count:
            raise FormatError(file.path, 1, "number of steps", str(own), f"{count}, as in {files[0].path}")
    if wanted is not None and wanted > count:
        raise SpecError(f"workload.step: found {wanted}, expected a whole number from 1 to {count}, the steps in the files")
    if all(len(of_file) == 1 for of_file in steps):
        return files
    known = [[span(step) or (0.0, float(np.sum([row.duration_s for row in step]))) for step in of_file] for of_file in steps]
    spans = [max(of_file[k][1] - of_file[k][0] for of_file in known) for k in range(count)]
    # those with all their blocks: in every file as many as any step has; all steps if there is no such one
    blocks = [[sum(row.name in BLOCKS for row in step) for step in of_file] for of_file in steps]
    whole = [k for k in range(count) if all(of_file[k] == max(of_file) for of_file in blocks)] or range(count)
    taken = sorted(whole, key=lambda k: (spans[k], k))[(len(whole) - 1) // 2] if wanted is None else wanted - 1
    if wanted is None and count > 1:
        of = f" of {len(whole)} complete ones" if len(whole) < count else ""
        warnings.append(
            f"{files[0].path}:1: {count} steps of {short(min(spans), 's')} to {short(max(spans), 's')}: "
            f"step {taken + 1} is taken, the median{of} (set workload.step)"
        )
    return [file._replace(rows=of_file[taken]) for file, of_file in zip(files, steps, strict=True)]


def without_repeats(file: TraceText, warnings: list[str]) -> TraceText:
    """The file without operations that it holds twice: nothing ends twice at one time after as long."""
    first: dict[tuple[object, ...], TraceRow] = {}
    kept = []
    for row in file.rows:
        key = (row.name, row.micro_batch, row.end_s, row.duration_s, row.group, row.shape, tuple((row.extra or {}).items()))
        twin = first.setdefault(key, row) if min(row.end_s, row.duration_s) > 0 else row
        if twin is row:
            kept.append(row)
        else:
            warnings.append(f"{file.path}:{row.line}: {row.name} is recorded on line {twin.line}, too: skipped")
    return file._replace(rows=tuple(kept))


def span(rows: Sequence[TraceRow]) -> tuple[float, float] | None:
    """First start and last end by the host's clock; None where a timestamp is missing."""
    if not all(row.end_s > 0 for row in rows):
        return None
    return min(row.end_s - row.duration_s for row in rows), max(row.end_s for row in rows)


def _steps(rows: Rows) -> list[Rows]:
    """The rows of each step, in the order of the file: the first operation after an optimizer begins another."""
    ordered = sorted(rows, key=lambda row: row.end_s) if span(rows) else rows
    steps = [[ordered[0]]]
    for before, row in pairwise(ordered):
        if before.name == OPTIMIZER != row.name:
            steps.append([])
        steps[-1].append(row)
    return [tuple(sorted(step, key=lambda row: row.line)) for step in steps]
