"""Files of compiled kernels, sealed: machine code with a flipped bit would compute other numbers, or crash, without a word."""

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

from sim_core.compiled.kept import KernelFolder
from sim_core.errors import SpecError
from sim_core.places import read_own, write_own

_LEVELS = 3
"""The folder of a kernel lies two below the one of all compiled code."""


class SealedFiles(IndexDataCacheFile):
    """The index and the data of a kernel, each followed by its SHA-256: a damaged file is deleted, and written anew.

    Data also say what they are of: two processes that compile a kernel for two types at once may write to the same file.
    """

    def save(self, key: object, data: object) -> None:
        """Store the code of a kernel for the types and the processor in `key`."""
        super().save(key, (self._source_stamp, key, data))  # type: ignore[no-untyped-call]

    def load(self, key: object) -> Any:
        """The code for `key`; None if it is not there."""
        stamp, of, data = super().load(key) or (None, None, None)  # type: ignore[no-untyped-call]
        return data if (stamp, of) == (self._source_stamp, key) else None

    def _load_index(self) -> Any:
        file = BytesIO(_content(self._index_path))
        if not file.getvalue() or pickle.load(file) != self._version:
            return {}
        stamp, overloads = pickle.load(file)
        return overloads if stamp == self._source_stamp else {}

    def _load_data(self, name: str) -> Any:
        content = _content(self._data_path(name))  # type: ignore[no-untyped-call]
        return pickle.loads(content) if content else None

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BytesIO]:
        content = BytesIO()
        yield content
        write_own(Path(filepath), content.getvalue() + hashlib.sha256(content.getvalue()).digest())


class _Kept(CompileResultCacheImpl):
    """How numba writes and reads code, in folders of our own: with any version of numba, whatever its environment says."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._locator = KernelFolder(function)
        name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, sys.abiflags)  # type: ignore[no-untyped-call]


class SealedCache(FunctionCache):
    """numba's cache of one function, in such files; `variant`: what their names end in."""

    _impl_class = _Kept

    def __init__(self, function: Callable[..., object], variant: str = "") -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = SealedFiles(self._cache_path, self._impl.filename_base + variant, stamp)  # type: ignore[no-untyped-call]


def _content(path: str) -> bytes:
    """What a file holds, without its seal; nothing if it is not there, is damaged (it is deleted), or may be of others."""
    try:
        data = read_own(Path(path), _LEVELS)
    except (SpecError, PermissionError):
        _told(Path(path).parents[_LEVELS - 1])
        return b""
    if data is None:
        return b""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[:-size]).digest() == data[-size:]:
        return data[:-size]
    sys.stderr.write(f"note: {path}: is damaged; what it held is compiled again\n")
    Path(path).unlink(missing_ok=True)
    return b""


@cache
def _told(folder: Path) -> None:
    """Say, once, that others can have written what a folder holds."""
    sys.stderr.write(f"note: {folder}: others can have written to files or folders in it; what it holds is compiled again\n")
