"""`sweep search --verify`: what it says of a search that is right, and of one whose bounds are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import coarse_bounds, coarse_bounds_over
from sweep.evaluation import evaluation
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared
from sweep.executors import InlineExecutor
from sweep.results.store import Store
from sweep.search import ahead
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.search.verifying import SEED, Verified, verify
from tests.sweep.search.test_search import exhaustive
from tests.sweep.search.test_search_blocks import AXES, BY_FAMILIES, objective_of, prepared_of
from tests.sweep.test_execution import here

TOO_HIGH = 1.3


def verified(prepared: Prepared, objective: Objective, folder: Path, number: int) -> Verified:
    """A search, then some of what it left out."""
    store, searched = Store(directory=folder), as_search(prepared, objective)
    run_search(searched, objective, store, InlineExecutor())
    return verify(searched, objective, store, number)


def lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarse bounds of some plans above their steps: of those with pp 2."""

    def coarse(workload: Any, hardware: Any, plans: Any) -> Any:
        found = coarse_bounds(workload, hardware, plans)
        return found._replace(step_time_s=found.step_time_s * np.where(plans.pp == 2, TOO_HIGH, 1.0))

    def over(workload: Any, hardware: Any, plans: Any, ga: Any, *, rough: bool = False) -> Any:
        reason, step_s = coarse_bounds_over(workload, hardware, plans, ga, rough=rough)
        return reason, step_s * np.where(plans.pp == 2, TOO_HIGH, 1.0)[:, None]

    monkeypatch.setattr(ahead, "coarse_bounds", coarse)
    monkeypatch.setattr(evaluation, "coarse_bounds_over", over)


@pytest.mark.parametrize("axes", [AXES, BY_FAMILIES])
@pytest.mark.parametrize("asked", [{}, {"column": "mfu", "descending": True, "per": ("pp",)}, {"column": "peak_memory_bytes"}])
def test_nothing_is_found_of_a_search_that_is_right(axes: dict[str, Any], asked: dict[str, Any], tmp_path: Path) -> None:
    model = {"workload": {"model": "gpt2", "sequence": 1024}, "axes": axes}
    prepared, objective = prepared_of(tmp_path, **model), objective_of(**asked)
    found = verified(prepared, objective, tmp_path / "out", 60)
    assert found == Verified(60, [], [], 0.0)
    assert found.holds
    assert f"60 plans of those left out, drawn with seed {SEED}: none belongs in the answer, none is" in str(found)
    left = prepared.sweep.space.count
    legal = evaluate(prepared.sweep, np.arange(left)).column("reason").to_pylist().count("")
    everything = verified(prepared, objective, tmp_path / "out", left)
    assert everything.simulated == legal - len(exhaustive(prepared, objective))


@pytest.mark.parametrize("axes", [AXES, BY_FAMILIES])
def test_a_bound_that_does_not_hold_is_found(axes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lifted(monkeypatch)
    prepared, objective = prepared_of(tmp_path, axes=axes), objective_of(per=("pp",))
    found = verified(prepared, objective, tmp_path / "out", prepared.sweep.space.count)
    table = evaluate(prepared.sweep, np.arange(prepared.sweep.space.count)).to_pylist()
    assert found.missing
    assert set(found.missing) <= exhaustive(prepared, objective)
    assert found.better
    assert {table[plan]["pp"] for plan in found.better} == {2}
    assert 0.1 < found.above <= TOO_HIGH - 1
    assert not found.holds
    told = str(found)
    assert f"{len(found.missing)} ({found.missing[0]}" in told
    assert "are better than their bound, by up to" in told


def test_the_command_says_so_and_exits_with_5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_of(tmp_path, per=["pp"])
    asked = ("search", tmp_path / "spec.yaml", "--workers", 0, "--verify", 300)
    assert f"drawn with seed {SEED}: none belongs" in here(*asked, "--out", tmp_path / "right")
    lifted(monkeypatch)
    assert "are better than their bound" in here(*asked, "--out", tmp_path / "wrong", expect=5)
    document = json.loads(here(*asked, "--out", tmp_path / "wrong", "--json", expect=5))
    assert document["verified"]["seed"] == SEED
    assert document["verified"]["better"]
    assert document["rows"][0]["rank"] == 1


def test_an_answer_says_that_plans_with_the_same_numbers_count_once(tmp_path: Path) -> None:
    prepared_of(tmp_path, axes={"straggler_stage": [0, 1], "pp": [2, 4], "tp": [2, 4], "all_gpus": [64]})
    told = here("search", tmp_path / "spec.yaml", "--workers", 0, "--out", tmp_path / "out", "--best", 4)
    assert "8 are in the answer; those with the same numbers count once, so as 4." in told
    assert "8 can run, 8 were simulated (100.00%" in told
