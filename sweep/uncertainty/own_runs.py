"""A file of one's own measured plans (CSV): `plan`, and the time of a step."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

from sim_core import FormatError, shown
from sweep.document import cells_by_column, read_csv

PLAN: Final = "plan"
SECONDS: Final = {"step_time_s": 1.0, "iter_ms": 1e-3}
"""Columns of the time of a step, and what one of their units is in seconds."""
LONGEST_S: Final = 1e6


def names_plans(path: Path) -> bool:
    """Whether a CSV names plans by number; else it is a table of runs, as `sweep validate` reads."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return PLAN in [cell.strip() for cell in next(csv.reader(file), [])]


def read_steps(path: Path) -> dict[int, tuple[float, str]]:
    """Seconds of a step by plan number, each with where it stands; of a plan that stands twice, the mean.

    Raises FormatError (`path:line: column: found X, expected Y`).
    """
    name, rows = str(path), read_csv(path)
    _, heading = next(rows, (1, []))
    column = next((key for key in SECONDS if key in heading), None)
    if PLAN not in heading or column is None:
        raise FormatError(name, 1, "heading", found=shown(",".join(heading), 80), expected=f"{PLAN} and {' or '.join(SECONDS)}")
    steps: dict[int, list[tuple[float, str]]] = {}
    for line, cells in rows:
        row = cells_by_column(path, line, heading, cells)
        plan, seconds = row[PLAN], _number(row[column]) * SECONDS[column]
        if not plan.isascii() or not plan.isdigit() or len(plan) > 18:
            raise FormatError(name, line, PLAN, found=shown(plan), expected="the number of a plan")
        if not 0 < seconds <= LONGEST_S:
            raise FormatError(name, line, column, found=shown(row[column]), expected="a time above 0")
        steps.setdefault(int(plan), []).append((seconds, f"{name}:{line}"))
    if not steps:
        raise FormatError(name, 1, "no runs", found="only a heading", expected="a row for each measured plan")
    return {plan: (sum(time for time, _ in same) / len(same), same[0][1]) for plan, same in steps.items()}


def _number(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value
