"""One at a time on a root, and a dead holder keeps nobody out: a lock of the kernel on a local disk, a lease elsewhere.

The lease needs no more of a store than that a listing shows what was written before it (as S3 since 2020): each writes an
entry of its own, then lists; who sees another live entry withdraws. Two cannot both miss the other, since one of the two
listings comes after both writes. A holder writes its entry again and again; an entry that is older than `LEASE_S` by the
store's own clock is dead. Where two begin at the same moment both may withdraw; they try again after random pauses.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sim_core import SpecError
from sweep.place import Place

LEASE_S: Final = 120.0
_BEATS: Final = 4  # times that an entry is written in LEASE_S
_TRIES: Final = 5
_FILE: Final = ".nightly.lock"
_FOLDER: Final = "lock"
_HELD: Final = "held"


@contextmanager
def locked(root: Place) -> Iterator[Callable[[], None]]:
    """Yields what to call before something is written that must not be written by two: it raises where the lock is lost.

    Raises SpecError where another holds it.
    """
    if root.local is not None:
        root.make()
        with open(root.local / _FILE, "w") as file:  # noqa: PTH123 (flock wants the descriptor)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SpecError(f"{root}: another nightly run is at work here") from None
            yield lambda: None
        return
    lease = Lease(root / _FOLDER)
    lease.acquire(root)
    try:
        yield lease.check
    finally:
        lease.release()


class Lease:
    """An entry of our own among those in `folder`, kept alive by a thread."""

    def __init__(self, folder: Place, lease_s: float = LEASE_S) -> None:
        self.folder = folder
        self.lease_s = lease_s
        self.entry = f"{uuid.uuid4().hex}.json"
        self.alive_until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def acquire(self, root: Place, pause: Callable[[float], None] = time.sleep) -> None:
        """Raises SpecError where another holds the lease."""
        for _ in range(_TRIES):
            self._write("claimed")
            others = self._others()
            if not others:
                self._write(_HELD)
                self._thread.start()
                return
            self.folder.delete(self.entry)
            if _HELD in others:
                break
            pause(random.uniform(0.5, 3.0))
        raise SpecError(f"{root}: another nightly run is at work here, or was until less than {self.lease_s:.0f} s ago")

    def check(self) -> None:
        """Raises SpecError where the entry could not be kept alive: another may hold the lease by now."""
        if time.monotonic() > self.alive_until:
            raise SpecError(f"{self.folder}: could not be written for {self.lease_s:.0f} s; another run may be at work here")

    def release(self) -> None:
        """Give the lease back."""
        self._stop.set()
        self._thread.join()
        if self.entry in self.folder.names():
            self.folder.delete(self.entry)

    def _write(self, state: str) -> None:
        holder = {"state": state, "host": socket.gethostname(), "pid": os.getpid()}
        begun = time.monotonic()
        self.folder.write_bytes(self.entry, json.dumps(holder).encode())
        self.alive_until = begun + self.lease_s

    def _others(self) -> list[str]:
        """States of the other live entries; dead ones are deleted."""
        now = self.folder.written_s(self.entry) or 0.0  # by the store's clock
        states = []
        for name in self.folder.names():
            if name == self.entry or not name.endswith(".json"):
                continue
            try:
                if now - (self.folder.written_s(name) or 0.0) > self.lease_s:
                    self.folder.delete(name)
                else:
                    states.append(str(json.loads(self.folder.read_bytes(name)).get("state")))
            except FileNotFoundError:
                continue  # it has just withdrawn
            except ValueError:
                states.append(_HELD)
        return states

    def _beat(self) -> None:
        while not self._stop.wait(self.lease_s / _BEATS):
            try:
                self._write(_HELD)
            except OSError:
                continue  # tried again at the next beat; `check` knows when it was too long
