"""`sweep doctor`: a sound machine, and each thing that can be wrong with it and its store. Nodes: test_installations."""

from __future__ import annotations

import errno
import json
import time
from pathlib import Path

import pytest

from tests.sweep.commands import sweep


def found(*arguments: object, expect: int) -> dict[str, dict[str, str]]:
    """What the command found, by thing."""
    done = sweep("doctor", *arguments, "--json")
    assert (done.returncode, done.stderr) == (expect, ""), done.stdout
    return {each["what"]: each for each in json.loads(done.stdout)}


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.getfixturevalue('bucket')}/x" if request.param == "s3" else str(tmp_path)


def test_a_sound_machine(store: str) -> None:
    told = found(store, expect=0)
    assert [*told][:4] == ["versions", "memory", "compiled code", "disk"]
    assert {"store", "clock"} < {*told}
    assert ("lock" in told) == ("://" not in store)
    assert not any(each["advice"] for each in told.values())
    done = sweep("doctor", store)
    assert done.returncode == 0
    assert all(line.startswith("ok     ") for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) == len(told)
    if "://" not in store:
        assert not list(Path(store).iterdir()), "nothing is left behind"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    wrong = found(tmp_path / "no", expect=2)["store"]
    assert f"{tmp_path / 'no'}" in wrong["found"]
    assert wrong["advice"]
    assert "wrong  store: " in sweep("doctor", tmp_path / "no").stdout


def test_a_bucket_that_is_not_there(bucket: str) -> None:
    assert "create the bucket" in found(f"{bucket}-other/x", expect=2)["store"]["found"]


def test_a_store_whose_clock_is_wrong(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("sweep.doctor.time.time", lambda: now() + 100)
    clock = found(store, expect=2)["clock"]
    assert clock["found"].startswith(("-100 s", "-101 s", "-99 s"))
    assert clock["advice"] == "set the clocks (NTP)"


def test_a_disk_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    assert found(tmp_path, expect=0)["lock"]["found"] == "no flock: a file names who holds it"


def test_a_full_disk_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.doctor._MEMORY", 2**60)
    monkeypatch.setattr("sweep.doctor._DISK", 2**60)
    told = found(tmp_path, expect=2)
    assert [told[what]["advice"] for what in ("memory", "disk")] == ["use fewer --workers", "make room"]


def test_compiled_code_that_others_can_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    assert str(cache) in found(expect=0)["compiled code"]["found"]
    (cache / "kernels").mkdir(mode=0o700)
    (cache / "kernels").chmod(0o777)
    told = found(expect=2)["compiled code"]
    assert told["found"].startswith(f"{cache / 'kernels'} and 0 more: others can write there")
    assert "NUMBA_CACHE_DIR" in told["advice"]


def test_a_cache_that_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    told = found(expect=2)["compiled code"]
    assert told["found"].startswith(f"{tmp_path / 'file'}: ")
    assert told["found"].endswith(" is used")


@pytest.mark.parametrize("given", [["s3://"], [""], ["ftp://x/y"], ["--cluster"], ["a", "b"]])
def test_what_cannot_be_examined_is_one_line(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = sweep("doctor", *given)
    assert (done.returncode in (1, 2), done.stderr.count("\n"), "Traceback" in done.stderr) == (True, 1, False)


def test_no_cluster_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    done = sweep("doctor", "--cluster")
    assert (done.returncode, done.stderr) == (1, "error: no Ray cluster at RAY_ADDRESS=127.0.0.1:1: Connection refused\n")
