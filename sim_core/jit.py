"""The one way code is compiled: numba kernels, cached on disk under the hash of the sources they came from.

numba's own cache does not notice when a function that a kernel calls changes in another file; a folder named by the hash
of all of sim_core does, so that old machine code can never answer for new sources.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])
_COMPILED: Final = ".compiled"


@cache
def source_hash() -> str:
    """Hash (16 hex digits) of every source and preset of sim_core: the version of the model."""
    digest = hashlib.sha256()
    for name, content in _sources():
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:16]


@cache
def source_hashes() -> dict[str, str]:
    """Hash (16 hex digits) of each source and preset of sim_core by its path in it: names what a new model changed."""
    return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in _sources()}


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parent
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".yaml")):
        yield path.relative_to(root).as_posix(), path.read_bytes()


@cache
def cache_dir() -> Path:
    """Where compiled kernels lie, below it the source hash: the first place of these that can be written.

    `$NUMBA_CACHE_DIR`, `$XDG_CACHE_HOME` or `~/.cache`, the folder for temporary files.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "training-plan-sweep"
    places = [Path(given)] if given else []
    places += [home, Path(tempfile.gettempdir()) / f"training-plan-sweep-{os.getuid()}"]
    for place in places:
        folder = place / source_hash()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="training-plan-sweep-"))


def is_compiled() -> bool:
    """Whether kernels of these sources lie in the cache already."""
    return (cache_dir() / _COMPILED).exists()


def kernel(function: F) -> F:
    """Compile `function` without Python objects; with `NUMBA_DISABLE_JIT=1` it stays the readable reference."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inner_kernel(function: F) -> F:
    """The same for a function that allocates nothing: it counts no references to the arrays it is given.

    A plan's arrays are some 60, in tuples; counting them at every call took half of the time of a small plan. Such a function
    may return a tuple of arrays only to another one, and numba refuses to compile it where it allocates.
    """
    options: dict[str, Any] = {"_nrt": False}
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function))


class KernelLocator:
    """Where numba keeps a kernel: by the hash of the sources, not by the path that they lie at.

    So a checkout, an image and the folder that a job on a cluster is unpacked into share one cache.
    """

    def __init__(self, line: int) -> None:
        self.line = line

    def ensure_cache_path(self) -> None:
        """Done by `cache_dir`."""

    def get_cache_path(self) -> str:
        """The folder."""
        return str(cache_dir())

    def get_source_stamp(self) -> str:
        """What a kernel in the cache must have been compiled from."""
        return source_hash()

    def get_disambiguator(self) -> str:
        """Tells functions of one name in one module apart."""
        return str(self.line)

    @classmethod
    def from_function(cls, function: Callable[..., object], path: str) -> KernelLocator | None:
        """None for a function that is not of this package: numba's own ways apply."""
        if not Path(path).is_relative_to(Path(__file__).parent):
            return None
        return cls(function.__code__.co_firstlineno)


def use_cache_dir() -> None:
    """Point numba at `cache_dir()`; called once by the package, before the first kernel is defined."""
    # by setattr: numba makes these names of its module at run time
    setattr(numba.config, "CACHE_DIR", str(cache_dir()))  # noqa: B010
    locators = (f"{__name__}.{KernelLocator.__name__}", "UserProvidedCacheLocator")
    setattr(numba.config, "CACHE_LOCATOR_CLASSES", ",".join(locators))  # noqa: B010


@contextmanager
def compiling_alone() -> Iterator[None]:
    """Of the processes on a machine that would compile at the same time, one does, and the others load what it made."""
    if is_compiled():
        yield
        return
    with (cache_dir() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    (cache_dir() / _COMPILED).touch()
