"""Error bars of a ranking: an interval of each plan, which plans cannot be told from the best, which runs would tell.

Computed from the columns of a result when it is ranked, so for results of any executor and version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Bools, Floats, Ints
from sweep.columns import LONGER, SHORTER
from sweep.ranking.query import NAMED
from sweep.ranking.selection import CHOSEN, group_numbers, grouped_by, quoted, same_group
from sweep.uncertainty.evidence import CONFIDENCE, Basis, t3_quantile
from sweep.uncertainty.judging import DEVICE, NO_CHOICE, OTHER_DEVICE, Judgement, OwnRuns, judge, widest
from sweep.uncertainty.process import DOUBLING, NEAR, OWN, RANGE, SLOPE_ENDS

COLUMNS: Final = ("step_time_low_s", "step_time_high_s", "tie")
"""Columns that a ranking adds: an interval that holds the measured step of nine of ten plans; cannot be told from the best."""
ADVISED: Final = 3
"""Groups whose ties are told: those that come first."""
SLACK: Final = 1.001
"""Rows that nearly tie are looked at, too: SQL and NumPy round differently."""
_SECONDS: Final = "seconds"


@dataclass(frozen=True, kw_only=True)
class GroupBars:
    """The best plan of a group and those that tie with it."""

    group: tuple[Any, ...]  # values of `per`
    best: int  # plan that is expected to be the best
    low: float  # its measured step over the simulated one
    high: float
    tied: int  # plans with other numbers that tie with it


@dataclass(frozen=True, kw_only=True)
class ErrorBars:
    """Of a ranking. `columns`: COLUMNS for its rows, null where unknown."""

    columns: pa.Table
    groups: tuple[GroupBars, ...]  # the first ADVISED
    why: str  # which evidence, or why there is none
    own: int  # runs of the user's own that were taken into account


def error_bars(
    connection: duckdb.DuckDBPyConnection,
    rows: pa.Table,
    *,
    condition: str,
    by: str,
    per: Sequence[str],
    varying: Sequence[str],
    basis: Basis,
    own: OwnRuns | None = None,
) -> ErrorBars:
    """Error bars of the chosen `rows` among all that meet the `condition`, which compete in each group `per`."""
    if basis.spread is None:
        return ErrorBars(columns=_unknown(len(rows)), groups=(), why=basis.why, own=0)
    why, timed = basis.why, by in (*LONGER, *SHORTER)
    if not timed:
        by, why = "step_time_s", f"{why}; {by} is no time: no plans tie"
    compared = [name for name in varying if name not in (*NO_CHOICE, *per)]
    seconds = quoted(by) if by in LONGER else f"1 / {quoted(by)}"
    known = f"({condition}) AND {quoted(by)} > 0 AND isfinite({quoted(by)})"
    known += " AND fidelity = 'event'" if "fidelity" in rows.column_names else ""
    names = ", ".join(quoted(name) for name in dict.fromkeys([*per, *compared]))
    inner = f"SELECT plan, {names}{', ' if names else ''}{seconds} AS {_SECONDS} FROM {NAMED} WHERE {known}"
    near = _near(connection, inner, per, compared, basis, own)
    candidates = connection.sql(
        f"SELECT candidate.* FROM ({inner}) candidate {near} OR candidate.plan IN (SELECT plan FROM {CHOSEN}) ORDER BY plan"
    ).to_arrow_table()
    group = group_numbers(candidates, per)
    values = candidates[_SECONDS].to_numpy()
    judged = judge(candidates, compared, values, basis, own, group)
    at, known_rows = _places(rows, candidates["plan"].to_numpy())
    wider = np.ones(len(candidates))  # than the evidence says, of the chosen rows
    wider[at[known_rows]] = basis.wider(rows)[known_rows]
    judged = judged.widened(wider)
    return ErrorBars(
        columns=_columns(rows, candidates["plan"].to_numpy(), judged, ties=timed),
        groups=tuple(_group_bars(rows, candidates, values, judged, group, per)) if timed else (),
        why=why,
        own=0 if own is None else len(own.error),
    )


def _near(
    connection: duckdb.DuckDBPyConnection,
    inner: str,
    per: Sequence[str],
    compared: Sequence[str],
    basis: Basis,
    own: OwnRuns | None,
) -> str:
    """SQL that joins each candidate with the best of its group, and is true of those that may tie with it."""
    groups = [quoted(name) for name in per]
    listed, same = "".join(f"{name}, " for name in groups), same_group(groups, "least", "one")
    of_group = grouped_by([f"one.{name}" for name in groups])
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE bests AS WITH one AS ({inner}), "
        f"least AS (SELECT {listed}min({_SECONDS}) AS least FROM one {grouped_by(groups)}) SELECT * FROM one WHERE plan IN "
        f"(SELECT min(one.plan) FROM one JOIN least ON {same} WHERE one.{_SECONDS} = least.least {of_group})"
    ).fetchall()
    joined = f"JOIN bests ON {same_group(groups, 'bests', 'candidate')} WHERE"
    behind = f"ln(candidate.{_SECONDS} / bests.{_SECONDS})"
    differences = basis.differences
    if differences is None:
        return f"{joined} false"
    if own is not None and len(own.error) and basis.spread is not None:  # what is best may change
        shift = 2 * float(np.abs(own.error - basis.spread.middle).max())
        return f"{joined} {behind} <= {float(np.log(widest(basis)) + shift)!r}"
    schema = connection.sql("FROM bests LIMIT 0")
    kinds = dict(zip(schema.columns, map(str, schema.types), strict=True))
    each = [_apart(name, kinds[name]) for name in compared]
    apart, squared = " + ".join(each) or "0", " + ".join(f"power({one}, 2)" for one in each) or "0"
    near = f"{2 * OWN**2 + 2 * NEAR**2!r} - {2 * NEAR**2!r} * exp(-({apart}) / {RANGE!r})"
    variance = f"{differences.size**2!r} * ({near} + {DOUBLING**2!r} * least({squared}, {SLOPE_ENDS!r}))"
    return f"{joined} {behind} <= {t3_quantile(CONFIDENCE) * SLACK!r} * sqrt({variance})"


def _apart(name: str, kind: str) -> str:
    """SQL for the distance between a candidate and the best in a column, or more (`sweep.uncertainty.judging`)."""
    own, best = f"candidate.{quoted(name)}", f"bests.{quoted(name)}"
    if kind in ("BIGINT", "DOUBLE"):
        doublings = f"abs(log2(greatest({own}, 1e-300) / greatest({best}, 1e-300)))"
        whole = f"least({own}, {best}) > 0"
        return f"CASE WHEN {own} = {best} THEN 0 WHEN {whole} THEN greatest({doublings}, 1) ELSE 1 END"
    return f"CASE WHEN {own} = {best} THEN 0 ELSE {OTHER_DEVICE if name == DEVICE else 1.0!r} END"


def _places(rows: pa.Table, plans: Ints) -> tuple[Ints, Bools]:
    """Where the `rows` are among some plans (ascending), and whether they are there at all."""
    numbers = rows["plan"].to_numpy()
    at = np.minimum(np.searchsorted(plans, numbers), max(len(plans) - 1, 0))
    return at, plans[at] == numbers if len(plans) else np.zeros(len(numbers), np.bool_)


def _unknown(n: int) -> pa.Table:
    return pa.table([pa.nulls(n, pa.float64()), pa.nulls(n, pa.float64()), pa.nulls(n, pa.bool_())], list(COLUMNS))


def _columns(rows: pa.Table, plans: Ints, judged: Judgement, *, ties: bool) -> pa.Table:
    """COLUMNS of the rows, by their plan numbers among those judged (ascending)."""
    at, known = _places(rows, plans)
    if not known.any():
        return _unknown(len(rows))
    step_s = rows["step_time_s"].to_numpy()
    low, high = step_s * judged.low[at], step_s * judged.high[at]
    lost = ~known | np.isnan(low)
    return pa.table(
        {
            "step_time_low_s": pa.array(low, mask=lost),
            "step_time_high_s": pa.array(high, mask=lost),
            "tie": pa.array(judged.tie[at], mask=~known) if ties else pa.nulls(len(rows), pa.bool_()),
        }
    )


def _group_bars(
    rows: pa.Table,
    candidates: pa.Table,
    seconds: Floats,
    judged: Judgement,
    group: Ints,
    per: Sequence[str],
) -> Iterator[GroupBars]:
    """Of the groups in the order of the ranking, the first ADVISED."""
    plans = candidates["plan"].to_numpy()
    ranked = np.flatnonzero(np.isin(plans, rows["plan"].to_numpy()))
    place = {int(plan): at for at, plan in enumerate(rows["plan"].to_pylist())}
    in_order = sorted(ranked.tolist(), key=lambda at: place[int(plans[at])])
    for number in list(dict.fromkeys(int(group[at]) for at in in_order))[:ADVISED]:
        member = np.flatnonzero(group == number)
        _, first = np.unique(seconds[member].astype(np.float32), return_index=True)  # plans with the same numbers are one
        member = member[np.sort(first)]
        best = int(judged.best[member[0]])
        at = int(np.flatnonzero(member == best)[0]) if best in member else 0
        part = judged.chosen(member, at)
        yield GroupBars(
            group=tuple(candidates[name][best].as_py() for name in per),
            best=int(plans[best]),
            low=float(judged.low[best]),
            high=float(judged.high[best]),
            tied=int(part.tie.sum()) - 1,
        )
