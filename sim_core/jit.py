"""Compilation of all kernels by numba, cached on disk under the hash of their sources.

numba's own cache misses changes in other files, of functions that a kernel calls. The folder is therefore named by the hash
of all of sim_core, so that machine code of old sources is never used.
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
from numba.core.dispatcher import Dispatcher

F = TypeVar("F", bound=Callable[..., object])
_COMPILED: Final = ".compiled"


@cache
def source_hash() -> str:
    """Hash (16 hex digits) of every source, preset and table of sim_core: the version of the model."""
    digest = hashlib.sha256()
    for name, content in _sources():
        digest.update(name.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()[:16]


@cache
def source_hashes() -> dict[str, str]:
    """Hash (16 hex digits) of each source, preset and table of sim_core by its path: shows what a new version changed."""
    return {name: hashlib.sha256(content).hexdigest()[:16] for name, content in _sources()}


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parent
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".yaml", ".npz")):
        yield path.relative_to(root).as_posix(), path.read_bytes()


@cache
def cache_dir() -> Path:
    """The folder of compiled kernels, named by the source hash, in the first of these places that is writable.

    `$NUMBA_CACHE_DIR`; `$XDG_CACHE_HOME` or `~/.cache`; the folder for temporary files; a new temporary folder.
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
    """Whether the cache already has the kernels of these sources."""
    return (cache_dir() / _COMPILED).exists()


def kernel(function: F) -> F:
    """Compile `function` without Python objects; with `NUMBA_DISABLE_JIT=1` it stays plain Python."""
    return _compiled(function)


def outer_kernel(function: F) -> F:
    """The same without reference counting of arrays, for a function that allocates nothing.

    A `Case` holds about 60 arrays; counting references to them at every call took half the time of a small plan. A kernel
    without it may return a tuple of arrays only to another one. numba refuses to compile one that allocates.
    """
    return _compiled(function, _nrt=False)


def inner_kernel(function: F) -> F:
    """An outer kernel that only kernels may call.

    It has no wrapper for Python: wrappers, each of which takes a `Case` apart, were half of the compilation.
    """
    return _compiled(function, _nrt=False, no_cpython_wrapper=True)


def _compiled(function: F, **options: Any) -> F:
    options |= {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    return cast(F, _one_per_type(numba.njit(**options)(function)))


def _one_per_type(dispatcher: Any) -> Any:
    """Let kernels call it by the types of its arguments alone: numba compiles it once more for each constant otherwise."""
    if isinstance(dispatcher, Dispatcher):
        by_type, kind_of = dispatcher.get_call_template, getattr(numba.types, "unliteral")  # noqa: B009 (made at run time)

        def get_call_template(args: Any, kws: Any) -> Any:
            return by_type(tuple(map(kind_of, args)), {name: kind_of(kind) for name, kind in kws.items()})

        setattr(dispatcher, "get_call_template", get_call_template)  # noqa: B010 (numba's method, of this one only)
    return dispatcher


class KernelLocator:
    """Where numba stores a kernel: by the hash of the sources, not by their path.

    A checkout, an image and the working folder of a cluster job thus share one cache.
    """

    def __init__(self, line: int) -> None:
        self.line = line

    def ensure_cache_path(self) -> None:
        """Nothing to do: `cache_dir` makes the folder."""

    def get_cache_path(self) -> str:
        """The folder of compiled kernels."""
        return str(cache_dir())

    def get_source_stamp(self) -> str:
        """The stamp that a cached kernel must have."""
        return source_hash()

    def get_disambiguator(self) -> str:
        """Distinguishes functions of the same name in one module."""
        return str(self.line)

    @classmethod
    def from_function(cls, function: Callable[..., object], path: str) -> KernelLocator | None:
        """A locator, or None for a function outside this package, for which numba uses its own locators."""
        if not Path(path).is_relative_to(Path(__file__).parent):
            return None
        return cls(function.__code__.co_firstlineno)


def use_cache_dir() -> None:
    """Point numba at `cache_dir()`; called once by the package, before the first kernel is defined."""
    # setattr, because numba creates these names at run time
    setattr(numba.config, "CACHE_DIR", str(cache_dir()))  # noqa: B010
    locators = (f"{__name__}.{KernelLocator.__name__}", "UserProvidedCacheLocator")
    setattr(numba.config, "CACHE_LOCATOR_CLASSES", ",".join(locators))  # noqa: B010


@contextmanager
def compiling_alone() -> Iterator[None]:
    """Let only one process of a machine compile at a time; the others then load its kernels."""
    if is_compiled():
        yield
        return
    with (cache_dir() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    (cache_dir() / _COMPILED).touch()
