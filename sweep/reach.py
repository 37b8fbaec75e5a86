"""Which files of a result a ranking reads: what the footers tell of all rows, and the files that can hold what it looks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb

from sweep.columns import LONGER, SHORTER
from sweep.index import Index
from sweep.query import NAMED, Rows
from sweep.reading import File
from sweep.selection import BOUNDS, CHOSEN, Reach, counted, quoted, spread
from sweep.uncertainty.evidence import Basis
from sweep.uncertainty.judging import widest

NEEDED_MEMORY: Final = ("peak_memory_bytes", "state_bytes", "device_memory_bytes")
_SLACK: Final = 1.0001  # SQL, NumPy and 32-bit floats round differently
_MOST_PAIRS: Final = 1_000_000
"""Of groups and files that are compared one by one; beyond it, one bound is taken for all groups."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the footers tell of all rows: as `counted` and `spread` of sweep.selection find it in the rows."""

    total: int
    ranked: int
    reasons: dict[str, int]
    memory: tuple[float, float, float, float] | None
    varying: list[str]
    held: dict[str, Any]


def told(indexes: Sequence[Index] | None, by: str, plan_columns: Sequence[str]) -> Told | None:
    """What the footers tell; None where the rows have to be asked: some of those with status ok have no value of `by`."""
    if indexes is None or any(index.bounds(by).known not in (0, index.ok) for index in indexes):
        return None
    used = [index for index in indexes if index.bounds(by).known]
    if not used:
        return None
    reasons: Counter[str] = Counter()
    for index in indexes:
        for status, reason, rows in index.statuses:
            if status != "ok":
                reasons[reason] += rows
            elif not index.bounds(by).known:
                reasons["no_" + by] += rows
    bounds = {name: [index.bounds(name) for index in used] for name in plan_columns}
    ends = {name: (min(each.low for each in found), max(each.high for each in found)) for name, found in bounds.items()}
    memory = [index.memory for index in indexes if index.memory]
    return Told(
        total=sum(rows for index in indexes for _, _, rows in index.statuses),
        ranked=sum(index.ok for index in used),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        memory=_widened(memory) if memory else None,
        varying=[name for name, (low, high) in ends.items() if low != high],
        held={name: low for name, (low, high) in ends.items() if low == high},
    )


def asked(
    connection: duckdb.DuckDBPyConnection,
    schema: Mapping[str, str],
    by: str,
    plan_columns: Sequence[str],
    where: str,
    condition: str,
) -> Told:
    """The same by asking the rows: those that meet `where` and the `condition` are ranked."""
    total, ranked, reasons = counted(connection, by, where, NAMED)
    varying, held = spread(connection, plan_columns, NAMED, condition)
    memory = _too_large(connection, schema) if "memory_exceeds_device" in reasons else None
    return Told(total=total, ranked=ranked, reasons=reasons, memory=memory, varying=varying, held=held)


def _too_large(connection: duckdb.DuckDBPyConnection, schema: Mapping[str, str]) -> tuple[float, float, float, float] | None:
    """Least and most bytes that plans need which do not fit into their device, and least and most that these have."""
    need, have = "coalesce(peak_memory_bytes, state_bytes)", "device_memory_bytes"
    if have not in schema:
        return None
    query = f"SELECT min({need}), max({need}), min({have}), max({have}) FROM results WHERE reason = 'memory_exceeds_device'"
    found = connection.execute(query).fetchall()[0]
    return None if found[0] is None else (found[0], found[1], found[2], found[3])


def _widened(found: Sequence[tuple[float, float, float, float]]) -> tuple[float, float, float, float]:
    least, most, low, high = zip(*found, strict=True)
    return min(least), max(most), min(low), max(high)


@dataclass
class Narrowed(Reach):
    """Asks for the rows of a ranking step by step: the files that can hold what is looked for, and the columns needed."""

    rows: Rows
    by: str
    descending: bool
    per: Sequence[str]
    columns: Collection[str]  # what a choice needs
    every: bool  # of all files, and from the start: a condition may choose any row
    _files: list[File] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._files = self._all
        if self.every:
            self.rows.ask(self.columns)

    def bound(self) -> None:
        """See `Reach`."""
        if not self.every:
            self.rows.ask(["plan", "status", self.by, *self.per])

    def choose(self) -> None:
        """See `Reach`."""
        if not self.every:
            self._files = self._within("bound")
            self.rows.ask(self.columns, self._files)

    def take(self) -> None:
        """See `Reach`."""
        plans = [int(row[0]) for row in self.rows.connection.execute(f"SELECT plan FROM {CHOSEN}").fetchall()]
        self.rows.ask_whole([file for file in self._files if _holds(file, plans)])

    def compare(self, basis: Basis) -> None:
        """See `Reach`."""
        files = self._all
        if not self.every and self.by in (SHORTER if self.descending else LONGER):  # the best is the fastest
            reach = widest(basis) ** _SLACK * _SLACK
            near = {*self._within(f"best {'/' if self.descending else '*'} {reach!r}::DOUBLE"), *self._files}
            files = [file for file in files if file in near]
        self.rows.ask(self.columns, files)

    @property
    def _all(self) -> list[File]:
        """All files, in order."""
        return self.rows.reading.files if self.rows.reading else []

    def _within(self, limit: str) -> list[File]:
        """The files that can hold a row of a group within a limit, an expression of BOUNDS."""
        connection = self.rows.connection
        names = "".join(f", {quoted(name)}" for name in self.per)
        held = connection.execute("SELECT table_name FROM duckdb_tables() WHERE table_name = ?", [BOUNDS]).fetchall()
        if not held:
            return self._all
        limits = connection.execute(f"SELECT {limit}{names} FROM {BOUNDS}").fetchall()
        if len(limits) * len(self._all) > _MOST_PAIRS:
            limits = [((min if self.descending else max)(row[0] for row in limits),)]
        return [file for file in self._all if any(self._can_hold(file, row) for row in limits)]

    def _can_hold(self, file: File, limit: tuple[Any, ...]) -> bool:
        """Whether a file can hold a row of a group that is within its limit, both in `limit`."""
        if file.index is None:
            return True
        found = file.index.bounds(self.by)
        if not found.known or (found.high < limit[0] if self.descending else found.low > limit[0]):
            return False
        groups = zip(self.per, limit[1:], strict=False)
        return all(value is None or _within(file.index, name, value) for name, value in groups)


def _within(index: Index, name: str, value: Any) -> bool:
    bounds = index.bounds(name)
    return bounds.known < index.ok or bool(bounds.low <= value <= bounds.high)


def _holds(file: File, plans: Sequence[int]) -> bool:
    """Whether a file can hold one of some plans."""
    if file.index is None or not file.index.bounds("plan").known:
        return file.index is None
    bounds = file.index.bounds("plan")
    return any(bounds.low <= plan <= bounds.high for plan in plans)
