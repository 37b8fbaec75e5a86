"""Questions to a store's results: a database that holds them as the table `results`, its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow.dataset as ds

from sim_core import SpecError
from sweep.place import Location
from sweep.store import Store


@contextmanager
def results(directory: Location, where: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Raises SpecError where there are no results, a file cannot be read, or a condition (`where`) fails on a value."""
    with duckdb.connect() as connection:
        try:
            attach(connection, "results", directory)
            yield connection
        except duckdb.Error as error:
            text = str(error).splitlines()[0]
            if where and not isinstance(error, duckdb.InvalidInputException | duckdb.IOException):
                raise SpecError(f"--where {where!r}: {text}") from None
            place = Store(directory=directory).place
            raise SpecError(f"{place}: cannot be read ({text}); `sweep run` computes damaged slices again") from None


def attach(connection: duckdb.DuckDBPyConnection, name: str, directory: Location) -> None:
    """Make the results in `directory` readable as the table `name`. Raises SpecError where there are none."""
    store = Store(directory=directory)
    place = store.place
    parts = store.slices() if store.provenance() is not None else []
    if not parts:
        raise SpecError(f"{place}: no results of a sweep lie here")
    files = [place.path(part.file_name) for part in parts]
    if place.local is not None:
        connection.register(name, connection.read_parquet(files))
    else:  # through Arrow, which knows the file system; columns and conditions are pushed down to it
        connection.register(name, ds.dataset(files, format="parquet", filesystem=place.filesystem))


def columns_of(connection: duckdb.DuckDBPyConnection, name: str = "results") -> dict[str, str]:
    """Name and type of each column of the results."""
    relation = connection.sql(f"FROM {name} LIMIT 0")
    return dict(zip(relation.columns, map(str, relation.types), strict=True))
