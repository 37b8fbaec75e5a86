"""Questions to a store's results: a database that holds them as the table `results`, its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from sim_core import SpecError
from sweep.store import Store


@contextmanager
def results(directory: Path, where: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Raises SpecError where there are no results, a file cannot be read, or a condition (`where`) fails on a value."""
    store = Store(directory=directory)
    files = store.files() if directory.is_dir() and store.provenance() is not None else []
    if not files:
        raise SpecError(f"{directory}: no results of a sweep lie here")
    with duckdb.connect() as connection:
        try:
            connection.register("results", connection.read_parquet([str(path) for path in files]))
            yield connection
        except duckdb.Error as error:
            text = str(error).splitlines()[0]
            if where and not isinstance(error, duckdb.InvalidInputException | duckdb.IOException):
                raise SpecError(f"--where {where!r}: {text}") from None
            raise SpecError(f"{directory}: cannot be read ({text}); `sweep run` computes damaged slices again") from None


def columns_of(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Name and type of each column of the results."""
    relation = connection.sql("FROM results LIMIT 0")
    return dict(zip(relation.columns, map(str, relation.types), strict=True))
