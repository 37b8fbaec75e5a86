"""A plan among those of its result: whether errors tell it from the best, and the nearest that runs if it cannot."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sim_core import plural
from sweep.answers.variation import PlanOfResult, Variation
from sweep.columns import LONGER, NO_CHOICE, SHORTER
from sweep.ranking.error_bars import GroupBars
from sweep.ranking.query import columns_of, plan_columns, results
from sweep.ranking.ranking import TOP, rank
from sweep.ranking.selection import quoted
from sweep.uncertainty.evidence import basis_of
from sweep.uncertainty.judging import judge


@dataclass(frozen=True, kw_only=True)
class Within:
    """A plan beside the best of its group (values of the spec's `per`). `low`, `high`: its measured over its simulated step."""

    group: dict[str, Any]
    by: str
    best: int
    behind: float  # how much dearer than the best in `by`, a fraction
    tie: bool  # cannot be told from the best; true for the best
    low: float
    high: float
    tied: tuple[int, ...]  # other plans that tie with the best, of the first TOP
    bars: GroupBars  # how many do of all, and which runs would tell
    why: str  # what it rests on


def within(plan: PlanOfResult) -> Within | None:
    """Where a plan stands in its result; None where no error is known, or what is ranked by is no time."""
    folder, row = plan.opened.folder, plan.row
    group = {name: row[name] for name in rank(folder, top=1).per}
    ranking = rank(folder, where=" AND ".join(_is(*each) for each in group.items()) or None, per=[], top=TOP)
    basis, by = basis_of(plan.opened.provenance), ranking.by
    if basis.spread is None or not ranking.error_bars.groups or by not in LONGER + SHORTER or not row.get(by):
        return None
    first = ranking.rows.slice(0, 1).to_pylist()[0]
    columns = list(ranking.varying)
    pair = pa.Table.from_pylist([{name: each[name] for name in (*columns, "plan")} for each in (first, row)])
    cost = np.array([each[by] if by in LONGER else 1 / each[by] for each in (first, row)], float)
    judged = judge(pair, columns, cost, basis)
    (own,) = rank(folder, where=f"plan = {plan.plan}", per=[], top=1).rows.to_pylist()
    bars = ranking.error_bars.groups[0]
    ties = zip(ranking.rows["plan"].to_pylist(), ranking.rows["tie"].to_pylist(), strict=True)
    return Within(
        group=group,
        by=by,
        best=bars.best,
        behind=float(cost[1] / cost[0] - 1),
        tie=bool(judged.tie[1]) or plan.plan == bars.best,
        low=own["step_time_low_s"] / own["step_time_s"],
        high=own["step_time_high_s"] / own["step_time_s"],
        tied=tuple(number for number, tie in ties if tie and number != bars.best),
        bars=bars,
        why=ranking.error_bars.why,
    )


def _is(name: str, value: Any) -> str:
    """The condition that a column has this value."""
    text = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
    return f"{quoted(name)} = {text}"


def nearest_running(plan: PlanOfResult) -> Variation | None:
    """The plan with a result that has the fewest other values than this one, of these the fastest; None if none runs."""
    row = plan.row
    with results(plan.opened.folder) as connection:
        compared = [name for name in plan_columns(columns_of(connection), NO_CHOICE) if name in row]
        apart = " + ".join(f"({quoted(name)} IS DISTINCT FROM ?)::INT" for name in compared) or "0"
        nearest = connection.sql(
            f"SELECT {', '.join(['plan', *compared, 'status'])} FROM results WHERE status = 'ok' AND hardware = ? "
            f"ORDER BY {apart}, gpu_s_per_sample, plan LIMIT 1",
            params=[row["hardware"], *(row[name] for name in compared)],
        ).to_arrow_table()
    found = nearest.to_pylist()
    return Variation(change=f"plan {found[0]['plan']}", before=row, after=found[0]) if found else None


def ties_of(group: GroupBars) -> str:
    """How many plans tie with the best of a group, and what would tell."""
    return f"{plural(group.tied)} cannot be told from plan {group.best}; `sweep tune` says which to run"
