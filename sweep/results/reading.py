"""Parts of a result, each checked before it is read: the footers of all files, then the columns that are needed of some.

Files without an index in their footer, as earlier versions wrote them, and those of an object store are checked as a whole.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sweep.results.folder import Location
from sweep.results.index import Index, has_column
from sweep.results.slice_file import Slice, footer_size, indexed, is_whole
from sweep.results.store import Store

_TAIL = 1 << 15
"""Bytes that are read from the end of a file: most footers are shorter."""


@dataclass(frozen=True, kw_only=True, eq=False)
class File:
    """The file of a slice, and what its footer says of it."""

    part: Slice
    path: Path
    index: Index | None  # None: an earlier version wrote it


@dataclass(kw_only=True)
class Reading:
    """The files of one result, in the order of their positions."""

    store: Store
    sweep: str
    files: list[File]
    _checked: set[tuple[Path, str]] = field(default_factory=set)  # columns; "": all bytes

    def indexes(self) -> list[Index] | None:
        """The indexes in the footers of all files; None if a file has none."""
        indexes = [file.index for file in self.files if file.index is not None]
        return indexes if len(indexes) == len(self.files) else None

    def check(self, files: Sequence[File], columns: Collection[str]) -> None:
        """Check these columns of these files, so that they may be read. Raises SpecError if a file is damaged."""

        def fine(file: File) -> bool:
            return _has(file, [name for name in columns if (file.path, name) not in self._checked])

        self._check(files, columns, fine)

    def check_whole(self, files: Sequence[File]) -> None:
        """Check every byte of these files. Raises SpecError if one is damaged."""
        self._check(
            files, [""], lambda file: is_whole(self.store.folder.read_bytes(file.part.file_name), file.part, self.sweep)
        )

    def _check(self, files: Sequence[File], columns: Collection[str], fine: Callable[[File], bool]) -> None:
        """Check those of the files that have not been checked as a whole."""
        left = [file for file in files if (file.path, "") not in self._checked]
        self.store.refuse([file.part for file in self.store.failing(left, fine)])
        self._checked |= {(file.path, name) for file in files for name in columns}


@contextmanager
def reading(directory: Location) -> Iterator[Reading]:
    """Open the result in a folder; its footers are checked. Raises SpecError if it holds none, or a file is damaged."""
    store = Store(directory=directory)
    sweep, parts = store.finished()
    local = store.folder.local
    if local is None:
        with store.verified() as paths:
            files = [File(part=part, path=path, index=_index(path)) for part, path in zip(parts, paths, strict=True)]
            yield Reading(store=store, sweep=sweep, files=files, _checked={(path, "") for path in paths})
        return
    files, lost = [], []
    for part in parts:
        try:
            files.append(File(part=part, path=local / part.file_name, index=_index(local / part.file_name)))
        except (OSError, ValueError):
            lost.append(part)
            continue
        index = files[-1].index
        if index is not None and (index.sweep, index.positions) != (sweep, (part.start, part.stop)):
            lost.append(part)
    store.refuse(lost)
    opened = Reading(store=store, sweep=sweep, files=files)
    opened.check_whole([file for file in files if file.index is None])
    yield opened


def _index(path: Path) -> Index | None:
    """The index in the footer of a file. Raises OSError, ValueError if it is damaged."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - _TAIL, 0))
        tail = file.read()
        if footer_size(tail) > len(tail):
            file.seek(max(size - footer_size(tail), 0))
            tail = file.read()
    return indexed(tail) if len(tail) >= footer_size(tail) else None


def _has(file: File, columns: Sequence[str]) -> bool:
    """Whether these columns of a file are as they were written."""
    if not columns or file.index is None:
        return file.index is not None
    with file.path.open("rb", buffering=0) as data:
        return all(has_column(data, file.index, name) for name in columns)
