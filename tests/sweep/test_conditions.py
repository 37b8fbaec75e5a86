"""What a user may type as a condition, and what is refused: files, further statements, subqueries, values without bound."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from sim_core import SpecError
from sweep.conditions import FUNCTIONS, MOST_CHARACTERS, check_condition, locked_down
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.ranking.ranking import rank
from sweep.results.store import Store
from sweep.spec.spec import load_spec
from tests.sweep.conftest import SpecWriter

COLUMNS = ("plan", "tp", "pp", "checkpointing")


@pytest.mark.parametrize(
    "condition",
    [
        "tp * pp <= 64 and abs(tp - pp) between 1 and 2",
        "cast(substr(checkpointing, 7) as int) > 2 or checkpointing = 'none'",
        "checkpointing in ('full', 'none') and tp is not null and not pp = 1",
        "case when tp = 1 then pp = 1 else true end",
        "checkpointing like 'block%' -- those with blocks",
        "TP ** 2 > 1 and -pp < 0 and tp // 2 = 1 and pp % 2 = 0",
        "tp is distinct from pp and coalesce(try_cast(checkpointing as double), 0.5) < 1e3",
        "checkpointing similar to 'block:[0-9]+' or checkpointing ilike 'F%'",
        "nullif(tp, 2) > 0 and NULL::BOOLEAN",
    ],
)
def test_what_a_condition_may_say(condition: str) -> None:
    check_condition(condition, COLUMNS)


ATTACKS = [
    ("true); COPY (SELECT 1) TO '{out}'; SELECT (true", "found more than one|cannot be read|found a statement"),
    ("true; COPY (SELECT 1) TO '{out}'", "found a statement|found more than one"),
    ("true) FROM read_csv('{secret}') WHERE (true", "cannot be read"),
    ("true FROM read_csv('{secret}')", "found more than one expression"),
    ("EXISTS (FROM read_csv('{secret}'))", "found 'SELECT'"),
    ("tp > (SELECT count(*) FROM read_text('{secret}'))", "found 'SELECT'"),
    ("tp IN (SELECT 1)", "found 'SELECT'"),
    ("list_sum(range(0, 300000000)) > 0", "found the function '(list_sum|range)'"),
    ('"list_sum"("range"(0, 300000000)) > 0', "found the function '(list_sum|range)'"),
    ("[x for x in range(300000000)] is not null", "found the function"),
    ("length(repeat('x', 2000000000)) > 0", "found the function 'repeat'"),
    ("length(lpad('x', 2000000000, 'y')) > 0", "found the function 'lpad'"),
    ("length(printf('%2000000000d', tp)) > 0", "found the function 'printf'"),
    ("cast(NULL AS INTEGER[100000][100000]) IS NULL", "found the type"),
    ("getenv('HOME') = 'x'", "found the function 'getenv'"),
    ("current_setting('memory_limit') = 'x'", "found the function"),
    ("random() < 0.5", "found the function 'random'"),
    ("count(*) OVER () > 1", "found 'window'"),
    ("sum(tp) > 1", "found the function 'sum'"),
    ("unnest([true])", "found the function"),
    ("now() > '2020-01-01'", "found the function"),
    ("current_date > '2020-01-01'", "unknown column 'current_date'"),
    ("tp = $1", "found 'parameter'"),
    ("COLUMNS('tp') > 1", "found 'star'"),
    ("tp > 1, pp > 1", "found more than one expression"),
    ("tp > 1 AS x", "found more than one expression"),
    ("DISTINCT tp > 1", "found more than one expression"),
    ("tp > 1 ORDER BY 1", "found more than one expression"),
    ("tp > 1 UNION SELECT true", "found more than one expression"),
    ("tp > 1) OR (pp > 1", "cannot be read"),
    ("tp > 1 /*", "cannot be read"),
    ("- " * 4000 + "tp > 1", "cannot be read|found"),
    ("tp > 1 " + " " * MOST_CHARACTERS, "found 10,007 characters, expected at most 10,000"),
    ("", "cannot be read|found"),
]


@pytest.mark.parametrize(("condition", "told"), ATTACKS, ids=[attack[:40].strip() or "nothing" for attack, _ in ATTACKS])
def test_what_a_condition_must_not_do(tmp_path: Path, condition: str, told: str) -> None:
    secret, out = tmp_path / "secret.csv", tmp_path / "out.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(SpecError, match=told) as caught:
        check_condition(condition.format(secret=secret, out=out), COLUMNS)
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_csv('{secret}')",
        "FROM '{secret}'",
        "COPY (SELECT 1) TO '{out}'",
        "ATTACH '{out}'",
        "FROM glob('/etc/*')",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "FROM variable",
    ],
)
def test_the_database_itself_reaches_nothing_else(tmp_path: Path, query: str) -> None:
    """Should the list of what is allowed have a hole."""
    secret, out = tmp_path / "secret.csv", tmp_path / "out.csv"
    secret.write_text("a\n1\n")
    variable = duckdb.sql("SELECT 1")
    assert variable is not None
    with locked_down() as connection, pytest.raises(duckdb.Error):
        connection.execute(query.format(secret=secret, out=out)).fetchall()
    assert not out.exists()


def test_rank_and_spec_refuse_alike(write_spec: SpecWriter, tmp_path: Path) -> None:
    path = write_spec(axes={"tp": [1, 2], "ga": [4]})
    run_sweep(prepare(load_spec(path), path.parent), Store(directory=tmp_path / "out"), InlineExecutor())
    attack = f"true); COPY (SELECT 1) TO '{tmp_path / 'x.csv'}'; SELECT (true"
    with pytest.raises(SpecError, match=r'--where "true\); COPY .*cannot be read'):
        rank(tmp_path / "out", where=attack)
    path = write_spec(axes={"tp": [1, 2], "ga": [4]}, where=["list_sum(range(0, 300000000)) > 0"])
    with pytest.raises(SpecError, match=r"where: 'list_sum\(range\(0, 300000000\)\) > 0': found the function"):
        prepare(load_spec(path), path.parent)
    assert not (tmp_path / "x.csv").exists()
    assert rank(tmp_path / "out", where="tp = 2 -- only those").total == 2


def test_every_function_that_is_allowed_exists_and_is_the_same_at_every_call() -> None:
    with locked_down() as connection:
        query = "SELECT function_name, stability FROM duckdb_functions() WHERE function_type = 'scalar'"
        known = dict(connection.execute(query).fetchall())
    written_otherwise = {"coalesce", "nullif", "ifnull", "position", "split_part"}  # syntax and macros
    assert {name for name in FUNCTIONS if known.get(name) != "CONSISTENT"} <= written_otherwise
