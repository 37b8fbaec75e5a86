"""What the charts of a page show of all rows: best values by axes, densities, fronts, reasons; as plain data."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sweep.report.table import Axis, Columns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BINS: Final = 56
MOST_AXES: Final = 16
"""Axes that the heat map offers; each pair has a table of its own."""


def sensitivity(columns: Columns) -> list[dict[str, Any]]:
    """For each axis and value: the best objective, how many plans run, how many there are, and the best plan."""
    found = []
    for axis in columns.axes:
        best, plan = _best(columns, axis.code, len(axis.values))
        found.append(
            {
                "axis": axis.name,
                "values": [_shown(value) for value in axis.values],
                "best": [_number(value) for value in best],
                "plan": [int(each) if each >= 0 else None for each in plan],
                "ran": np.bincount(axis.code[columns.ran], minlength=len(axis.values)).tolist(),
                "all": np.bincount(axis.code, minlength=len(axis.values)).tolist(),
            }
        )
    return found


def heat_maps(columns: Columns) -> dict[str, list[float | None]]:
    """The best objective of each pair of values, row by row, for each pair of axes `a|b`; None where no plan runs."""
    maps = {}
    for one, other in itertools.combinations(columns.axes[:MOST_AXES], 2):
        cells = len(one.values) * len(other.values)
        best, _ = _best(columns, one.code * len(other.values) + other.code, cells)
        maps[f"{one.name}|{other.name}"] = [_number(value) for value in best]
    return maps


def reasons_by_axis(columns: Columns) -> dict[str, list[list[int]]]:
    """Rows by value of each axis and reason, [values][reasons]."""
    number = len(columns.reason.values)
    found = {}
    for axis in columns.axes:
        counts = np.bincount(axis.code * number + columns.reason.code, minlength=len(axis.values) * number)
        found[axis.name] = counts.reshape(len(axis.values), number).tolist()
    return found


def density(columns: Columns, x: str, y: str) -> dict[str, Any] | None:
    """How many plans that run lie where, on logarithmic axes: cells as x, y, count; and the front that minimises both."""
    if x not in columns.measures and x != "all_gpus":
        return None
    values = _of(columns, x)[columns.order]
    others = columns.measures[y][columns.order]
    known = (values > 0) & (others > 0)
    if not known.any():
        return None
    a, b = np.log10(values[known]), np.log10(others[known])
    counts, edges_x, edges_y = np.histogram2d(a, b, bins=BINS, range=[_around(a), _around(b)])
    at = np.argwhere(counts > 0)
    return {
        "x": x,
        "y": y,
        "edges_x": [_number(10**edge) for edge in edges_x],
        "edges_y": [_number(10**edge) for edge in edges_y],
        "cells": [[int(i), int(j), int(counts[i, j])] for i, j in at],
        "front": _front(columns.plan[columns.order][known], values[known], others[known]),
    }


def _around(values: Floats) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = max(0.03 * (high - low), 0.02)
    return low - margin, high + margin


def _front(plan: Ints, x: Floats, y: Floats) -> list[list[float | int | None]]:
    """Plans that no other beats in both, by x."""
    order = np.lexsort((y, x))
    least = np.minimum.accumulate(y[order])
    first = np.concatenate(([True], y[order][1:] < least[:-1]))
    return [[int(plan[k]), _number(x[k]), _number(y[k])] for k in order[first]]


def _of(columns: Columns, name: str) -> Floats:
    if name in columns.measures:
        return columns.measures[name]
    axis = next((each for each in columns.axes if each.name == name), None)
    return np.zeros(len(columns.plan)) if axis is None else np.array(axis.values, np.float64)[axis.code]


def _best(columns: Columns, code: Ints, cells: int) -> tuple[Floats, Ints]:
    """The best objective, and its plan, of each cell; NaN and -1 where nothing runs."""
    best, plan = np.full(cells, np.nan), np.full(cells, -1, np.int64)
    row = np.full(cells, -1, np.int64)
    worst_first = columns.order[::-1]
    row[code[worst_first]] = worst_first  # the last one written stays
    some = row >= 0
    best[some], plan[some] = columns.measures[columns.by][row[some]], columns.plan[row[some]]
    return best, plan


def _number(value: float) -> float | None:
    """A number with the digits that a chart needs."""
    return float(f"{value:.5g}") if np.isfinite(value) else None


def _shown(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) or value is None else _number(value)


def values_of(axis: Axis) -> list[Any]:
    """The values of an axis as plain data."""
    return [_shown(value) for value in axis.values]
