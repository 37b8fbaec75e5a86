"""Which executor runs: Ray only if requested and installed; errors come before anything is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim_core import SimError, SpecError
from sim_core.compiling import cache_dir
from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import Receipt, SliceQueue, SliceTask
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.executors.choice import Kind, check_persistent, opened, with_own_token
from sweep.results.folder import folder_at
from sweep.results.store import Store
from tests.sweep.conftest import SpecWriter
from tests.sweep.test_execution import command
from tests.waiting import PATIENCE_S


def open_ray(workers: int | None = 1) -> None:
    with opened(Kind.ray, workers, 120.0, "auto", folder_at("results")):
        pass


def test_without_ray_there_is_one_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sweep.executors.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecError, match=r"--executor ray: Ray is not installed \(pip install"):
        open_ray()
    with opened(Kind.local, 0, 120.0, "auto", folder_at("results")) as executor:  # and everything else works
        assert isinstance(executor, InlineExecutor)


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(SimError, match=r"no Ray cluster at RAY_ADDRESS=127\.0\.0\.1:9: Connection refused") as told:
        open_ray(None)
    assert "\n" not in str(told.value)


def test_no_worker_is_for_this_process_only() -> None:
    with pytest.raises(SpecError, match="--workers: found 0, expected 1 or more with --executor ray"):
        open_ray(0)


@pytest.mark.parametrize("out", [None, "results/x", "./x"])
def test_a_job_must_not_write_into_the_folder_that_goes_with_it(out: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_persistent(out)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    with pytest.raises(SpecError, match="--out: a job's working folder is deleted when the job ends"):
        check_persistent(out)
    check_persistent("/mnt/results/x")
    check_persistent("s3://bucket/x")


class Elsewhere:
    """An executor whose workers write into a folder of the same name on a machine of their own."""

    workers = 1

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        while (taken := queue.take()) is not None:
            yield Receipt(part=taken[0], seconds=0.1)


def test_a_folder_that_is_not_the_same_on_every_node_is_noticed(prepared: Prepared, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"11,520 finished plans are not in this folder: .* store.writer=driver"):
        run_sweep(prepared, Store(directory=tmp_path / "out"), Elsewhere())


def test_a_ray_of_our_own_has_a_token_of_its_own() -> None:
    """Nothing is written to the user's home, and a mode that the user has chosen stands."""
    own: dict[str, str] = {}
    with_own_token(own)
    assert len(own["RAY_AUTH_TOKEN"]) == 64
    with_own_token(again := dict(own))
    assert again == own
    for chosen in ({"RAY_ADDRESS": "host:6379"}, {"RAY_AUTH_MODE": "disabled"}):
        told = dict(chosen)
        with_own_token(told)
        assert told == chosen


@pytest.mark.long
def test_a_ray_of_our_own_leaves_no_token_behind(write_spec: SpecWriter, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    line = command("run", write_spec(), "--executor", "ray", "--workers", 1, "--out", tmp_path / "out", "--top", 0)
    environment |= {"HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(cache_dir())}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".ray" / "auth_token").exists()
