"""A file of one's own measured plans (CSV): `plan`, and the time of a step."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Final

from sim_core import FormatError, shown

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
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(name, 1, "not UTF-8", found="other bytes", expected="a CSV table") from None
    rows = list(csv.reader(io.StringIO(text, newline="")))
    heading = [cell.strip() for cell in rows[0]] if rows else []
    column = next((one for one in SECONDS if one in heading), None)
    if PLAN not in heading or column is None:
        raise FormatError(name, 1, "heading", found=shown(",".join(heading), 80), expected=f"{PLAN} and {' or '.join(SECONDS)}")
    found: dict[int, list[tuple[float, str]]] = {}
    for line, cells in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(heading):
            raise FormatError(name, line, "cells", found=str(len(cells)), expected=f"{len(heading)} as in the heading")
        row = dict(zip(heading, (cell.strip() for cell in cells), strict=True))
        plan, seconds = row[PLAN], _number(row[column]) * SECONDS[column]
        if not plan.isascii() or not plan.isdigit() or len(plan) > 18:
            raise FormatError(name, line, PLAN, found=shown(plan), expected="the number of a plan")
        if not 0 < seconds <= LONGEST_S:
            raise FormatError(name, line, column, found=shown(row[column]), expected="a time above 0")
        found.setdefault(int(plan), []).append((seconds, f"{name}:{line}"))
    if not found:
        raise FormatError(name, 1, "no runs", found="only a heading", expected="a row for each measured plan")
    return {plan: (sum(time for time, _ in same) / len(same), same[0][1]) for plan, same in found.items()}


def _number(text: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value
