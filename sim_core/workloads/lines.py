"""The lines of a text file from any editor or system, and the warnings about it."""

import codecs

from sim_core.errors import FormatError, shown
from sim_core.places import read_input

_CONTROL = bytes(byte for byte in (*range(0x20), 0x7F) if byte not in b"\t\n\r")


def text_lines(path: str, data: bytes | None, *, expected: str, may_be_cut: bool = False) -> list[tuple[int, str]]:
    """The non-blank lines of `data`, else of the file, with their numbers; a byte-order mark, CRLF and a missing final newline
    are accepted.

    `expected` is the expected content, for the message about an empty file. If the end `may_be_cut`, an incomplete last
    character is skipped. Raises FormatError, OSError.
    """
    data = (read_input(path) if data is None else data).removeprefix(codecs.BOM_UTF8)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not may_be_cut or error.reason != "unexpected end of data":
            line = data[: error.start].count(b"\n") + 1
            raise FormatError(path, line, "not text", f"byte 0x{data[error.start]:02x}", "UTF-8") from None
        text = data[: error.start].decode("utf-8")
    if len(data.translate(None, _CONTROL)) != len(data):
        line, byte = next((n, b) for n, raw in enumerate(data.split(b"\n"), 1) for b in raw if b in _CONTROL)
        raise FormatError(path, line, "control character", shown(chr(byte)), "text")
    if "\r" in text and "\n" not in text:
        raise FormatError(path, 1, "line ends", "CR alone", "LF or CRLF")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line and not line.isspace()]
    if not lines:
        raise FormatError(path, 1, "the file is empty", expected=expected)
    return lines


class Warnings:
    """Warnings about one file: each text once, at its first line, with the number of further lines."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lines: dict[str, list[int]] = {}

    def add(self, line: int, text: str) -> None:
        """Add warning `text` for `line`; a repeated text only counts the line."""
        self._lines.setdefault(text, []).append(line)

    def said(self) -> tuple[str, ...]:
        """`path:line: text` each, in the order of the file."""
        return tuple(
            f"{self.path}:{line}: {text}" + f" (and on {len(more):,} more line{'s' * (len(more) > 1)})" * bool(more)
            for text, (line, *more) in self._lines.items()
        )
