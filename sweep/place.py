"""A folder on any file system that `pyarrow.fs` knows (a path, s3://, gs://, hdfs://); a file is there whole or not at all.

How a write becomes whole differs: on a local disk written aside, synced, renamed; on an object store, which has no rename, one
PUT of the finished bytes; elsewhere written aside and moved.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from sim_core import SpecError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_SECRET = re.compile(r"(?<=://)[^/@]*@|(?<=[?&]secret_key=)[^&]*|(?<=[?&]access_key=)[^&]*")
_OBJECT_STORES: Final = ("s3", "gcs", "abfs")


@dataclass(frozen=True)
class Place:
    """A folder, by its path or URI as the user gave it (`given`) and the path below it (`below`); picklable.

    A local path is made absolute at once, so that it means the same in a process that works elsewhere. Options of a file
    system stand in the URI's query (`s3://bucket/x?endpoint_override=host:9000&scheme=http`) or in its usual environment
    variables. Every method raises OSError with the place in its message.
    """

    given: str
    root: str
    below: str = ""

    def __str__(self) -> str:
        """As given, without secrets."""
        head, mark, query = _SECRET.sub("***", self.given).partition("?")
        return f"{head.rstrip('/')}/{self.below}{mark}{query}" if self.below else head + mark + query

    def __truediv__(self, name: str) -> Place:
        return replace(self, below=f"{self.below}/{name}" if self.below else name)

    @property
    def local(self) -> Path | None:
        """Its path on this machine's file system; None for any other."""
        return Path(self.root) / self.below if not _URI.match(self.root) else None

    @property
    def is_object_store(self) -> bool:
        """Whether it knows whole objects only: no rename, no lock."""
        return self.filesystem.type_name in _OBJECT_STORES

    @property
    def filesystem(self) -> fs.FileSystem:
        """The file system that it lies on."""
        return _opened(self.root)[0]

    def path(self, name: str = "") -> str:
        """Its path, or a file's in it, as the file system takes it."""
        parts = (_opened(self.root)[1].rstrip("/"), self.below, name)
        return "/".join(part for part in parts if part)

    def make(self) -> None:
        """Create the folder where there is such a thing."""
        if not self.is_object_store:
            with self._told():
                self.filesystem.create_dir(self.path())

    def is_file(self) -> bool:
        """Whether a file stands where the folder should."""
        with self._told():
            return bool(self.filesystem.get_file_info(self.path()).type == fs.FileType.File)

    def read_bytes(self, name: str) -> bytes:
        """Raises FileNotFoundError where there is no such file."""
        with self._told(name), self.filesystem.open_input_stream(self.path(name), compression=None) as stream:
            return bytes(stream.read())

    def write_bytes(self, name: str, data: bytes | pa.Buffer) -> None:
        """Replace the file `name` by `data`: at once, or not at all."""
        local = self.local
        if local is not None:
            _write_local(local, name, data)
            return
        with self._told(name):
            if self.is_object_store:
                self._put(self.path(name), data)
                return
            aside = self.path(_aside(name))
            try:
                self._put(aside, data)
                self.filesystem.move(aside, self.path(name))
            except BaseException:
                if self.filesystem.get_file_info(aside).type == fs.FileType.File:
                    self.filesystem.delete_file(aside)
                raise

    def _put(self, path: str, data: bytes | pa.Buffer) -> None:
        """One write of all bytes: there is no moment at which closing the stream could publish a part of them."""
        with self.filesystem.open_output_stream(path, compression=None, buffer_size=None) as stream:
            stream.write(data)

    def names(self) -> list[str]:
        """Names of the files in the folder, in order; none where it is not there."""
        return sorted(info.base_name for info in self._infos() if info.type == fs.FileType.File)

    def folders(self) -> list[str]:
        """Names of the folders in it, in order."""
        return sorted(info.base_name for info in self._infos() if info.type == fs.FileType.Directory)

    def written_s(self, name: str) -> float | None:
        """When the file `name` was written, in seconds since 1970; None where there is none."""
        with self._told(name):
            info = self.filesystem.get_file_info(self.path(name))
        return None if info.type != fs.FileType.File else float(info.mtime_ns) * 1e-9

    def delete(self, name: str) -> None:
        """Raises FileNotFoundError where there is no such file."""
        with self._told(name):
            self.filesystem.delete_file(self.path(name))

    def remove_if_empty(self) -> None:
        """Delete the folder, or the mark that stands for it in an object store, unless something lies in it."""
        with self._told():
            there = self.filesystem.get_file_info(self.path()).type == fs.FileType.Directory
            if there and not self._infos():
                self.filesystem.delete_dir(self.path())

    def _infos(self) -> Sequence[Any]:
        with self._told():
            return list(self.filesystem.get_file_info(fs.FileSelector(self.path(), allow_not_found=True)))

    @contextmanager
    def _told(self, name: str = "") -> Iterator[None]:
        """One kind of error, which names the file."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            where = str(self / name) if name else str(self)
            number = getattr(error, "errno", None)
            text = os.strerror(number) if number else " ".join(str(error).split())
            raise type(error)(number, text, where) if number else OSError(f"{where}: {text}") from None


Location = Place | Path | str
"""How a folder may be given."""


def place(given: Location) -> Place:
    """The place that a path or URI names; nothing is looked up yet. Raises SpecError on a URI that no file system takes."""
    if isinstance(given, Place):
        return given
    text = str(given)
    if not _URI.match(text):
        return Place(text, str(Path(text).absolute()))
    try:
        filesystem, path = _opened(text)
        if not path:
            raise ValueError("names no folder")
    except (OSError, ValueError, pa.ArrowException) as error:
        told = _SECRET.sub("***", text)
        raise SpecError(f"{told}: {' '.join(str(error).split())}; expected a folder or a URI of s3, gs, hdfs, file") from None
    return Place(text, path if filesystem.type_name == "local" else text)


@cache
def _opened(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a root and the path on it; one a process, however many places lie below."""
    if not _URI.match(root):
        return fs.LocalFileSystem(), root
    filesystem, path = fs.FileSystem.from_uri(root)
    return filesystem, path


def _aside(name: str) -> str:
    """A name of its own for what is not whole yet, on whatever machine it is written."""
    return f".{name}.{uuid.uuid4().hex[:12]}"


def _write_local(folder: Path, name: str, data: bytes | pa.Buffer) -> None:
    aside = folder / _aside(name)
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / name)
    finally:
        aside.unlink(missing_ok=True)
