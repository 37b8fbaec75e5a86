"""File systems without flock (Lustre without `-o flock`, some FUSE): a lock that works there, said once, and its owners."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from sim_core import SpecError
from sweep.nightly.lock import locked
from sweep.results import folder
from sweep.results.folder import folder_at, is_held, only_one
from sweep.tuning.record import Entry, append
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, rows

HOLD = """
import errno, fcntl, sys
from pathlib import Path
def flock(*given): raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.flock = flock
from sweep.results.folder import only_one
with only_one(Path(sys.argv[1]), "held"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["ENOSYS", "ENOLCK", "EOPNOTSUPP", "EINVAL"])
def no_flock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    number = getattr(errno, request.param)

    def flock(*arguments: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder._say_once.cache_clear()
    yield
    folder._say_once.cache_clear()


def test_a_run_its_status_and_a_night_work(no_flock: None, write_spec: SpecWriter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    spec = write_spec(axes={"tp": [1, 2, 4, 8], "all_gpus": [64, 128]})
    done = sweep("run", spec, "--workers", 0, "--out", out, "--top", 0)
    said = f"note: {out}: its file system has no flock; a file names the process that holds the lock\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert rows(out).num_rows == 8
    assert sweep("run", spec, "--workers", 0, "--out", out, "--top", 0).stderr == "", "once for a folder"
    status = sweep("status", out)
    assert (status.returncode, "running" in status.stdout) == (0, False)
    with only_one(out / ".lock", "here"):
        assert "running" in sweep("status", out).stdout
        refused = sweep("run", spec, "--workers", 0, "--out", out)
        assert refused.returncode == 1
        start = (
            f"error: {out}: another run is writing here (host {socket.gethostname()}, process {os.getpid()}, started at tick "
        )
        assert refused.stderr.startswith(start)
        assert refused.stderr.endswith(f"); if that has ended, delete {out}/.lock.owner\n")
    assert not is_held(out / ".lock")
    assert not (out / ".lock.owner").exists()
    with locked(folder_at(out)), pytest.raises(SpecError, match="another nightly run is active here"), locked(folder_at(out)):
        pass
    append(tmp_path / "tune.csv", "x" * 16, Entry(plan=1, state="oom"))


def test_a_dead_owner_of_this_machine_keeps_nobody_out(no_flock: None, tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    command, pipe = [sys.executable, "-c", HOLD, str(lock)], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(SpecError, match=f"process {process.pid}, "), only_one(lock, "here"):
        pass
    assert is_held(lock)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_held(lock)
    with only_one(lock, "here"):
        assert is_held(lock)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def owner(text: str, tmp_path: Path) -> Path:
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock.owner").write_text(text)
    return tmp_path / ".lock"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("host other.example, process 7, started at tick 12", "host other.example, process 7"),
        (f"host {socket.gethostname()}, process {os.getppid()}, started at tick ?", None),
        ("", "unnamed"),
        ("root:x:0:0:secret", "unnamed"),
        ("host a, process 1, started at tick 2\x1b[31m", "unnamed"),
        ("x" * 100_000, "unnamed"),
        ("é", "unnamed"),
    ],
)
def test_owners(no_flock: None, tmp_path: Path, text: str, named: str | None) -> None:
    """Of another machine, or unnamed: it is said what to delete. A process with the number of a dead one is not it."""
    lock = owner(text, tmp_path)
    if named is None:
        with only_one(lock, "here"):
            pass
        return
    assert is_held(lock)
    with pytest.raises(SpecError) as told, only_one(lock, "here"):
        pass
    assert str(told.value).startswith(f"here ({named}")
    assert str(told.value).endswith(f"; if that has ended, delete {lock}.owner")
    assert "secret" not in str(told.value)


def test_who_takes_over_second_gives_the_lock_back(no_flock: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two see a dead owner; the one that is slower finds the other's file in its place."""
    lock = owner(f"host {socket.gethostname()}, process 4194304, started at tick 1", tmp_path)
    file, mine = tmp_path / ".lock.owner", f"host {socket.gethostname()}, process {os.getpid()}, started at tick "
    plain, first = folder._owner_of, [True]

    def faster(path: Path) -> tuple[str, bool]:
        found = plain(path)
        if first:
            first.clear()
            file.write_text(folder._process(str(os.getpid())))
        return found

    monkeypatch.setattr(folder, "_owner_of", faster)
    with pytest.raises(SpecError, match=mine), only_one(lock, "here"):
        pass
    assert file.read_text().startswith(mine)


def test_other_errors_of_a_lock_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*arguments: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"), only_one(tmp_path / ".lock", "here"):
        pass
    with pytest.raises(OSError, match="Input/output"):
        is_held(tmp_path / ".lock")
