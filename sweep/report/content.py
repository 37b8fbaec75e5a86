"""The content of a report: every number of the page, as plain data, read in one pass over a result."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any, Final

import duckdb
import numpy as np

from sim_core import EXPLANATIONS, PARTS
from sweep.folder import Location
from sweep.query import columns_of, results
from sweep.ranking import rank
from sweep.report.charts import density, heat_maps, reasons_by_axis, sensitivity, values_of
from sweep.report.table import Columns, read_columns
from sweep.selection import quoted
from sweep.show.error_bars import error_lines
from sweep.store import Store
from sweep.validation.figures import RECORDED

ROWS: Final = 3000
"""Plans that the page holds in full; of the others it has counts, densities, fronts and best values."""
_DIGITS: Final = 6


def content_of(directory: Location) -> dict[str, Any]:
    """Everything that a page shows of a result. Raises SpecError."""
    provenance = Store(directory=directory).provenance() or {}
    with results(directory) as connection:
        columns = read_columns(connection, provenance)
        chosen = _chosen(columns, provenance)
        rows = _rows(connection, columns, chosen)
        ranking = rank(directory, connection=connection)
    reasons = np.bincount(columns.reason.code, minlength=len(columns.reason.values))
    counted = sorted(zip(columns.reason.values, reasons.tolist(), strict=True), key=lambda each: -each[1])
    trade_offs = [("all_gpus", "step_time_s"), ("peak_memory_bytes", "step_time_s"), ("gpu_s_per_sample", "step_time_s")]
    trade_offs += [(name, "step_time_s") for name in ("usd", "gpu_hours") if name in columns.measures]
    return {
        "name": provenance.get("name", str(directory)),
        "by": columns.by,
        "descending": columns.descending,
        "per": list(provenance.get("spec", {}).get("per", ())),
        "rows_total": len(columns.plan),
        "rows_missing": max(int(provenance.get("rows", 0)) - len(columns.plan), 0),
        "ran": len(columns.order),
        "axes": [{"name": axis.name, "values": values_of(axis)} for axis in columns.axes],
        "rows": rows,
        "parts": [name for name in PARTS if name in rows],
        "sensitivity": sensitivity(columns),
        "heat": heat_maps(columns),
        "density": [found for x, y in trade_offs if (found := density(columns, x, y))],
        "reasons": [{"reason": reason or "ok", "n": n, "why": EXPLANATIONS.get(reason, "")} for reason, n in counted],
        "reason_names": [reason or "ok" for reason in columns.reason.values],
        "reasons_by_axis": reasons_by_axis(columns),
        "error": list(error_lines(ranking.error_bars, ranking.per)),
        "provenance": _provenance(provenance),
        "validation": _validation(provenance),
    }


def _chosen(columns: Columns, provenance: dict[str, Any]) -> list[int]:
    """Rows of the best plans, as many of each group of the ranking, the best first."""
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
    return [int(columns.order[k]) for k in chosen]


def _rows(connection: duckdb.DuckDBPyConnection, columns: Columns, chosen: list[int]) -> dict[str, list[Any]]:
    """The chosen rows, column by column: axes as codes, measures and parts as numbers."""
    plans = columns.plan[chosen]
    held = columns_of(connection)  # results of earlier versions have fewer columns
    names = [name for name in (*PARTS, "device_memory_bytes", "dp") if name in held]
    wanted = ", ".join(map(quoted, names))
    numbers = ", ".join(str(int(plan)) for plan in plans) or "-1"
    found = connection.sql(f"SELECT plan, {wanted} FROM results WHERE plan IN ({numbers})").to_arrow_table()
    place = {plan: k for k, plan in enumerate(found["plan"].to_pylist())}
    order = [place[int(plan)] for plan in plans]
    rows: dict[str, list[Any]] = {"plan": plans.tolist()}
    rows |= {axis.name: axis.code[chosen].tolist() for axis in columns.axes}
    rows |= {name: _digits(values[chosen].tolist()) for name, values in columns.measures.items()}
    for name in names:
        values = found[name].to_pylist()
        rows[name] = _digits([values[k] for k in order])
    return rows


def _digits(values: list[Any]) -> list[Any]:
    return [None if value is None or value != value else float(f"{value:.{_DIGITS}g}") for value in values]


def _provenance(held: dict[str, Any]) -> dict[str, Any]:
    """Where the numbers come from: the spec, the hardware, the files, the notes."""
    files = held.get("inputs", {}).get("files", {})
    return {
        "sweep": held.get("sweep", ""),
        "simulator": held.get("model", ""),
        "version": version("training-plan-sweep"),
        "spec": json.dumps(held.get("spec", {}), indent=1),
        "notes": list(held.get("notes", ())),
        "held": list(held.get("held", ())),
        "checks": list(held.get("checks", ())),
        "files": [{"role": role, **file} for role, file in files.items()],
        "hardware": list(dict.fromkeys(one.get("name", "") for one in held.get("hardware", ()))),
        "stated": held.get("plausibility", {}).get("stated", ""),
    }


def _validation(held: dict[str, Any]) -> dict[str, Any]:
    """Recorded errors of measured runs on a device of this kind, else of all; of files nothing is recorded."""
    model = (held.get("spec", {}).get("workload") or {}).get("model")
    devices = {str(one.get("name", "")).split("-")[0] for one in held.get("hardware", ())}
    known = [one for one in json.loads(RECORDED.read_text(encoding="utf-8")) if one["simulated"]]
    same = [one for one in known if str(one["hw"]).split("-")[0].split(" ")[0] in devices]
    columns = ("set", "hw", "simulated", "mape", "mape_dense", "mape_experts", "worst")
    return {
        "of_model": model is not None,
        "devices": sorted(devices),
        "same": bool(same),
        "rows": [{name: one[name] for name in columns} for one in (same or known)],
    }
