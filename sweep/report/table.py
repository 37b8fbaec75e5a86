"""A result as coded columns: what the charts of a page need of every row, in memory for a million rows."""

from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import Bools, Floats, Ints
from sweep.columns import REPORTED
from sweep.ranking.query import columns_of, plan_columns
from sweep.ranking.selection import ordering, quoted

MOST_VALUES = 40
"""Values of an axis that is drawn as such; one with more is left to the ranking."""
IDENTITY = ("plan", "fidelity", "dp")


class Axis(NamedTuple):
    """A plan column with more than one value: the values in order, and the code of each row."""

    name: str
    values: tuple[Any, ...]
    code: Ints  # [rows]


class Columns(NamedTuple):
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
    of_plans = plan_columns(schema, IDENTITY)
    by, descending = ordering(None, None, provenance, schema)[0]
    measured = list(dict.fromkeys([by, *(name for name in REPORTED if name in schema)]))
    chosen = ", ".join(map(quoted, ["plan", "status", "reason", *of_plans]))
    chosen += "".join(f", CAST({quoted(name)} AS DOUBLE) AS {quoted(name)}" for name in measured)
    table = connection.sql(f"SELECT {chosen} FROM results").to_arrow_table()
    measures = {name: table[name].to_numpy() for name in measured}
    plan, status = table["plan"].to_numpy(), _axis(table, "status")
    ran = np.array([value == "ok" for value in status.values])[status.code] & ~np.isnan(measures[by])
    axes = (_axis(table, name) for name in of_plans)
    rows = np.flatnonzero(ran)
    return Columns(
        plan=plan,
        ran=ran,
        reason=_axis(table, "reason"),
        axes=tuple(axis for axis in axes if 1 < len(axis.values) <= MOST_VALUES),
        measures=measures,
        by=by,
        descending=descending,
        order=rows[np.lexsort((plan[rows], -measures[by][rows] if descending else measures[by][rows]))],
    )


def _axis(table: pa.Table, name: str) -> Axis:
    """A column as codes of its sorted values."""
    column = table[name].combine_chunks()
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False)
    used = np.flatnonzero(np.bincount(codes, minlength=len(values))).tolist()  # a dictionary may hold more than the rows use
    order = sorted(used, key=lambda k: (values[k] is None, values[k]))
    place = np.zeros(len(values), int)
    place[order] = np.arange(len(order))
    return Axis(name, tuple(values[k] for k in order), place[codes])
