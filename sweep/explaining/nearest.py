"""The nearest plan of a result that runs: what a plan that cannot run would have to change, among those computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sweep.folder import Location
from sweep.query import columns_of, results

FOLLOWING: Final = ("plan", "dp", "ga", "fidelity", "hardware")
"""Columns that follow from others, or are no matter of a plan."""


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """A plan with a result, and the values in which it differs."""

    plan: int
    changes: dict[str, Any]


def nearest_running(directory: Location, row: Mapping[str, Any]) -> Nearest | None:
    """The plan with a result that has the fewest other values than `row`, of these the fastest; None if none runs."""
    with results(directory) as connection:
        names = list(columns_of(connection))
        compared = [name for name in names[: names.index("status")] if name not in FOLLOWING and name in row]
        apart = " + ".join(f'("{name}" IS DISTINCT FROM ?)::INT' for name in compared) or "0"
        found = connection.execute(
            f"SELECT plan, {', '.join(compared)} FROM results WHERE status = 'ok' AND hardware = ? "
            f"ORDER BY {apart}, gpu_s_per_sample, plan LIMIT 1",
            [row["hardware"], *(row[name] for name in compared)],
        ).fetchone()
    if found is None:
        return None
    values = dict(zip(compared, found[1:], strict=True))
    return Nearest(plan=int(found[0]), changes={name: value for name, value in values.items() if value != row[name]})
