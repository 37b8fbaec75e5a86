"""What is true of all rows of a ranking: from the footers of a result where they tell it, else from the rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import duckdb

from sweep.ranking.query import NAMED
from sweep.ranking.selection import quoted
from sweep.results.index import Index

_TOO_LARGE = "memory_exceeds_device"
NEEDED_MEMORY = ("peak_memory_bytes", "state_bytes", "device_memory_bytes")


class Told(NamedTuple):
    """Rows by what became of them; columns of plans that vary among those ranked, and the values of those that do not."""

    total: int
    ranked: int
    reasons: dict[str, int]
    memory: tuple[float, ...] | None  # least and most bytes that plans need which do not fit, least and most that devices have
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
    ends = {name: (min(each.low for each in files), max(each.high for each in files)) for name, files in bounds.items()}
    memory = list(zip(*(index.memory for index in indexes if index.memory), strict=True))  # least, most, low, high
    return Told(
        total=sum(rows for index in indexes for _, _, rows in index.statuses),
        ranked=sum(index.ok for index in used),
        reasons=_most_first(reasons),
        memory=(min(memory[0]), max(memory[1]), min(memory[2]), max(memory[3])) if memory else None,
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
    rows = connection.execute(
        f"SELECT status, reason, count(*), count({quoted(by)}), "
        f"count({quoted(by)}) FILTER (coalesce(({where}\n), false)) FROM {NAMED} GROUP BY status, reason"
    ).fetchall()
    reasons: Counter[str] = Counter()
    for status, reason, n, known, _ in rows:
        reasons["no_" + by if status == "ok" else str(reason)] += int(n - known if status == "ok" else n)
    sample = _ends(connection, plan_columns, f"(SELECT * FROM {NAMED} WHERE {condition} LIMIT 20000)")
    alike = [name for name, (low, high) in sample.items() if low == high]
    memory = None
    if _TOO_LARGE in reasons and "device_memory_bytes" in schema:
        need, have = "coalesce(peak_memory_bytes, state_bytes)", "device_memory_bytes"
        ends_of = f"SELECT min({need}), max({need}), min({have}), max({have}) FROM results WHERE reason = '{_TOO_LARGE}'"
        memory = connection.execute(ends_of).fetchall()[0]
    ends = sample | (_ends(connection, alike, f"{NAMED} WHERE {condition}") if alike else {})
    return Told(
        total=sum(int(row[2]) for row in rows),
        ranked=sum(int(row[4]) for row in rows if row[0] == "ok"),
        reasons=_most_first(reasons),
        memory=None if memory is None or memory[0] is None else memory,
        varying=[name for name in plan_columns if ends[name][0] != ends[name][1]],
        held={name: low for name, (low, high) in ends.items() if low == high},
    )


def _most_first(reasons: Counter[str]) -> dict[str, int]:
    """Numbers of rows by reason, the most frequent first."""
    return {reason: count for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])) if count}


def _ends(connection: duckdb.DuckDBPyConnection, names: Sequence[str], source: str) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of each column."""
    asked = ", ".join(f"min({quoted(n)}), max({quoted(n)})" for n in names)
    row = connection.execute(f"SELECT {asked} FROM {source}").fetchall()[0]
    return {name: (low, high) for name, low, high in zip(names, row[::2], row[1::2], strict=True)}
