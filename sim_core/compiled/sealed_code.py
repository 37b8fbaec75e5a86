"""Files of compiled kernels, sealed: machine code with a flipped bit would compute other numbers, or crash, without a word."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

from sim_core.compiled.kept import KernelFolder


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
        return super()._load_index() if _is_whole(self._index_path) else {}  # type: ignore[no-untyped-call]

    def _load_data(self, name: str) -> Any:
        return super()._load_data(name) if _is_whole(self._data_path(name)) else None  # type: ignore[no-untyped-call]

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[BytesIO]:
        content = BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())


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


def _is_whole(path: str) -> bool:
    """Whether a file is there and undamaged; a damaged one is deleted."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return False
    size = hashlib.sha256().digest_size
    if hashlib.sha256(data[:-size]).digest() == data[-size:]:
        return True
    sys.stderr.write(f"note: {path}: is damaged; what it held is compiled again\n")
    Path(path).unlink(missing_ok=True)
    return False
