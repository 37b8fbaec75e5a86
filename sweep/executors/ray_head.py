"""The Ray that a driver has joined, and what it cannot do without: joined, watched, and its loss told in time."""

import atexit
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.exceptions import AuthenticationError, RayError

from sim_core import SimError
from sim_core.documents import Fields
from sweep.executors import ClusterLost

_REACH_S = 10.0
HEAD_S = 10.0
"""How long a head may be silent."""
_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_TOKEN = "set RAY_AUTH_MODE to the mode of its head, and for `token` RAY_AUTH_TOKEN_PATH to the head's token"


class ClusterError(SimError):
    """The cluster cannot be reached, or has stopped answering."""


@dataclass(kw_only=True)
class Head:
    """What a driver cannot do without, as HOST:PORT: the head's control store (GCS) and the raylet of the driver's own node.

    Ray itself says nothing of their loss for a minute. The raylet may not go away at all, the control store for `patience_s`:
    a fault-tolerant one is restarted.
    """

    gcs: str
    raylet: str
    patience_s: float = HEAD_S
    silent_since: float | None = None
    lost: str = ""

    def check(self) -> None:
        """Raise ClusterLost if the raylet has ended, or the control store has been silent for too long."""
        if self.lost or _refusal(self.raylet):
            raise self.loss()
        now = time.monotonic()
        if not _refusal(self.gcs):
            self.silent_since = None
        elif self.silent_since is None:
            self.silent_since = now
        elif now - self.silent_since > self.patience_s:
            raise self.loss()

    def caused(self, error: BaseException) -> BaseException:
        """The error to raise for one that Ray may have raised: it says its loss in many ways, a broken pipe among them, which
        may be an OSError without a number."""
        if isinstance(error, ConnectionError) or (isinstance(error, OSError) and _refusal(self.raylet)):
            return self.loss(error)
        return error

    def loss(self, why: Exception | None = None) -> ClusterLost:
        """The error to raise, after an error of Ray's; from now on the cluster counts as lost."""
        parts = {f"the head at {self.gcs}": self.gcs, f"the raylet of this node at {self.raylet}": self.raylet}
        silent = next((f"no answer from {part}" for part, address in parts.items() if _refusal(address)), "")
        self.lost = self.lost or f"Ray is lost: {silent or ' '.join(str(why).split()) or type(why).__name__}"
        return ClusterLost(self.lost)


def _refusal(address: str) -> OSError | None:
    """Why nothing answers at HOST:PORT; None if something does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except OSError as error:
        return error
    return None


def head_of_cluster() -> Head:
    """The head of the cluster that this process has joined."""
    context = ray.get_runtime_context()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
    raylet = f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"
    return Head(gcs=context.gcs_address, raylet=raylet, patience_s=float(os.environ.get(_PATIENCE, HEAD_S)))


@contextmanager
def joined(workers: int | None) -> Iterator[tuple[Head, bool]]:
    """Join the cluster in RAY_ADDRESS, or start a Ray on this machine with `workers` CPUs; yields its head, and whether
    it was started here.

    Raises ClusterError if there is no cluster at that address.
    """
    address = os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").rpartition(":")
    # Ray resolves `auto` and the like; where nothing listens it would retry for minutes
    if address and host and port.isdecimal() and (error := _refusal(address)):
        raise ClusterError(f"no Ray cluster at RAY_ADDRESS={address}: {error.strerror or error}")
    options: Fields = {"log_to_driver": False, "logging_level": "ERROR"}
    if not address:
        options |= {"address": "local", "num_cpus": workers, "include_dashboard": False}
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except AuthenticationError as error:
        raise ClusterError(
            f"the Ray cluster at RAY_ADDRESS={address} refuses this token ({str(error).partition('.')[0]}); {_TOKEN}"
        ) from None
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        where = f"no Ray cluster at RAY_ADDRESS={address}" if address else "Ray cannot be started"
        hint = f"; something listens there: {_TOKEN}" if address and "Failed to connect" in str(error) else ""
        raise ClusterError(f"{where}: {' '.join(str(error).split())}{hint}") from None
    head: Head | None = None
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray has installed its own, which ends the process silently
        head = head_of_cluster()
        yield head, not address
    except OSError as error:
        if head is None or not _refusal(head.raylet):  # whoever reads what is printed may be gone, too
            raise
        raise head.loss(error) from None
    finally:
        if head is not None and head.lost:
            atexit.unregister(ray.shutdown)  # it would wait a minute for the head; `sweep.cli` ends the process
        else:
            ray.shutdown()
