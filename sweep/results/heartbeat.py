"""What a run tells of itself while it works, in a file beside its slices: who reads the folder elsewhere sees how far it is."""

import resource
import socket
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from sweep.results.folder import Folder

FILE = ".progress.json"
FRESH_S = 60.0
"""A run on an object store that has told nothing for so long has ended without a word."""


def _memory() -> int:
    """Resident bytes of this process and those that it started; 0 where the system does not say."""
    with suppress(OSError):
        children = [pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()]
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in ("self", *children)]
        return sum(pages) * resource.getpagesize()
    return 0


class Heartbeat(BaseModel):
    """What one run has done so far."""

    model_config = ConfigDict(allow_inf_nan=False, from_attributes=True)

    host: str = Field(default_factory=socket.gethostname)
    memory_bytes: int = Field(default_factory=_memory)
    seconds: float
    plans_per_second: float
    eta_s: float | None
    slices_done: int
    slices_lost: int  # attempts at one
    retries: int  # of requests to the store
    store_errors: int  # slices that the store refused at every attempt
    ended: bool


def heard(folder: Folder) -> Heartbeat | None:
    """What the last run told; None if it told nothing, or nothing that can be read."""
    with suppress(FileNotFoundError, ValueError):
        return Heartbeat.model_validate_json(folder.read_bytes(FILE))
    return None


def is_alive(folder: Folder, started_s: float) -> bool:
    """Whether a run that began at `started_s` seems to work on, where no lock says so. Clocks may differ by some seconds."""
    told_s = folder.written_s(FILE) or 0.0
    told = heard(folder)
    return not (told and told.ended and told_s >= started_s) and time.time() - max(told_s, started_s) < FRESH_S
