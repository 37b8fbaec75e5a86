"""Error bars of a ranking: the same ties as without a database, in groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sweep.ranking.error_bars import COLUMNS, ErrorBars, error_bars
from sweep.ranking.query import named
from sweep.ranking.selection import CHOSEN
from sweep.show.ranked import error_lines
from sweep.uncertainty.evidence import Basis, Differences, Spread
from sweep.uncertainty.judging import judge

N = 3000
AXES = ["tp", "pp", "micro_batch", "bucket_bytes", "overlap_tp", "hardware"]
BASIS = Basis(
    spread=Spread(low=-0.1, middle=0.02, high=0.3, between=0.06, within=0.1, runs=400, sets=12),
    differences=Differences(size=0.5, pairs=700, sets=8),
    why="of a test",
)
UNKNOWN = Basis(spread=None, differences=None, why="no runs")


@pytest.fixture(scope="module")
def plans() -> pa.Table:
    """Plans of two sizes of cluster, some of which fail or are of the other fidelity."""
    generator = np.random.default_rng(0)
    step_s = 1 + generator.random(N)
    return pa.table(
        {
            "plan": np.arange(N),
            "tp": 2 ** generator.integers(0, 4, N),
            "pp": 2 ** generator.integers(0, 5, N),
            "micro_batch": generator.integers(1, 5, N),
            "bucket_bytes": generator.integers(0, 3, N) * 10_000_000,
            "overlap_tp": generator.random(N) < 0.5,
            "hardware": pa.array(np.where(generator.random(N) < 0.5, "H100-SXM", "A100-80G-SXM")).dictionary_encode(),
            "all_gpus": np.where(generator.random(N) < 0.5, 64, 128),
            "fidelity": pa.array(np.where(np.arange(N) % 10 == 9, "simai", "event")),
            "status": pa.array(np.where(np.arange(N) % 7 == 6, "infeasible", "ok")),
            "step_time_s": step_s,
            "mfu": 0.5 / step_s,
            "peak_memory_bytes": generator.random(N) * 1e9,
        }
    )


@pytest.fixture
def connection(plans: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as database:
        database.register("results", plans)
        named(database)
        database.execute(f"CREATE TEMP TABLE {CHOSEN} AS SELECT plan FROM results WHERE status = 'ok'").fetchall()
        yield database


def found(database: duckdb.DuckDBPyConnection, **changes: Any) -> tuple[pa.Table, ErrorBars]:
    """Error bars of all plans that are ok."""
    rows = database.sql(f"SELECT * FROM results WHERE plan IN (SELECT plan FROM {CHOSEN}) ORDER BY plan").to_arrow_table()
    asked: dict[str, Any] = {"by": "step_time_s", "per": [], "basis": BASIS} | changes
    return rows, error_bars(database, rows, condition="status = 'ok'", varying=AXES, **asked)


@pytest.mark.parametrize("by", ["step_time_s", "mfu"])
def test_the_same_ties_as_without_a_database(connection: duckdb.DuckDBPyConnection, by: str) -> None:
    rows, bars = found(connection, by=by)
    known = np.array(rows["fidelity"].to_pylist()) == "event"
    of_event = rows.filter(pa.array(known))
    judged = judge(of_event, AXES, of_event["step_time_s"].to_numpy(), BASIS)
    ties = np.array(bars.columns["tie"].to_pylist())
    assert ties[known].tolist() == judged.tie.tolist()
    assert all(tie is None for tie in ties[~known])  # what SimAI-Analytical says is no prediction of ours
    step_s = of_event["step_time_s"].to_numpy()
    low = np.array(bars.columns["step_time_low_s"].to_pylist(), np.float64)[known]
    assert low == pytest.approx(step_s * np.exp(-0.1))
    (group,) = bars.groups
    assert group.best == of_event["plan"][int(np.argmin(step_s))].as_py()
    assert group.tied == judged.tie.sum() - 1


def test_only_ties_are_fetched(connection: duckdb.DuckDBPyConnection) -> None:
    """With one row shown, the columns of the others are not computed, and the count of ties is the same."""
    _, every = found(connection)
    connection.execute(f"DELETE FROM {CHOSEN} WHERE plan <> {every.groups[0].best}").fetchall()
    rows, few = found(connection)
    assert rows.num_rows == len(few.columns) == 1
    assert few.groups[0] == every.groups[0]


def test_each_group_has_its_own(connection: duckdb.DuckDBPyConnection) -> None:
    rows, bars = found(connection, per=["all_gpus"])
    for group in bars.groups:
        alone = rows.filter(pa.array(np.array(rows["all_gpus"]) == group.group[0]))
        alone = alone.filter(pa.array(np.array(alone["fidelity"].to_pylist()) == "event"))
        judged = judge(alone, AXES, alone["step_time_s"].to_numpy(), BASIS)
        assert group.best == alone["plan"][int(judged.best[0])].as_py()
        assert group.tied == judged.tie.sum() - 1
    assert len(bars.groups) == 2


def test_no_ties_by_memory_and_nothing_without_evidence(connection: duckdb.DuckDBPyConnection) -> None:
    _, by_memory = found(connection, by="peak_memory_bytes")
    assert by_memory.columns["tie"].null_count == len(by_memory.columns)
    assert by_memory.columns["step_time_low_s"].null_count < len(by_memory.columns)
    assert by_memory.groups == ()
    assert "peak_memory_bytes is no time" in by_memory.why
    _, nothing = found(connection, basis=UNKNOWN)
    assert nothing.columns.column_names == list(COLUMNS)
    assert all(nothing.columns[name].null_count == len(nothing.columns) for name in COLUMNS)
    assert nothing.why == "no runs"


def test_what_is_printed(connection: duckdb.DuckDBPyConnection) -> None:
    _, bars = found(connection, per=["all_gpus"])
    text = "\n".join(error_lines(bars, ("all_gpus",)))
    assert "x the simulated one (90%; of a test)" in text
    assert "ties: gpus 64: " in text
    assert "`sweep tune` says which to run" in text


def test_a_plan_that_waits_for_its_host_has_a_wider_interval(plans: pa.Table) -> None:
    """Of the plans shown, those that wait a quarter of their step: 1.5 times as wide, and no other."""
    waits = np.arange(N) % 2 == 0
    launch_s = np.where(waits, plans["step_time_s"].to_numpy() / 4, 0.0)
    with duckdb.connect() as database:
        database.register("results", plans.append_column("launch_s", pa.array(launch_s)))
        named(database)
        database.execute(f"CREATE TEMP TABLE {CHOSEN} AS SELECT plan FROM results WHERE status = 'ok'").fetchall()
        rows, bars = found(database, basis=replace(BASIS, widening={"host_bound": 1.5}))
    known = np.array(rows["fidelity"].to_pylist()) == "event"
    width = np.log(bars.columns["step_time_high_s"].to_numpy()[known] / bars.columns["step_time_low_s"].to_numpy()[known])
    assert BASIS.spread is not None
    usual = BASIS.spread.high - BASIS.spread.low
    assert width == pytest.approx(usual * np.where(waits[rows["plan"].to_numpy()[known]], 1.5, 1.0))
