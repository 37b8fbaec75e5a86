"""What a number of tokens costs: the `budget:` section and its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import SpecError, count, read_hardware
from sweep.columns import measures_of
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.results.store import Store
from sweep.spec.budget import Budget, costs
from tests.sweep.commands import sweep
from tests.sweep.conftest import MODEL, SpecWriter
from tests.sweep.spec.test_model_specs import prepared_of, rows_of

BUDGET = {"tokens": "15T", "usd_per_gpu_hour": 2.5}


def test_the_energy_of_llama_3_is_that_of_its_model_card() -> None:
    """Llama 3.1's model card: 405B took 30.84 M GPU-hours at 700 W a GPU, 8B 1.46 M, 70B 7.0 M; tokens a second follow."""
    hours = np.array([30.84e6, 1.46e6, 7.0e6])
    gpus = np.array([16384, 8192, 8192])
    watts = np.full(3, read_hardware("H100-SXM").value("power"))
    found = costs(Budget(tokens="15T", usd_per_gpu_hour=2), watts, gpus, 15e12 / (hours / gpus * 3600))  # type: ignore[arg-type]
    assert found["gpu_hours"].tolist() == pytest.approx(hours.tolist())
    assert found["usd"].tolist() == pytest.approx((2 * hours).tolist())
    assert found["energy_mwh"].tolist() == pytest.approx([21588, 1022, 4900])
    assert found["training_days"].tolist() == pytest.approx([78.43, 7.426, 35.6], rel=1e-3)


def test_a_plan_takes_its_gpus_for_as_long_as_its_tokens_last(write_spec: SpecWriter) -> None:
    path = write_spec(**MODEL, budget={**BUDGET, "watts_per_gpu": 1275, "pue": 1.2})
    ok = [row for row in rows_of(prepared_of(path)) if row["status"] == "ok"]
    assert ok
    for row in ok:
        hours = 15e12 / row["tokens_per_s"] / 3600
        assert row["training_days"] == pytest.approx(hours / 24)
        assert row["gpu_hours"] == pytest.approx(hours * row["all_gpus"])
        assert row["usd"] == pytest.approx(2.5 * row["gpu_hours"])
        assert row["energy_mwh"] == pytest.approx(1.2 * 1.275 * row["gpu_hours"] / 1000)


@pytest.mark.parametrize(
    ("sets", "unknown"),
    [
        (["budget=null"], measures_of("cost")),
        (["budget.usd_per_gpu_hour=null"], ("usd",)),
        (["hardware.power=0 W"], ("energy_mwh",)),
    ],
)
def test_what_is_not_given_is_unknown(write_spec: SpecWriter, sets: list[str], unknown: tuple[str, ...]) -> None:
    ok = [row for row in rows_of(prepared_of(write_spec(**MODEL, budget=BUDGET), *sets)) if row["status"] == "ok"]
    assert ok
    for row in ok:
        assert [name for name in measures_of("cost") if row[name] is None] == list(unknown)
        assert row["hfu"] >= row["mfu"]


def test_a_price_changes_the_identity(write_spec: SpecWriter) -> None:
    path = write_spec(**MODEL, budget=BUDGET)
    changes: list[list[str]] = [[], ["budget.tokens=1T"], ["budget.usd_per_gpu_hour=3"], ["budget.pue=1.1"], ["budget=null"]]
    assert len({prepared_of(path, *sets).sweep.identity for sets in changes}) == len(changes)
    assert prepared_of(path, "budget=15T").sweep.identity == prepared_of(path, "budget.usd_per_gpu_hour=null").sweep.identity


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["budget.tokens=15X"], "budget.tokens: found '15X', expected a number above 0, such as 300B or 15T (k, M, B, T)"),
        (["budget.tokens=0"], "budget.tokens: found '0', expected a number above 0, such as 300B or 15T (k, M, B, T)"),
        (["budget.price=1"], "budget.price: unknown key, "),
        (["budget.pue=0.5"], "budget.pue: found '0.5', expected a number of at least 1"),
        (["budget=null"], "objectives: usd needs a budget, such as budget: {tokens: 1T, usd_per_gpu_hour: 2.5}"),
        (["budget.usd_per_gpu_hour=null"], "objectives: usd needs budget.usd_per_gpu_hour"),
        (
            ["objectives=[{minimize: energy_mwh}]", "hardware.power=0 W"],
            "objectives: energy_mwh needs budget.watts_per_gpu, or hardware.power",
        ),
    ],
)
def test_a_budget_that_cannot_be_used_is_refused(write_spec: SpecWriter, sets: list[str], message: str) -> None:
    path = write_spec(**MODEL, budget=BUDGET, objectives=[{"minimize": "usd"}])
    with pytest.raises(SpecError) as refused:
        prepared_of(path, *sets)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_plans_are_ranked_by_what_they_cost(write_spec: SpecWriter, tmp_path: Path) -> None:
    path = write_spec(**MODEL, budget=BUDGET, objectives=[{"minimize": "usd"}])
    run_sweep(prepared_of(path), Store(directory=tmp_path / "out"), InlineExecutor())
    told = sweep("rank", tmp_path / "out", "--per", "", "--top", 3, "-v").stdout
    assert "lowest usd first" in told
    assert "training_days" in told
    assert (
        "note: budget: 15 T tokens, 2.5 USD a GPU-hour, 700 W a GPU (its maximum, servers and network are not counted)" in told
    )
    assert sweep("rank", tmp_path / "out", "--by", "hfu", "--columns", "hfu,mfu,ckpt", "--top", 1).returncode == 0


def test_one_plan_tells_what_it_costs() -> None:
    told: Any = sweep("simulate", "--model", "gpt2", "--set", "checkpointing=full", "--set", "budget.tokens=300B")
    assert told.returncode == 0, told.stderr
    assert "the budget's tokens take " in told.stdout
    assert "HFU " in told.stdout


@pytest.mark.parametrize(("text", "value"), [("15T", 15e12), ("300B", 3e11), ("2 k", 2000.0), (7, 7.0), ("1e12", 1e12)])
def test_numbers_of_things(text: object, value: float) -> None:
    assert count(text) == value
