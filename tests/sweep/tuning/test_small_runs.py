"""Small runs first: when `sweep tune` offers them, what it makes of them, and that every answer has it."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim_core import read_stack
from sweep.api import load
from sweep.runs.simulation import seconds_by_stack
from sweep.runs.table import read_table
from tests.conftest import ROOT
from tests.sweep.commands import sweep

SPEC: dict[str, Any] = {
    "name": "large",
    "model": "llama3-8b",
    "workload": {"sequence": 4096},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "micro_batch": [1, 2]},
    "fixed": {"all_gpus": 256, "global_batch": 512},
}
TRUTH = "nanotron"
"""Whose framework runs the job, which nobody says."""


def made(folder: Path, **changes: Any) -> Path:
    (folder / "large.yaml").write_text(yaml.safe_dump(SPEC | changes, sort_keys=False), encoding="utf-8")
    ran = sweep("run", folder / "large.yaml", "--out", folder / "out", "--workers", 0, "--top", 0)
    assert ran.returncode == 0, ran.stderr
    return folder / "out"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("small"))


@pytest.fixture
def result(once: Path) -> Path:
    """Without what an earlier test told."""
    for name in ("tune.csv", "small.yaml"):
        (once / name).unlink(missing_ok=True)
    return once


def filled(path: Path, seconds: Sequence[float]) -> Path:
    """The table that is asked for, with steps of its runs."""
    if not path.exists():
        asked = sweep("calibrate", "stack", "--plan", "--device", "H100-SXM", "-o", path)
        assert f"{path}: the table of these runs: fill step_time_s" in asked.stdout
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, step_s in zip(rows, seconds, strict=True):
        row["step_time_s"] = str(step_s)
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows(rows)
    return path


def steps_of(table: Path, stack: str) -> Sequence[float]:
    """What the runs of a table take by a page."""
    _, steps = seconds_by_stack(read_table(table), read_stack(stack), None)
    found: list[float] = steps.seconds({}).tolist()
    return found


def test_they_are_offered_where_they_cost_less_than_a_run_of_the_job(result: Path, tmp_path: Path) -> None:
    offered = sweep("tune", result).stdout
    assert "small runs first: 5 of a small model on two nodes take 2.5 GPU-hours (steps of 1 s), this one " in offered
    assert "sweep calibrate stack --plan --device H100-SXM --stack megatron-core -o small.csv; filled: sweep tune " in offered
    assert "small runs first" not in sweep("tune", result, "--add", "plan=0", "--step", "4 s").stdout
    small = made(tmp_path, fixed={"all_gpus": 16, "global_batch": 64})
    assert "small runs first" not in sweep("tune", small).stdout


def test_what_they_tell_is_in_every_answer(result: Path, tmp_path: Path) -> None:
    """Steps of another framework than the one that is simulated, 3 % above its page."""
    table = filled(tmp_path / "small.csv", [1.0] * 5)
    filled(table, [1.03 * step_s for step_s in steps_of(table, TRUTH)])
    told = sweep("tune", result, "--small", table)
    assert told.returncode == 0, told.stderr
    assert f"{result / 'small.yaml'}: 5 small runs " in told.stdout
    assert "note: small.yaml beside the result, a page that small runs told, is taken to run it" in told.stdout
    assert "small runs first" not in told.stdout
    rows = json.loads(sweep("rank", result, "--json", "--top", 24).stdout)
    plan = json.loads(sweep("tune", result, "--json").stdout)["next"][0]["plan"]
    assert f"Launch plan {plan}" in sweep("rank", result).stdout
    assert sweep("explain", result, "best").stdout.startswith(f"plan {plan}\n")
    assert load(result).tuner().launch.plan == plan
    # nearer to what runs than to what was simulated, over all plans
    true = made(tmp_path, workload={"sequence": 4096, "stack": TRUTH})
    steps = {row["plan"]: row["step_time_s"] for row in json.loads(sweep("rank", true, "--json", "--top", 24).stdout)}
    rows = [row for row in rows if row["plan"] in steps]
    off = [np.mean([abs(np.log(row[name] / steps[row["plan"]])) for row in rows]) for name in ("expected_s", "step_time_s")]
    assert len(rows) > 5
    assert off[0] < 0.4 * off[1]


def test_runs_that_tell_nothing_are_refused(result: Path, tmp_path: Path) -> None:
    table = filled(tmp_path / "small.csv", [1.0] * 5)
    filled(table, steps_of(table, "megatron-core"))
    told = sweep("tune", result, "--small", table)
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert "tell no" in told.stderr
    table.write_text("set,model\n", encoding="utf-8")
    assert "heading" in sweep("tune", result, "--small", table).stderr
    assert not (result / "small.yaml").exists()


def test_a_recording_takes_none(tmp_path: Path) -> None:
    """A recorded file is of itself: no page runs it."""
    example = ROOT / "examples" / "gpt7b.yaml"
    assert sweep("run", example, "--out", tmp_path / "out", "--workers", 0, "--top", 0).returncode == 0
    told = sweep("tune", tmp_path / "out", "--small", filled(tmp_path / "small.csv", [1.0] * 5))
    assert told.returncode == 2
    assert told.stderr.startswith("error: --small: expected a result in a local folder, of a model by one stack")
    assert "small runs first" not in sweep("tune", tmp_path / "out").stdout


def test_steps_in_milliseconds_are_refused(result: Path, tmp_path: Path) -> None:
    """No page explains steps a thousand times as long: one was once believed that left 83 % of them."""
    table = filled(tmp_path / "small.csv", [1.0] * 5)
    filled(table, [1000 * step_s for step_s in steps_of(table, TRUTH)])
    told = sweep("tune", result, "--small", table)
    assert told.returncode == 1
    assert told.stderr.endswith("they tell nothing of other plans\n")
    assert not (result / "small.yaml").exists()
