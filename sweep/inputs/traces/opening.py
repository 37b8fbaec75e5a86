"""Files of a profiler opened by their first bytes: plain, gzip, or an archive of several ranks; folders of such files."""

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from sim_core import FormatError

GZIP: Final = b"\x1f\x8b"
_TAR_MARK: Final = (b"ustar", 257)
HEAD_BYTES: Final = 2**16
MOST_FILES: Final = 4096


def sources(path: str) -> Iterator[tuple[str, BinaryIO]]:
    """What is in a file, an archive or a folder: for each part a name for messages and its bytes, to be read at once.

    Names inside an archive are not told, since users put jobs and hosts in them. Raises FormatError, OSError.
    """
    if os.path.isdir(path):
        for each in sorted(Path(path).iterdir()):
            if each.is_file() and looks_like_profile(head_of(str(each))):
                yield from sources(str(each))
        return
    with _unpacked(path) as file:
        if _is_tar(file):
            yield from _members(path, file)
        else:
            yield path, file


def head_of(path: str) -> bytes:
    """The first bytes of a file, or of the first file of an archive, unpacked; empty if they cannot be. Raises OSError."""
    try:
        for _, file in sources(path):
            return file.read(HEAD_BYTES)
    except FormatError:
        pass
    return b""


def looks_like_profile(head: bytes) -> bool:
    """Whether text begins as a profiler's JSON does: events, or what stands before them."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"[":
        return text[1:].lstrip()[:1] == b"{" and b'"ph"' in text
    return text[:1] == b"{" and (b'"traceEvents"' in text or b'"deviceProperties"' in text and b'"schemaVersion"' in text)


@contextmanager
def _unpacked(path: str) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it begins as gzip does. Raises FormatError for a broken gzip, OSError."""
    with Path(path).open("rb") as raw:
        packed = raw.peek(2)[:2] == GZIP
        try:
            yield io.BufferedReader(_raw(gzip.GzipFile(fileobj=raw))) if packed else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FormatError(path, 1, "gzip", found=str(error) or "damage", expected="a whole file") from None
        except tarfile.TarError as error:
            raise FormatError(path, 1, "tar", found=str(error) or "damage", expected="a whole archive") from None


def _raw(file: gzip.GzipFile) -> io.RawIOBase:
    return cast(io.RawIOBase, file)


def _is_tar(file: BinaryIO) -> bool:
    mark, at = _TAR_MARK
    return cast(io.BufferedReader, file).peek(at + len(mark))[at : at + len(mark)] == mark


def _members(path: str, file: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    number = 0
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            number += 1
            if number > MOST_FILES:
                raise FormatError(path, 1, "archive", found=f"more than {MOST_FILES:,} files", expected="one a rank")
            packed = io.BufferedReader(cast(io.RawIOBase, content))
            inner = io.BufferedReader(_raw(gzip.GzipFile(fileobj=packed))) if packed.peek(2)[:2] == GZIP else packed
            if looks_like_profile(inner.peek(HEAD_BYTES)):
                yield f"{path} (file {number})", inner
