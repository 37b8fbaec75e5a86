"""Pareto fronts: the plans of a result that no other plan beats in one column without losing in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sweep.selection import quoted

FRONT: Final = "front"
"""Table of the plans of the fronts."""
Floats = npt.NDArray[np.float64]
_BATCH: Final = 1_000_000


def find_fronts(
    connection: duckdb.DuckDBPyConnection, source: str, condition: str, columns: Sequence[tuple[str, bool]], per: Sequence[str]
) -> None:
    """Fill the table FRONT with the plans of the front of each group. `columns`: with whether more is better."""
    known = " AND ".join(f"{quoted(name)} IS NOT NULL" for name, _ in columns)
    values = ", ".join(f"{'-' if more else ''}{quoted(name)}::DOUBLE AS v{k}" for k, (name, more) in enumerate(columns))
    groups = ", ".join(f"{quoted(name)} AS g{k}" for k, name in enumerate(per))
    reader = connection.sql(
        f"SELECT plan, {values}{', ' + groups if groups else ''} FROM {source} WHERE {condition} AND {known}"
    ).to_arrow_reader(_BATCH)
    held: dict[tuple[object, ...], tuple[npt.NDArray[np.int64], Floats]] = {}
    for batch in reader:
        for key, rows in _groups(batch, len(per)).items():
            plans = rows.column("plan").to_numpy()
            points = np.stack([rows.column(f"v{k}").to_numpy() for k in range(len(columns))], axis=1)
            if key in held:
                plans, points = np.concatenate([held[key][0], plans]), np.concatenate([held[key][1], points])
            keep = best_of(points)
            held[key] = plans[keep], points[keep]
    plans = np.concatenate([plans for plans, _ in held.values()]) if held else np.zeros(0, np.int64)
    connection.register("front_plans", pa.table({"plan": plans}))
    connection.execute(f"CREATE TEMP TABLE {FRONT} AS SELECT plan FROM front_plans").fetchall()


def _groups(batch: pa.RecordBatch, keys: int) -> dict[tuple[object, ...], pa.Table]:
    """The rows of a batch by the values of their groups."""
    table = pa.Table.from_batches([batch])
    if not keys:
        return {(): table}
    columns = [table.column(f"g{k}").combine_chunks() for k in range(keys)]
    coded = [column if pa.types.is_dictionary(column.type) else column.dictionary_encode() for column in columns]
    code = np.zeros(len(table), np.int64)
    for column in coded:
        code = code * (len(column.dictionary) + 1) + column.indices.to_numpy().astype(np.int64)
    found = {}
    for one in np.unique(code):
        places = np.flatnonzero(code == one)
        found[tuple(column[int(places[0])].as_py() for column in columns)] = table.take(places)
    return found


def best_of(points: Floats) -> npt.NDArray[np.int64]:
    """Indices of the points, [n, columns], that no other beats: none is at most as high everywhere and lower somewhere."""
    left = np.lexsort(points.T[::-1])
    front: list[npt.NDArray[np.int64]] = []
    while len(left):
        pivot = points[left[0]]  # the first in order: nothing left beats it
        equal = (points[left] == pivot).all(axis=1)
        front.append(left[equal])
        left = left[~(points[left] >= pivot).all(axis=1)]
    return np.sort(np.concatenate(front)) if front else np.zeros(0, np.int64)
