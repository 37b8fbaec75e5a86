"""Conditions that a user types (`where` of a spec, `--where`), and the only kind of database that they meet.

A condition is one expression on the columns of one plan. Its syntax tree is checked against a closed list: no subquery, no
aggregate, nothing random, no function that can build a large value or reach a file. The database has no access to files but
those it is given, no extensions, and a locked configuration.
"""

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from sim_core import CHECKPOINTING, PLAN_FIELDS, Bools, SpecError, nearest, quantity, shown
from sweep.columns import MEASURES, NOT_STORED, names_of_hardware, other_names
from sweep.spec.other_names import meant, our_name

MOST_CHARACTERS = 10_000
MOST_CONDITIONS = 500
MOST_IN_ALL = 100_000  # characters of all conditions of a spec
FUNCTIONS = (
    "abs", "cbrt", "ceil", "ceiling", "coalesce", "concat", "contains", "ends_with", "exp", "floor", "greatest",
    "ifnull", "isfinite", "isinf", "isnan", "least", "left", "len", "length", "ln", "log", "log10", "log2", "lower", "ltrim",
    "mod", "nullif", "position", "pow", "power", "regexp_full_match", "regexp_matches", "right", "round", "rtrim", "sign",
    "split_part", "sqrt", "starts_with", "strpos", "substr", "substring", "suffix", "prefix", "trim", "trunc", "upper",
)  # fmt: skip
_OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "^", "&", "|", "~", "<<", ">>", "||", "~~", "!~~", "~~*", "!~~*", "~~~",
    "like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape",
)  # fmt: skip
_OPERATOR_HINTS = {
    "=>": "at least is >=",
    "=<": "at most is <=",
    "><": "unequal is != or <>",
    "&&": "both is AND",
    "list_value": "one of some is IN (1, 2)",
}
_WITH_UNIT = re.compile(r"(?<![\w.])(\d+\.?\d* ?(?:(?:[kMGT]i?)?B|[mu]?s|%))(?!\w)")
_WORDS = frozenset(
    {word for field in PLAN_FIELDS.values() for word in field.words}
    | {*CHECKPOINTING, "ok", "invalid", "failed", "even", "balanced"}
)
"""Values of columns of text that are also names to SQL where they stand without quotes."""
_CLASSES = (
    "CONJUNCTION", "COMPARISON", "FUNCTION", "CONSTANT", "COLUMN_REF", "OPERATOR", "CASE", "CAST", "BETWEEN", "TYPE",
)  # fmt: skip
_TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "FLOAT", "DOUBLE", "DECIMAL", "VARCHAR",
)  # fmt: skip
_SYNTAX = ("type", "select_list", "aggregate_handling")
_MEMORY = "1GB"
_CONDITION = "a condition on the columns of one plan"
_FROM = "FROM plans AS hardware"
"""With this name of the table, `hardware.nic_bandwidth` is its column, too."""


@contextmanager
def locked_down(files: Sequence[Path] = (), *, many: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that can read `files` and nothing else; with none, it has one thread and little memory.

    `many`: queries are to come, so that the footers of files are kept in memory. With no files, every caller has a connection
    of its own to one database of the process: to open one takes 20 ms.
    """
    with _opened(files, many=many) if files else closing(_of_process(os.getpid()).cursor()) as connection:
        yield connection


@cache
def _of_process(process: int) -> duckdb.DuckDBPyConnection:
    """The database without files of a process; one that was forked has another number, and does not use its parent's."""
    return _opened(())


def _opened(files: Sequence[Path], *, many: bool = False) -> duckdb.DuckDBPyConnection:
    """A database of its own."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",  # a name in a query is never a variable of this program
        "async_threads": "1",  # more take 40 MB, and read files in memory no faster
    }
    connection = duckdb.connect(config=config if files else config | {"threads": "1", "memory_limit": _MEMORY})
    names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in files)
    for statement in (
        f"SET allowed_paths = [{names}]",
        *("LOAD parquet", "SET parquet_metadata_cache = true") * many,
        "SET enable_external_access = false",
        "SET lock_configuration = true",
    ):
        connection.execute(statement).fetchall()
    return connection


def check_condition(expression: str, columns: Collection[str], later: Collection[str] = (), also: Collection[str] = ()) -> None:
    """Raise SpecError unless `expression` is one condition on these columns; `later` are only known after a run.

    `also`: further names of the columns.
    """
    if len(expression) > MOST_CHARACTERS:
        raise SpecError(f"found {len(expression):,} characters, expected at most {MOST_CHARACTERS:,}")
    with locked_down() as connection:
        for text in (f"SELECT {expression}\n", f"SELECT ({expression}\n)"):  # alone, and where it will stand
            _check_tree(_tree(connection, text), {name.lower() for name in (*columns, *also)}, columns, later)


def in_short(error: duckdb.Error) -> str:
    """An error of the database in one line, in our words where we know it."""
    told = str(error).splitlines()[0].partition(". Use TRY(")[0]
    text = re.match(r"Conversion Error: Could not convert string (.+) to \w+", told)
    if text is None:
        return re.sub(r"^(\w+ )+Error: ", "", told)
    return f"found the text {text[1]} beside a column of numbers{_written(text[1])}"


def _written(text: str) -> str:
    """How a number is written that has a unit, or a word that has no quotes, to end a message; empty if there is none."""
    if (found := _WITH_UNIT.search(text)) is None:
        bare = re.findall(r"[\w-]+", re.sub("'[^']*'", "", text))
        return next((f"; a text needs quotes: '{word}'" for word in bare if word in _WORDS), "")
    with suppress(SpecError):
        return f"; columns are in SI: {found[0]} is {quantity(found[0], 'B' if found[0][-1] == 'B' else 's'):g}"
    return f"; {found[0]} is {float(found[0][:-1]) / 100:g}"


def names_in(expression: str) -> set[str]:
    """The columns that a condition names, as it names them. Raises SpecError."""
    with locked_down() as connection:
        nodes = _mappings(_tree(connection, f"SELECT ({expression}\n)"))
        return {".".join(node.get("column_names", [])) for node in nodes if node.get("class") == "COLUMN_REF"}


def _mappings(tree: Any) -> Iterator[dict[str, Any]]:
    """All nodes of a syntax tree, but for what is inside a literal."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            yield node
            waiting.extend(value for key, value in node.items() if key != "literal")


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Any:
    """The syntax tree of the one expression in a SELECT without any other clause."""
    try:
        answer = json.loads(connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0][0])
    except (duckdb.Error, RecursionError):
        raise SpecError(f"cannot be read, expected {_CONDITION}") from None
    if answer.get("error"):
        if answer.get("error_type") != "parser":
            raise SpecError(f"found a statement, expected {_CONDITION}")
        near = re.search(r'at or near "([^"]+)"', str(answer.get("error_message")))
        at = f" at {shown(near[1], 40)}" if near else ""
        signs = _OPERATOR_HINTS | {"||": "either is OR", "==": "equal is ="}
        hints = ", ".join(hint for sign, hint in signs.items() if sign in text)
        raise SpecError(f"cannot be read{at}, expected {_CONDITION}{'; ' * bool(hints)}{hints}{_written(text)}")
    nodes = [statement["node"] for statement in answer["statements"]]
    bare = len(nodes) == 1 and nodes[0]["type"] == "SELECT_NODE" and len(nodes[0]["select_list"]) == 1
    for key, value in nodes[0].items() if bare else ():
        empty = not value or value == {"map": []} or (key == "from_table" and value.get("type") == "EMPTY")
        bare = bare and (key in _SYNTAX or empty)
    if not bare or nodes[0]["select_list"][0].get("alias"):
        raise SpecError(f"found more than one expression, expected {_CONDITION}{_written(text)}")
    return nodes[0]["select_list"][0]


def _check_tree(tree: Any, names: set[str], columns: Collection[str], later: Collection[str]) -> None:
    """Check every node of a syntax tree against the closed lists."""
    for node in _mappings(tree):
        kind = node.get("class")
        if kind is None:
            continue
        called = str(node.get("function_name", "")).lower()
        if kind not in _CLASSES:
            raise SpecError(f"found {'SELECT' if kind == 'SUBQUERY' else str(kind).lower()!r}, expected {_CONDITION}")
        if kind == "FUNCTION" and called not in FUNCTIONS and called not in _OPERATORS:
            hint = _OPERATOR_HINTS.get(called) or nearest(called, FUNCTIONS)
            raise SpecError(f"found the function {called!r}, expected {_CONDITION}; {hint}")
        name = ".".join(node.get("column_names", []))
        lower = name.lower()
        if kind == "COLUMN_REF" and lower not in names:
            if lower in NOT_STORED:
                raise SpecError(f"no row holds {lower}: {NOT_STORED[lower]}")
            if name in later or our_name(name) in later:
                raise SpecError(f"unknown column {name!r} (it is only known after the run: use sweep rank --where)")
            near = f"a text needs quotes: '{name}'" if lower in _WORDS else meant(name, columns)
            raise SpecError(f"unknown column {name!r}, {near}")
        target = node.get("type_name") or (node.get("cast_type") or {}).get("id")
        if target and re.split(r"\W", str(target))[0].upper() not in _TYPES:
            raise SpecError(f"found the type {target}, expected one of {', '.join(_TYPES)}")


def satisfied(where: Sequence[str], described: Mapping[str, pa.Array]) -> Bools:
    """Which rows satisfy all constraints; NULL counts as false. Raises SpecError if one cannot be evaluated."""
    if not where:
        return np.ones(len(described["plan"]), bool)
    condition = " AND ".join(f"({expression}\n)" for expression in where)
    with locked_down() as connection:
        connection.register("plans", _named(described))
        try:
            table = connection.sql(f"SELECT coalesce({condition}, false) AS satisfied {_FROM}").to_arrow_table()
        except duckdb.Error as error:
            raise SpecError(f"where: {' AND '.join(f'({text})' for text in where)}: {in_short(error)}") from None
    rows: Bools = table.column("satisfied").to_numpy().astype(bool)
    return rows


def check_constraints(where: Sequence[str], described: Mapping[str, pa.Array]) -> None:
    """Try each constraint on one plan, so that an error is reported before anything runs. Raises SpecError.

    The value of a constraint must not depend on the slice in which it is evaluated.
    """
    names = list(described)
    if len(where) > MOST_CONDITIONS:
        raise SpecError(f"where: found {len(where):,} conditions, expected at most {MOST_CONDITIONS}")
    if (characters := sum(map(len, where))) > MOST_IN_ALL:
        raise SpecError(f"where: found {characters:,} characters, expected at most {MOST_IN_ALL:,} in all conditions")
    with locked_down() as connection:
        connection.register("plans", _named(described))
        for expression in where:
            try:
                check_condition(expression, described, MEASURES, [*other_names(names), *names_of_hardware(names)])
                connection.sql(f"SELECT plan {_FROM} WHERE ({expression}\n)").to_arrow_table()
                values = connection.sql(f"SELECT {expression}\n {_FROM}").to_arrow_table().schema
                if len(values) != 1 or not pa.types.is_boolean(values.field(0).type):
                    raise SpecError(f"found a value of type {values.field(0).type}, expected true or false")
            except (SpecError, duckdb.Error) as error:
                told = in_short(error) if isinstance(error, duckdb.Error) else error
                raise SpecError(f"where: {expression!r}: {told}") from None


def _named(described: Mapping[str, pa.Array]) -> pa.Table:
    """The plans with all names that their columns have."""
    return pa.table(dict(described) | {short: described[name] for short, name in other_names(list(described)).items()})
