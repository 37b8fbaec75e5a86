"""Query results: a database with the rows of stores as tables, locked against everything else; its errors become one line."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile

import duckdb

from sim_core import SpecError
from sweep.columns import RUNS, names_of_hardware, other_names
from sweep.conditions import check_condition, in_short, locked_down, names_in
from sweep.options import OptionError, of_option
from sweep.ranking.chances import FROM, runs_in_sql
from sweep.results.folder import Location
from sweep.results.index import Index
from sweep.results.reading import File, Reading, reading
from sweep.results.store import Store

_FEW = 8
_MOST_COLUMNS = 1000
"""Files that are rather read whole than asked which of them has a plan."""
NAMED = "named AS hardware"
"""The rows with all names of their columns; so called, `hardware.nic_bandwidth` is the column, too."""


@dataclass
class Rows:
    """The rows of a result as the table `results` and as NAMED: of those columns and files that were asked for last."""

    connection: duckdb.DuckDBPyConnection
    columns: dict[str, str]  # all names and types
    directory: Location
    reading: Reading | None = None  # None: all are there, and checked
    chance: str | None = None  # SQL of RUNS, for conditions

    def indexes(self) -> list[Index] | None:
        """What the footers of all files say; None if one says nothing, or all rows are there."""
        return self.reading.indexes() if self.reading else None

    def ask(self, columns: Collection[str], files: Sequence[File] | None = None) -> None:
        """Check these columns of these files (default: of all), and show them. Raises SpecError if one is damaged."""
        if self.reading is None:
            return
        chosen = self.reading.files if files is None else files
        names = [name for name in self.columns if name in columns]
        self.reading.check(chosen, names)
        self._show(names, chosen)

    def ask_whole(self, files: Sequence[File]) -> None:
        """Check all bytes of these files, and show all their columns. Raises SpecError if one is damaged."""
        if self.reading is not None:
            self.reading.check_whole(files)
            self._show(list(self.columns), files)

    def holding(self, plans: Sequence[int], files: Sequence[File]) -> list[File]:
        """Those of some files that have one of these plans."""
        if self.reading is None or not plans or len(files) <= _FEW:
            return list(files)
        self.reading.check(files, ["plan"])
        rows = self.connection.read_parquet([str(file.path) for file in files], filename=True)
        named = rows.filter(f"plan IN ({', '.join(map(str, plans))})").project("filename").distinct().fetchall()
        return [file for file in files if (str(file.path),) in set(named)]

    def _show(self, names: Sequence[str], files: Sequence[File]) -> None:
        paths = [str(file.path) for file in files or self.reading.files[:1]] if self.reading else []
        relation = self.connection.read_parquet(paths).project(", ".join(f'"{name}"' for name in names))
        self.connection.register("results", relation if files else relation.limit(0))
        named(self.connection, self.chance if set(names) >= FROM else None)


@contextmanager
def parts(directory: Location, where: str | None = None) -> Iterator[Rows]:
    """The rows of a result, to be asked for; none of them is read or checked before.

    Raises SpecError if there are no results, a file is damaged, or the condition `where` fails on a value.
    """
    with reading(directory) as files, locked_down([file.path for file in files.files]) as connection:
        schema = _read(connection, [str(files.files[0].path)], directory)
        columns = dict(zip(schema.columns, map(str, schema.types), strict=True))
        asked = where is not None and RUNS in where.lower()
        chance = runs_in_sql(Store(directory=directory).provenance() or {}, columns.keys()) if asked else None
        with _in_one_line(directory, where):
            if where:
                others = [*other_names(list(columns)), *names_of_hardware(list(columns)), *([RUNS] if chance else [])]
                with of_option(f"--where {where!r}"):
                    check_condition(where, list(columns), (), others)
            yield Rows(connection=connection, columns=columns, directory=directory, reading=files, chance=chance)


@contextmanager
def results(directory: Location) -> Iterator[duckdb.DuckDBPyConnection]:
    """The rows as the table `results`, and as NAMED for conditions.

    Raises SpecError if there are no results, or a file is damaged.
    """
    with opened(results=directory) as connection:
        named(connection)
        with _in_one_line(directory):
            yield connection


def columns_in(where: str, columns: Collection[str]) -> set[str]:
    """The columns that a checked condition reads, by any of their names."""
    others = {short.lower(): name for short, name in other_names(list(columns)).items()} | {
        name.lower(): name for name in columns
    }
    names = {name.lower().removeprefix("hardware.") for name in names_in(where)}
    return {others[name] for name in names - {RUNS}} | (FROM if RUNS in names else set())


@contextmanager
def _in_one_line(directory: Location, where: str | None = None) -> Iterator[None]:
    """Turn an error of the database into a SpecError."""
    try:
        yield
    except duckdb.Error as error:
        store = Store(directory=directory)
        if where and not isinstance(error, duckdb.IOException):
            with store.verified():  # else it says what is damaged
                raise OptionError(f"--where {where!r}: {in_short(error)}") from None
        raise SpecError(f"{store.folder}: cannot be read ({in_short(error)})") from None


def named(connection: duckdb.DuckDBPyConnection, chance: str | None = None) -> list[str]:
    """Make NAMED of the table `results`; returns its columns. `chance`: SQL of RUNS."""
    columns = list(columns_of(connection))
    names = "".join(f', "{name}" AS "{short}"' for short, name in other_names(columns).items())
    names += f", {chance} AS {RUNS}" if chance else ""
    connection.execute(f"CREATE OR REPLACE TEMP VIEW named AS SELECT *{names} FROM results").fetchall()
    return columns


@contextmanager
def opened(**tables: Location) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that reaches the results in these folders, by the names of `tables`, and nothing else.

    Raises SpecError if there are none in a folder, or a file is damaged.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(Store(directory=directory).verified()) for name, directory in tables.items()}
        connection = stack.enter_context(locked_down([path for paths in files.values() for path in paths], many=True))
        for name, paths in files.items():
            connection.register(name, _read(connection, [str(path) for path in paths], tables[name]))
        yield connection


def _read(connection: duckdb.DuckDBPyConnection, paths: list[str], directory: Location) -> duckdb.DuckDBPyRelation:
    """The rows in some files. Raises SpecError for more columns than any result has: each costs milliseconds."""
    rows = connection.read_parquet(paths)
    if len(rows.columns) > _MOST_COLUMNS:
        raise SpecError(f"{directory}: found {len(rows.columns):,} columns, expected at most {_MOST_COLUMNS:,}")
    return rows


def plan_columns(columns: Iterable[str], without: Collection[str]) -> list[str]:
    """The columns of a result that are its plans': those before the status."""
    return [name for name in takewhile(lambda name: name != "status", columns) if name not in without]


def columns_of(connection: duckdb.DuckDBPyConnection, name: str = "results") -> dict[str, str]:
    """Name and type of each column of the results."""
    relation = connection.sql(f"FROM {name} LIMIT 0")
    return dict(zip(relation.columns, map(str, relation.types), strict=True))
