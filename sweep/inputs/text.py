"""Text files of any size as lines: gzip by its first bytes, bounded lines, no colours; never the whole file in memory."""

import gzip
import re
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Final

from sim_core import SpecError

GZIP: Final = b"\x1f\x8b"
LONGEST_LINE: Final = 2**16
"""Bytes of a line; a longer one counts as several."""
HEAD_BYTES: Final = 2**18
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FAULTS: Final = (gzip.BadGzipFile, zlib.error)


def is_gzip(path: Path) -> bool:
    """Whether a file begins with the two bytes of gzip. Raises OSError."""
    with path.open("rb") as file:
        return file.read(2) == GZIP


def opened(path: Path) -> BufferedIOBase:
    """A file for reading, unpacked if it is gzip. Raises OSError."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file, unpacked. Raises SpecError where gzip is broken, OSError."""
    try:
        with opened(path) as file:
            return file.read(size)
    except EOFError:
        return _all_there(path, size)
    except _FAULTS as error:
        raise SpecError(f"{path}: not valid gzip: {error}") from None


def _all_there(path: Path, size: int) -> bytes:
    """What can be unpacked of a gzip file that was cut."""
    taken = b""
    for line in raw_lines(path):
        taken += line
        if len(taken) >= size:
            break
    return taken[:size]


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file as bytes; of gzip that was cut, those before the cut.

    Raises SpecError where gzip is broken, OSError.
    """
    try:
        with opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                yield line
    except EOFError:
        return
    except _FAULTS as error:
        raise SpecError(f"{path}: not valid gzip: {error}") from None


def plain(line: bytes) -> str:
    """A line as text without colours and line ends."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return COLOURS.sub("", text) if "\x1b" in text else text
