"""The cells of the fault matrix in docs/reliability.md: a fault, an executor, a store; long, besides those tested elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import boto3
import pyarrow as pa
import pytest

from docs.made import tables
from sweep.evaluation.slices import FIRST_ROWS, LONGEST_S, MAX_ROWS, MIN_ROWS, SHORTEST_S, Receipt, SliceQueue
from sweep.results.slice_file import Slice
from sweep.results.store import Store
from tests.conftest import ROOT
from tests.sweep.conftest import rows, spec_in
from tests.sweep.executors.test_cluster import is_slice
from tests.sweep.fault_proxy import Faults, faulty
from tests.sweep.test_execution import BIG_AXES, call, children, command, is_worker
from tests.waiting import PATIENCE_S, until

EXECUTORS = {
    "inline": ("--workers", 0),
    "local": ("--workers", 2),
    "ray, workers write": ("--executor", "ray", "--workers", 2, "--set", "store.writer=worker"),
    "ray, driver writes": ("--executor", "ray", "--workers", 2, "--set", "store.writer=driver"),
}
AXES = {
    "tp": {"powers_of_two": [1, 16]},
    "pp": [1, 2, 4, 8],
    "all_gpus": {"range": [64, 1024, 64]},
    "ga": {"range": [24, 768, 24]},
}
"""10,240 plans."""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=AXES, where=None, name="faults")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    call("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("large"), axes=BIG_AXES, where=None, name="large")


@pytest.fixture(scope="module")
def whole(large: Path) -> pa.Table:
    out = large.parent / "undisturbed"
    call("run", large, "--out", out, "--workers", 2, "--top", 0)
    return rows(out)


def there(out: str) -> int:
    """Rows that are stored."""
    return sum(part.rows for part in Store(directory=out).slices())


def unfinished(out: str) -> list[str]:
    """Uploads in parts that nobody has finished, which a store would keep and bill."""
    if not out.startswith("s3://"):
        return []
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    held = client.list_multipart_uploads(Bucket=out.split("/")[2])
    return [upload["Key"] for upload in held.get("Uploads", [])]


@pytest.fixture
def store(bucket: str, s3_server: str) -> Iterator[tuple[str, Faults]]:
    with faulty(s3_server) as faults:
        yield f"{bucket}/results?endpoint_override={faults.address}&scheme=http&region=us-east-1", faults


@pytest.fixture(params=["disk", "S3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a result goes: a folder, or an object store that takes a while, so that there is time to kill."""
    if request.param == "disk":
        return str(tmp_path / "out")
    out, faults = request.getfixturevalue("store")
    faults.delay_s = 0.05
    return str(out)


def started(spec: Path, out: str, executor: str, log: Path) -> subprocess.Popen[str]:
    """A run as users start it, of which at least one slice has been stored."""
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    line = command("run", spec, "--out", out, "--top", 0, *EXECUTORS[executor])
    with log.open("w") as file:
        process = subprocess.Popen(line, env=environment, stdout=file, stderr=subprocess.STDOUT, text=True)
    assert until(lambda: there(out), process, log), log.read_text()
    return process


def workers_below(pid: int) -> list[int]:
    """Processes that simulate for a run: of its own, or of the Ray that it has started."""
    below = children(pid)
    return [found for child in below for found in (child, *children(child)) if is_worker(found) or is_slice(found)]


def run(spec: Path, out: str, executor: str) -> subprocess.CompletedProcess[str]:
    """A run to its end, as users start it."""
    line = command("run", spec, "--out", out, "--top", 0, *EXECUTORS[executor])
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("executor", EXECUTORS)
class TestKills:
    """Every executor on a disk and on an object store: what is ended in the middle is resumed, each row once."""

    def test_kill_9_of_a_run(self, large: Path, whole: pa.Table, place: str, executor: str, tmp_path: Path) -> None:
        process = started(large, place, executor, tmp_path / "log")
        process.kill()
        process.wait()
        kept = there(place)
        assert 0 < kept < whole.num_rows
        assert run(large, place, executor).returncode == 0
        assert rows(place).equals(whole)
        assert unfinished(place) == []

    def test_kill_9_of_a_worker(self, large: Path, whole: pa.Table, place: str, executor: str, tmp_path: Path) -> None:
        if executor == "inline":
            pytest.skip("has no workers")
        process = started(large, place, executor, log := tmp_path / "log")
        killed: list[int] = []

        def kill() -> bool:
            for pid in workers_below(process.pid)[:1]:
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
            return bool(killed)

        assert until(kill, process, log), log.read_text()
        assert process.wait(timeout=PATIENCE_S) == 0, log.read_text()
        assert rows(place).equals(whole)
        assert unfinished(place) == []

    def test_an_interrupt_of_a_run(self, large: Path, whole: pa.Table, place: str, executor: str, tmp_path: Path) -> None:
        process = started(large, place, executor, log := tmp_path / "log")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE_S) == 130, log.read_text()
        told = log.read_text()
        assert "Interrupted. Finished slices are in" in told
        assert "Traceback" not in told
        done = run(large, place, executor)
        assert (done.returncode, "were already there" in done.stdout) == (0, True), done.stderr
        assert rows(place).equals(whole)
        assert unfinished(place) == []

    def test_damaged_slices(self, large: Path, whole: pa.Table, place: str, executor: str) -> None:
        """One with a flipped bit, one cut short, one missing."""
        assert run(large, place, executor).returncode == 0
        store = Store(directory=place)
        flipped, cut, *_, gone = store.slices()
        data = bytearray(store.folder.read_bytes(flipped.file_name))
        data[len(data) // 3] ^= 8
        store.folder.write_bytes(flipped.file_name, bytes(data))
        store.folder.write_bytes(cut.file_name, store.folder.read_bytes(cut.file_name)[:-100])
        store.folder.delete(gone.file_name)
        told = subprocess.run(command("rank", place), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        note, error = told.stderr.splitlines()  # of the one that is gone, of the other two
        assert told.returncode == 1
        assert note.startswith("note: ")
        assert error.startswith("error: ")
        assert "damaged; the same `sweep run` computes damaged slices again" in told.stderr
        assert run(large, place, executor).returncode == 0
        assert rows(place).equals(whole)


@pytest.mark.long
@pytest.mark.parametrize("executor", EXECUTORS)
class TestStore:
    """Every executor on a store behind the proxy."""

    def test_a_slow_store(self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str) -> None:
        out, faults = store
        faults.delay_s = 0.4
        assert run(spec, out, executor).returncode == 0
        faults.delay_s = 0.0
        assert rows(out).equals(undisturbed)

    def test_a_store_that_fails_now_and_then(
        self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str
    ) -> None:
        out, faults = store
        faults.refused = 0.3
        assert run(spec, out, executor).returncode == 0
        faults.refused = 0.0
        assert rows(out).equals(undisturbed)

    def test_a_store_that_takes_all_slices_but_one(
        self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str
    ) -> None:
        out, faults = store
        faults.refused, faults.codes, faults.only = 1.0, (503,), "/part-000000000000-"
        done = run(spec, out, executor)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        found = re.search(r"the store did not take ([0-9,]+) plans \(.*\); run the same command to add them", done.stderr)
        assert found is not None, done.stderr
        faults.refused = 0.0
        kept = undisturbed.num_rows - int(found[1].replace(",", ""))
        assert 0 < there(out) == kept
        done = run(spec, out, executor)
        assert (done.returncode, f"({kept:,} were already there)" in done.stdout) == (0, True), done.stderr
        assert rows(out).equals(undisturbed)

    def test_a_store_that_refuses(self, spec: Path, store: tuple[str, Faults], executor: str) -> None:
        out, faults = store
        faults.refused, faults.codes, faults.only = 1.0, (403,), "/part-"
        done = run(spec, out, executor)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "ACCESS_DENIED" in done.stderr
        assert "check the credentials" in done.stderr

    def test_a_store_that_spoils_what_it_is_given(
        self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str
    ) -> None:
        out, faults = store
        faults.flips, faults.only = 1.0, "/part-"
        done = run(spec, out, executor)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "damaged; the same `sweep run` computes damaged slices again" in done.stderr
        faults.flips = 0.0
        assert run(spec, out, executor).returncode == 0
        assert rows(out).equals(undisturbed)


def test_a_slow_store_does_not_make_slices_small() -> None:
    """Their size follows the time of computing; where storing takes longer, they grow."""
    sizes = []
    for stored_s in (0.0, 0.5, 5.0):
        queue = SliceQueue(gaps=deque([Slice(0, 10**7)]), workers=2)
        for _ in range(10):
            queue.finished(Receipt(part=Slice(0, FIRST_ROWS), seconds=0.4, stored_s=stored_s))
        taken = queue.take()
        assert taken is not None
        sizes.append(taken[0].rows)
    assert sizes == [10_240, 10_240, MAX_ROWS]


@pytest.mark.parametrize(("rate", "files"), [(150_000, 20_000), (20_000, 28_000), (4_000, 35_000)])
def test_a_large_sweep_is_cut_into_fewer_slices(rate: int, files: int) -> None:
    """10^9 plans, 1,000 workers: slices take longer, so that their files can be listed, but not longer than LONGEST_S."""
    queue = SliceQueue(gaps=deque([Slice(0, 10**9)]), workers=1000)
    sizes: list[int] = []
    while (taken := queue.take()) is not None:
        sizes.append(taken[0].rows)
        queue.finished(Receipt(part=taken[0], seconds=taken[0].rows / rate))
    assert sum(sizes) == 10**9
    assert len(sizes) <= files
    assert max(sizes) <= rate * LONGEST_S
    assert sum(sizes[-1000:]) <= 1000 * max(rate * SHORTEST_S, MIN_ROWS), "the last of each worker are short"


def test_every_cell_of_the_matrix_names_its_test() -> None:
    faults = tables.read("faults")[1:]
    named = {name for row in faults for name in re.findall(r"test_\w+|Test\w+", row[-1])}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in sources and f"class {name}" not in sources} == set()
    assert [row[1] for row in faults if "test_" not in row[-1]] == []
