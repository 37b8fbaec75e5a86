"""Which rows of a result are the best: the first few in an order, in each group, plans with the same numbers as one; fronts.

No row but those in question is sorted: the least values of each group bound what the rest is asked about.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Fields, Floats, Ints, SpecError
from sweep.columns import NUMBERS, SIZES, higher_is_better, result_column
from sweep.options import OptionError, of_option
from sweep.ranking.query import NAMED

Names = Sequence[str]
"""Of columns."""

Order = Sequence[tuple[str, bool]]
"""Columns to rank by in turn, each with whether more is better."""
CHOSEN = "chosen"
"""Table of the selected plans: rank, plan, ALIKE and DIFFERING."""
ALIKE = "alike"
DIFFERING = "alike_but_for"
BOUNDS = "bounds"
"""Table of the groups: `best` and `bound`, values of the first column of the order, and whether there are `more` rows."""
SLACK = 1e-7  # of a 32-bit float, to which numbers are compared
FRONT = "front"
"""Table of the plans of the Pareto fronts."""
_SAMPLE = 10_000  # points whose front the others are held against
_BATCH = 1_000_000
_FIRST = 200  # more rows than asked for are looked at first, twice as many at least
_MOST = 1_000_000  # DuckDB's limit of min(value, n)


class Question(NamedTuple):
    """Which rows are asked for: `top` of each group `per` of the rows that meet `condition`, in this order."""

    condition: str
    order: Order
    per: Names
    top: int | None  # None: all
    plan_columns: Names
    every: bool  # plans with the same numbers stay apart
    have: Callable[[int | None], None]  # makes the rows be there whose first column is within so many best of each group; all


def quoted(name: str) -> str:
    """A column in SQL."""
    return '"' + name.replace('"', '""') + '"'


def equals(name: str, value: Any) -> str:
    """The condition that a column has this value."""
    text = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
    return f"{quoted(name)} = {text}"


def check_ordered(names: Names, option: str, schema: Mapping[str, str]) -> None:
    """Raise SpecError if one of these columns holds words, which have no order from best to worst."""
    for name in names:
        if schema[name] == "VARCHAR" or schema[name].startswith("ENUM"):
            kind = OptionError if option.startswith("--") else SpecError
            raise kind(f"{option}: found {name}, which holds words, expected a column of numbers, such as step_time_s")


def ordering(by: str | None, descending: bool | None, provenance: Fields, schema: dict[str, str]) -> list[tuple[str, bool]]:
    """The columns to rank by, each with whether more is better: the given one, or the spec's objectives in turn."""
    if by is None:
        objectives = provenance.get("spec", {}).get("objectives", [])
        order = [(result_column(str(o["column"]), list(schema)), o["direction"] == "maximize") for o in objectives]
        if order:
            return [(order[0][0], order[0][1] if descending is None else descending), *order[1:]]
    with of_option("--by"):
        name = result_column("gpu_s_per_sample" if by is None else by, list(schema))
    return [(name, higher_is_better(name) if descending is None else descending)]


def select(connection: duckdb.DuckDBPyConnection, question: Question, schema: Names) -> None:
    """Fill the table CHOSEN. Ties go to the lower plan number."""
    looked_at = _MOST + 1 if question.top is None else question.top + max(question.top, _FIRST)
    while _choose(connection, question, schema, looked_at if looked_at <= _MOST else None):
        looked_at *= 16


def _choose(connection: duckdb.DuckDBPyConnection, asked: Question, schema: Names, looked_at: int | None) -> bool:
    """Select among rows whose first column is within the `looked_at` best of its group; whether that was too few."""
    by, descending = asked.order[0]
    groups = [quoted(name) for name in asked.per]
    listed = "".join(f"{name}, " for name in groups)
    asked.have(looked_at)
    rows = f"(SELECT * FROM {NAMED} WHERE {asked.condition}) candidate"
    if looked_at is not None:
        best, beyond, sign = ("max", ">=", "-") if descending else ("min", "<=", "+")
        last = f"list_last({best}({quoted(by)}, {looked_at}))"
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {BOUNDS} AS SELECT {listed}{last} {sign} {SLACK} * abs({last}) AS bound, "
            f"{best}({quoted(by)}) AS best, count(*) > {looked_at} AS more FROM {rows} {grouped_by(groups)}"
        ).fetchall()
        rows += f" JOIN {BOUNDS} ON {same_group(groups, BOUNDS, 'candidate')} WHERE candidate.{quoted(by)} {beyond} bound"
    chosen = f"SELECT candidate.* FROM {rows}"
    order = ", ".join(f"{quoted(name)} {'DESC' if more else 'ASC'}" for name, more in asked.order) + ", plan"
    over = f"PARTITION BY {', '.join(groups)} " if groups else ""
    limit = "" if asked.top is None else f"QUALIFY rank <= {asked.top}"
    one_each = f"SELECT *, 1 AS {ALIKE}, '' AS {DIFFERING} FROM ({chosen})" if asked.every else _as_one(asked, schema, chosen)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {CHOSEN} AS SELECT row_number() OVER ({over}ORDER BY {order}) AS rank, plan, "
        f"{listed}{ALIKE}, {DIFFERING} FROM ({one_each}) {limit}"
    ).fetchall()
    if looked_at is None:
        return False
    lacking = f"(SELECT count(*) FROM {CHOSEN} WHERE {same_group(groups, BOUNDS, CHOSEN)}) < {asked.top}"
    return bool(connection.execute(f"SELECT count(*) FROM {BOUNDS} WHERE more AND {lacking}").fetchall()[0][0])


def grouped_by(groups: Names) -> str:
    """SQL that groups rows by these columns; of no columns all rows are one group."""
    return f"GROUP BY {', '.join(groups)}" if groups else ""


def same_group(groups: Names, one: str, other: str) -> str:
    """SQL that is true of rows of two tables that agree in these columns, also where they are null."""
    return " AND ".join(f"{one}.{name} IS NOT DISTINCT FROM {other}.{name}" for name in groups) or "true"


def _as_one(asked: Question, schema: Names, chosen: str) -> str:
    """SQL for rows with the same numbers as one: the lowest plan, how many they are, and in which columns they differ."""
    by = list(dict.fromkeys(name for name, _ in asked.order))
    numbers = [f"CAST({quoted(name)} AS FLOAT)" for name in NUMBERS if name in schema]
    sizes = [quoted(name) for name in SIZES if name in schema]
    planned = [quoted(name) for name in by if name in asked.plan_columns]
    keys = list(dict.fromkeys([*(quoted(name) for name in asked.per), *sizes, *planned, *numbers]))
    firsts = ", ".join(f"arg_min({quoted(name)}, plan) AS {quoted(name)}" for name in dict.fromkeys([*asked.per, *by]))
    differing = ", ".join(
        f"CASE WHEN min({quoted(name)}) <> max({quoted(name)}) THEN '{name}' END" for name in asked.plan_columns
    )
    return (
        f"SELECT min(plan) AS plan, {firsts}, count(*) AS {ALIKE}, concat_ws(' ', {differing or 'NULL'}) AS {DIFFERING} "
        f"FROM ({chosen}) GROUP BY {', '.join(keys)}"
    )


def check_type(connection: duckdb.DuckDBPyConnection, where: str) -> None:
    """Raise SpecError if `where` has another type than true or false."""
    kind = connection.sql(f"SELECT ({where}\n) FROM {NAMED} LIMIT 0").types[0]
    if str(kind) != "BOOLEAN":
        raise OptionError(f"--where {where!r}: found a value of type {kind}, expected a condition")


def chosen_rows(connection: duckdb.DuckDBPyConnection, names: Names, per: Names) -> pa.Table:
    """The rows of CHOSEN with these columns of the result, in order."""
    taken = "".join(f", results.{quoted(name)}" for name in names)
    plans = [int(row[0]) for row in connection.execute(f"SELECT plan FROM {CHOSEN}").fetchall()]
    near = f"WHERE results.plan IN ({', '.join(map(str, plans))})" if 0 < len(plans) <= 1000 else ""
    groups = "".join(f"results.{quoted(name)}, " for name in per)
    return connection.sql(
        f"SELECT rank, {ALIKE}, {DIFFERING}{taken} FROM {CHOSEN} JOIN results ON results.plan = {CHOSEN}.plan {near} "
        f"ORDER BY {groups}rank"
    ).to_arrow_table()


def find_fronts(connection: duckdb.DuckDBPyConnection, condition: str, columns: Order, per: Names) -> None:
    """Fill the table FRONT with the plans of each group that no other beats in one column without losing in another.

    `columns`: with whether more is better.
    """
    known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name, _ in columns)
    values = "".join(f", {'-' if more else ''}{quoted(name)}::DOUBLE AS v{k}" for k, (name, more) in enumerate(columns))
    groups = "".join(f", {quoted(name)} AS g{k}" for k, name in enumerate(per))
    reader = connection.sql(f"SELECT plan{values}{groups} FROM {NAMED} WHERE {condition} AND {known}").to_arrow_reader(_BATCH)
    front = reader.schema.empty_table()
    for batch in reader:  # the fronts so far beside it
        rows = pa.concat_tables([front, pa.Table.from_batches([batch])]).unify_dictionaries()
        number = group_numbers(rows, [f"g{k}" for k in range(len(per))])
        points = np.stack([rows[f"v{k}"].to_numpy() for k in range(len(columns))], axis=1)
        kept = [member[best_of(points[member])] for member in (np.flatnonzero(number == group) for group in np.unique(number))]
        front = rows.take(np.concatenate([np.zeros(0, int), *kept]))
    connection.register("front_plans", front.select(["plan"]))
    connection.execute(f"CREATE TEMP TABLE {FRONT} AS SELECT plan FROM front_plans").fetchall()


def group_numbers(rows: pa.Table, names: Names) -> Ints:
    """A number for each distinct combination of values of these columns, [n]."""
    group = np.zeros(rows.num_rows, int)
    for name in names:
        column = rows[name].combine_chunks()
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = np.asarray(coded.indices.to_numpy(zero_copy_only=False), float)
        _, group = np.unique(np.stack([group, np.nan_to_num(codes, nan=-1.0)]), axis=1, return_inverse=True)
    return group


def best_of(points: Floats) -> Ints:
    """Indices of the points, [n, columns], that no other beats: none is at most as high everywhere and lower somewhere."""
    if points.shape[1] == 2:
        return _best_of_two(points)
    left = np.lexsort(points.T[::-1])
    front = []
    while len(left):
        pivot = points[left[0]]  # the first in order: nothing left beats it
        front.append(left[(points[left] == pivot).all(axis=1)])
        left = left[~(points[left] >= pivot).all(axis=1)]
    return np.sort(np.concatenate(front)) if front else np.zeros(0, int)


def _best_of_two(points: Floats) -> Ints:
    """`best_of` in two columns: those that the front of a sample does not beat are few, and only they are sorted."""
    left = np.arange(len(points))
    if len(points) > 2 * _SAMPLE:
        x, y = points[:: len(points) // _SAMPLE][_steps_down(points[:: len(points) // _SAMPLE])].T
        at = np.searchsorted(x, points[:, 0], side="right") - 1  # of the front, the last that is not to the right
        beaten = (y[at] < points[:, 1]) | ((y[at] == points[:, 1]) & (x[at] < points[:, 0]))
        left = np.flatnonzero((at < 0) | ~beaten)
    return np.sort(left[_steps_down(points[left])])


def _steps_down(points: Floats) -> Ints:
    """Indices of the points that no other beats, from left to right: each the first to be lower, or equal to such a one."""
    order = np.lexsort(points.T[::-1])
    x, y = points[order].T
    lower = np.append(True, y[1:] < np.minimum.accumulate(y)[:-1])[: len(y)]
    last = np.maximum.accumulate(np.where(lower, np.arange(len(y)), 0))
    kept: Ints = order[(x == x[last]) & (y == y[last])]
    return kept
