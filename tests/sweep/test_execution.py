"""Runs from the command line, as users start and kill them: the result is always that of an undisturbed run."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from sweep.results.store import Store
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, rows, spec_in
from tests.waiting import PATIENCE_S, until

BIG_AXES = {
    "checkpointing": ["none", "full"],
    "tp": {"powers_of_two": [1, 16]},
    "pp": [1, 2, 3, 4, 6, 8],
    "vpp": [1, 2],
    "all_gpus": {"range": [64, 1024, 64]},
    "ga": {"range": [24, 768, 24]},
}
"""61,440 plans, large ones: several seconds of work on one worker, so that there is time to kill."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "sweep", *map(str, arguments)]


def call(*arguments: object, expect: int = 0) -> str:
    """Run the command to its end; returns what it printed."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def here(*arguments: object, expect: int = 0) -> str:
    """`call` in this process, where it makes no difference: a new one takes two seconds to start."""
    done = sweep(*arguments)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def there(out: Path) -> int:
    """Rows that are stored."""
    return sum(part.rows for part in Store(directory=out).slices()) if out.exists() else 0


def started(spec: Path, out: Path, moment: int = 1) -> subprocess.Popen[str]:
    """A run in the background; `moment` rows are stored, or it has ended before."""
    process = subprocess.Popen(
        command("run", spec, "--out", out, "--workers", 2, "--top", 0),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: there(out) >= moment, process)
    return process


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def is_worker(pid: int) -> bool:
    """Whether `pid` lives and is a worker (not Python's resource tracker, not a process that got its number)."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def workers_of(pid: int) -> list[int]:
    """Worker processes of a run."""
    return [child for child in children(pid) if is_worker(child)]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=BIG_AXES, where=None, name="big")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    """Without workers: the result is the same however many there are."""
    out = spec.parent / "undisturbed"
    here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


def ends_with_its_driver(workers: list[int]) -> None:
    """Wait until no worker is left."""
    until(lambda: not any(map(is_worker, workers)))


def disturb(spec: Path, out: Path, undisturbed: pa.Table, kills: int, seed: int) -> None:
    """Kill a worker or the driver, in turn, at a random number of rows, and resume, `kills` times; then compare."""
    rng = random.Random(seed)
    killed = 0
    for _ in range(3 * kills):  # a run may end before its moment
        if killed == kills:
            break
        held = Store(directory=out).slices() if out.exists() else []
        if sum(part.rows for part in held) == undisturbed.num_rows:
            for part in rng.sample(held, len(held) - 1):
                (out / part.file_name).unlink()
        before = there(out)
        moment = before + 1 + rng.randrange(max(int(0.6 * (undisturbed.num_rows - before)), 1))
        process = started(spec, out, moment)
        workers = workers_of(process.pid)
        if (killed + seed) % 2:
            if workers:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    killed += 1
            assert process.wait(timeout=PATIENCE_S) == 0, "a killed worker is no reason to fail"
            assert rows(out).equals(undisturbed)
        else:
            killed += process.poll() is None
            process.kill()
            process.wait()
            ends_with_its_driver(workers)
    assert killed == kills
    here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    assert rows(out).equals(undisturbed)


def test_kill_9_of_workers_and_driver(spec: Path, tmp_path: Path, undisturbed: pa.Table) -> None:
    disturb(spec, tmp_path / "out", undisturbed, kills=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_kill_9_of_workers_and_driver_many_times(spec: Path, tmp_path: Path, undisturbed: pa.Table, seed: int) -> None:
    """200 kills in all, ten of each result."""
    disturb(spec, tmp_path / "out", undisturbed, kills=10, seed=seed)


@pytest.mark.parametrize(("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_a_result_that_the_same_command_completes(
    spec: Path, tmp_path: Path, undisturbed: pa.Table, number: int, code: int
) -> None:
    out = tmp_path / "out"
    process = started(spec, out)
    workers = workers_of(process.pid)
    process.send_signal(number)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, told
    assert "run the same command to resume" in told
    assert "Traceback" not in told
    assert not [pid for pid in workers if is_worker(pid)]
    there = sum(part.rows for part in Store(directory=out).slices())
    assert 0 < there < undisturbed.num_rows
    assert f"({there:,} were already there)" in here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    assert rows(out).equals(undisturbed)
    assert "Nothing to do" in here("run", spec, "--out", out, "--top", 0)


def test_a_sample_is_a_part_of_the_whole(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec = write_spec()
    here("run", spec, "--out", tmp_path / "all", "--workers", 0, "--top", 0)
    here("run", spec, "--out", tmp_path / "some", "--workers", 0, "--top", 0, "--set", "sample.n=500", "--set", "sample.seed=3")
    whole, part = rows(tmp_path / "all"), rows(tmp_path / "some")
    assert part.num_rows == len(set(part["plan"].to_pylist())) == 500
    assert part.equals(whole.take(part["plan"]))


def test_a_dry_run_stores_nothing_and_tells_reasons_and_time(write_spec: SpecWriter, tmp_path: Path) -> None:
    told = here("run", write_spec(), "--out", tmp_path / "out", "--dry-run")
    assert "11,520 plans" in told
    assert "gpus_not_divisible" in told
    assert "plans/s per worker" in told
    assert re.search(r"take about [0-9]+:[0-5][0-9]:[0-5][0-9] \(h:min:s\) in this process .*B are free\)", told)
    assert not (tmp_path / "out").exists()


def test_a_moved_or_renamed_input_is_the_same_sweep_another_content_is_not(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(), tmp_path / "out"
    here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    (tmp_path / "w.txt").rename(tmp_path / "renamed.txt")
    renamed = ("--set", "workload.path=renamed.txt", "--set", "name=other")
    assert "Nothing to do" in here("run", spec, "--out", out, "--top", 0, *renamed)
    text = (tmp_path / "renamed.txt").read_text().replace("355767", "355768", 1)
    (tmp_path / "renamed.txt").write_text(text)
    assert "holds results of another workload" in here("run", spec, "--out", out, *renamed, expect=1)
