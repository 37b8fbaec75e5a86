"""The rows that a ranking looks at, gathered from the files that can hold them: those with the best values first.

A bound on the first column of the order falls with every batch of files; a file whose footer says that all its values are
beyond the bound is neither checked nor read. Only the columns that a choice needs are.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sweep.columns import LONGER, SHORTER
from sweep.ranking.query import NAMED, Rows
from sweep.ranking.selection import BOUNDS, CHOSEN, SLACK, grouped_by, quoted, same_group
from sweep.results.index import Bounds
from sweep.results.reading import File
from sweep.uncertainty.evidence import Basis
from sweep.uncertainty.judging import widest

_BATCH = 64  # files that one query reads: a database keeps the footers of all of them in memory
_MOST_ROWS = 500_000
"""Rows that are gathered; where more tie, they are read where they are."""
_MOST_GROUPS = 5000
"""Groups for each of which a file is looked at; of more, all count as one."""
_ROUNDING = 1.0001  # SQL, NumPy and 32-bit floats round differently

Limits = list[tuple[Any, ...]]
"""Of each group: the highest cost of a row that is looked at, and the values of the group."""


@dataclass
class Gathered:
    """Has the rows that a ranking by one column looks at. A cost is a value of that column, negated if more is better."""

    rows: Rows
    by: str
    descending: bool
    per: Sequence[str]
    columns: Collection[str]  # what a choice needs
    condition: str
    every: bool  # all rows of all files, from the start
    found: bool = False  # the table `gathered` has them

    def __post_init__(self) -> None:
        if self.every:
            self.rows.ask(self.columns)

    def bound(self, count: int | None) -> None:
        """Have all rows, or those alone whose cost is within the `count` best of its group, and more than `count` if there are
        more."""
        if self.every:
            return
        self.found = count is not None and self._gather(count + 1)
        if self.found:
            self._show()
        else:
            self.rows.ask(self.columns)

    def take(self) -> None:
        """Have all columns of the rows in CHOSEN."""
        plans = [int(row[0]) for row in self._run(f"SELECT plan FROM {CHOSEN}")]
        held = [(file, file.index.bounds("plan") if file.index else None) for file in self._files]
        near = [file for file, of in held if of is None or (of.known and any(of.low <= plan <= of.high for plan in plans))]
        self.rows.ask_whole(self.rows.holding(plans, near))

    def compare(self, basis: Basis) -> None:
        """Have the rows that may tie with the best of their group, and those in CHOSEN."""
        if self.found and (basis.spread is None or basis.differences is None):  # nothing ties
            self._show()
        elif self.found and self.by in (SHORTER if self.descending else LONGER):  # the best is the fastest
            reach = widest(basis) ** _ROUNDING * _ROUNDING
            raw = f"-least(bound, best / {reach!r})" if self.descending else f"greatest(bound, best * {reach!r})"
            limits = self._limits(f"SELECT {raw}::DOUBLE{self._groups} FROM {BOUNDS}")
            self.rows.ask(self.columns, [file for file in self._files if self._can_hold(file, limits, complete=True)])
        else:
            self.rows.ask(self.columns)

    @property
    def _files(self) -> list[File]:
        return self.rows.reading.files if self.rows.reading else []

    @property
    def _groups(self) -> str:
        return "".join(f", {quoted(name)}" for name in self.per)

    @property
    def _cost(self) -> str:
        return f"{'-' if self.descending else ''}{quoted(self.by)}::DOUBLE"

    def _show(self) -> None:
        """Let NAMED be what is gathered."""
        self.rows.connection.execute(f"CREATE OR REPLACE TEMP VIEW {NAMED.split()[0]} AS FROM gathered").fetchall()

    def _gather(self, count: int) -> bool:
        """Fill the table `gathered` with at least the `count` best rows of each group. False: there are too many."""
        if count > _MOST_ROWS:
            return False
        for table in ("gathered", "costs"):
            self._run(f"DROP TABLE IF EXISTS {table}")
        costs = [(best, k) for k, file in enumerate(self._files) if (best := self._best(file)) is not None]
        files = [self._files[k] for _, k in sorted(costs)]
        same = same_group([quoted(name) for name in self.per], "limits", "near")
        limits = None
        for first in range(0, len(files), _BATCH):
            batch = files[first : first + _BATCH]
            if limits is not None:
                batch = [file for file in batch if self._can_hold(file, limits, complete=not self.per)]
            if not batch:
                continue
            limits = self._lead(batch, count)
            self.rows.ask(self.columns, batch)
            within = f"{self.condition} AND {self._cost} <= '{max(limit[0] for limit in limits)!r}'::DOUBLE"
            rows = f"(SELECT *, {self._cost} AS cost FROM results WHERE {within}) near"
            query = f"SELECT near.* EXCLUDE (cost) FROM {rows} JOIN limits ON {same} WHERE near.cost <= limits.cost"
            self._insert("gathered", query)
            if self._run("SELECT count(*) FROM gathered")[0][0] > _MOST_ROWS:
                return False
        return True

    def _lead(self, files: Sequence[File], count: int) -> Limits:
        """Add the best costs in some files to the table `costs`; the limits of all groups so far."""
        self.rows.ask(["status", self.by, *self.per], files)
        groups, grouped = self._groups, grouped_by([quoted(name) for name in self.per])
        best = f"unnest(min({self._cost}, {count})) AS cost"
        self._insert("costs", f"SELECT {best}{groups} FROM results WHERE {self.condition} {grouped}")
        last = f"list_last(min(cost, {count}))"
        limit = f"CASE WHEN count(*) < {count} THEN 'infinity'::DOUBLE ELSE {last} + {SLACK} * abs({last}) END"
        return self._limits(f"SELECT {limit} AS cost{groups} FROM costs {grouped}")

    def _insert(self, table: str, query: str) -> None:
        """Add rows to a table, which is created for the first."""
        exists = self._run(f"SELECT 1 FROM duckdb_tables() WHERE table_name = '{table}'")
        self._run(f"INSERT INTO {table} {query}" if exists else f"CREATE TEMP TABLE {table} AS {query}")

    def _limits(self, query: str) -> Limits:
        self._run(f"CREATE OR REPLACE TEMP TABLE limits AS {query}")
        return self._run("FROM limits")

    def _run(self, query: str) -> list[tuple[Any, ...]]:
        return self.rows.connection.execute(query).fetchall()

    def _can_hold(self, file: File, limits: Limits, *, complete: bool) -> bool:
        """Whether a file can hold a row within the limit of its group. Not `complete`: groups without one are yet to come."""
        best = self._best(file)
        if best is None or file.index is None:
            return file.index is None
        bounds = [file.index.bounds(name) for name in self.per]
        if not complete and any(each.low != each.high or each.known < file.index.ok for each in bounds):
            return True
        if len(limits) > _MOST_GROUPS:
            return best <= max(float(limit[0]) for limit in limits)

        def holds(each: Bounds, value: Any) -> bool:
            return value is None or each.low is None or each.low <= value <= each.high

        met = [float(limit) for limit, *group in limits if all(map(holds, bounds, group))]
        return best <= max(met) if met else not complete

    def _best(self, file: File) -> float | None:
        """The least cost in a file; None if there is none."""
        if file.index is None:
            return -math.inf
        bounds = file.index.bounds(self.by)
        if not bounds.known:
            return None
        return float(-bounds.high if self.descending else bounds.low)
