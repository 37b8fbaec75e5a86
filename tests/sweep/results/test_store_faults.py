"""A store that refuses, delays or spoils what it is given: nothing wrong is read, and the message says what helps."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.evaluation.slices import MOST_LEFT
from sweep.ranking.ranking import rank
from sweep.results.folder import Folder, folder_at
from sweep.results.patience import PAUSES_S, StoreUnavailable, advice, patiently
from sweep.results.slice_file import Slice
from sweep.results.store import Store
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, rows
from tests.sweep.fault_proxy import Faults, faulty


@pytest.fixture
def store(bucket: str, s3_server: str) -> Iterator[tuple[str, Faults]]:
    """The URI of a folder behind the proxy, and the faults to plant."""
    with faulty(s3_server) as faults:
        yield f"{bucket}/results?endpoint_override={faults.address}&scheme=http&region=us-east-1", faults


@pytest.fixture
def small(write_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch) -> Path:
    """960 plans in slices of 100 rows: the store is the subject."""
    monkeypatch.setattr("sweep.evaluation.slices.MIN_ROWS", 100)
    monkeypatch.setattr("sweep.evaluation.slices.MAX_ROWS", 100)
    return write_spec(
        axes={"tp": [1, 2, 4, 8], "pp": [1, 2, 3, 4], "all_gpus": [64, 128, 192, 256], "ga": {"range": [1, 15, 1]}}
    )


def test_a_slice_is_one_put(store: tuple[str, Faults], small: Path, tmp_path: Path) -> None:
    out, faults = store
    assert sweep("run", small, "--workers", 0, "--out", out, "--top", 0).returncode == 0
    assert faults.seen["PUT part"] == len(Store(directory=out).slices()) == 10
    assert [kind for kind in faults.seen if "uploads" in kind] == []
    assert sweep("run", small, "--workers", 0, "--out", tmp_path / "local", "--top", 0).returncode == 0
    assert rows(out).equals(rows(tmp_path / "local"))


def test_a_store_that_keeps_the_framing_is_found_before_anything_is_computed(store: tuple[str, Faults], small: Path) -> None:
    out, faults = store
    faults.framing = True
    done = sweep("run", small, "--workers", 0, "--out", out)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "other bytes than the 4,096 written; set AWS_REQUEST_CHECKSUM_CALCULATION=when_required" in done.stderr
    assert faults.seen["PUT part"] == 0
    assert Store(directory=out).folder.names() == []
    faults.framing = False
    assert sweep("run", small, "--workers", 0, "--out", out, "--top", 0).returncode == 0, "the folder is as it was"


def test_errors_that_pass_cost_nothing(store: tuple[str, Faults], small: Path, tmp_path: Path) -> None:
    """A third of all requests: 500 and 503."""
    out, faults = store
    faults.refused = 0.3
    assert sweep("run", small, "--workers", 0, "--out", out, "--top", 0).returncode == 0
    assert sum(faults.seen.values()) > 20
    faults.refused = 0.0
    assert sweep("run", small, "--workers", 0, "--out", tmp_path / "local", "--top", 0).returncode == 0
    assert rows(out).equals(rows(tmp_path / "local"))


@pytest.mark.parametrize(("code", "said"), [(403, "check the credentials"), (404, "create the bucket, or check its name")])
def test_a_refusal_ends_the_run_at_once_and_says_why(store: tuple[str, Faults], small: Path, code: int, said: str) -> None:
    out, faults = store
    faults.refused, faults.codes, faults.only = 1.0, (code,), "/part-"
    done = sweep("run", small, "--workers", 0, "--out", out)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr
    assert "part-000000000000-000000000100.parquet" in done.stderr
    assert faults.seen["PUT part"] == 1, "no second attempt, no further slice"


def never_takes(monkeypatch: pytest.MonkeyPatch, refused: list[Slice]) -> None:
    """The store does not take these slices, after all attempts."""
    from sweep.evaluation.slices import SliceTask

    plain = SliceTask.store

    def store(task: SliceTask, part: Slice, data: object) -> None:
        if part in refused:
            raise StoreUnavailable("bucket/x: SLOW_DOWN")
        plain(task, part, data)

    monkeypatch.setattr(SliceTask, "store", store)


def test_a_slice_that_the_store_does_not_take_is_left_to_the_next_run(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        never_takes(patch, [Slice(200, 300), Slice(500, 600)])
        done = sweep("run", small, "--workers", 0, "--out", out)
    assert done.returncode == 1
    assert done.stderr == f"error: {out}: the store did not take 200 plans (SLOW_DOWN); run the same command to add them\n"
    assert sum(part.rows for part in Store(directory=out).slices()) == 760
    again = sweep("run", small, "--workers", 0, "--out", out, "--top", 0)
    assert "(760 were already there)" in again.stdout
    assert rows(out)["plan"].to_pylist() == list(range(960))


def test_a_run_whose_store_loses_what_it_took_says_so_and_the_next_adds_it(
    store: tuple[str, Faults], small: Path, tmp_path: Path
) -> None:
    """The slice is computed again in five rounds, and lost each time."""
    out, faults = store
    lost = Slice(300, 400)
    faults.only, faults.loses = lost.file_name, 1.0
    done = sweep("run", small, "--workers", 0, "--out", out)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {out}: 100 finished plans are not in the store, which took them without an error; "
        "run the same command to add them\n",
    )
    assert sum(part.rows for part in Store(directory=out).slices()) == 860
    faults.loses = 0.0
    assert "(860 were already there)" in sweep("run", small, "--workers", 0, "--out", out, "--top", 0).stdout
    assert sweep("run", small, "--workers", 0, "--out", tmp_path / "local", "--top", 0).returncode == 0
    assert rows(out).equals(rows(tmp_path / "local"))


def test_commands_leave_a_folder_alone_that_another_run_writes_into(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = ("run", small, "--workers", 0, "--out", out, "--top", 0)
    assert sweep(*run).returncode == 0
    held = Store(directory=out)
    before = {name: held.folder.read_bytes(name) for name in held.folder.names()}
    with held.opened(held.made_from()):
        for command in (run, (*run, "--fresh"), ("compact", out)):
            done = sweep(*command)
            assert (done.returncode, done.stderr) == (1, f"error: {out}: another run is writing here\n")
        assert "running" in sweep("status", out).stdout
    assert {name: held.folder.read_bytes(name) for name in held.folder.names()} == before
    assert "Nothing to do" in sweep(*run).stdout
    (out / ".lock").unlink()
    (tmp_path / "other").write_text("of somebody else", encoding="utf-8")
    (out / ".lock").symlink_to(tmp_path / "other")
    done = sweep(*run)
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {out}/.lock: found a symbolic link, expected the file of a lock\n",
    )
    assert (tmp_path / "other").read_text(encoding="utf-8") == "of somebody else"


def test_a_store_that_takes_nothing_ends_the_run(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never_takes(monkeypatch, refused := [Slice(100 * k, 100 * k + 100) for k in range(2, 9)])
    done = sweep("run", small, "--workers", 0, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "SLOW_DOWN" in done.stderr
    assert len(refused) > MOST_LEFT
    assert sum(part.rows for part in Store(directory=tmp_path / "out").slices()) == 200, "not all was simulated in vain"


def test_a_full_disk_says_what_is_left(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        plain = Folder.write_bytes

        def write(folder: Folder, name: str, data: bytes) -> None:
            if name == Slice(300, 400).file_name:
                raise OSError(errno.ENOSPC, "No space left on device: the file needs 2 kB, 0 B are free", str(folder / name))
            plain(folder, name, data)

        patch.setattr(Folder, "write_bytes", write)
        done = sweep("run", small, "--workers", 0, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/out/part-000000000300-000000000400.parquet: No space left on device: ")
    assert re.search(r"0 B are free; 660 plans are left, about [0-9.]+ kB; then run the same command to resume\n$", done.stderr)
    assert "(300 were already there)" in sweep("run", small, "--workers", 0, "--out", tmp_path / "out", "--top", 0).stdout


def test_a_file_that_does_not_fit_is_named_with_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sweep.results.folder.os.fsync", full)
    told = rf"No space left on device: the file needs 3 kB, [0-9.]+ .?B are free: '{tmp_path}/part-x'"
    with pytest.raises(OSError, match=told):
        folder_at(tmp_path).write_bytes("part-x", bytes(3000))
    assert list(tmp_path.iterdir()) == []


def test_the_dry_run_says_how_much_will_be_stored(small: Path, tmp_path: Path) -> None:
    told = re.search(r"and ([0-9.]+) (k?)B of results", sweep("run", small, "--dry-run").stdout)
    assert told is not None
    assert sweep("run", small, "--workers", 0, "--out", tmp_path / "out", "--top", 0).returncode == 0
    stored = sum(path.stat().st_size for path in (tmp_path / "out").glob("part-*"))
    assert float(told[1]) * (1000 if told[2] else 1) == pytest.approx(stored, rel=0.5)


def test_patience_ends_and_names_the_last_error() -> None:
    pauses: list[float] = []
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise OSError("AWS Error NETWORK_CONNECTION during PutObject")

    with pytest.raises(StoreUnavailable, match=r"NETWORK_CONNECTION .*; check the address"):
        patiently(fails, pauses.append)
    assert len(tries) == len(pauses) + 1 == len(PAUSES_S) + 1
    assert all(0.5 * most <= pause <= most for pause, most in zip(pauses, PAUSES_S, strict=True))
    assert advice("AWS Error SLOW_DOWN during PutObject") == ""


def test_what_an_object_store_has_spoiled_is_found(store: tuple[str, Faults], small: Path, tmp_path: Path) -> None:
    """One wrong bit in some of the slices, which the store itself does not notice."""
    out, faults = store
    faults.flips, faults.only = 0.5, "/part-"
    assert sweep("run", small, "--workers", 0, "--out", out, "--top", 0).returncode == 1
    with pytest.raises(SpecError, match="damaged; the same `sweep run` computes damaged slices again"):
        rank(out)
    faults.flips = 0.0
    assert "is damaged and will be recomputed" in sweep("run", small, "--workers", 0, "--out", out, "--top", 0).stdout
    assert sweep("run", small, "--workers", 0, "--out", tmp_path / "local", "--top", 0).returncode == 0
    assert rows(out).equals(rows(tmp_path / "local"))


def test_a_folder_elsewhere_is_probed_and_left_as_it_was(store: tuple[str, Faults]) -> None:
    out, _ = store
    folder_at(out).probe()
    assert folder_at(out).names() == []
