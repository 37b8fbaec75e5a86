"""Files of a profiler opened by their first bytes: plain, gzip, or an archive of several ranks; folders of such files."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import BinaryIO, cast

from sim_core import FormatError
from sim_core.places import open_input
from sweep.inputs.traces.stream import DAMAGE

Parts = Iterator[tuple[str, BinaryIO]]
"""A name for messages, and the bytes."""

GZIP = b"\x1f\x8b"
HEAD_BYTES = 2**16
MOST_FILES = 4096


def sources(path: str) -> Parts:
    """What is in a file, an archive or a folder: for each part a name for messages and its bytes, to be read at once.

    Names inside an archive are not told, since users put jobs and hosts in them. Raises FormatError, OSError.
    """
    if os.path.isdir(path):
        for each in sorted(Path(path).iterdir()):
            if each.is_file():
                yield from _of_file(str(each), only_profiles=True)
        return
    yield from _of_file(path, only_profiles=False)


def _of_file(path: str, *, only_profiles: bool) -> Parts:
    try:
        with open_input(path, inf, HEAD_BYTES) as raw:
            file = _unpacked(raw)
            if _start(file).startswith(b"ustar", 257):
                yield from _members(path, file)
            elif not only_profiles or looks_like_profile(_head(file)):
                yield path, file
    except DAMAGE as error:
        raise FormatError(path, 1, "damaged", str(error) or "an early end", "a whole file") from None


def is_profile(text: str) -> bool:
    """Whether a file begins as a profiler's JSON does, or as an archive: its first characters, unpacked."""
    return text.startswith("ustar", 257) or looks_like_profile(text)


def is_folder_of_profiles(path: str) -> bool:
    """Whether a folder holds a profiler's file. Raises OSError."""
    if not os.path.isdir(path):
        return False
    with suppress(FormatError):
        return next(sources(path), None) is not None
    return False


def looks_like_profile(text: str) -> bool:
    """Whether text begins as a profiler's JSON does: events, or what stands before them."""
    text = text.removeprefix("\ufeff").lstrip()
    if text[:1] == "[":
        return text[1:].lstrip()[:1] == "{" and '"ph"' in text
    return text[:1] == "{" and ('"traceEvents"' in text or ('"deviceProperties"' in text and '"schemaVersion"' in text))


def _unpacked(file: BinaryIO) -> BinaryIO:
    """The bytes of a file, unpacked if it begins as gzip does."""
    if _start(file)[:2] != GZIP:
        return file
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), HEAD_BYTES)


def _head(file: BinaryIO) -> str:
    """The first characters of a file, which stay to be read."""
    return _start(file).decode("utf-8", "replace")


def _start(file: BinaryIO) -> bytes:
    return cast(io.BufferedReader, file).peek(HEAD_BYTES)[:HEAD_BYTES]


def _members(path: str, file: BinaryIO) -> Parts:
    number = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            number += 1
            if number > MOST_FILES:
                raise FormatError(path, 1, "archive", f"more than {MOST_FILES:,} files", "one a rank")
            inner = _unpacked(io.BufferedReader(cast(io.RawIOBase, content), HEAD_BYTES))
            if looks_like_profile(_head(inner)):
                yield f"{path} (file {number})", inner
