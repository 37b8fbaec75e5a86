"""What is true of all rows of a ranking: from the footers of a result where they tell it, else from the rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb

from sweep.ranking.query import NAMED
from sweep.ranking.selection import counted, spread
from sweep.results.index import Index

NEEDED_MEMORY: Final = ("peak_memory_bytes", "state_bytes", "device_memory_bytes")


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
    ends = {
        name: (min(each.low for each in of_files), max(each.high for each in of_files)) for name, of_files in bounds.items()
    }
    memory = list(zip(*(index.memory for index in indexes if index.memory), strict=True))  # least, most, low, high
    return Told(
        total=sum(rows for index in indexes for _, _, rows in index.statuses),
        ranked=sum(index.ok for index in used),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
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
    total, ranked, reasons = counted(connection, by, where, NAMED)
    varying, fixed = spread(connection, plan_columns, NAMED, condition)
    memory = _too_large(connection, schema) if "memory_exceeds_device" in reasons else None
    return Told(total=total, ranked=ranked, reasons=reasons, memory=memory, varying=varying, held=fixed)


def _too_large(connection: duckdb.DuckDBPyConnection, schema: Mapping[str, str]) -> tuple[float, float, float, float] | None:
    """Least and most bytes that plans need which do not fit into their device, and least and most that these have."""
    need, have = "coalesce(peak_memory_bytes, state_bytes)", "device_memory_bytes"
    if have not in schema:
        return None
    query = f"SELECT min({need}), max({need}), min({have}), max({have}) FROM results WHERE reason = 'memory_exceeds_device'"
    memory = connection.execute(query).fetchall()[0]
    return None if memory[0] is None else (memory[0], memory[1], memory[2], memory[3])
