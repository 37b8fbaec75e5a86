"""Rank the results of a sweep: the best plans by a column, over all plans or within groups. DuckDB runs the queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from sim_core import PARTS, SpecError
from sweep.budget import COSTS
from sweep.columns import UTILISATION, result_column
from sweep.failures import GOODPUT
from sweep.folder import Location
from sweep.query import columns_of, results
from sweep.store import Store
from sweep.stragglers import TAIL

TOP, GROUP_TOP = 20, 1
HIGHER_IS_BETTER: Final = ("samples_per_s", "tokens_per_s", "goodput", "effective_tokens_per_s", *UTILISATION)
MFU: Final = "mfu"
HFU: Final = "hfu"
TFLOPS: Final = "tflops_per_gpu"
MEASURED: Final = "measured_share"
ALL: Final = "all"
IDENTITY: Final = ("plan", "fidelity", "status", "reason")


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The ranked rows, and what the ranking leaves out."""

    rows: pa.Table
    by: str
    descending: bool
    ranked: int
    total: int
    missing: int  # rows that are not computed yet
    mixed_batches: bool  # ranked by step time, though a group holds several global batches
    notes: tuple[str, ...]  # of the run, those that concern the ranking
    filtered: int  # ok, but `where` is false
    reasons: dict[str, int]  # not ranked, by reason
    memory: tuple[float, float, float, float] | None  # least and most that the plans need which do not fit, and have
    varying: tuple[str, ...]  # plan columns with more than one value among the ranked
    held: dict[str, Any]  # plan columns with one value
    plausibility: dict[str, Any]  # what the run stored to hold results against
    utilisation: tuple[tuple[float, float], ...]  # of the rows: TFLOP/s per GPU and MFU, where known
    hfu: tuple[float, ...]  # of those rows that recompute, where known
    measured: tuple[float, ...]  # of the rows: the part of the compute on measured kernels, where known


def rank(
    directory: Location,
    *,
    by: str | None = None,
    top: int | None = None,
    where: str | None = None,
    per: Sequence[str] | None = None,
    columns: Sequence[str] = (),
    descending: bool | None = None,
) -> Ranking:
    """Rank the results in `directory`. Ties go to the lower plan number.

    `by` defaults to the spec's first objective, `per` to its groups, `top` to 20 rows, or 1 per group.
    `columns` may be just `all`.

    Raises SpecError on an unknown column, a bad condition, or a folder without results.
    """
    with results(directory, where) as connection:
        provenance = Store(directory=directory).provenance() or {}
        schema = columns_of(connection)
        ordered_by = ordering(by, descending, provenance, schema)
        by, descending = ordered_by[0]
        if per is None:
            per = provenance.get("spec", {}).get("per", [])
        per = [result_column(name, list(schema)) for name in per]
        top = top or (GROUP_TOP if per else TOP)
        chosen = [result_column(name, list(schema)) for name in columns] if list(columns) != [ALL] else _all_columns(schema)
        condition = f"status = 'ok' AND {_quoted(by)} IS NOT NULL"
        total, reasons = _counts(connection, by)
        memory = _too_large(connection, schema)
        if where:
            _check(connection, where)
            condition += f" AND coalesce(({where}\n), false)"
        ranked = _one(connection, f"SELECT count(*) FROM results WHERE {condition}")
        plan_columns = _plan_columns(schema)
        varying, held = _spread(connection, plan_columns, condition)
        asked = provenance.get("spec", {})
        more_columns = [*(COSTS if asked.get("budget") else ()), *(GOODPUT if asked.get("failures") else ())]
        more_columns += TAIL if asked.get("stragglers") else ()
        select = chosen or [*varying, *_result_columns(by, schema, more_columns)]
        select = list(dict.fromkeys(["plan", *per, *select, by]))
        facts = provenance.get("plausibility", {})
        over = f"PARTITION BY {', '.join(map(_quoted, per))} " if per else ""
        order = ", ".join(f"{_quoted(name)} {'DESC' if more else 'ASC'}" for name, more in ordered_by) + ", plan"
        groups = "".join(f"{_quoted(name)}, " for name in per)
        more = [name for name in (TFLOPS, MFU, HFU, MEASURED) if name in schema and name not in select]
        rows = connection.sql(
            f"WITH ranked AS (SELECT row_number() OVER ({over}ORDER BY {order}) AS rank, * FROM results WHERE {condition}) "
            f"SELECT rank, {', '.join(map(_quoted, [*select, *more]))} "
            f"FROM ranked WHERE rank <= {int(top)} ORDER BY {groups}rank"
        ).to_arrow_table()
    utilisation = _utilisation(rows)
    if not chosen:
        select = [name for name in select if name not in (MFU, *COSTS, *GOODPUT, *TAIL) or rows[name].null_count < len(rows)]
    return Ranking(
        rows=rows.select(["rank", *select]),
        by=by,
        descending=descending,
        ranked=ranked,
        total=total,
        missing=max(int(provenance.get("rows", total)) - total, 0),
        mixed_batches=by == "step_time_s" and "global_batch" in varying and "global_batch" not in per,
        notes=_notes(provenance),
        filtered=total - ranked - sum(reasons.values()),
        reasons=reasons,
        memory=memory,
        varying=tuple(varying),
        held=held,
        plausibility=facts,
        utilisation=utilisation,
        hfu=tuple(a for a, b in zip(*(rows[name].to_pylist() for name in (HFU, MFU)), strict=True) if a != b and a is not None)
        if {HFU, MFU} <= set(rows.column_names)
        else (),
        measured=tuple(share for share in rows[MEASURED].to_pylist() if share is not None) if MEASURED in schema else (),
    )


def _notes(provenance: dict[str, Any]) -> tuple[str, ...]:
    """Notes of the run that concern the ranking."""
    notes = [
        note for note in provenance.get("notes", ()) if note.startswith(("memory:", "budget:", "failures:", "stragglers:"))
    ]
    checks = len(provenance.get("checks", ()))
    if checks:
        notes.append(f"{checks} doubtful record{'s' * (checks != 1)} of the workload file (`sweep inspect` of it says which)")
    return tuple(notes)


def _utilisation(rows: pa.Table) -> tuple[tuple[float, float], ...]:
    """(TFLOP/s per GPU, MFU) of the rows that have it; results of earlier versions have none."""
    if not {TFLOPS, MFU} <= set(rows.column_names):
        return ()
    return tuple((a, b) for a, b in zip(rows[TFLOPS].to_pylist(), rows[MFU].to_pylist(), strict=True) if b is not None)


def outcome(directory: Location) -> tuple[int, int]:
    """Numbers of rows with a result and of rows that failed, in `directory`. Raises SpecError."""
    with results(directory) as connection:
        query = "SELECT count(*) FILTER (status = 'ok'), count(*) FILTER (status = 'failed') FROM results"
        ok, failed = connection.execute(query).fetchall()[0]
    return int(ok), int(failed)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])


def ordering(
    by: str | None, descending: bool | None, provenance: dict[str, Any], schema: dict[str, str]
) -> list[tuple[str, bool]]:
    """The columns to rank by, each with whether more is better: the given one, or the spec's objectives in turn."""
    if by is None:
        objectives = provenance.get("spec", {}).get("objectives", [])
        order = [(result_column(str(o["column"]), list(schema)), o["direction"] == "maximize") for o in objectives]
        if order:
            return [(order[0][0], order[0][1] if descending is None else descending), *order[1:]]
    name = result_column(by or "gpu_s_per_sample", list(schema))
    return [(name, name in HIGHER_IS_BETTER if descending is None else descending)]


def _check(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raise SpecError if `where` has another type than true or false."""
    kind = connection.sql(f"SELECT ({where}\n) FROM results LIMIT 0").types[0]
    if str(kind) != "BOOLEAN":
        raise SpecError(f"--where {where!r}: found a value of type {kind}, expected a condition")


def _counts(connection: duckdb.DuckDBPyConnection, by: str) -> tuple[int, dict[str, int]]:
    """Number of all rows, and of rows that cannot be ranked, by reason."""
    found = connection.execute(
        f"SELECT CASE WHEN status = 'ok' THEN 'no_{by}' ELSE reason END AS why, count(*) FROM results "
        f"WHERE status <> 'ok' OR {_quoted(by)} IS NULL GROUP BY why ORDER BY count(*) DESC, why"
    ).fetchall()
    return _one(connection, "SELECT count(*) FROM results"), {str(why): int(n) for why, n in found}


def _too_large(connection: duckdb.DuckDBPyConnection, schema: dict[str, str]) -> tuple[float, float, float, float] | None:
    """Least and most bytes that plans need which do not fit into their device, and least and most that these have."""
    need, have = "coalesce(peak_memory_bytes, state_bytes)", "device_memory_bytes"
    if have not in schema:
        return None
    query = f"SELECT min({need}), max({need}), min({have}), max({have}) FROM results WHERE reason = 'memory_exceeds_device'"
    found = connection.execute(query).fetchall()[0]
    return None if found[0] is None else (found[0], found[1], found[2], found[3])


def _plan_columns(schema: dict[str, str]) -> list[str]:
    """The columns that define a plan: all before the status."""
    names = list(schema)
    return [name for name in names[: names.index("status")] if name not in IDENTITY]


def _all_columns(schema: dict[str, str]) -> list[str]:
    """Every column but the status and reason, which are those of a result in each ranked row."""
    return [name for name in schema if name not in ("status", "reason")]


def _spread(connection: duckdb.DuckDBPyConnection, names: list[str], condition: str) -> tuple[list[str], dict[str, Any]]:
    """The plan columns that vary among the ranked rows, and the values of those that do not."""
    bounds = ", ".join(f"min({_quoted(n)}), max({_quoted(n)})" for n in names)
    row = connection.execute(f"SELECT {bounds} FROM results WHERE {condition}").fetchall()[0]
    pairs = list(zip(names, row[::2], row[1::2], strict=True))
    return [n for n, low, high in pairs if low != high], {n: low for n, low, high in pairs if low == high}


def _result_columns(by: str, schema: dict[str, str], costs: Sequence[str]) -> list[str]:
    return [by, *(name for name in ("step_time_s", "samples_per_s", *costs, MFU, *PARTS) if name in schema)]
