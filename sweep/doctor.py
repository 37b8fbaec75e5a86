"""What may stop a run or spoil a night, found before it starts: on this machine, in a store, on the nodes of a Ray cluster."""

import fcntl
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from sim_core import short
from sim_core.compiling import is_compiled, source_hash
from sim_core.places import choose_folder, lock_file, of_others
from sweep.exits import in_words
from sweep.options import OptionError
from sweep.results.folder import Folder, flock
from sweep.sources import PACKAGES, Code, differences, loaded

_MEMORY, _DISK = 2**29, 2**30
"""Bytes that have to be free: of memory for each CPU, on the disk."""
_CLOCK_S = 10.0
_TRIED = ".doctor"


class Finding(NamedTuple):
    """What was found of one thing; `advice`: what to do, where something is wrong; `node`: of a cluster."""

    what: str
    found: str
    advice: str = ""
    node: str = ""


def examined(folder: Folder | None) -> Iterator[Finding]:
    """This machine, and from it the store in `folder`."""
    have = {each.name: each.version for each in distributions()}
    told = [f"{name} {have[name]}" for name in ("training-plan-sweep", *PACKAGES, "ray") if name in have]
    yield Finding("versions", ", ".join([f"Python {platform.python_version()}", *told, f"model {source_hash()}"]))
    (memory,), cpus = re.findall(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text()), len(os.sched_getaffinity(0))
    little = int(memory) * 1024 < _MEMORY * cpus
    yield Finding("memory", f"{short(int(memory) * 1024, 'B')} free, {cpus} CPUs", "use fewer --workers" if little else "")
    code, why = choose_folder()
    if theirs := of_others(code):
        why = why or f"{theirs[0]} and {len(theirs) - 1} more: others can write there, so they are compiled again"
    yield Finding(
        "compiled code",
        f"{why}; {code} is used" if why else f"{code}, {'ready' if is_compiled() else 'compiled by the first run'}",
        "set NUMBA_CACHE_DIR to a folder of yours that nobody else can write to" if why else "",
    )
    local = folder.local if folder else None
    place = local if local and local.is_dir() else code
    free = shutil.disk_usage(place).free
    yield Finding("disk", f"{short(free, 'B')} free in {place}", "make room" if free < _DISK else "")
    if folder:
        yield from _store(folder)


def _store(folder: Folder) -> Iterator[Finding]:
    """Write, read, lock and delete a small file, whose time is that of the store's clock."""
    name = f"{_TRIED}-{os.urandom(6).hex()}"
    try:
        folder.write_bytes(name, name.encode())
        ahead = (folder.written_s(name) or 0.0) - time.time()
        folder.read_bytes(name)
        if folder.local:
            with lock_file(folder.local / name) as lock:
                none = flock(lock, fcntl.LOCK_EX) is None
            yield Finding("lock", "no flock: a file names who holds it" if none else "flock works")
        folder.delete(name)
    except OSError as error:
        yield Finding("store", in_words(error), "a run has to write, read and delete there")
        return
    yield Finding("store", f"{folder}: written, read, deleted")
    yield _clock(ahead)


def _clock(ahead: float) -> Finding:
    return Finding("clock", f"{round(ahead):+} s ahead of this one's", "set the clocks (NTP)" if abs(ahead) > _CLOCK_S else "")


def _node(code: Code, folder: Folder | None) -> tuple[list[Finding], float]:
    """What is found on the node of a cluster where this runs, and its time."""
    differing = differences(code, loaded())
    other = Finding("code", differing or "as here", "install one version; runs leave this node out" if differing else "")
    return [other, *examined(folder)], time.time()


def on_cluster(folder: Folder | None) -> Iterator[Finding]:
    """Each node of the cluster in RAY_ADDRESS; `folder` is tried from there if it is no local one. Raises SimError."""
    if "RAY_ADDRESS" not in os.environ:
        raise OptionError("--cluster: found no RAY_ADDRESS in the environment, expected the address of a Ray cluster")
    from sweep.executors.ray import on_each_node
    from sweep.executors.ray_head import joined

    with joined(None):
        for node, answer in on_each_node(_node, loaded(), None if folder and folder.local else folder):
            if isinstance(answer, str):
                found = [Finding("code", answer, "install what is installed here; runs leave this node out")]
            else:
                found = [*answer[0], _clock(answer[1] - time.time())]
            yield from (each._replace(node=node) for each in found)
