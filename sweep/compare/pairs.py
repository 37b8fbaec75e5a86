"""Two results in one database: `old_rows` and `new_rows` with the same plan columns, and `pairs`, plans matched by value."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import duckdb

from sim_core import HARDWARE_KEYS, METRIC_ROWS, PARTS, PLAN_DEFAULTS, Fields, SpecError, Words, named, nearest
from sweep.options import OptionError
from sweep.ranking.query import columns_of, opened, plan_columns
from sweep.ranking.selection import quoted
from sweep.results.folder import Location
from sweep.results.store import Store

LATER = tuple(row.name for row in METRIC_ROWS if row.later)
"""Parts of a step that results of earlier versions lack: they are 0 there."""
SIDES = ("old", "new")
_ALWAYS = ("fidelity",)  # to match by if no column varies
_RANGE = 1 << 19  # plan numbers that are matched at a time
_IDLE = "coalesce(old_status <> 'ok' AND new_status <> 'ok' AND (new_status <> 'failed' OR old_status = 'failed'), false)"
"""Of a pair: no figure of a comparison depends on it but the number of pairs."""
_STATUSES = (
    "o.plan AS old_plan, n.plan AS new_plan, o.status AS old_status, n.status AS new_status, "
    "coalesce(nullif(n.reason, ''), nullif(o.reason, ''), n.status, o.status) AS why"
)
_BOTH = "o.status = 'ok' AND n.status = 'ok'"
_CHANGES = ", ".join(
    [
        "o.step_time_s AS old_s, n.step_time_s AS new_s",
        f"CASE WHEN {_BOTH} THEN n.step_time_s / o.step_time_s - 1 END AS change",
        *(f"CASE WHEN {_BOTH} THEN n.{part} - o.{part} END AS {part}" for part in PARTS),
    ]
)


class Pairs(NamedTuple):
    """The database, the provenances, and the columns by which plans are matched.

    `varying` are the plan columns of both sides with more than one value. `without` are hardware columns with one value on
    each side, but not the same one: an input that changed, not another plan.
    """

    connection: duckdb.DuckDBPyConnection
    provenances: tuple[Fields, Fields]
    varying: Words
    without: Words
    left_out: int  # pairs that are not in the table: neither side runs

    def rows(self, query: str) -> list[Any]:
        """What a query finds, as tuples."""
        return self.connection.execute(query).fetchall()

    def dicts(self, query: str) -> list[Fields]:
        """What a query finds, by column."""
        return list(self.connection.sql(query).to_arrow_table().to_pylist())

    def count(self, condition: str) -> int:
        """How many pairs of the table meet a condition."""
        return int(self.rows(f"SELECT count(*) FROM pairs WHERE {condition}")[0][0])


@contextmanager
def paired(old: Location, new: Location) -> Iterator[Pairs]:
    """Open both results. Raises SpecError if one of the folders has no results or cannot be read."""
    with opened(old_results=old, new_results=new) as connection:
        try:
            provenances = (_checked(connection, "old", old), _checked(connection, "new", new))
            varying, without = _spread(connection, _same_columns(connection, provenances))
            left_out = _match(connection, [key for key in varying if key not in without] or _ALWAYS)
            yield Pairs(connection, provenances, tuple(varying), tuple(without), left_out)
        except duckdb.Error as error:
            raise SpecError(f"{old}, {new}: cannot be compared ({str(error).splitlines()[0]})") from None


def listed(names: Iterable[str], prefix: str = "") -> str:
    """Quoted columns for a query, comma-separated."""
    return ", ".join(prefix + quoted(name) for name in names)


def _checked(connection: duckdb.DuckDBPyConnection, side: str, path: Location) -> Fields:
    """The provenance of a side. Raises SpecError if it lacks columns."""
    if not {"status", "reason", "step_time_s", *PARTS} - {*LATER} <= set(columns_of(connection, f"{side}_results")):
        raise SpecError(f"{path}: lacks columns of a result, so there is nothing to compare")
    return Store(directory=path).provenance() or {}


def _same_columns(connection: duckdb.DuckDBPyConnection, provenances: Sequence[Fields]) -> list[str]:
    """Create views of both results with the plan columns of either; a column that one lacks has its held value there."""
    stored = [list(columns_of(connection, f"{side}_results")) for side in SIDES]
    of_plans = dict.fromkeys(name for names in stored for name in plan_columns(names, ("plan",)))
    for side, names, provenance in zip(SIDES, stored, provenances, strict=True):
        added = [f"{_held(name, provenance)} AS {quoted(name)}" for name in of_plans if name not in names]
        added += [f"0.0 AS {part}" for part in LATER if part not in names]
        connection.execute(f"CREATE TEMP VIEW {side}_rows AS SELECT {', '.join(['*', *added])} FROM {side}_results").fetchall()
    return list(of_plans)


def _held(name: str, provenance: Fields) -> str:
    """SQL for the value of a plan column that a result lacks because no axis runs over it."""
    if name in PLAN_DEFAULTS:
        return repr(PLAN_DEFAULTS[name])
    if name in HARDWARE_KEYS:
        cases = "".join(
            f" WHEN '{label.replace(chr(39), chr(39) * 2)}' THEN {numbers[name]!r}::DOUBLE"
            for label, numbers in provenance.get("inputs", {}).get("hardware", {}).items()
            if name in numbers
        )
        return f"CASE hardware{cases} END" if cases else "NULL::DOUBLE"
    return "NULL"


def _spread(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Keys with more than one value over both sides; and, of the hardware's keys, those with one value on each side."""
    bounds = ", ".join(f'min("{name}"), max("{name}")' for name in keys)
    rows = [connection.execute(f"SELECT {bounds} FROM {side}_rows").fetchall()[0] for side in SIDES]
    varying, without = [], []
    for k, name in enumerate(keys):
        (a, b), (c, d) = (row[2 * k : 2 * k + 2] for row in rows)
        if a == b == c == d:
            continue
        varying.append(name)
        if (name == "hardware" or name in HARDWARE_KEYS) and a == b and c == d:
            without.append(name)
    return varying, without


def _match(connection: duckdb.DuckDBPyConnection, by: Sequence[str]) -> int:
    """Create the table `pairs`: plan numbers, statuses, reason (new, else old), step times, and new - old of each part.

    Plans match if they have the same values `by`. As long as the same number means the same values, one range of numbers is
    matched after the other, which takes little memory; else all at once. Returns how many pairs the table leaves out (_IDLE).
    """
    ends = [connection.execute(f"SELECT max(plan) FROM {side}_rows").fetchall()[0][0] or 0 for side in SIDES]
    left_out = 0
    for first in range(0, max(ends) + 1, _RANGE):
        within = f"plan BETWEEN {first} AND {first + _RANGE - 1}"
        keyed = f"plan, status, reason, hash({', '.join(map(quoted, by))}) AS keyed"
        old, new = (f"(SELECT {keyed} FROM {side}_rows WHERE {within})" for side in SIDES)
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE matched AS SELECT {_STATUSES}, coalesce(o.keyed <> n.keyed, false) AS other "
            f"FROM {old} o FULL OUTER JOIN {new} n ON o.plan = n.plan"
        ).fetchall()
        idle, others = connection.execute(f"SELECT count(*) FILTER ({_IDLE}), count(*) FILTER (other) FROM matched").fetchall()[
            0
        ]
        target = "INSERT INTO pairs" if first else "CREATE TEMP TABLE pairs AS"
        if others:
            on = " AND ".join(f"o.{quoted(name)} IS NOT DISTINCT FROM n.{quoted(name)}" for name in by)
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE pairs AS SELECT {_STATUSES}, {_CHANGES} "
                f"FROM old_rows o FULL OUTER JOIN new_rows n ON {on}"
            ).fetchall()
            left_out = 0
            break
        old, new = (f"(SELECT * FROM {side}_rows WHERE {within} AND status = 'ok')" for side in SIDES)
        connection.execute(
            f"{target} SELECT m.* EXCLUDE (other), {_CHANGES} FROM matched m LEFT JOIN {old} o ON o.plan = m.old_plan "
            f"LEFT JOIN {new} n ON n.plan = m.new_plan WHERE NOT {_IDLE}"
        ).fetchall()
        left_out += idle
    connection.execute("DROP TABLE matched").fetchall()
    return left_out


def known_column(name: str, pairs: Pairs, option: str) -> str:
    """`name`, if both sides have that column. Raises OptionError."""
    names = columns_of(pairs.connection, "new_rows")
    if name not in names or name not in columns_of(pairs.connection, "old_rows"):
        raise OptionError(f"{option}: found {named(name)}, which is not a column of both results, {nearest(name, names)}")
    return name
