"""The best plan of a result beside the job that runs: how much less time its step is expected to take, with an interval."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from sim_core.documents import Fields, Values
from sweep.columns import LONGER, SHORTER
from sweep.ranking.query import Rows, plan_columns
from sweep.ranking.selection import quoted
from sweep.spec.spec import Running
from sweep.spec.values import Value
from sweep.uncertainty.evidence import LEVEL, Basis, Differences, t3_quantile
from sweep.uncertainty.judging import coordinates, distances, squares

FOLLOWING = ("dp", "ga")
"""Fields of plans that follow from others."""


class Win(NamedTuple):
    """A plan that is expected to be faster than the job that runs."""

    moves: str  # what of the job changes: "one" of its switches, several that move "nothing", its "layout", "all"
    plan: int
    changes: str
    ratio: tuple[float, float, float]  # of its step to the job's: at least, expected, at most
    runs: float  # its chance to run


class Beside(NamedTuple):
    """The job that runs, among the plans of a result. `ratio`: step of the best plan over its own, at least, expected, at
    most (LEVEL); None where nothing tells. `reason`: why its plan has no simulated step; "" if it has."""

    plan: int | None  # its number; None: not among the rows
    reason: str
    best: int
    simulated_s: float | None
    measured_s: float | None
    ratio: tuple[float, float, float] | None
    simulated: float | None = None  # the same ratio as simulated
    differences: Differences | None = None  # what tells how sure it is
    wins: tuple[Win, ...] = ()  # the cheapest first

    @property
    def step_s(self) -> float | None:
        """Seconds of its step: measured, else simulated."""
        return self.measured_s or self.simulated_s


def beside_running(
    connection: duckdb.DuckDBPyConnection, provenance: Values, rows: pa.Table, by: str, basis: Basis
) -> Beside | None:
    """The job that the spec of a result says to run, beside the first of the ranked `rows`; None without one.

    `by`: the column that they are ranked by; beside one that is no time nothing is faster.
    """
    section = (provenance.get("spec") or {}).get("running")
    if not section or not rows.num_rows or by not in LONGER + SHORTER:
        return None
    running = Running.model_validate(section)
    best = int(rows["plan"][0].as_py())
    same, fields = _same(running, connection.sql("FROM results LIMIT 0").columns)
    query = f"SELECT * FROM results WHERE ({same}) OR plan = {best} ORDER BY plan"
    found = connection.sql(query, params=list(fields.values())).to_arrow_table()
    nothing: Fields = {"plan": None, "status": "", "reason": ""}
    mine = next((row for row in found.to_pylist() if all(row[name] == value for name, value in fields.items())), nothing)
    runs, of_plan = mine["status"] == "ok", plan_columns(found.column_names, ("plan",))
    return Beside(
        plan=mine["plan"],
        reason=mine["reason"] or "",
        best=best,
        simulated_s=mine["step_time_s"] if runs else None,
        measured_s=running.step_time_s,
        ratio=ratio_of(found, mine["plan"], best, by, of_plan, basis.differences) if runs else None,
        differences=basis.differences,
    )


def plan_of_running(source: Rows, running: Running) -> int | None:
    """The number of the plan that runs; None if it is not among the rows."""
    same, fields = _same(running, source.columns)
    source.ask({"plan", *fields})
    found = source.connection.execute(f"SELECT min(plan) FROM results WHERE {same}", list(fields.values())).fetchall()
    return None if found[0][0] is None else int(found[0][0])


def _same(running: Running, columns: Collection[str]) -> tuple[str, dict[str, Value]]:
    """SQL that holds of plans with the fields of the job, and these, whose values are its parameters."""
    fields = {name: value for name, value in running.plan.items() if name in columns and name not in FOLLOWING}
    return " AND ".join(f"{quoted(name)} = ?" for name in fields) or "false", fields


def ratio_of(
    rows: pa.Table, mine: int, best: int, by: str, columns: Sequence[str], differences: Differences | None
) -> tuple[float, float, float] | None:
    """The step of another plan over that of plan `mine`: simulated, with the interval that pairs of measured runs give.

    `columns`: those of a plan in which plans may differ.
    """
    if differences is None:
        return None
    if mine == best:
        return 1.0, 1.0, 1.0
    numbers = rows["plan"].to_pylist()
    pair = rows.take([numbers.index(mine), numbers.index(best)])
    own, least = pair[by].to_pylist() if by in LONGER else (1 / amount for amount in pair[by].to_pylist())
    points = coordinates(pair, columns)
    variance = differences.variogram(distances(points, 0), squares(points, 0))[1]
    width, ratio = t3_quantile((1 + LEVEL) / 2) * float(variance) ** 0.5, least / own
    return float(ratio * np.exp(-width)), float(ratio), float(ratio * np.exp(width))
