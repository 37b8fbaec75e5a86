"""Text files of any size as lines: gzip by its first bytes, bounded lines, no colours; never the whole file in memory."""

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path

from sim_core import SimError, SpecError
from sim_core.places import open_input

GZIP = b"\x1f\x8b"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""What a file begins with that Windows' shell wrote."""
LONGEST_LINE = 2**16
"""Bytes of a line; a longer one counts as several, parted at blanks."""
HEAD_BYTES = 2**18
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CUT = re.compile(rb"[\w.,+]*\Z")
"""The last word of a line without an end: it may be half of a number."""
QUOTED_PATH = re.compile(r"'[^']*[/\\][^']*'")
_BLOCK = 2**18
_WITH_HEADER = 31  # zlib's word for gzip


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, as UTF-8 if it is UTF-16, unpacked if it is gzip; of gzip that was cut, those before the cut.

    Raises SpecError where gzip is broken, OSError.
    """
    with open_input(path, inf) as file:
        data = file.read(_BLOCK)
        blocks = chain([data], iter(partial(file.read, _BLOCK), b""))
        if data.startswith(UTF_16):
            yield from (text.encode() for text in codecs.iterdecode(blocks, "utf-16", "replace"))
            return
        if not data.startswith(GZIP):
            yield from blocks
            return
        unpacker = zlib.decompressobj(_WITH_HEADER)
        try:
            while data:
                yield unpacker.decompress(data, _BLOCK)
                data = unpacker.unconsumed_tail
                if unpacker.eof:  # one packed file after the other, or padding
                    data, unpacker = unpacker.unused_data.lstrip(b"\x00"), zlib.decompressobj(_WITH_HEADER)
                data = data or file.read(_BLOCK)
            yield unpacker.flush()
        except zlib.error as error:
            raise SpecError(f"{path}: not valid gzip: {str(error).rpartition(': ')[2]}") from None


def head_of(path: Path, size: int = HEAD_BYTES) -> bytes:
    """The first bytes of a file, unpacked. Raises SpecError where gzip is broken, OSError."""
    taken = b""
    for block in _blocks(path):
        taken += block
        if len(taken) >= size:
            break
    return taken[:size]


def blocks_of_lines(path: Path) -> Iterator[list[bytes]]:
    """The lines of a file as bytes, some at a time, those that a progress bar wrote over one another among them; of a last
    line without an end all but its last word. Raises SpecError where gzip is broken, OSError."""
    rest = b""
    for block in _blocks(path):
        lines = (rest + block).splitlines(keepends=True)
        rest = lines.pop() if lines and lines[-1][-1:] not in b"\r\n" else b""
        if len(rest) > LONGEST_LINE:
            *parts, rest = _parts(rest)
            lines += parts
        if lines and max(map(len, lines)) > LONGEST_LINE:
            lines = [part for line in lines for part in _parts(line)]
        yield lines
    if rest:
        yield [CUT.sub(b"", rest)]


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file one by one, as `blocks_of_lines` has them."""
    return chain.from_iterable(blocks_of_lines(path))


def _parts(line: bytes) -> Iterator[bytes]:
    """A line in parts that are not too long."""
    begin = 0
    while len(line) - begin > LONGEST_LINE:
        end = line.rfind(b" ", begin + 1, begin + LONGEST_LINE) + 1 or begin + LONGEST_LINE
        yield line[begin:end]
        begin = end
    yield line[begin:]


def model_note(error: SimError, path: str) -> str:
    """Why a file tells no model, in a note: without the file's path, and without paths that it holds."""
    text = re.sub(rf"^{re.escape(path)}(?::(\d+))?: ", lambda match: f"line {match[1]}: " if match[1] else "", str(error))
    return "model: " + QUOTED_PATH.sub("'...'", text)


def plain(line: bytes) -> str:
    """A line as text without colours and line ends, out of the JSON that Docker puts around it."""
    if line.startswith(b'{"log":'):
        with suppress(ValueError, RecursionError, KeyError, AttributeError):
            line = json.loads(line)["log"].encode()
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return COLOURS.sub("", text) if "\x1b" in text else text
