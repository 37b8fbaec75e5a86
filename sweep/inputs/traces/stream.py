"""A profiler's JSON read as a stream: event after event, whatever else the file holds, and where it is broken."""

import codecs
import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

from sim_core import FormatError

Entries = Iterator[tuple[str, Any]]
"""Events have an empty key."""

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""What reading a damaged gzip or tar raises."""
CHUNK_BYTES = 2**20
LONGEST_VALUE = 64 * 2**20
"""Characters that one event, or one entry beside the events, may have."""

EVENTS = "traceEvents"
_NOT_BLANK = re.compile(r"[^ \t\r\n]")
_DECODER = json.JSONDecoder(strict=False)


class Text:
    """The text of a stream, a part of it at a time, with the line of each place. Raises FormatError, OSError."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._at = 0
        self._lines_before = 1  # up to the part that is held
        self._columns_before = 0  # of its first line
        self._ended = False

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            match = _NOT_BLANK.search(self._text, self._at)
            if match:
                self._at = match.start()
                return match[0]
            self._at = len(self._text)
            if not self._more():
                return ""

    def skip(self) -> None:
        """Pass the character that `peek` gave."""
        self._at += 1

    def value(self) -> Any:
        """The JSON value that begins at the next character that is not blank."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if len(self._text) - self._at > LONGEST_VALUE:
                    self._at = error.pos
                    self.fail(f"found a value of more than {LONGEST_VALUE:,} characters, or {error.msg}")
                if not self._more():
                    self._at = error.pos
                    self.fail(f"not JSON: {error.msg}")
                continue
            except (RecursionError, ValueError) as error:  # a number of too many digits is a ValueError
                self.fail(f"not JSON: {str(error).partition(';')[0]}")
            if end == len(self._text) and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def fail(self, what: str) -> NoReturn:
        """Refuse the file at this place, which is said without what stands there."""
        place = min(self._at, len(self._text))
        start = self._text.rfind("\n", 0, place) + 1
        line = self._lines_before + self._text.count("\n", 0, place)
        column = place - start + 1 + (0 if start else self._columns_before)
        raise FormatError(self.name, line, f"column {column}: {what}")

    def _more(self) -> bool:
        """Read on, and drop what was taken; whether anything came."""
        if self._ended:
            return False
        try:
            packed = self._file.read(CHUNK_BYTES)
        except DAMAGE as error:
            self.fail(f"damaged: {str(error) or 'the file ends too early'}")
        self._ended = not packed
        chunk = self._decoder.decode(packed, final=self._ended)
        if not chunk:
            return self._more()
        start = self._text.rfind("\n", 0, self._at) + 1
        self._lines_before += self._text.count("\n", 0, self._at)
        self._columns_before = self._at - start + (0 if start else self._columns_before)
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return True


def entries(name: str, file: BinaryIO) -> Entries:
    """Each event as ("", event), and each other entry of the file as (key, value), in the file's order.

    The file is an object with a list `traceEvents`, or that list alone. Raises FormatError with line and column, OSError.
    """
    text = Text(name, file)
    first = text.peek()
    if first == "[":
        yield from _elements(text)
    elif first == "{":
        yield from _members(text)
    else:
        text.fail("not a profiler's JSON" if first else "empty file")
    if text.peek():
        text.fail("not JSON: more after the end")


def _members(text: Text) -> Entries:
    goes_on = _opens(text, "}")
    while goes_on:
        if text.peek() != '"':
            text.fail("not JSON: expected a key in quotes")
        key = text.value()
        if text.peek() != ":":
            text.fail("not JSON: expected ':'")
        text.skip()
        if text.peek() == "[" and key == EVENTS:
            yield from _elements(text)
        else:
            yield key, text.value()
        goes_on = _goes_on(text, "}")


def _elements(text: Text) -> Entries:
    goes_on = _opens(text, "]")
    while goes_on:
        yield "", text.value()
        goes_on = _goes_on(text, "]")


def _opens(text: Text, closing: str) -> bool:
    """Pass an opening bracket, and the closing one if nothing is between; whether something is."""
    text.skip()
    is_empty = text.peek() == closing
    if is_empty:
        text.skip()
    return not is_empty


def _goes_on(text: Text, closing: str) -> bool:
    """Pass a comma or the closing bracket; whether it was a comma."""
    found = text.peek()
    if found not in (",", closing):
        text.fail(f"not JSON: {'' if found else 'the file ends, '}expected ',' or '{closing}'")
    text.skip()
    return found == ","
