"""`tune.csv`: the runs of a loop, a line each, which several people may add to; read, checked, written under a lock."""

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import FormatError, SpecError, nearest, shown
from sweep.results.folder import folder_at, only_one
from sweep.spec.document import cells_by_column, read_csv
from sweep.uncertainty.process import steady

NAME = "tune.csv"
SMALL = "small.yaml"
"""Beside it, the page that small runs of the same stack tell."""
OK, OUT_OF_MEMORY, CRASH, SLOW, SKIP = "ok", "oom", "crash", "slow", "skip"
STATES = (OK, OUT_OF_MEMORY, CRASH, SLOW, SKIP)
FAILURES = (OUT_OF_MEMORY, CRASH, SLOW)
COLUMNS = ("plan", "state", "step_time_s", "peak_memory_gib", "log", "note", "sweep")
SECONDS = {"step_time_s": 1.0, "iter_ms": 1e-3}
"""Columns of the time of a step, and what one of their units is in seconds."""
IDENTITY_CHARACTERS = 16
LONGEST_S = 1e6
MOST_GIB = 1e5
_TRIES = 40
_PAUSE_S = 0.05
SAME = 0.02
"""Times of one plan that differ by more, relative, are worth a word."""


class Entry(NamedTuple):
    """A line. `step_time_s` of a slow run is what it took when it was stopped: at least so much."""

    plan: int
    state: str
    step_time_s: float | None = None
    peak_memory_gib: float | None = None
    log: str = ""
    note: str = ""
    where: str = ""  # path:line


class Run(NamedTuple):
    """All entries of a plan as one: of several times the median (`steady`), of several peaks the greatest."""

    plan: int
    state: str
    step_time_s: float | None
    peak_memory_gib: float | None
    times: tuple[float, ...]


def read_record(path: Path, identity: str | None = None) -> list[Entry]:
    """The lines of a table; none if there is no file. `identity`: of the sweep whose plans they must name.

    Raises FormatError (`path:line: column: found X, expected Y`), SpecError if the table is of another result.
    """
    try:
        rows = list(read_csv(path))
    except FileNotFoundError:
        return []
    if not rows:
        raise FormatError(
            str(path), 1, "heading", found="an empty file", expected=f"{','.join(COLUMNS)}; delete it to begin anew"
        )
    (_, heading), name = rows[0], str(path)
    if "plan" not in heading or not set(SECONDS) & set(heading):
        expected = f"plan and {' or '.join(SECONDS)}"
        raise FormatError(name, 1, "heading", found=shown(",".join(heading), 80), expected=expected)
    entries = []
    for line, cells in rows[1:]:
        values = cells_by_column(path, line, heading, cells)
        stated = values.get("sweep", "")
        if identity and stated and stated != identity[:IDENTITY_CHARACTERS]:
            expected = f"{identity[:IDENTITY_CHARACTERS]}, this result: plan numbers of another mean other plans"
            raise FormatError(name, line, "sweep", found=shown(stated), expected=expected)
        entries.append(_entry(name, line, values))
    return entries


def _entry(name: str, line: int, values: Mapping[str, str]) -> Entry:
    column = next(column for column in SECONDS if column in values)
    plan, state = values["plan"], values.get("state") or (OK if values[column] else "")
    if not plan.isascii() or not plan.isdigit() or len(plan) > 18:
        raise FormatError(name, line, "plan", found=shown(plan), expected="the number of a plan")
    if state not in STATES:
        raise FormatError(name, line, "state", found=shown(state), expected=nearest(state, STATES))
    step = _number(name, line, column, values[column], LONGEST_S / SECONDS[column])
    if state == OK and step is None and not values.get("peak_memory_gib"):
        raise FormatError(
            name, line, column, found="nothing", expected="the seconds of a step of a run that is ok, or its peak"
        )
    return Entry(
        plan=int(plan),
        state=state,
        step_time_s=None if step is None else step * SECONDS[column],
        peak_memory_gib=_number(name, line, "peak_memory_gib", values.get("peak_memory_gib", ""), MOST_GIB),
        log=values.get("log", ""),
        note=values.get("note", ""),
        where=f"{name}:{line}",
    )


def _number(name: str, line: int, column: str, text: str, most: float) -> float | None:
    if not text:
        return None
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise FormatError(name, line, column, found=shown(text), expected=f"a number above 0 and up to {most:g}")
    return value


def append(path: Path, identity: str, entry: Entry) -> None:
    """Add a line, whole or not at all. Raises SpecError while another process writes, FormatError if the table is broken."""
    refusal = f"{path}: another process is writing it; nothing was added, run the command again"
    with ExitStack() as lock:
        for attempt in range(_TRIES):
            try:
                lock.enter_context(only_one(path.with_name(f".{path.name}.lock"), refusal))
                break
            except SpecError:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_S)
        read_record(path, identity)
        text = path.read_text(encoding="utf-8-sig") if path.exists() else ",".join(COLUMNS) + "\n"
        buffer = io.StringIO()
        buffer.write(text if text.endswith("\n") else text + "\n")
        heading = next(csv.reader(io.StringIO(text)))
        cells = {
            "plan": entry.plan,
            "state": entry.state,
            "step_time_s": None if entry.step_time_s is None else float(entry.step_time_s),
            "peak_memory_gib": None if entry.peak_memory_gib is None else float(entry.peak_memory_gib),
            "log": " ".join(entry.log.split()),
            "note": " ".join(entry.note.split()),
            "sweep": identity[:IDENTITY_CHARACTERS],
        }
        csv.writer(buffer, lineterminator="\n").writerow([cells.get(column.strip()) for column in heading])
        folder_at(path.parent).write_bytes(path.name, buffer.getvalue().encode())


def runs_of(entries: Sequence[Entry]) -> dict[int, Run]:
    """The runs by plan, in the order of their first entries. A plan that ran once ran; one that was skipped last is skipped."""
    by_plan: dict[int, list[Entry]] = {}
    for entry in entries:
        by_plan.setdefault(entry.plan, []).append(entry)
    runs = {}
    for plan, same in by_plan.items():
        states = [entry.state for entry in same]
        state = SKIP if states[-1] == SKIP else next(word for word in STATES if word in states)
        times = tuple(entry.step_time_s for entry in same if entry.state == state and entry.step_time_s is not None)
        peaks = [entry.peak_memory_gib for entry in same if entry.peak_memory_gib is not None]
        step = (max(times) if state == SLOW else float(np.median(steady(times)))) if times else None
        runs[plan] = Run(plan=plan, state=state, step_time_s=step, peak_memory_gib=max(peaks, default=None), times=times)
    return runs


def doubts(runs: Mapping[int, Run]) -> list[str]:
    """A line for each plan whose times differ."""
    return [
        f"plan {run.plan}: {len(run.times)} times from {min(run.times):.4g} to {max(run.times):.4g} s; the median of those "
        "within 42 % of the least counts"
        for run in runs.values()
        if run.state == OK and len(run.times) > 1 and max(run.times) > (1 + SAME) * min(run.times)
    ]
