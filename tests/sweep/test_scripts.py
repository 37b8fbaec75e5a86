"""What scripts and impatient people get: a dry run, JSON, silence, a list of results, the time that is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sweep.execution import Progress
from sweep.show.progress import clock
from sweep.store import Store
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter


def call(*arguments: object, expect: int = 0) -> str:
    """Run the command in this process; returns what it printed."""
    done = sweep(*arguments)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_dry_run_says_what_the_folder_holds_and_what_cannot_run(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(), tmp_path / "out"
    small = ("--set", "sample.n=60")
    call("run", spec, "--out", out, "--workers", 0, "--quiet", *small)
    assert f"{out} holds 60 of 60 plans; 0 are left." in call("run", spec, "--out", out, "--dry-run", *small)
    before = sorted(path.name for path in out.iterdir())
    other = call("run", spec, "--out", out, "--dry-run", "--set", "sample.n=61", expect=1)
    assert "holds results of another sweep" in other
    assert sorted(path.name for path in out.iterdir()) == before
    none = call("run", spec, "--out", tmp_path / "no", "--dry-run", *small, "--set", "where=[tp > 99]", expect=4)
    assert "None of these plans can run." in none or "No plan can run." in none


def test_scripts_get_json_and_nothing_else(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(), tmp_path / "results" / "one"
    small = ("--set", "sample.n=60", "--workers", 0)
    assert call("run", spec, "--out", out, "--quiet", *small) == ""
    best = json.loads(call("run", spec, "--out", out, "--json", "--top", 2, *small))
    assert best == json.loads(call("rank", out, "--json", "--top", 2))
    (listed,) = json.loads(call("ls", tmp_path / "results", "--json"))
    assert (listed["done"], listed["total"], listed["state"], listed["folder"]) == (60, 60, "complete", str(out))
    assert listed["plan"] == json.loads(call("rank", out, "--json", "--per", "", "--top", 1))[0]["plan"]
    assert json.loads(call("run", spec, "--out", out, "--dry-run", "--json", "--set", "sample.n=60"))["left"] == 0
    with Store(directory=out).opened(Store(directory=out).provenance() or {}):
        assert json.loads(call("ls", out, "--json"))[0]["state"] == "running"


def test_the_time_left_is_told_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that take 100 s to start are no reason to say that the rest takes hours."""
    now = [0.0]
    monkeypatch.setattr("sweep.execution.time.monotonic", lambda: now[0])
    progress = Progress(total=1000, resumed=0, begun=0.0)
    told = []
    for now[0], plans in ((100.0, 10), (101.0, 10), (110.0, 180)):
        progress.add(plans)
        told.append(progress.eta_s)
    assert told == [None, None, pytest.approx(800 * 10 / 190)]
    assert [clock(seconds) for seconds in (0.2, 61, 15_750)] == ["0:00:01", "0:01:01", "4:22:30"]
