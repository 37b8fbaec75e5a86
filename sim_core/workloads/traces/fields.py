"""`key=value,key=value` as a mapping of texts: a comma splits only before a key, never inside brackets, quotes, free text."""

import re
from collections.abc import Container
from typing import Final

from sim_core.errors import FormatError, shown

FREE_TEXT: Final = "description"
"""The only key with free text as its value, which ends only before a known key; brackets and quotes in it have no meaning."""

_KEY = re.compile(r"\s*([A-Za-z_]\w{0,63})=\s*", re.ASCII)
_PLAIN = re.compile(r"""\s*([A-Za-z_]\w{0,63})=\s*([^\s,='"\[({]+|\[[0-9, ]*\])(?:,(?=\s*[A-Za-z_]\w{0,63}=)|\Z)""", re.ASCII)
_NEXT_KEY = re.compile(r",\s*([A-Za-z_]\w*)=", re.ASCII)
_STOP = re.compile(r"[\[({]|,\s*(?=[A-Za-z_]\w*=)", re.ASCII)
_INSIDE = re.compile(r"[\[({\])}]|(?<=[\[({,:=])\s*['\"]")
_NONE = re.compile(r"\s*None\s*(?=,\s*[A-Za-z_]\w*=|\Z)", re.ASCII)
_REST_OF_STRING: Final = {"'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'"), '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"')}
_AFTER_LIST = re.compile(r"\s*(?:,|\Z)")
_BETWEEN = re.compile(r"\s*(?:,\s*(?=['\"])|\Z)")
_ESCAPED = re.compile(r"\\(['\"\\])")
_CLOSER: Final = {"[": "]", "(": ")", "{": "}"}


class Unclosed(FormatError):
    """A bracket or quote is not closed; on the last line of a file this means that the line is truncated."""


def split_fields(path: str, line: int, text: str, known: Container[str]) -> dict[str, str]:
    """The values by key, in the order of the text, without surrounding blanks.

    A `known` key inside free text is text if it also occurs outside of it. Raises FormatError; Unclosed.
    """
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PLAIN.match(text, at)  # most values are a word or a list of numbers
        if match and match[1] != FREE_TEXT and match[1] not in fields:
            fields[match[1]] = match[2]
            at = match.end()
            continue
        match = _KEY.match(text, at)
        if not match:
            raise FormatError(path, line, "fields", found=shown(text[at : at + 100].strip()), expected="key=value")
        key = match[1]
        if key in fields:
            raise FormatError(path, line, f"key `{key}` is repeated")
        if key == FREE_TEXT:
            end = _free_text_end(path, line, text, match.end(), known, fields)
        else:
            end = _value_end(path, line, text, match.end())
        fields[key] = text[match.end() : end].strip()
        at = end + 1
    return fields


def split_strings(path: str, line: int, what: str, text: str) -> list[str]:
    """The strings of a list such as `['a', "b"]`. Raises FormatError."""
    expected = "a list of quoted texts, ['key=value,...', ...]"
    if not (text.startswith("[") and text.endswith("]")):
        raise FormatError(path, line, what, found=shown(text), expected=expected)
    text = text[1:-1].strip()
    strings: list[str] = []
    at = 0
    while at < len(text):
        if text[at] not in _REST_OF_STRING:
            raise FormatError(path, line, what, found=shown(text[at : at + 100]), expected=expected)
        end = _string_end(path, line, text, at)
        strings.append(_ESCAPED.sub(r"\1", text[at + 1 : end - 1]))
        between = _BETWEEN.match(text, end)
        if not between:
            raise FormatError(path, line, what, found=shown(text[end : end + 100]), expected="`,` and a quoted text, or `]`")
        at = between.end()
    return strings


def _value_end(path: str, line: int, text: str, at: int) -> int:
    """The end of the value that begins at `at`: before a comma followed by a key, or at the end of the text."""
    if text[at : at + 1] in _REST_OF_STRING:
        at = _string_end(path, line, text, at)
    elif text[at : at + 1] == "[":
        at = _bracket_end(path, line, text, at)
        if not _AFTER_LIST.match(text, at):
            raise FormatError(path, line, "after a list", found=shown(text[at : at + 100]), expected="`,` and key=value")
    while stop := _STOP.search(text, at):
        if stop[0][0] == ",":
            return stop.start()
        at = _bracket_end(path, line, text, stop.start())
    return len(text)


def _free_text_end(path: str, line: int, text: str, at: int, known: Container[str], before: Container[str]) -> int:
    """The same for free text: before the first known key, counting only the last occurrence of each."""
    none = _NONE.match(text, at)
    if none:
        return none.end()
    last: dict[str, int] = {}
    while match := _NEXT_KEY.search(text, at):
        at = match.end()
        if match[1] in known and match[1] not in before and match[1] != FREE_TEXT:
            last[match[1]] = match.start()
            if text[at : at + 2] in ("['", '["'):  # ignore keys inside a list of texts
                at = _bracket_end(path, line, text, at)
    return min(last.values(), default=len(text))


def _bracket_end(path: str, line: int, text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    due: list[str] = []
    at = start
    while match := _INSIDE.search(text, at):
        mark, at = match[0][-1], match.end()
        if mark in _REST_OF_STRING:
            at = _string_end(path, line, text, at - 1)
        elif mark in _CLOSER:
            due.append(_CLOSER[mark])
        elif mark != due.pop():
            raise FormatError(
                path, line, "brackets", found=shown(text[start:at][-60:]), expected="each closed by the matching bracket"
            )
        if not due:
            return at
    raise Unclosed(
        path,
        line,
        f"`{text[start]}` is not closed",
        found=shown(text[start : start + 100]),
        expected=f"`{_CLOSER[text[start]]}`",
    )


def _string_end(path: str, line: int, text: str, start: int) -> int:
    """The position after the quote that closes the one at `start`."""
    match = _REST_OF_STRING[text[start]].match(text, start + 1)
    if not match:
        raise Unclosed(path, line, "a quote is not closed", found=shown(text[start : start + 100]), expected=f"`{text[start]}`")
    return match.end()
