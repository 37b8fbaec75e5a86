"""What the driver of a Ray cluster cannot do without, and how it notices its loss: Ray itself says nothing for a minute."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Final

from sweep.executors import ClusterLost

HEAD_S: Final = 10.0
"""So long a head may be silent."""
_REACH_S: Final = 10.0


@dataclass(kw_only=True)
class Head:
    """As HOST:PORT, the head's control store (GCS) and the raylet of the driver's own node.

    The raylet may not go away at all, the control store for `patience_s`: a fault-tolerant one is restarted.
    """

    gcs: str
    raylet: str
    patience_s: float = HEAD_S
    silent_since: float | None = None
    lost: str = ""

    def check(self) -> None:
        """Raise ClusterLost if the raylet has ended, or the control store has been silent for too long."""
        if self.lost or not _listens(self.raylet):
            raise self.loss()
        now = time.monotonic()
        if _listens(self.gcs):
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = now
        elif now - self.silent_since > self.patience_s:
            raise self.loss()

    def loss(self, why: Exception | None = None) -> ClusterLost:
        """The error to raise, after an error of Ray's; from now on the cluster counts as lost."""
        parts = {f"the head at {self.gcs}": self.gcs, f"the raylet of this node at {self.raylet}": self.raylet}
        silent = [f"no answer from {part}" for part, address in parts.items() if not _listens(address)]
        said = " ".join(str(why).split()) or type(why).__name__
        self.lost = self.lost or f"Ray is lost: {(silent or [said])[0]}"
        return ClusterLost(self.lost)


def connect(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def _listens(address: str) -> bool:
    try:
        connect(address)
    except OSError:
        return False
    return True
