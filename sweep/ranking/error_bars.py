"""Error bars of a ranking: an interval of each plan, which plans cannot be told from the best, which runs would tell.

Computed from the columns of a result when it is ranked, so for results of any executor and version.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Floats, Ints
from sweep.columns import LONGER, SHORTER
from sweep.ranking.query import NAMED, columns_of
from sweep.ranking.selection import CHOSEN, group_numbers, grouped_by, quoted, same_group
from sweep.ranking.worlds import Worlds
from sweep.uncertainty.belief import Error, quantile, recorded
from sweep.uncertainty.evidence import CONFIDENCE, LEVEL, NORMAL_90, Basis, t3_quantile
from sweep.uncertainty.judging import DEVICE, NO_CHOICE, OTHER_DEVICE, Judgement, judge
from sweep.uncertainty.process import DOUBLING, NEAR, OWN, RANGE, SLOPE_ENDS

COLUMNS = ("step_time_low_s", "step_time_high_s", "tie")
"""Columns that a ranking adds: an interval that holds the measured step of nine of ten plans; cannot be told from the best."""
ADVISED = 3
"""Groups whose ties are told: those that come first."""
SLACK = 1.001
"""Rows that nearly tie are looked at, too: SQL and NumPy round differently."""
_SECONDS = "seconds"


class GroupBars(NamedTuple):
    """The best plan of a group and those that tie with it."""

    group: tuple[Any, ...]  # values of `per`
    best: int  # plan that is expected to be the best
    low: float  # its measured step over the simulated one
    high: float
    tied: int  # plans with other numbers that tie with it


class ErrorBars(NamedTuple):
    """Of a ranking. `columns`: COLUMNS for its rows, null where unknown."""

    columns: pa.Table
    groups: tuple[GroupBars, ...]  # the first ADVISED
    why: str  # which evidence, or why there is none


def error_bars(
    connection: duckdb.DuckDBPyConnection,
    rows: pa.Table,
    *,
    condition: str,
    by: str,
    per: Sequence[str],
    varying: Sequence[str],
    basis: Basis,
    worlds: Worlds | None = None,
) -> ErrorBars:
    """Error bars of the chosen `rows` among all that meet the `condition`, which compete in each group `per`.

    `worlds`: the rows in each, where no stack is named.
    """
    if basis.spread is None:
        unknown = [pa.nulls(len(rows), kind) for kind in (pa.float64(), pa.float64(), pa.bool_())]
        return ErrorBars(pa.table(unknown, list(COLUMNS)), (), basis.why)
    why, timed = basis.why, by in LONGER + SHORTER
    if not timed:
        by, why = "step_time_s", f"{why}; {by} is no time: no plans tie"
    compared = [name for name in varying if name not in (*NO_CHOICE, *per)]
    seconds = quoted(by) if by in LONGER else f"1 / {quoted(by)}"
    known = f"({condition}) AND {quoted(by)} > 0 AND isfinite({quoted(by)})"
    known += " AND fidelity = 'event'" if "fidelity" in rows.column_names else ""
    names = "".join(f"{quoted(name)}, " for name in dict.fromkeys([*per, *compared]))
    inner = f"SELECT plan, {names}{seconds} AS {_SECONDS} FROM {NAMED} WHERE {known}"
    near = _near(connection, inner, per, compared, basis)
    candidates = connection.sql(
        f"SELECT candidate.* FROM ({inner}) candidate {near} OR candidate.plan IN (SELECT plan FROM {CHOSEN}) ORDER BY plan"
    ).to_arrow_table()
    group, values, plans = group_numbers(candidates, per), candidates[_SECONDS].to_numpy(), candidates["plan"].to_numpy()
    judged = judge(candidates, compared, values, basis, group)
    numbers = rows["plan"].to_numpy()
    there = np.isin(numbers, plans)
    at = np.searchsorted(plans, numbers[there])  # the chosen rows among the candidates
    wider = np.ones(len(plans))  # than the evidence says, of the chosen rows
    wider[at] = basis.wider(rows)[there]
    judged = judged.widened(wider)
    ends, tie = np.full((2, len(rows)), np.nan), np.zeros(len(rows), bool)
    factors = np.stack([judged.low, judged.high])[:, at]
    if worlds is not None:
        factors = _in_worlds(worlds, basis, basis.wider(rows))[:, there]
    ends[:, there] = factors * rows["step_time_s"].to_numpy()[there]
    tie[there] = judged.tie[at]
    low, high = (pa.array(each, mask=np.isnan(ends[0])) for each in ends)
    columns = pa.table([low, high, pa.array(tie, mask=~(there & timed))], list(COLUMNS))
    advised = list(dict.fromkeys(group[at].tolist()))[: ADVISED if timed else 0]
    members = (np.flatnonzero(group == number) for number in advised)
    groups = tuple(_group_bars(candidates, values, judged, member, per) for member in members)
    return ErrorBars(columns, groups, why)


def _in_worlds(worlds: Worlds, basis: Basis, wider: Floats) -> Floats:
    """The step of each row over the simulated one, at least and at most, over all worlds that can run it, [2, n]."""
    n, known, unknown = len(wider), basis.spread, basis.unknown
    if known is None or unknown is None:
        return np.full((2, n), np.nan)
    spreads = [known if world.known else unknown for world in worlds.worlds]
    usual = [
        recorded().pages[world.stack].beside_step if world.stack and not worlds.step else Error(0, 0) for world in worlds.worlds
    ]
    moved = worlds.moved(n) + np.array([[each.mean] for each in usual])
    means = np.nan_to_num(moved) + np.array([[each.middle] for each in spreads])
    sds = np.array([[(each.high - each.low) / 2 / NORMAL_90] for each in spreads]) * wider
    sds = np.hypot(sds, np.array([[each.sd] for each in usual]))
    chances = np.array([[world.chance] for world in worlds.worlds]) * ~np.isnan(moved)
    chances = chances / chances.sum(0)
    return np.exp([quantile(level, chances, means, sds) for level in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)])


def _group_bars(candidates: pa.Table, seconds: Floats, judged: Judgement, member: Ints, per: Sequence[str]) -> GroupBars:
    """Of one group: its members among the candidates; plans with the same numbers are one."""
    _, first = np.unique(seconds[member].astype(np.float32), return_index=True)
    best = int(judged.best[member[0]])
    return GroupBars(
        group=tuple(candidates[name][best].as_py() for name in per),
        best=candidates["plan"][best].as_py(),
        low=float(judged.low[best]),
        high=float(judged.high[best]),
        tied=int(judged.tie[member[first]].sum()) - 1,
    )


def _near(
    connection: duckdb.DuckDBPyConnection,
    inner: str,
    per: Sequence[str],
    compared: Sequence[str],
    basis: Basis,
) -> str:
    """SQL that joins each candidate with the best of its group, and is true of those that may tie with it."""
    groups = [quoted(name) for name in per]
    listed, same = "".join(f"{name}, " for name in groups), same_group(groups, "least", "one")
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE bests AS WITH one AS ({inner}), "
        f"least AS (SELECT {listed}min({_SECONDS}) AS least FROM one {grouped_by(groups)}) SELECT * FROM one WHERE plan IN "
        f"(SELECT min(one.plan) FROM one JOIN least ON {same} WHERE one.{_SECONDS} = least.least "
        f"{grouped_by([f'one.{name}' for name in groups])})"
    ).fetchall()
    joined = f"JOIN bests ON {same_group(groups, 'bests', 'candidate')} WHERE"
    behind = f"ln(candidate.{_SECONDS} / bests.{_SECONDS})"
    differences = basis.differences
    if differences is None:
        return f"{joined} false"
    kinds = columns_of(connection, "bests")
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
