"""One nightly at a time on a root: a lock that dies with its holder, and a lease that others may take when it is old."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.nightly.lock import LEASE_S, Lease, locked
from sweep.results.folder import Folder, folder_at
from tests.sweep.nightly.conftest import SandboxMaker

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
    assert len((root / "lock").names()) == 2
    with pytest.raises(SpecError, match=f"or was less than {LEASE_S:.0f} s ago"), locked(root):
        pass
    lease = Lease(root / "lock")
    monkeypatch.setattr(lease, "_thread", threading.Thread())
    written_s = Folder.written_s
    later = 2 * LEASE_S  # every entry but our own is too old
    monkeypatch.setattr(
        Folder, "written_s", lambda folder, name: (written_s(folder, name) or 0.0) + (later if name == lease.entry else 0.0)
    )
    lease.acquire(root)
    assert (root / "lock").names() == [lease.entry, "holder"]
    lease.release()
    assert (root / "lock").names() == ["holder"]


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
    assert sorted(path.name for path in tmp_path.iterdir()) == [lease.entry, "holder"]
    lease.release()


def test_a_lease_that_could_not_be_kept_is_told(tmp_path: Path) -> None:
    lease = Lease(folder_at(tmp_path), lease_s=30.0)
    lease.acquire(folder_at(tmp_path))
    lease.check()
    lease.alive_until -= 30.0
    with pytest.raises(SpecError, match="could not be written for 30 s; another run may be active here"):
        lease.check()
    lease.release()


def test_a_holder_keeps_its_entry_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is written again and again, until the lease is given back."""
    monkeypatch.setattr("sweep.nightly.lock._BEATS", 3000)
    lease = Lease(folder_at(tmp_path))
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
    assert [path.name for path in tmp_path.iterdir()] == ["holder"]


@pytest.fixture
def still() -> Iterator[pytest.MonkeyPatch]:
    """Leases whose thread does not run: tests write for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "_beat", lambda lease: None)
        yield patch


def taken(folder: Folder, **given: float) -> Lease:
    lease = Lease(folder, **given)
    lease.acquire(folder)
    return lease


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """Where leases lie, on a disk and on an S3 server."""
    return folder_at(tmp_path if request.param == "local" else f"{request.getfixturevalue('bucket')}/lock")


def test_a_holder_that_wakes_after_its_lease_holds_it_no_more(place: Folder, still: pytest.MonkeyPatch) -> None:
    """Its thread writes its entry again; nobody else need have come."""
    lease = taken(place, lease_s=30.0)
    clock = time.monotonic() + 31
    still.setattr("sweep.nightly.lock.time.monotonic", lambda: clock)
    lease._write("held")
    with pytest.raises(SpecError, match="could not be written for 30 s"):
        lease.check()
    clock -= 31
    lease._write("held")
    with pytest.raises(SpecError, match="could not be written for 30 s"):
        lease.check()


def test_a_holder_frozen_in_the_middle_of_a_write(place: Folder, still: pytest.MonkeyPatch) -> None:
    """The write began in time and lands, but for another it was dead meanwhile."""
    lease, clock, plain = taken(place, lease_s=30.0), [time.monotonic()], Folder.write_bytes
    still.setattr("sweep.nightly.lock.time.monotonic", lambda: clock[0])

    def late(folder: Folder, name: str, data: bytes) -> None:
        clock[0] += 31
        plain(folder, name, data)

    still.setattr(Folder, "write_bytes", late)
    for _ in range(2):
        lease._write("held")
        with pytest.raises(SpecError, match="could not be written for 30 s"):
            lease.check()


@pytest.mark.parametrize("other", ["holds it", "is through"])
def test_a_machine_whose_clock_stood_still_is_fenced_by_the_store(place: Folder, still: pytest.MonkeyPatch, other: str) -> None:
    """A paused virtual machine sees no time pass: its entry is alive again, and only the store knows of the other."""
    frozen = taken(place)
    frozen.check()
    place.delete(frozen.entry)  # as the other does: it is dead
    new = taken(place)
    if other == "is through":
        new.release()
    frozen._write("held")
    with pytest.raises(SpecError, match="another run has taken the lease: this one was frozen, or its writes were late"):
        frozen.check()
    if other == "holds it":
        new.check()
        new.release()


def test_who_is_frozen_while_it_takes_the_lease_does_not_get_it(place: Folder, still: pytest.MonkeyPatch) -> None:
    lease, clock = Lease(place, lease_s=30.0), [time.monotonic()]
    still.setattr("sweep.nightly.lock.time.monotonic", lambda: clock[0])
    others = lease._others

    def frozen() -> list[str]:
        found = others()
        clock[0] += 31
        return found

    lease._others = frozen  # type: ignore[method-assign]
    with pytest.raises(SpecError, match="another nightly run is active here"):
        lease.acquire(place, pause=lambda s: None)
    assert "holder" not in place.names()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_night_that_was_overtaken_commits_nothing(
    make_sandbox: SandboxMaker, bucket: str, still: pytest.MonkeyPatch, moment: str
) -> None:
    """Another took the lease: before a record is written the night ends; during that write, right after it."""
    sandbox, plain, writes = make_sandbox(f"{bucket}/nightly"), Folder.write_bytes, [0]
    sandbox.write(sweeps=["a.yaml"])

    def write(folder: Folder, name: str, data: bytes) -> None:
        writes[0] += name == "night.json"
        if name == ("report.md" if moment == "before" else "night.json") and writes[0] == 2:
            plain(sandbox.nights.root / "lock", "holder", b"another")
        plain(folder, name, data)

    still.setattr(Folder, "write_bytes", write)
    with pytest.raises(SpecError, match="another run has taken the lease"):
        sandbox.night()
    (night,) = sandbox.nights.read()
    assert (night.finished, writes[0]) == (None, 2)


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
