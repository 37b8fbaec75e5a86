"""Query results: a database with the rows of stores as tables, locked against everything else; its errors become one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import duckdb

from sim_core import SpecError
from sweep.columns import names_of_hardware, other_names
from sweep.conditions import check_condition, locked_down
from sweep.folder import Location
from sweep.store import Store

NAMED: Final = "named AS hardware"
"""The rows with all names of their columns; so called, `hardware.nic_bandwidth` is the column, too."""


@contextmanager
def results(directory: Location, where: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """The rows as the table `results`, and as NAMED for conditions.

    Raises SpecError if there are no results, a file is damaged, or the condition `where` fails on a value.
    """
    with opened(results=directory) as connection:
        columns, others = named(connection)
        if where:
            try:
                check_condition(where, columns, (), [*others, *names_of_hardware(columns)])
            except SpecError as error:
                raise SpecError(f"--where {where!r}: {error}") from None
        try:
            yield connection
        except duckdb.Error as error:
            text = str(error).splitlines()[0]
            if where and not isinstance(error, duckdb.InvalidInputException | duckdb.IOException):
                raise SpecError(f"--where {where!r}: {text}") from None
            raise SpecError(f"{Store(directory=directory).folder}: cannot be read ({text})") from None


def named(connection: duckdb.DuckDBPyConnection) -> tuple[list[str], dict[str, str]]:
    """Make NAMED of the table `results`; its columns, and their further names."""
    columns = list(columns_of(connection))
    others = other_names(columns)
    names = "".join(f', "{name}" AS "{short}"' for short, name in others.items())
    connection.execute(f"CREATE TEMP VIEW named AS SELECT *{names} FROM results").fetchall()
    return columns, others


@contextmanager
def opened(**tables: Location) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that reaches the results in these folders, by the names of `tables`, and nothing else.

    Raises SpecError if there are none in a folder, or a file is damaged.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(Store(directory=directory).verified()) for name, directory in tables.items()}
        connection = stack.enter_context(locked_down([path for paths in files.values() for path in paths]))
        for name, paths in files.items():
            connection.register(name, connection.read_parquet([str(path) for path in paths]))
        yield connection


def columns_of(connection: duckdb.DuckDBPyConnection, name: str = "results") -> dict[str, str]:
    """Name and type of each column of the results."""
    relation = connection.sql(f"FROM {name} LIMIT 0")
    return dict(zip(relation.columns, map(str, relation.types), strict=True))
