"""One nightly at a time on a root: a lock that dies with its holder, and a lease that others may take when it is old."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.nightly.lock import LEASE_S, Lease, locked
from sweep.results.folder import Folder, folder_at

HOLD = "import sys; from sweep.nightly.lock import locked; from sweep.results.folder import folder_at\n" \
       "with locked(folder_at(sys.argv[1])): print('held', flush=True); sys.stdin.read()"  # fmt: skip


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return folder_at(tmp_path / "root" if request.param == "local" else f"{request.getfixturevalue('bucket')}/nightly")


def holder(root: Folder) -> subprocess.Popen[str]:
    """A process that holds the lock of `root`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def briefly(seconds: float) -> None:
    """A pause much shorter than the one asked for."""
    threading.Event().wait(seconds)


def test_two_at_once_exclude_each_other(root: Folder) -> None:
    process = holder(root)
    with pytest.raises(SpecError, match="another nightly run is active here"), locked(root):
        pass
    process.communicate("")
    with locked(root) as still_ours:
        still_ours()
        with pytest.raises(SpecError, match="another nightly run is active here"), locked(root):
            pass
    with locked(root):
        pass


def test_a_dead_holder_keeps_nobody_out(tmp_path: Path) -> None:
    root = folder_at(tmp_path / "root")
    process = holder(root)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with locked(root):
        pass


def test_a_dead_holder_s_lease_ends(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the store's own clock: an entry is dead when it is `lease_s` older than one that is written now."""
    root = folder_at(f"{bucket}/nightly")
    process = holder(root)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len((root / "lock").names()) == 1
    with pytest.raises(SpecError, match=f"or was less than {LEASE_S:.0f} s ago"), locked(root):
        pass
    lease = Lease(root / "lock", lease_s=-1.0)  # every entry but our own is too old
    lease._thread = threading.Thread()
    lease.acquire(root)
    assert (root / "lock").names() == [lease.entry]
    lease.release()
    assert (root / "lock").names() == []


def test_an_entry_is_as_old_as_the_store_says(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    other = tmp_path / "other.json"
    other.write_text('{"state": "held"}')
    now = other.stat().st_mtime
    os.utime(other, (now, now - LEASE_S + 20))
    with pytest.raises(SpecError):
        Lease(folder).acquire(folder)
    os.utime(other, (now, now - LEASE_S - 20))
    lease = Lease(folder)
    lease.acquire(folder)
    lease.release()
    assert not other.exists()


def test_who_sees_a_claim_withdraws_and_tries_again(tmp_path: Path) -> None:
    """Neither of two that begin at the same moment may go on while it sees the other."""
    folder, other = folder_at(tmp_path), tmp_path / "other.json"
    other.write_text('{"state": "claimed"}')
    pauses: list[float] = []
    with pytest.raises(SpecError):
        Lease(folder).acquire(folder, pauses.append)
    assert (len(pauses), [path.name for path in tmp_path.iterdir()]) == (5, ["other.json"])
    lease = Lease(folder)
    lease.acquire(folder, lambda s: other.unlink())
    assert [path.name for path in tmp_path.iterdir()] == [lease.entry]
    lease.release()


def test_a_lease_that_could_not_be_kept_is_told(tmp_path: Path) -> None:
    lease = Lease(folder_at(tmp_path), lease_s=30.0)
    lease.acquire(folder_at(tmp_path))
    lease.check()
    lease.alive_until -= 30.0
    with pytest.raises(SpecError, match="could not be written for 30 s; another run may be active here"):
        lease.check()
    lease.release()


def test_a_holder_keeps_its_entry_alive(tmp_path: Path) -> None:
    """The entry is written again and again, until the lease is given back."""
    lease = Lease(folder_at(tmp_path), lease_s=0.04)
    written = threading.Event()
    plain = lease._write

    def noted(state: str) -> None:
        plain(state)
        if threading.current_thread() is lease._thread:
            written.set()

    lease._write = noted  # type: ignore[method-assign]
    lease.acquire(folder_at(tmp_path))
    assert written.wait(60)
    lease.release()
    assert not lease._thread.is_alive()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(10))
def test_of_many_at_the_same_moment_at_most_one_holds_the_lease(tmp_path: Path, seed: int) -> None:
    """Threads that all try, with random delays between their steps; whoever holds it is alone."""
    folder = folder_at(tmp_path)
    inside: list[int] = []
    most: list[int] = []
    guard = threading.Lock()
    start = threading.Barrier(6)

    def contend(k: int) -> None:
        rng = random.Random(seed * 100 + k)
        start.wait()
        for _ in range(3):
            lease = Lease(folder)
            try:
                lease.acquire(folder, pause=lambda s: briefly(rng.random() * 0.01))
            except SpecError:
                continue
            with guard:
                inside.append(k)
                most.append(len(inside))
            with guard:
                inside.remove(k)
            lease.release()

    threads = [threading.Thread(target=contend, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most, "somebody got it"
    assert max(most) == 1
