"""`--metrics` and `--log-json`: what a run, a search and a night tell Prometheus and the log of a service."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import Loss, SliceQueue, SliceTask, resolve
from sweep.log import log_lines
from sweep.results.folder import Folder
from sweep.results.patience import StoreUnavailable
from sweep.results.slice_file import Slice
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

SMALL = ("--set", "sample.n=60", "--workers", 0, "--quiet")


def told(file: Path, of: str = "small") -> dict[str, float]:
    """Values of a sweep by metric, as Prometheus reads them."""
    families = list(text_string_to_metric_families(file.read_text()))
    assert all(family.documentation and family.type == "gauge" for family in families)
    return {sample.name: sample.value for family in families for sample in family.samples if sample.labels["sweep"] == of}


@pytest.mark.parametrize("command", ["run", "search"])
def test_a_run_tells_prometheus(command: str, write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out, file = write_spec(), tmp_path / "out", tmp_path / "sweep.prom"
    begun = time.time()
    done = sweep(command, spec, "--out", out, *SMALL, "--metrics", file)
    assert (done.returncode, done.stderr) == (0, "")
    first = told(file)
    assert (first["sweep_plans"], first["sweep_plans_done"], first["sweep_slices_done"]) == (60, 60, 1)
    assert first["sweep_plans_per_second"] > 0
    assert {first[f"sweep_{name}"] for name in ("slices_lost", "retries", "store_errors")} == {0}
    success = first["sweep_last_success_timestamp_seconds"]
    assert begun <= success <= time.time()
    assert not list(tmp_path.glob("sweep.prom.*")), "written at once, by a rename"
    if command == "run":
        assert sweep("run", spec, "--out", out, *SMALL, "--dry-run", "--metrics", file).returncode == 0
        assert told(file) == first, "a trial is no run"
    failed = sweep(command, spec, "--out", out, *SMALL, "--set", "sample.n=61", "--metrics", file)
    assert failed.returncode == 1
    assert told(file) == {"sweep_last_success_timestamp_seconds": success}


def test_no_plan_runs(write_spec: SpecWriter, tmp_path: Path) -> None:
    file = tmp_path / "sweep.prom"
    done = sweep("run", write_spec(), "--out", tmp_path / "out", *SMALL, "--set", "where=[tp > 99]", "--metrics", file)
    assert done.returncode == 4
    assert told(file)["sweep_plans_done"] == 60
    assert "sweep_last_success_timestamp_seconds" not in told(file)


def test_a_night_tells_prometheus_of_each_sweep(write_spec: SpecWriter, tmp_path: Path) -> None:
    write_spec(sample={"n": 60})
    nightly, file = tmp_path / "night.yaml", tmp_path / "sweep.prom"
    nightly.write_text("name: n\nroot: nights\nworkers: 0\nsweeps: [{spec: small.yaml, name: a}, {spec: small.yaml, name: b}]")
    assert sweep("nightly", nightly, "--metrics", file).returncode == 0
    assert told(file, "night/a")["sweep_plans_done"] == told(file, "night/b")["sweep_plans_done"] == 60
    assert set(told(file, "night")) == {"sweep_last_success_timestamp_seconds"}
    nightly.write_text("name: n\nroot: nights\nsweeps: nothing\n")
    assert sweep("nightly", nightly, "--metrics", file).returncode == 2
    before = file.read_text()
    assert "sweep_last_success_timestamp_seconds" in told(file, "night")
    assert sweep("nightly", "status", nightly, "--metrics", file).returncode == 2
    assert file.read_text() == before


@pytest.mark.parametrize(
    "text",
    [
        "<html>",
        "sweep_plans{sweep=",
        "a 1 2 3 4\n",
        "other_total 3\n",
        "name: small\naxes: {tp: 4}\n",
        "sweep_exit_code 3\n",
        "\x00\n",
    ],
)
def test_a_file_that_holds_something_else_is_not_replaced(text: str, write_spec: SpecWriter, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    done = sweep("run", write_spec(), "--out", tmp_path / "out", *SMALL, "--metrics", file)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --metrics: found {file}, expected a file of metrics of ours; it holds something else\n",
    )
    assert file.read_text() == text


def test_a_folder_that_is_not_there(write_spec: SpecWriter, tmp_path: Path) -> None:
    done = sweep("run", write_spec(), "--out", tmp_path / "out", *SMALL, "--metrics", tmp_path / "no" / "x.prom")
    told = f"error: --metrics: found {tmp_path / 'no' / 'x.prom'}, expected a file in a folder that is there; "
    assert (done.returncode, done.stderr) == (2, f"{told}{tmp_path / 'no'} is not\n")


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_log_is_json(workers: int, write_spec: SpecWriter, tmp_path: Path) -> None:
    done = sweep("run", write_spec(), "--out", tmp_path / "out", *SMALL[:2], "--workers", workers, "--log-json")
    first, *slices, last = lines(done.stderr)
    assert (first["event"], first["plans"], last["event"], last["plans"]) == ("run begins", 60, "run ends", 60)
    assert {each["event"] for each in slices} == {"slice done"}
    assert sum(each["slice"]["stop"] - each["slice"]["start"] for each in slices) == 60
    assert all(each["node"] and each["seconds"] > 0 and each["run"] == first["run"] for each in slices)
    assert first["time"] <= last["time"]


def test_an_error_is_json_too_where_it_is_asked_for(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec = write_spec(hardware="H1000")
    (error,) = lines(sweep("run", spec, "--out", tmp_path / "out", "--log-json").stderr)
    assert error["level"] == "ERROR"
    assert error["event"].startswith(f"error: {spec}")
    assert sweep("run", spec, "--out", tmp_path / "out").stderr == error["event"] + "\n"


def test_lost_slices_are_logged(sliced_job: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that raises, a process that dies, a store that refuses: run, slice and why."""
    part = Slice(0, 48)
    queue = SliceQueue(gaps=deque(), workers=9)
    task = SliceTask(sweep=sliced_job.sweep, directory=Folder("x", "x"), provenance=b"{}")
    log_lines(as_json=True)
    for answer in (
        Loss(reason="worker_lost"),
        Loss(reason="simulation_raised", text="100 %s of\nit"),
        StoreUnavailable("s3: no"),
    ):
        resolve(answer, (part, 0), task, queue)
    died, raised, refused = lines(capsys.readouterr().err)
    assert (died["level"], died["event"], died["slice"]) == ("INFO", "positions 0 to 47: worker_lost", {"start": 0, "stop": 48})
    assert (raised["level"], raised["event"]) == ("WARNING", "positions 0 to 47: 100 %s of\nit")
    assert (refused["event"], refused["run"]) == ("slice not stored: s3: no", sliced_job.sweep.identity[:8])
    assert queue.losses == 2
    log_lines()
    resolve(Loss(reason="worker_lost"), (part, 0), task, queue)
    resolve(Loss(reason="simulation_raised", text="why"), (part, 0), task, queue)
    assert capsys.readouterr().err == "positions 0 to 47: why\n"
