"""Where compiled kernels are kept: by the hash of what they are made of, for one user; by one process at a time.

numba's own cache misses changes in other files, of functions that a kernel calls. The folder of a kernel is therefore named by
the hash of its text and of all that it names, so that machine code of old sources is never used. Its files are sealed
(sealed_code.py).
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from sim_core.compiled.sources import ROOT, function_hashes, source_hash
from sim_core.errors import SpecError
from sim_core.places import close_folder, folder_for_code, lock_file, read_own, write_own

STEP = "step"
BOUNDS = "bounds"
"""What kernels are for: simulated steps, or also their bounds."""
PLAIN_PYTHON = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
"""Whether kernels are plain Python in this process: nothing is compiled."""


@cache
def cache_dir() -> Path:
    """The folder of compiled kernels."""
    return folder_for_code()


def _version_dir() -> Path:
    """What the cache keeps of this version of sim_core, besides kernels."""
    folder = cache_dir() / source_hash()
    close_folder(folder)
    return folder


def kept_hashes(name: str, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `make` says of the sources of this version, made once and kept in a sealed file `name`.

    Nothing if a source was edited since this process began: it is not of what it runs.
    """
    try:
        file = _version_dir() / name
        text, _, seal = (read_own(file, 2) or b"").partition(b"\n")
        if hashlib.sha256(text).hexdigest() != seal.decode():
            raise ValueError("not there yet, or damaged")
        hashes: dict[str, str] = json.loads(text)
    except (SpecError, OSError, ValueError):
        hashes = make()
        if source_hash.__wrapped__() != source_hash():
            return {}
        text = json.dumps(hashes).encode()
        with suppress(SpecError, OSError):  # written by others, or no room
            write_own(_version_dir() / name, text + b"\n" + hashlib.sha256(text).hexdigest().encode())
    return hashes


@cache
def _function_hashes() -> dict[str, str]:
    """`function_hashes` of this version, which takes a second."""
    return kept_hashes("functions.json", function_hashes)


class KernelFolder:
    """The folder of a kernel's files, in the form in which numba asks for it.

    A checkout, an image and the working folder of a cluster job share one cache, and a new version compiles only what it
    changed. A kernel outside this package (of a test) lies with its version, under the hash of its file.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        code, source = function.__code__, Path(function.__code__.co_filename)
        self._line = code.co_firstlineno
        if source.is_relative_to(ROOT):
            self.hash = _function_hashes().get(f"{function.__module__}.{function.__name__}", source_hash())
            self._parent = cache_dir() / "kernels"
        else:
            text = source.read_bytes() if source.is_file() else code.co_code
            self.hash = hashlib.sha256(f"{source}\0".encode() + text).hexdigest()[:16]
            self._parent = _version_dir()

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        for folder in (self._parent, self._parent / self.hash):
            close_folder(folder)

    def get_cache_path(self) -> str:
        """Its path."""
        return str(self._parent / self.hash)

    def get_source_stamp(self) -> str:
        """What its files say that they are made of."""
        return self.hash

    def get_disambiguator(self) -> str:
        """Distinguishes functions of the same name in one module."""
        return str(self._line)


def is_compiled(what: str = STEP) -> bool:
    """Whether nothing is left to compile for `what`, STEP or BOUNDS: the cache has the kernels of these sources."""
    return PLAIN_PYTHON or _marker(what).exists()


def _marker(what: str) -> Path:
    return _version_dir() / f".compiled-{what}"


@contextmanager
def compiling_alone(what: str = STEP) -> Iterator[None]:
    """Let only one process of a machine compile the kernels for `what` at a time; the others then load them."""
    if is_compiled(what):
        yield
        return
    with lock_file(_version_dir() / ".lock") as lock:
        with suppress(OSError):  # a file system without flock: each process compiles
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    _marker(what).touch()
