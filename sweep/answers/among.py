"""A plan among those of its result: whether errors tell it from the best, and the nearest that runs if it cannot."""

from dataclasses import dataclass
from typing import Any

from sim_core import plural
from sweep.answers.variation import STEP, PlanOfResult, Variation
from sweep.columns import EXPECTED, LONGER, NO_CHOICE
from sweep.exporting.meant import believed
from sweep.ranking.error_bars import GroupBars
from sweep.ranking.query import columns_of, plan_columns, results
from sweep.ranking.ranking import TOP, rank
from sweep.ranking.selection import equals, quoted


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
    where = " AND ".join(equals(*each) for each in group.items()) or None
    ranking = believed(rank(folder, where=where, per=[], top=TOP), plan.tuner, [*group])
    by = ranking.by
    if not ranking.error_bars.groups or not row.get(by):
        return None
    bars = ranking.error_bars.groups[0]
    pair = rank(folder, where=f"plan IN ({bars.best}, {plan.plan})", per=[], top=2, every=True)
    rows = {each["plan"]: each for each in believed(pair, plan.tuner).rows.to_pylist()}
    best, own = rows[bars.best], rows[plan.plan]
    cost, least = (
        (each[by] if by in LONGER else 1 / each[by]) * each.get(EXPECTED, each[STEP]) / each[STEP] for each in (own, best)
    )
    return Within(
        group=group,
        by=by,
        best=bars.best,
        behind=float(cost / least - 1),
        tie=bool(own["tie"]),
        low=own["step_time_low_s"] / own["step_time_s"],
        high=own["step_time_high_s"] / own["step_time_s"],
        tied=tuple(each["plan"] for each in ranking.rows.to_pylist() if each["tie"] and each["plan"] != bars.best),
        bars=bars,
        why=ranking.error_bars.why,
    )


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
