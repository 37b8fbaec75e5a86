"""What scripts and impatient people get: a dry run, JSON, silence, a list of results, the time that is left."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.evaluation.preparation import prepare
from sweep.execution import Progress, dry_run
from sweep.results.heartbeat import FILE
from sweep.results.sealing import sealed_text
from sweep.results.store import MANIFEST, Store
from sweep.show.progress import clock
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES, GPT7B, ROOT
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

TRACE = EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"


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
    progress = Progress(plans=1000, resumed=0, begun=0.0)
    told = []
    for now[0], plans in ((100.0, 10), (101.0, 10), (110.0, 180)):
        progress.add(plans)
        told.append(progress.eta_s)
    assert told == [None, None, pytest.approx(800 * 10 / 190)]
    assert [clock(seconds) for seconds in (0.2, 61, 15_750)] == ["0:00:01", "0:01:01", "4:22:30"]


def test_inspect_tells_scripts_what_a_file_holds() -> None:
    (text,) = json.loads(call("inspect", GPT7B, "--json"))
    assert (text["kind"], text["layers"], text["plan"]["dp"]) == ("simai", 36, 128)
    assert text["model"]["layers"] == 36
    assert text["pieces"][0] == {"name": "attention_layer", "runs": 36.0, "forward_s": 0.012807612, "backward_s": 0.025615224}
    assert {"group", "collective", "per_step", "count", "bytes"} == set(text["traffic"][0])
    assert text["checks"][0]["why"]
    (trace,) = json.loads(call("inspect", TRACE, "--json"))
    assert (trace["kind"], trace["plan"]["pp"], trace["ranks"]) == ("trace", 2, 1)
    assert trace["operations"][0]["name"] == "recv_forward"


def test_status_says_how_far_a_result_is(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(), tmp_path / "out"
    call("run", spec, "--out", out, "--workers", 0, "--quiet", "--set", "sample.n=60")
    told = call("status", out)
    assert f"{out}: small, complete" in told
    assert "60 of 60 plans (100%)" in told
    assert "gpus_not_divisible  (tp * cp * pp does not divide all_gpus)" in told
    (part,) = out.glob("part-*.parquet")
    found = json.loads(call("status", out, "--json"))
    assert found["bytes"] == part.stat().st_size + (out / MANIFEST).stat().st_size
    assert found["ok"] + sum(found["reasons"].values()) == 60
    assert call("status", tmp_path, expect=1) == f"error: {tmp_path}: holds no results of a sweep\n"


def test_status_tells_the_time_left_of_a_run_that_writes(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(), tmp_path / "out"
    call("run", spec, "--out", out, "--workers", 0, "--quiet", "--set", "sample.n=60")
    store, told = Store(directory=out), json.loads((out / FILE).read_text())
    with store.opened({**(store.provenance() or {}), "rows": 120}):
        (out / FILE).write_text(json.dumps(told | {"eta_s": 100.0, "ended": False}))
        found = json.loads(call("status", out, "--json"))
        assert "60 of 120 plans (50%), about 0:01:40 (h:min:s) left" in call("status", out)
    assert (found["state"], found["left_s"]) == ("running", 100.0)
    assert json.loads(call("status", out, "--json"))["left_s"] is None, "no run writes any more"


@pytest.mark.parametrize("command", ["ls", "status", "rank", "report", "compact", "explain"])
def test_an_empty_folder_name_is_no_folder(command: str) -> None:
    assert ": found '', expected a value (Folder of results, a path or URI)\n" in call(command, "", expect=2)


def test_digits_are_not_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]", call("hardware", "H100-SXM"))


def test_a_reader_that_goes_away_does_not_end_the_run(write_spec: SpecWriter, tmp_path: Path) -> None:
    """`sweep run | head -1`: all is stored."""
    spec, out = write_spec(), tmp_path / "out"
    command = [sys.executable, "-m", "sweep", "run", str(spec), "--out", str(out), "--workers", "0", "--set", "sample.n=60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.close()
        _, told = run.communicate(timeout=300)
    assert (run.returncode, told) == (0, b"note: nothing reads the output any more; the run goes on\n")
    assert json.loads(call("status", out, "--json"))["done"] == 60


def test_a_dry_run_counts_workers_files_and_no_compiling(write_spec: SpecWriter) -> None:
    prepared = prepare(load_spec(spec := write_spec()), spec.parent)
    found = dry_run(prepared)._replace(start_s=2.0, seconds_per_plan=1e-3, bytes_per_plan=100.0)
    assert [found.seconds(10_000, workers) for workers in (0, 1, 4)] == [12.0, 14.0, 6.5]
    assert found.bytes_per_file == pytest.approx(len(sealed_text(prepared.provenance)))
    assert found.size(1, 1) == 100 + 2 * found.bytes_per_file, "a part and the manifest"
    assert found.size(10**6, 2) > 10**8 + 500 * found.bytes_per_file, "slices of a second"


def test_a_dry_run_refuses_parquet_files_of_others(write_spec: SpecWriter, tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    told = call("run", write_spec(), "--out", tmp_path, "--dry-run", expect=1)
    assert f"error: {tmp_path}: holds Parquet files but no {MANIFEST}" in told


def test_pairs_without_files_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["pairs.py", str(tmp_path)])
    assert runpy.run_path(str(ROOT / "benchmarks" / "pairs.py"))["main"]() == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/pairs.csv: No such file or directory\n"
