"""Error bars of a ranking: an interval of each plan, which plans cannot be told from the best, which runs would tell.

Computed from the columns of a result when it is ranked, so for results of any executor and version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Floats, Ints
from sweep.columns import LONGER, SHORTER
from sweep.ranking.selection import CHOSEN, quoted
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
    source: str,
    condition: str,
    by: str,
    per: Sequence[str],
    varying: Sequence[str],
    basis: Basis,
    own: OwnRuns | None = None,
) -> ErrorBars:
    """Error bars of the chosen `rows` among all of `source` that meet the `condition`, which compete in each group `per`."""
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
    inner = f"SELECT plan, {names}{', ' if names else ''}{seconds} AS {_SECONDS} FROM {source} WHERE {known}"
    near = _near(connection, inner, per, compared, basis, own)
    candidates = connection.sql(
        f"SELECT candidate.* FROM ({inner}) candidate {near} OR candidate.plan IN (SELECT plan FROM {CHOSEN}) ORDER BY plan"
    ).to_arrow_table()
    group = _groups(candidates, per)
    values = candidates[_SECONDS].to_numpy()
    judged = judge(candidates, compared, values, basis, own, group)
    judged = judged.widened(_wider(rows, candidates["plan"].to_numpy(), basis))
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
    listed, by_group = "".join(f"{name}, " for name in groups), f"GROUP BY {', '.join(groups)}" if groups else ""
    same = " AND ".join(f"least.{name} IS NOT DISTINCT FROM one.{name}" for name in groups) or "true"
    of_group = f"GROUP BY {', '.join('one.' + name for name in groups)}" if groups else ""
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE bests AS WITH one AS ({inner}), "
        f"least AS (SELECT {listed}min({_SECONDS}) AS least FROM one {by_group}) SELECT * FROM one WHERE plan IN "
        f"(SELECT min(one.plan) FROM one JOIN least ON {same} WHERE one.{_SECONDS} = least.least {of_group})"
    ).fetchall()
    joined = " AND ".join(f"bests.{name} IS NOT DISTINCT FROM candidate.{name}" for name in groups) or "true"
    behind = f"ln(candidate.{_SECONDS} / bests.{_SECONDS})"
    differences = basis.differences
    if differences is None:
        return f"JOIN bests ON {joined} WHERE false"
    if own is not None and len(own.error) and basis.spread is not None:  # what is best may change
        shift = 2 * float(np.abs(own.error - basis.spread.middle).max())
        return f"JOIN bests ON {joined} WHERE {behind} <= {float(np.log(widest(basis)) + shift)!r}"
    schema = connection.sql("FROM bests LIMIT 0")
    kinds = dict(zip(schema.columns, map(str, schema.types), strict=True))
    each = [_apart(name, kinds[name]) for name in compared]
    apart, squared = " + ".join(each) or "0", " + ".join(f"power({one}, 2)" for one in each) or "0"
    near = f"{2 * OWN**2 + 2 * NEAR**2!r} - {2 * NEAR**2!r} * exp(-({apart}) / {RANGE!r})"
    variance = f"{differences.size**2!r} * ({near} + {DOUBLING**2!r} * least({squared}, {SLOPE_ENDS!r}))"
    return f"JOIN bests ON {joined} WHERE {behind} <= {t3_quantile(CONFIDENCE) * SLACK!r} * sqrt({variance})"


def _apart(name: str, kind: str) -> str:
    """SQL for the distance between a candidate and the best in a column, or more (`sweep.uncertainty.judging`)."""
    own, best = f"candidate.{quoted(name)}", f"bests.{quoted(name)}"
    if kind in ("BIGINT", "DOUBLE"):
        doublings = f"abs(log2(greatest({own}, 1e-300) / greatest({best}, 1e-300)))"
        whole = f"least({own}, {best}) > 0"
        return f"CASE WHEN {own} = {best} THEN 0 WHEN {whole} THEN greatest({doublings}, 1) ELSE 1 END"
    return f"CASE WHEN {own} = {best} THEN 0 ELSE {OTHER_DEVICE if name == DEVICE else 1.0!r} END"


def _wider(rows: pa.Table, plans: Ints, basis: Basis) -> Floats:
    """By which factor the intervals of the chosen `rows` are wider, at their places among all judged `plans`; elsewhere 1."""
    factor, numbers = np.ones(len(plans)), rows["plan"].to_numpy()
    at = np.minimum(np.searchsorted(plans, numbers), max(len(plans) - 1, 0))
    known = plans[at] == numbers if len(plans) else np.zeros(len(numbers), np.bool_)
    factor[at[known]] = basis.wider(rows)[known]
    return factor


def _groups(rows: pa.Table, per: Sequence[str]) -> Ints:
    """A number for each distinct combination of `per`, [n]."""
    group = np.zeros(rows.num_rows, np.int64)
    for name in per:
        codes = rows[name].combine_chunks()
        codes = codes if pa.types.is_dictionary(codes.type) else codes.dictionary_encode()
        numbers = np.asarray(codes.indices.to_numpy(zero_copy_only=False), np.float64)
        _, group = np.unique(np.stack([group, np.nan_to_num(numbers, nan=-1.0)]), axis=1, return_inverse=True)
    return group


def _unknown(n: int) -> pa.Table:
    return pa.table([pa.nulls(n, pa.float64()), pa.nulls(n, pa.float64()), pa.nulls(n, pa.bool_())], list(COLUMNS))


def _columns(rows: pa.Table, plans: Ints, judged: Judgement, *, ties: bool) -> pa.Table:
    """COLUMNS of the rows, by their plan numbers among those judged (ascending)."""
    numbers = rows["plan"].to_numpy()
    at = np.minimum(np.searchsorted(plans, numbers), max(len(plans) - 1, 0))
    unknown = plans[at] != numbers if len(plans) else np.ones(len(numbers), np.bool_)
    if unknown.all():
        return _unknown(len(numbers))
    step_s = rows["step_time_s"].to_numpy()
    low, high = step_s * judged.low[at], step_s * judged.high[at]
    lost = unknown | np.isnan(low)
    return pa.table(
        {
            "step_time_low_s": pa.array(low, mask=lost),
            "step_time_high_s": pa.array(high, mask=lost),
            "tie": pa.array(judged.tie[at], mask=unknown) if ties else pa.nulls(len(numbers), pa.bool_()),
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
