"""Every example runs, small; what the examples are there to show is there."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from sweep.execution import run_sweep
from sweep.executors.inline import InlineExecutor
from sweep.preparation import prepare
from sweep.spec import load_spec
from sweep.store import Store
from tests.conftest import EXAMPLES
from tests.trace_jobs import JobSpec, make_job

SPECS = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "\naxes:" in path.read_text(encoding="utf-8")]


def run(path: Path, out: Path, *sets: str) -> str:
    """Run a spec with overrides; returns the glob of its files."""
    prepared = prepare(load_spec(path, sets), path.parent)
    run_sweep(prepared, Store(directory=out), InlineExecutor())
    return str(out / "*.parquet")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_example_runs_small(path: Path, tmp_path: Path) -> None:
    files = run(path, tmp_path / "out", "sample={n: 400}")
    counts = dict(duckdb.execute(f"SELECT status, count(*) FROM '{files}' GROUP BY status").fetchall())
    assert counts.get("failed", 0) == 0
    assert counts["ok"] > 0


def test_every_workload_has_its_example() -> None:
    texts = " ".join(path.read_text(encoding="utf-8") for path in SPECS)
    for workload in (EXAMPLES / "workloads").iterdir():
        assert workload.name in texts, workload.name


def test_gpt2_shows_where_communication_is_exposed_and_where_not(tmp_path: Path) -> None:
    """Small batches on slow fabrics show it; large ones on fast fabrics hide all but the last bucket."""
    files = run(EXAMPLES / "gpt2_ddp.yaml", tmp_path / "out", "axes.micro_batch=[2, 16]")
    share = "dp_exposed_s / step_time_s"
    worst, best = duckdb.execute(f"SELECT max({share}), min({share}) FROM '{files}' WHERE dp > 1").fetchall()[0]
    assert worst > 0.2
    assert best < 0.001


def test_a_folder_of_ranks_is_swept(tmp_path: Path) -> None:
    """By the folder and by a glob; what it was made from covers every file."""
    make_job(JobSpec(pp=2, dp=2, ga=4)).write(tmp_path / "ranks")
    digests = []
    for number, path in enumerate(("ranks", "ranks/*rank*.txt")):
        spec = tmp_path / f"{number}.yaml"
        spec.write_text(f"name: folder\nworkload: {{path: '{path}'}}\nhardware: A800-80G-SXM\naxes: {{ga: [2, 4, 8]}}\n")
        files = run(spec, tmp_path / f"out{number}")
        assert duckdb.execute(f"SELECT count(*) FROM '{files}' WHERE status = 'ok'").fetchall() == [(3,)]
        digests.append(prepare(load_spec(spec, []), tmp_path).provenance["inputs"]["files"]["workload"]["sha256"])
    assert digests[0] == digests[1]
