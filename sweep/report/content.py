"""The content of a report: every number of the page, as plain data, read in one pass over a result."""

import itertools
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import EXPLANATIONS, FOLLOWING, MEMORY, PARTS, Floats, Ints, SimError
from sim_core.compiling import in_plain_python
from sim_core.documents import Fields
from sim_core.masking import masked
from sweep.exporting.meant import meant_by
from sweep.ranking.query import Rows, columns_of, results
from sweep.ranking.ranking import rank
from sweep.ranking.selection import quoted
from sweep.reopening import reopened
from sweep.report.head import commands_of, head_of
from sweep.report.table import Columns, read_columns
from sweep.results.folder import Location
from sweep.results.store import Store
from sweep.show.ranked import error_lines
from sweep.tuning.record import NAME, SKIP, Run, read_record, runs_of

ROWS = 3000
"""Plans that the page holds in full; of the others it has counts, densities, fronts and best values."""
BINS = 56
MOST_AXES = 16
"""Axes that the heat map offers; each pair has a table of its own."""
PEAK, ON_HOST = "peak_memory_bytes", "host_bytes"
TRADE_OFFS = ("all_gpus", PEAK, "gpu_s_per_sample", "usd", "gpu_hours")
"""Columns that are drawn against the step's time."""


def content_of(directory: Location, record: Path | None = None) -> Fields:
    """Everything that a page shows of a result. `record`: its measured runs; default: tune.csv in its folder.

    Raises SpecError, FormatError.
    """
    folder = Store(directory=directory).folder
    provenance = Store(directory=folder).provenance() or {}
    spec, name, place = provenance.get("spec", {}), str(provenance.get("name", masked(directory))), masked(folder)
    path = record if record is not None else folder.local and folder.local / NAME
    runs = runs_of(read_record(path, str(provenance.get("sweep", "")))) if path else {}
    with results(folder) as connection:
        columns = read_columns(connection, provenance)
        rows = _rows(connection, columns, _chosen(columns, spec.get("per", ()), runs))
        measured = _measured(connection, runs)
        ranking = rank(Rows(connection, columns_of(connection), folder))  # verified already
    if any(run.step_time_s for run in runs.values()):
        rows["measured_s"] = [runs[plan].step_time_s if plan in runs else None for plan in rows["plan"]]
    reasons = columns.reason.values
    counted = zip(reasons, _counts(columns.reason.code, len(reasons)).tolist(), strict=True)
    of_axes = {each.name: [each.values[k] for k in np.unique(each.code[columns.order])] for each in columns.axes}  # that run
    opened, meant = None, None
    with in_plain_python(), suppress(SimError):  # a few plans: quicker than to load the compiler; files may not be at hand
        opened = reopened(folder)
    if opened is not None and ranking.best is not None:
        meant = meant_by(ranking, ranking.best, folder, opened=opened)
        ranking = meant.ranking
    with in_plain_python():
        head = head_of(name, ranking, meant, opened, place, of_axes, measured)
    return {
        "name": name,
        "head": head,
        "place": place,
        "commands": commands_of(place, "PLAN"),
        "measured": measured,
        "by": columns.by,
        "descending": columns.descending,
        "per": list(spec.get("per", ())),
        "rows_total": len(columns.plan),
        "rows_missing": max(int(provenance.get("rows", 0)) - len(columns.plan), 0),
        "ran": len(columns.order),
        "axes": [{"name": axis.name, "values": [_shown(value) for value in axis.values]} for axis in columns.axes],
        "rows": rows,
        "parts": [part for part in PARTS if part in rows],
        "memory": [part for part in MEMORY if part in rows and part not in (PEAK, ON_HOST)],
        "sensitivity": _sensitivity(columns),
        "heat": _heat_maps(columns),
        "density": [cells for column in TRADE_OFFS if (cells := _density(columns, column))],
        "reasons": [
            {"reason": reason or "ok", "n": n, "why": EXPLANATIONS.get(reason, "")}
            for reason, n in sorted(counted, key=lambda each: -each[1])
        ],
        "reason_names": [reason or "ok" for reason in reasons],
        "reasons_by_axis": {
            axis.name: _counts(axis.code * len(reasons) + columns.reason.code, len(axis.values) * len(reasons))
            .reshape(len(axis.values), len(reasons))
            .tolist()
            for axis in columns.axes
        },
        "error": list(error_lines(ranking.error_bars, ranking.per)),
        "provenance": provenance,
    }


def _stored(connection: duckdb.DuckDBPyConnection, names: Collection[str], plans: Collection[int]) -> pa.Table:
    """Number and those of some columns that a result has, of some of its plans; results of earlier versions have fewer."""
    chosen = ", ".join(quoted(name) for name in columns_of(connection) if name == "plan" or name in names)
    listed = ", ".join(map(str, plans)) or "-1"
    return connection.sql(f"SELECT {chosen} FROM results WHERE plan IN ({listed})").to_arrow_table()


def _measured(connection: duckdb.DuckDBPyConnection, runs: Mapping[int, Run]) -> list[Fields]:
    """Measured plans, each with both numbers; what is not among the rows has no simulated one."""
    plans = [plan for plan, run in runs.items() if run.state != SKIP]
    names = ("step_time_s", PEAK, "reason")
    simulated = {row["plan"]: row for row in _stored(connection, names, plans).to_pylist()}
    return [
        {
            "plan": plan,
            "state": runs[plan].state,
            "measured_s": runs[plan].step_time_s,
            "measured_bytes": None if (peak := runs[plan].peak_memory_gib) is None else peak * 2**30,
            **{name: simulated.get(plan, {}).get(name) for name in names},
        }
        for plan in sorted(plans, key=lambda plan: (runs[plan].step_time_s is None, runs[plan].step_time_s or 0, plan))
    ]


def _chosen(columns: Columns, groups: Collection[str], runs: Collection[int]) -> list[int]:
    """Rows of the best plans, as many of each group of the ranking, and those that were measured; the best first."""
    per = [name.removeprefix("hardware.") for name in groups]
    code = np.zeros(len(columns.order), int)
    for axis in (axis for axis in columns.axes if axis.name in per):
        code = code * len(axis.values) + axis.code[columns.order]
    each = max(ROWS // max(len(np.unique(code)), 1), 1)
    by_group = np.argsort(code, kind="stable")  # within a group the best first
    begin = np.searchsorted(code[by_group], code[by_group], side="left")
    best = np.sort(by_group[np.arange(len(by_group)) - begin < each])[:ROWS]
    best = np.union1d(best, np.flatnonzero(np.isin(columns.plan[columns.order], sorted(runs))))
    return [int(columns.order[k]) for k in best]


def _rows(connection: duckdb.DuckDBPyConnection, columns: Columns, chosen: list[int]) -> dict[str, list[Any]]:
    """The chosen rows, column by column: axes as codes, measures and parts as numbers."""
    plans = columns.plan[chosen].tolist()
    names = [name for name in (*PARTS, *MEMORY, "device_memory_bytes", "dp") if name not in columns.measures]
    stored = _stored(connection, names, plans)
    place = {plan: k for k, plan in enumerate(stored["plan"].to_pylist())}
    stored = stored.take(pa.array([place[plan] for plan in plans], pa.int64()))
    rows = {"plan": plans} | {axis.name: axis.code[chosen].tolist() for axis in columns.axes}
    rows |= {name: _digits(values[chosen].tolist()) for name, values in columns.measures.items()}
    return rows | {name: _digits(stored[name].to_pylist()) for name in names if name in stored.column_names}


def _digits(values: list[Any]) -> list[Any]:
    return [None if value is None or value != value else float(f"{value:.6g}") for value in values]


def _counts(code: Ints, number: int) -> Ints:
    """How many rows have each of so many codes."""
    return np.bincount(code, minlength=number)


def _sensitivity(columns: Columns) -> list[Fields]:
    """For each axis and value: the best objective, how many plans run, how many there are, and the best plan."""
    axes = []
    for axis in columns.axes:
        number = len(axis.values)
        best, plan = _best(columns, axis.code, number)
        ran, whole = _counts(axis.code[columns.ran], number), _counts(axis.code, number)
        kept = [k for k in range(number) if ran[k] or axis.name not in FOLLOWING]  # a ga of 0 is no one's choice
        axes.append(
            {
                "axis": axis.name,
                "values": [_shown(axis.values[k]) for k in kept],
                "best": [_number(best[k]) for k in kept],
                "plan": [int(plan[k]) if plan[k] >= 0 else None for k in kept],
                "ran": ran[kept].tolist(),
                "all": whole[kept].tolist(),
            }
        )
    return axes


def _heat_maps(columns: Columns) -> dict[str, list[float | None]]:
    """The best objective of each pair of values, row by row, for each pair of axes `a|b`; None where no plan runs."""
    maps = {}
    for row, column in itertools.combinations(columns.axes[:MOST_AXES], 2):
        width = len(column.values)
        best, _ = _best(columns, row.code * width + column.code, len(row.values) * width)
        maps[f"{row.name}|{column.name}"] = [_number(value) for value in best]
    return maps


def _density(columns: Columns, x: str) -> Fields | None:
    """How many plans that run lie where, on logarithmic axes: cells as x, y (the step), count; and the front of both."""
    y = "step_time_s"
    values = columns.measures.get(x)
    if values is None:
        axis = next((each for each in columns.axes if each.name == x), None)
        if axis is None:
            return None
        values = np.array(axis.values, float)[axis.code]
    values, others, plan = values[columns.order], columns.measures[y][columns.order], columns.plan[columns.order]
    known = (values > 0) & (others > 0)
    if not known.any():
        return None
    values, others, plan = values[known], others[known], plan[known]
    a, b = np.log10(values), np.log10(others)
    counts, edges_x, edges_y = np.histogram2d(a, b, bins=BINS, range=[_around(a), _around(b)])
    order = np.lexsort((others, values))
    least = np.minimum.accumulate(others[order])
    front = order[np.concatenate(([True], others[order][1:] < least[:-1]))]  # that no other beats in both, by x
    return {
        "x": x,
        "y": y,
        "edges_x": [_number(10**edge) for edge in edges_x],
        "edges_y": [_number(10**edge) for edge in edges_y],
        "cells": [[int(i), int(j), int(counts[i, j])] for i, j in np.argwhere(counts > 0)],
        "front": [[int(plan[k]), _number(values[k]), _number(others[k])] for k in front],
    }


def _around(values: Floats) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = max(0.03 * (high - low), 0.02)
    return low - margin, high + margin


def _best(columns: Columns, code: Ints, cells: int) -> tuple[Floats, Ints]:
    """The best objective, and its plan, of each cell; NaN and -1 where nothing runs."""
    best, plan = np.full(cells, np.nan), np.full(cells, -1, int)
    row = np.full(cells, -1, int)
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
