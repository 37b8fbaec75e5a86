"""A result as coded columns: what the charts of a page need of every row, in memory for a million rows."""

from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Bools, Floats, Ints
from sweep.columns import REPORTED
from sweep.ranking.query import columns_of
from sweep.ranking.selection import ordering, quoted

MOST_VALUES: Final = 40
"""Values of an axis that is drawn as such; one with more is left to the ranking."""
IDENTITY: Final = ("plan", "fidelity", "dp")
_WIDEST: Final = 1 << 20
"""Integers within this range are coded by counting."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A plan column with more than one value: the values in order, and the code of each row."""

    name: str
    values: tuple[Any, ...]
    code: Ints  # [rows]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All rows of a result, [n]; measures of rows without a result are NaN."""

    plan: Ints
    ran: Bools
    reason: Axis
    axes: tuple[Axis, ...]
    measures: dict[str, Floats]
    by: str
    descending: bool
    order: Ints  # rows with a result and a value of `by`, the best first


def read_columns(connection: duckdb.DuckDBPyConnection, provenance: dict[str, Any]) -> Columns:
    """The columns of the results that a connection has. Raises SpecError."""
    schema = columns_of(connection)
    names = list(schema)
    plan_columns = [name for name in names[: names.index("status")] if name not in IDENTITY]
    by, descending = ordering(None, None, provenance, schema)[0]
    measured = list(dict.fromkeys([by, *(name for name in REPORTED if name in schema)]))
    chosen = ", ".join(map(quoted, ["plan", "status", "reason", *plan_columns]))
    chosen += "".join(f", CAST({quoted(name)} AS DOUBLE) AS {quoted(name)}" for name in measured)
    table = connection.sql(f"SELECT {chosen} FROM results").to_arrow_table()
    measures = {name: table[name].to_numpy() for name in measured}
    ran = _axis(table, "status")
    is_ok = np.array([value == "ok" for value in ran.values])[ran.code] & ~np.isnan(measures[by])
    axes = [axis for name in plan_columns if len((axis := _axis(table, name)).values) > 1]
    kept = tuple(axis for axis in axes if len(axis.values) <= MOST_VALUES)
    cost = -measures[by] if descending else measures[by]
    rows = np.flatnonzero(is_ok)
    plan = table["plan"].to_numpy()
    order = rows[np.lexsort((plan[rows], cost[rows]))]
    return Columns(
        plan=plan,
        ran=is_ok,
        reason=_axis(table, "reason"),
        axes=kept,
        measures=measures,
        by=by,
        descending=descending,
        order=order,
    )


def _axis(table: pa.Table, name: str) -> Axis:
    """A column as codes of its sorted values."""
    column = table[name].combine_chunks()
    if pa.types.is_integer(column.type) and column.null_count == 0:
        axis = _of_integers(name, column.to_numpy())
        if axis is not None:
            return axis
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = coded.dictionary.to_pylist()
    order = sorted(range(len(values)), key=lambda k: (values[k] is None, values[k]))
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    codes = place[coded.indices.to_numpy(zero_copy_only=False)]
    used = np.flatnonzero(np.bincount(codes, minlength=len(values)))  # a dictionary may hold more than the rows use
    if len(used) < len(values):
        again = np.full(len(values), -1, np.int64)
        again[used] = np.arange(len(used))
        codes, order = again[codes], [order[k] for k in used]
    return Axis(name=name, values=tuple(values[k] for k in order), code=codes)


def _of_integers(name: str, values: Ints) -> Axis | None:
    """A column of integers as codes, without a table of hashes; None if they lie too far apart."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if high - low >= _WIDEST:
        return None
    counts = np.bincount(values - low, minlength=high - low + 1)
    used = np.flatnonzero(counts)
    place = np.cumsum(counts > 0) - 1
    return Axis(name=name, values=tuple((used + low).tolist()), code=place[values - low])
