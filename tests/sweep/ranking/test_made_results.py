"""Ranking of results that a test made up: rows without a number, ties, plans with the same numbers, a single missing plan."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared
from sweep.ranking.ranking import Ranking, rank
from sweep.results.slice_file import Slice, encoded
from sweep.results.store import Store

Rows = list[dict[str, Any]]
MakeResults = Callable[[Rows], Path]


@pytest.fixture
def results(prepared: Prepared, tmp_path: Path) -> MakeResults:
    """Writes results, each row that of one plan that can run with these changes; its number is its place."""

    def write(changes: Rows) -> Path:
        batch = evaluate(prepared.sweep, np.arange(400))
        usual = next(row for row in batch.to_pylist() if row["status"] == "ok")
        rows = [{**usual, "plan": number, **change} for number, change in enumerate(changes)]
        store, part = Store(directory=tmp_path / "made"), Slice(0, len(rows))
        with store.opened(prepared.provenance) as provenance:
            data = encoded(pa.RecordBatch.from_pylist(rows, schema=batch.schema), provenance, part)
            store.folder.write_bytes(part.file_name, data)
        return tmp_path / "made"

    return write


def refused(reason: str) -> dict[str, Any]:
    return {"status": "infeasible", "reason": reason, "step_time_s": None, "gpu_s_per_sample": None}


@pytest.mark.parametrize("where", [None, "true"])
def test_rows_that_cannot_be_ranked_are_counted_by_reason(results: MakeResults, where: str | None) -> None:
    """By the index of the files, and by asking the rows; the most frequent reason comes first, then by name."""
    known, unknown = {"peak_memory_bytes": 5.0}, {"peak_memory_bytes": None}
    rows = [known] * 3 + [unknown] * 2 + [refused("b")] * 2 + [refused("a")] * 2 + [refused("c")] * 4
    found = rank(results(rows), by="peak_memory", per=[], where=where)
    assert (found.total, found.ranked, found.filtered) == (13, 3, 0)
    assert list(found.reasons.items()) == [("c", 4), ("a", 2), ("b", 2), ("no_peak_memory_bytes", 2)]
    everything = rank(results(rows), by="step_time", per=[], where=where)
    assert (everything.ranked, list(everything.reasons)) == (5, ["c", "a", "b"])
    by_plan = rank(results(rows), by="pp", per=[], where=where)
    assert (by_plan.ranked, by_plan.total) == (5, 13), "a refused plan has a pp, too"


def test_a_condition_that_is_unknown_of_a_row_leaves_it_out(results: MakeResults) -> None:
    """A row whose condition is neither true nor false is filtered; a refused one keeps its reason whatever it says."""
    rows: Rows = [{"peak_memory_bytes": 5.0}, {"peak_memory_bytes": 9.0}, {"peak_memory_bytes": None}, refused("a")]
    found = rank(results(rows), by="step_time", per=[], where="peak_memory_bytes < 7")
    assert (found.ranked, found.filtered, found.reasons) == (1, 2, {"a": 1})
    assert plans(found) == [0]


def plans(found: Ranking) -> list[int]:
    return [int(plan) for plan in found.rows["plan"].to_pylist()]


def told(found: Ranking) -> list[tuple[int, int, str]]:
    """Of each row: plan, how many plans it stands for, the columns in which these differ."""
    return [(row["plan"], row["alike"], row["alike_but_for"]) for row in found.rows.to_pylist()]


SAME = {"step_time_s": 2.0, "compute_forward_s": 1.0, "peak_memory_bytes": 5e9, "bubble_s": 0.25}
APART: dict[str, dict[str, Any]] = {
    "another step time": {"step_time_s": 2.0001},
    "another part of it": {"bubble_s": 0.2501},
    "another memory": {"peak_memory_bytes": 5.001e9},
    "another batch": {"global_batch": 7},
    "other GPUs": {"all_gpus": 99},
}


@pytest.mark.parametrize("apart", APART)
def test_plans_are_one_row_only_where_all_numbers_agree(results: MakeResults, apart: str) -> None:
    """To the seven digits of a 32-bit float; the row has the lowest number, whatever the order in which they are stored."""
    equal = {"step_time_s": 2.0 * (1 + 1e-9), "vpp": 9}
    rows = [{"step_time_s": 1.0}, {**SAME, "pp": 3}, {**SAME, **equal, "pp": 3}, {**SAME, **APART[apart], "pp": 3}]
    found = told(rank(results(rows), by="step_time", per=[], top=9, where="true"))
    assert found[0][:2] == (0, 1)
    assert sorted(found[1:]) == [(1, 2, "vpp"), (3, 1, "")]


def test_plans_are_compared_in_the_columns_of_the_order_and_of_the_groups(results: MakeResults) -> None:
    """Ranked or grouped by a column of the plan, plans that differ in it are different answers."""
    folder = results([{**SAME, "pp": pp, "ga": ga} for pp, ga in ((1, 2), (2, 2), (2, 4), (1, 2))])
    assert [row[:2] for row in told(rank(folder, by="step_time", per=[], top=9))] == [(0, 4)]
    assert [row[:2] for row in told(rank(folder, by="pp", per=[], top=9))] == [(0, 2), (1, 2)]
    assert [row[:2] for row in told(rank(folder, by="step_time", per=["ga"], top=9))] == [(0, 3), (2, 1)]
    assert plans(rank(folder, by="step_time", per=[], top=9, every=True)) == [0, 1, 2, 3]


def test_many_plans_alike_do_not_use_up_the_rows_asked_for(results: MakeResults) -> None:
    """A thousand plans with the best numbers are one row: the ones behind them are found all the same."""
    rows = [{**SAME, "vpp": 1 + number} for number in range(1000)] + [{"step_time_s": 3.0}, {"step_time_s": 4.0}]
    found = rank(results(rows), by="step_time", per=[], top=3)
    assert told(found) == [(0, 1000, "vpp"), (1000, 1, ""), (1001, 1, "")]
    assert found.alike == 999


@pytest.mark.parametrize("seed", range(5))
def test_what_is_missing_and_what_is_there_are_all_plans(tmp_path: Path, seed: int) -> None:
    """Gaps of one plan too, at either end and between: any set of ranges against the set of its numbers."""
    rng, count = random.Random(seed), 40
    store = Store(directory=tmp_path / "r")
    store.folder.make()
    cuts = sorted({0, 1, count - 1, count, *rng.sample(range(count), 12)})
    ranges = [Slice(start, stop) for start, stop in pairwise(cuts)]
    there = [part for part in ranges[1:-1] if rng.random() < 0.7]
    for part in there:
        store.folder.write_bytes(part.file_name, b"")
    covered = {number for part in there for number in range(part.start, part.stop)}
    missing = [number for part in store.missing(count) for number in range(part.start, part.stop)]
    assert missing == sorted(set(range(count)) - covered)
    assert {0, count - 1} <= set(missing)
    left_out = there[0]
    again = {number for part in store.missing(count, [left_out]) for number in range(part.start, part.stop)}
    assert again == set(missing) | set(range(left_out.start, left_out.stop))


def test_one_missing_plan_is_a_missing_plan(tmp_path: Path) -> None:
    store = Store(directory=tmp_path / "r")
    store.folder.make()
    for part in (Slice(1, 20), Slice(21, 99)):
        store.folder.write_bytes(part.file_name, b"")
    assert store.missing(100) == [Slice(0, 1), Slice(20, 21), Slice(99, 100)]
    assert store.missing(99) == [Slice(0, 1), Slice(20, 21)]
