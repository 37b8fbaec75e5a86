"""The content of a report: every number of the page, as plain data, read in one pass over a result."""

import itertools
import json
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np

from sim_core import EXPLANATIONS, FOLLOWING, MEMORY, PARTS, Floats, Ints, SimError
from sim_core.compiling import in_plain_python
from sim_core.masking import masked
from sweep.ranking.query import Rows, columns_of, results
from sweep.ranking.ranking import rank
from sweep.ranking.selection import quoted
from sweep.reopening import Reopened, reopened
from sweep.report.head import commands_of, head_of
from sweep.report.table import Columns, read_columns
from sweep.results.folder import Folder, Location
from sweep.results.store import Store
from sweep.show.ranked import error_lines
from sweep.tuning.record import NAME, SKIP, Run, read_record, runs_of
from sweep.validation.figures import RECORDED

ROWS: Final = 3000
"""Plans that the page holds in full; of the others it has counts, densities, fronts and best values."""
BINS: Final = 56
MOST_AXES: Final = 16
"""Axes that the heat map offers; each pair has a table of its own."""
PEAK: Final = "peak_memory_bytes"
_DIGITS: Final = 6


def content_of(directory: Location, record: Path | None = None) -> dict[str, Any]:
    """Everything that a page shows of a result. `record`: its measured runs; default: tune.csv in its folder.

    Raises SpecError, FormatError.
    """
    folder = Store(directory=directory).folder
    provenance = Store(directory=folder).provenance() or {}
    runs = _runs(folder, record, provenance)
    with results(folder) as connection:
        columns = read_columns(connection, provenance)
        chosen = _chosen(columns, provenance, runs)
        rows = _rows(connection, columns, chosen)
        measured = _measured(connection, runs)
        ranking = rank(Rows(connection, columns_of(connection), folder))  # verified already
    if any(run.step_time_s for run in runs.values()):
        rows["measured_s"] = [runs[plan].step_time_s if plan in runs else None for plan in rows["plan"]]
    reasons = np.bincount(columns.reason.code, minlength=len(columns.reason.values))
    counted = sorted(zip(columns.reason.values, reasons.tolist(), strict=True), key=lambda each: -each[1])
    trade_offs = [("all_gpus", "step_time_s"), ("peak_memory_bytes", "step_time_s"), ("gpu_s_per_sample", "step_time_s")]
    trade_offs += [(name, "step_time_s") for name in ("usd", "gpu_hours") if name in columns.measures]
    name, place = str(provenance.get("name", masked(directory))), masked(folder)
    axes = {
        axis.name: [axis.values[k] for k in np.unique(axis.code[columns.order])] for axis in columns.axes
    }  # of plans that run
    with in_plain_python():  # a few plans: quicker than to load the compiler
        head = head_of(name, ranking, _opened(folder), place, axes, measured)
    return {
        "name": name,
        "head": head,
        "place": place,
        "commands": commands_of(place, "PLAN"),
        "measured": measured,
        "by": columns.by,
        "descending": columns.descending,
        "per": list(provenance.get("spec", {}).get("per", ())),
        "rows_total": len(columns.plan),
        "rows_missing": max(int(provenance.get("rows", 0)) - len(columns.plan), 0),
        "ran": len(columns.order),
        "axes": [{"name": axis.name, "values": [_shown(value) for value in axis.values]} for axis in columns.axes],
        "rows": rows,
        "parts": [name for name in PARTS if name in rows],
        "memory": [name for name in MEMORY if name in rows and name != PEAK],
        "sensitivity": sensitivity(columns),
        "heat": heat_maps(columns),
        "density": [cells for x, y in trade_offs if (cells := density(columns, x, y))],
        "reasons": [{"reason": reason or "ok", "n": n, "why": EXPLANATIONS.get(reason, "")} for reason, n in counted],
        "reason_names": [reason or "ok" for reason in columns.reason.values],
        "reasons_by_axis": reasons_by_axis(columns),
        "error": list(error_lines(ranking.error_bars, ranking.per)),
        "provenance": _provenance(provenance),
        "validation": _validation(provenance),
    }


def _opened(folder: Folder) -> Reopened | None:
    """The sweep of a result, where its files are at hand."""
    try:
        return reopened(folder)
    except SimError:
        return None


def _runs(folder: Folder, record: Path | None, provenance: Mapping[str, Any]) -> dict[int, Run]:
    """Measured runs of a result, by plan. Raises FormatError, SpecError."""
    path = record if record is not None else folder.local and folder.local / NAME
    return runs_of(read_record(path, str(provenance.get("sweep", "")))) if path else {}


def _measured(connection: duckdb.DuckDBPyConnection, runs: Mapping[int, Run]) -> list[dict[str, Any]]:
    """Measured plans, each with both numbers; what is not among the rows has no simulated one."""
    plans = [plan for plan, run in runs.items() if run.state != SKIP]
    listed = ", ".join(map(str, plans)) or "-1"
    known = columns_of(connection)  # results of earlier versions have fewer columns
    names = ", ".join(name for name in ("plan", "step_time_s", PEAK, "reason") if name in known)
    stored = connection.sql(f"SELECT {names} FROM results WHERE plan IN ({listed})").to_arrow_table()
    simulated = {row["plan"]: row for row in stored.to_pylist()}
    return [
        {
            "plan": plan,
            "state": runs[plan].state,
            "measured_s": runs[plan].step_time_s,
            "measured_bytes": None if (peak := runs[plan].peak_memory_gib) is None else peak * 2**30,
            **{name: simulated.get(plan, {}).get(name) for name in ("step_time_s", PEAK, "reason")},
        }
        for plan in sorted(plans, key=lambda plan: (runs[plan].step_time_s is None, runs[plan].step_time_s or 0, plan))
    ]


def _chosen(columns: Columns, provenance: dict[str, Any], runs: Collection[int]) -> list[int]:
    """Rows of the best plans, as many of each group of the ranking, and those that were measured; the best first."""
    per = [name.removeprefix("hardware.") for name in provenance.get("spec", {}).get("per", ())]
    groups = [axis for axis in columns.axes if axis.name in per]
    code = np.zeros(len(columns.order), np.int64)
    for axis in groups:
        code = code * len(axis.values) + axis.code[columns.order]
    each = max(ROWS // max(len(np.unique(code)), 1), 1)
    by_group = np.argsort(code, kind="stable")  # within a group the best first
    begin = np.searchsorted(code[by_group], code[by_group], side="left")
    place = np.arange(len(by_group)) - begin
    chosen = np.sort(by_group[place < each])[:ROWS]
    chosen = np.union1d(chosen, np.flatnonzero(np.isin(columns.plan[columns.order], sorted(runs))))
    return [int(columns.order[k]) for k in chosen]


def _rows(connection: duckdb.DuckDBPyConnection, columns: Columns, chosen: list[int]) -> dict[str, list[Any]]:
    """The chosen rows, column by column: axes as codes, measures and parts as numbers."""
    plans = columns.plan[chosen]
    known = columns_of(connection)  # results of earlier versions have fewer columns
    names = [name for name in (*PARTS, *MEMORY, "device_memory_bytes", "dp") if name in known and name not in columns.measures]
    wanted = ", ".join(map(quoted, names))
    numbers = ", ".join(str(int(plan)) for plan in plans) or "-1"
    stored = connection.sql(f"SELECT plan, {wanted} FROM results WHERE plan IN ({numbers})").to_arrow_table()
    place = {plan: k for k, plan in enumerate(stored["plan"].to_pylist())}
    order = [place[int(plan)] for plan in plans]
    rows: dict[str, list[Any]] = {"plan": plans.tolist()}
    rows |= {axis.name: axis.code[chosen].tolist() for axis in columns.axes}
    rows |= {name: _digits(values[chosen].tolist()) for name, values in columns.measures.items()}
    for name in names:
        values = stored[name].to_pylist()
        rows[name] = _digits([values[k] for k in order])
    return rows


def _digits(values: list[Any]) -> list[Any]:
    return [None if value is None or value != value else float(f"{value:.{_DIGITS}g}") for value in values]


def _provenance(provenance: dict[str, Any]) -> dict[str, Any]:
    """Where the numbers come from: the spec, the hardware, the files, the notes."""
    files = provenance.get("inputs", {}).get("files", {})
    return {
        "sweep": provenance.get("sweep", ""),
        "simulator": provenance.get("model", ""),
        "version": version("training-plan-sweep"),
        "spec": json.dumps(provenance.get("spec", {}), indent=1),
        "notes": list(provenance.get("notes", ())),
        "held": list(provenance.get("held", ())),
        "checks": list(provenance.get("checks", ())),
        "files": [{"role": role, **file} for role, file in files.items()],
        "hardware": list(dict.fromkeys(device.get("name", "") for device in provenance.get("hardware", ()))),
        "stated": provenance.get("plausibility", {}).get("stated", ""),
    }


def _validation(provenance: dict[str, Any]) -> dict[str, Any]:
    """Recorded errors of measured runs on a device of this kind, else of all; of files nothing is recorded."""
    model = (provenance.get("spec", {}).get("workload") or {}).get("model")
    devices = {str(device.get("name", "")).split("-")[0] for device in provenance.get("hardware", ())}
    known = [figures for figures in json.loads(RECORDED.read_text(encoding="utf-8")) if figures["simulated"]]
    same = [figures for figures in known if str(figures["hw"]).split("-")[0].split(" ")[0] in devices]
    columns = ("set", "hw", "simulated", "mape", "mape_dense", "mape_experts", "worst")
    return {
        "of_model": model is not None,
        "devices": sorted(devices),
        "same": bool(same),
        "rows": [{name: figures[name] for name in columns} for figures in (same or known)],
    }


def sensitivity(columns: Columns) -> list[dict[str, Any]]:
    """For each axis and value: the best objective, how many plans run, how many there are, and the best plan."""
    axes = []
    for axis in columns.axes:
        best, plan = _best(columns, axis.code, len(axis.values))
        ran = np.bincount(axis.code[columns.ran], minlength=len(axis.values))
        whole = np.bincount(axis.code, minlength=len(axis.values))
        kept = [k for k in range(len(axis.values)) if ran[k] or axis.name not in FOLLOWING]  # a ga of 0 is no one's choice
        axes.append(
            {
                "axis": axis.name,
                "values": [_shown(axis.values[k]) for k in kept],
                "best": [_number(best[k]) for k in kept],
                "plan": [int(plan[k]) if plan[k] >= 0 else None for k in kept],
                "ran": [int(ran[k]) for k in kept],
                "all": [int(whole[k]) for k in kept],
            }
        )
    return axes


def heat_maps(columns: Columns) -> dict[str, list[float | None]]:
    """The best objective of each pair of values, row by row, for each pair of axes `a|b`; None where no plan runs."""
    maps = {}
    for row, column in itertools.combinations(columns.axes[:MOST_AXES], 2):
        width = len(column.values)
        best, _ = _best(columns, row.code * width + column.code, len(row.values) * width)
        maps[f"{row.name}|{column.name}"] = [_number(value) for value in best]
    return maps


def reasons_by_axis(columns: Columns) -> dict[str, list[list[int]]]:
    """Rows by value of each axis and reason, [values][reasons]."""
    number = len(columns.reason.values)
    tables = {}
    for axis in columns.axes:
        counts = np.bincount(axis.code * number + columns.reason.code, minlength=len(axis.values) * number)
        tables[axis.name] = counts.reshape(len(axis.values), number).tolist()
    return tables


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
