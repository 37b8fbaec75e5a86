"""One nightly run at a time per root; a dead holder blocks nobody. A kernel lock on a local disk, a lease elsewhere.

The lease only needs a store whose listing shows everything written before it (S3 does since 2020). Each run writes an entry
of its own, then lists all entries; a run that sees another live entry withdraws its own. Two runs cannot miss each other,
because one of the two listings comes after both writes. A holder rewrites its entry regularly; an entry older than `LEASE_S`
by the store's clock is dead. If two runs start at the same moment, both may withdraw; they retry after random pauses.

A holder may be frozen for longer than its lease (a suspended machine, SIGSTOP), or a write of it be late. Whoever takes the
lease therefore writes its name into `holder`, and `check` reads that before and after each record: with another name there,
or once its own lease has run out, it never passes again, whatever the entries say. pyarrow has no conditional PUT.
"""

import json
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sim_core import SpecError
from sweep.results.folder import Folder, only_one

LEASE_S = 120.0
_BEATS = 4  # writes of the entry per LEASE_S
_TRIES = 5
_FILE = ".nightly.lock"
_FOLDER = "lock"
_HOLDER = "holder"
_HELD = "held"


@contextmanager
def locked(root: Folder) -> Iterator[Callable[[], None]]:
    """Hold the lock; yields a check to call before each write that needs it, which raises SpecError if the lock is lost.

    Raises SpecError if another run holds the lock.
    """
    if root.local is not None:
        root.make()
        with only_one(root.local / _FILE, f"{root}: another nightly run is active here"):
            yield lambda: None
        return
    lease = Lease(root / _FOLDER)
    lease.acquire(root)
    try:
        yield lease.check
    finally:
        lease.release()


class Lease:
    """This run's entry among those in `folder`; a thread keeps it alive."""

    def __init__(self, folder: Folder, lease_s: float = LEASE_S) -> None:
        self.folder = folder
        self.lease_s = lease_s
        self.entry = f"{uuid.uuid4().hex}.json"
        self.alive_until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def acquire(self, root: Folder, pause: Callable[[float], None] = time.sleep) -> None:
        """Take the lease. Raises SpecError if another run holds it."""
        for _ in range(_TRIES):
            self._write("claimed")
            others = self._others()
            if not others:
                self._write(_HELD)
                if not self._is_over():
                    self.folder.write_bytes(_HOLDER, self.entry.encode())
                    self._thread.start()
                    return
            self.folder.delete(self.entry)
            if _HELD in others:
                break
            pause(random.uniform(0.5, 3.0))
        raise SpecError(f"{root}: another nightly run is active here, or was less than {self.lease_s:.0f} s ago")

    def check(self) -> None:
        """Raises SpecError if the entry could not be kept alive, or another run has taken the lease since."""
        if self._is_over():
            raise SpecError(f"{self.folder}: could not be written for {self.lease_s:.0f} s; another run may be active here")
        if _HOLDER not in self.folder.names() or self.folder.read_bytes(_HOLDER) != self.entry.encode():
            raise SpecError(f"{self.folder}: another run has taken the lease: this one was frozen, or its writes were late")

    def _is_over(self) -> bool:
        """Whether the lease has run out; then it stays so."""
        if time.monotonic() > self.alive_until:
            self.alive_until = 0.0
        return not self.alive_until

    def release(self) -> None:
        """Release the lease."""
        self._stop.set()
        self._thread.join()
        if self.entry in self.folder.names():
            self.folder.delete(self.entry)

    def _write(self, state: str) -> None:
        holder = {"state": state, "host": socket.gethostname(), "pid": os.getpid()}
        begun = time.monotonic()
        if state == _HELD and self._is_over():
            return
        self.folder.write_bytes(self.entry, json.dumps(holder).encode())
        if state != _HELD or not self._is_over():  # frozen while it wrote
            self.alive_until = begun + self.lease_s

    def _others(self) -> list[str]:
        """States of the other live entries; deletes dead ones."""
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
                continue  # it was just withdrawn
            except ValueError:
                states.append(_HELD)
        return states

    def _beat(self) -> None:
        while not self._stop.wait(self.lease_s / _BEATS):
            with suppress(OSError):  # the next beat tries again; `check` raises if that takes too long
                self._write(_HELD)
