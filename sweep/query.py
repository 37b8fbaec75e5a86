"""Query results: a database with a store's rows as the table `results`; its errors become one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow.dataset as ds

from sim_core import SpecError
from sweep.folder import Location
from sweep.store import Store


@contextmanager
def results(directory: Location, where: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Raises SpecError if there are no results, a file cannot be read, or the condition `where` fails on a value."""
    with duckdb.connect() as connection:
        try:
            attach(connection, "results", directory)
            yield connection
        except duckdb.Error as error:
            text = str(error).splitlines()[0]
            if where and not isinstance(error, duckdb.InvalidInputException | duckdb.IOException):
                raise SpecError(f"--where {where!r}: {text}") from None
            folder = Store(directory=directory).folder
            raise SpecError(f"{folder}: cannot be read ({text}); `sweep run` recomputes damaged slices") from None


def attach(connection: duckdb.DuckDBPyConnection, name: str, directory: Location) -> None:
    """Make the results in `directory` readable as the table `name`. Raises SpecError if there are none."""
    store = Store(directory=directory)
    folder = store.folder
    parts = store.slices() if store.provenance() is not None else []
    if not parts:
        raise SpecError(f"{folder}: holds no results of a sweep")
    files = [folder.path(part.file_name) for part in parts]
    if folder.local is not None:
        connection.register(name, connection.read_parquet(files))
    else:  # through Arrow, which can open the file system; columns and conditions are pushed down to it
        connection.register(name, ds.dataset(files, format="parquet", filesystem=folder.filesystem))


def columns_of(connection: duckdb.DuckDBPyConnection, name: str = "results") -> dict[str, str]:
    """Name and type of each column of the results."""
    relation = connection.sql(f"FROM {name} LIMIT 0")
    return dict(zip(relation.columns, map(str, relation.types), strict=True))
