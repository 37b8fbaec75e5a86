"""The `where` of a spec: SQL conditions on one plan, which DuckDB evaluates on a whole slice at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import SpecError, nearest
from sweep.columns import MEASURES


def satisfied(where: Sequence[str], described: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
    """Which rows satisfy all constraints; NULL counts as false. Raises SpecError if one cannot be evaluated."""
    if not where:
        return np.ones(len(described["plan"]), np.bool_)
    condition = " AND ".join(f"({expression})" for expression in where)
    with _database(described) as connection:
        try:
            found = connection.sql(f"SELECT coalesce({condition}, false) AS satisfied FROM plans").to_arrow_table()
        except duckdb.Error as error:
            raise SpecError(f"where: {condition}: {_one_line(error, described)}") from None
    rows: npt.NDArray[np.bool_] = found.column("satisfied").to_numpy().astype(np.bool_)
    return rows


@contextmanager
def _database(described: Mapping[str, pa.Array]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that holds only the plans and has no access to anything else."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.register("plans", pa.table(described))
        connection.execute("SET enable_external_access = false").fetchall()
        yield connection


_NOT_OF_ONE_PLAN = re.compile(r"\b(select|current_\w+|localtime|localtimestamp)\b", re.IGNORECASE)
_CALL = re.compile(r"\b(\w+)\s*\(")


def check_constraints(where: Sequence[str], described: Mapping[str, pa.Array]) -> None:
    """Try each constraint on one plan, so that an error is reported before anything runs. Raises SpecError.

    A constraint must be one condition on one plan, with the same value whenever and in whichever slice it is evaluated: no
    aggregate or window (a WHERE clause cannot hold one), no subquery, nothing random.
    """
    with _database(described) as connection:
        query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        changing = {str(row[0]) for row in connection.execute(query).fetchall()}
        for expression in where:
            bare = re.sub(r"'[^']*'", "''", expression)
            word = _NOT_OF_ONE_PLAN.search(bare)
            called = next((name for name in _CALL.findall(bare) if name.lower() in changing), None)
            if word or called:
                found = word[0] if word else called
                raise SpecError(f"where: {expression!r}: found {found!r}, expected a condition on one plan's columns")
            try:
                connection.sql(f"SELECT plan FROM plans WHERE ({expression})").to_arrow_table()
                found = connection.sql(f"SELECT {expression} FROM plans").to_arrow_table().schema
            except duckdb.Error as error:
                raise SpecError(f"where: {expression!r}: {_one_line(error, described)}") from None
            if len(found) != 1 or not pa.types.is_boolean(found.field(0).type):
                raise SpecError(f"where: {expression!r}: found a value of type {found.field(0).type}, expected true or false")


def _one_line(error: duckdb.Error, columns: Mapping[str, object]) -> str:
    """The database's message in one line, with our suggestion of the nearest column instead of its own."""
    text = str(error).splitlines()[0]
    unknown = re.search(r'column "([^"]*)" not found', text)
    if not unknown:
        return text
    later = " (it is only known after the run: use sweep rank --where)" if unknown[1] in MEASURES else ""
    return f"unknown column {unknown[1]!r}{later}, {nearest(unknown[1], columns)}"
