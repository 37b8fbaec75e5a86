"""One line of a rank trace as texts: by a regular expression for the usual order of keys, else by a parser for any order.

A comma splits only before a key, never inside brackets, quotes, free text.
"""

import re
from collections.abc import Container, Mapping
from typing import NamedTuple

from sim_core.errors import FormatError, Place, shown

KEYS = (
    *("stage_id", "batch_id", "mg_state", "duration", "description", "group_kind"),
    *("input__shape", "input__dtype", "timestamp"),
)
NEWER_KEYS = ("cmd_uid", "op_semantics", "finalize_base_duration_ms")
PART_KEYS = (
    *("trace_src_func", "duration", "timestamp", "input__shape", "input__dtype"),
    *("func_name", "group", "comm_func"),
)
LINE_LENGTH = 2**24

_PARTS_KEY = "sub_operations"
_KNOWN = frozenset((*KEYS, *NEWER_KEYS, _PARTS_KEY))
_EXPECTED = "rank:N:operation(key=value,...)"

_HEAD = re.compile(r"(rank|stage):([0-9]{1,9}):([A-Za-z_]\w{0,63})\(", re.ASCII)
_HEAD_CUT = re.compile(r"(?:r|ra|ran|rank|s|st|sta|stag|stage|(?:rank|stage):(?:[0-9]{1,9}(?::\w{0,64})?)?)\Z", re.ASCII)
_TEXT_AFTER = re.compile(r"\)[\s,.;]+\Z")
_JOINED = re.compile(r"(?:rank|stage):[0-9]{1,9}:\w+\(\w+=", re.ASCII)
_LOOKS = re.compile(r"(?:rank|stage):\d+:\w+\(", re.ASCII)

FREE_TEXT = "description"
"""The only key with free text as its value, which ends only before a known key; brackets and quotes in it have no meaning."""

_KEY = re.compile(r"\s*([A-Za-z_]\w{0,63})=\s*", re.ASCII)
_PLAIN = re.compile(r"""\s*([A-Za-z_]\w{0,63})=\s*([^\s,='"\[({]+|\[[0-9, ]*\])(?:,(?=\s*[A-Za-z_]\w{0,63}=)|\Z)""", re.ASCII)
_NEXT_KEY = re.compile(r",\s*([A-Za-z_]\w*)=", re.ASCII)
_STOP = re.compile(r"[\[({]|,\s*(?=[A-Za-z_]\w*=)", re.ASCII)
_INSIDE = re.compile(r"[\[({\])}]|(?<=[\[({,:=])\s*['\"]")
_NONE = re.compile(r"\s*None\s*(?=,\s*[A-Za-z_]\w*=|\Z)", re.ASCII)
_REST_OF_STRING = {"'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+'"), '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"')}
_AFTER_LIST = re.compile(r"\s*(?:,|\Z)")
_BETWEEN = re.compile(r"\s*(?:,\s*(?=['\"])|\Z)")
_ESCAPED = re.compile(r"\\(['\"\\])")
_CLOSER = {"[": "]", "(": ")", "{": "}"}


_MS = r"([0-9.]+)"
_SHAPE = r"(None|\[[0-9, ]*\])"
_BARE = r"""([^\s,='"\[({]+)"""
_FAST = re.compile(
    r"(rank|stage):([0-9]{1,9}):([A-Za-z_]\w{0,63})\(stage_id=(\w+), ?batch_id=(\w+), ?mg_state=(\w+), ?"
    rf"duration={_MS}, ?description=([^=]*), ?group_kind=(\w+), ?"
    rf"(?:cmd_uid={_BARE}, ?op_semantics={_BARE}, ?finalize_base_duration_ms={_BARE}, ?)?"
    rf"input__shape={_SHAPE}, ?input__dtype=([\w.]+), ?timestamp={_MS}, ?sub_operations=(\[.*\])\)\Z",
    re.ASCII,
)
_FAST_PART = re.compile(
    rf"trace_src_func=(\w+), ?duration={_MS}, ?timestamp={_MS}, ?input__shape={_SHAPE}, ?input__dtype=([\w.]+)"
    r"(?:, ?func_name=(\w+))?(?:, ?group=(\w+))?, ?comm_func=(\w+)\Z",
    re.ASCII,
)

Texts = tuple[str | None, ...]
Extra = Mapping[str, str] | None
Part = tuple[Texts, Extra]


class TraceLine(NamedTuple):
    """An operation: the values of KEYS, None where a key is absent, and the fields with other keys."""

    prefix: str  # rank or stage
    number: int
    name: str
    values: Texts
    extra: Extra
    parts: list[Part]  # for each sub-operation: the values of PART_KEYS, and its other fields


def looks_like_trace(head: str) -> bool:
    """Whether a file that begins with `head` is a rank trace: one of its first lines begins like an operation."""
    return any(_LOOKS.match(line.lstrip("\ufeff \t")) for line in head.split("\n", 100)[:100])


def split_line(place: Place, text: str, *, unended: bool) -> TraceLine:
    """The texts of one line. Raises FormatError; Unclosed if the line is truncated."""
    return fast_line(text) or any_line(place, text, unended=unended)


def fast_line(text: str) -> TraceLine | None:
    """The texts of a line with the usual order of keys; None for other lines."""
    match = _FAST.match(text)
    if match is None or len(text) > LINE_LENGTH:
        return None
    prefix, number, name, *values, parts = match.groups()
    newer, values[6:9] = values[6:9], []
    values[4] = values[4].strip()
    extra = None if newer[0] is None else dict(zip(NEWER_KEYS, newer, strict=True))
    split = _fast_parts(parts)
    return None if split is None else TraceLine(prefix, int(number), name, tuple(values), extra, split)


def _fast_parts(text: str) -> list[Part] | None:
    """The fields of each sub-operation in their list, None if one has another order of keys."""
    if text in ("[]", "None"):
        return []
    if not (text.startswith("['") and text.endswith("']")):
        return None
    matches = [_FAST_PART.match(string) for string in text[2:-2].split("', '")]
    return None if None in matches else [(match.groups(), None) for match in matches if match]


def any_line(place: Place, text: str, *, unended: bool) -> TraceLine:
    """The same for any order of keys, with all error messages. `unended`: no newline follows. Raises FormatError; Unclosed."""
    head = _head(place, text)
    fields = split_fields(place, text[head.end() : -1], _KNOWN)
    free = fields.get(FREE_TEXT, "")
    joined = _JOINED.search(free)
    if joined:
        both = shown(free[joined.start() : joined.start() + 40])
        raise FormatError(*place, "two operations on one line", both, "one operation per line")
    if unended and next(reversed(fields), "") == FREE_TEXT and free.count("(") > free.count(")"):
        raise Unclosed(*place, "the line is truncated in its description", shown(free[-40:] + ")"))
    listed = fields.pop(_PARTS_KEY, "None")
    parts = _fast_parts(listed)
    if parts is None:
        parts = any_parts(place, listed)
    return TraceLine(head[1], int(head[2]), head[3], tuple(fields.pop(key, None) for key in KEYS), fields or None, parts)


def _head(place: Place, text: str) -> re.Match[str]:
    """`rank:N:operation(` of a line that ends with `)`."""
    if len(text) > LINE_LENGTH:
        raise FormatError(*place, "characters in the line", f"{len(text):,}", f"up to {LINE_LENGTH:,}")
    head = _HEAD.match(text)
    if head and _TEXT_AFTER.search(text, len(text) - 10) and text.count("(") == text.count(")"):
        raise FormatError(*place, "text after the closing parenthesis", shown(text[-40:]), "the end of the line")
    if _HEAD_CUT.match(text) or (head and not text.endswith(")")):
        raise Unclosed(*place, "the line is truncated", shown(text[-40:]), "`)` at its end")
    if not head:
        raise FormatError(*place, "operation", shown(text[:100]), _EXPECTED)
    return head


def any_parts(place: Place, text: str) -> list[Part]:
    """The same as `_fast_parts` for any order of keys, with all error messages. Raises FormatError."""
    parts: list[Part] = []
    for k, string in enumerate(split_strings(place, text), 1):
        try:
            fields = split_fields(place, string, PART_KEYS)
        except Unclosed:  # inside the string: the line itself is complete
            raise FormatError(*place, f"sub-operation {k}: a bracket or quote is not closed", shown(string[:100])) from None
        parts.append((tuple(fields.pop(key, None) for key in PART_KEYS), fields or None))
    return parts


class Unclosed(FormatError):
    """A bracket or quote is not closed; on the last line of a file this means that the line is truncated."""


def split_fields(place: Place, text: str, known: Container[str]) -> dict[str, str]:
    """The values by key, in the order of the text, without surrounding blanks.

    A `known` key inside free text is text if it also occurs outside of it. Raises FormatError; Unclosed.
    """
    fields = {}
    at = 0
    while at < len(text):
        match = _PLAIN.match(text, at)  # most values are a word or a list of numbers
        if match and match[1] != FREE_TEXT and match[1] not in fields:
            fields[match[1]] = match[2]
            at = match.end()
            continue
        match = _KEY.match(text, at)
        if not match:
            raise FormatError(*place, "fields", shown(text[at : at + 100].strip()), "key=value")
        key = match[1]
        if key in fields:
            raise FormatError(*place, f"key `{key}` is repeated")
        if key == FREE_TEXT:
            end = _free_text_end(place, text, match.end(), known, fields)
        else:
            end = _value_end(place, text, match.end())
        fields[key] = text[match.end() : end].strip()
        at = end + 1
    return fields


def split_strings(place: Place, text: str) -> list[str]:
    """The strings of a list such as `['a', "b"]`. Raises FormatError."""
    expected = "a list of quoted texts, ['key=value,...', ...]"
    if not (text.startswith("[") and text.endswith("]")):
        raise FormatError(*place, _PARTS_KEY, shown(text), expected)
    text = text[1:-1].strip()
    strings = []
    at = 0
    while at < len(text):
        if text[at] not in _REST_OF_STRING:
            raise FormatError(*place, _PARTS_KEY, shown(text[at : at + 100]), expected)
        end = _string_end(place, text, at)
        strings.append(_ESCAPED.sub(r"\1", text[at + 1 : end - 1]))
        between = _BETWEEN.match(text, end)
        if not between:
            raise FormatError(*place, _PARTS_KEY, shown(text[end : end + 100]), "`,` and a quoted text, or `]`")
        at = between.end()
    return strings


def _value_end(place: Place, text: str, at: int) -> int:
    """The end of the value that begins at `at`: before a comma followed by a key, or at the end of the text."""
    if text[at : at + 1] in _REST_OF_STRING:
        at = _string_end(place, text, at)
    elif text[at : at + 1] == "[":
        at = _bracket_end(place, text, at)
        if not _AFTER_LIST.match(text, at):
            raise FormatError(*place, "after a list", shown(text[at : at + 100]), "`,` and key=value")
    while stop := _STOP.search(text, at):
        if stop[0][0] == ",":
            return stop.start()
        at = _bracket_end(place, text, stop.start())
    return len(text)


def _free_text_end(place: Place, text: str, at: int, known: Container[str], before: Container[str]) -> int:
    """The same for free text: before the first known key, counting only the last occurrence of each."""
    none = _NONE.match(text, at)
    if none:
        return none.end()
    last = {}
    while match := _NEXT_KEY.search(text, at):
        at = match.end()
        if match[1] in known and match[1] not in before and match[1] != FREE_TEXT:
            last[match[1]] = match.start()
            if text[at : at + 2] in ("['", '["'):  # ignore keys inside a list of texts
                at = _bracket_end(place, text, at)
    return min(last.values(), default=len(text))


def _bracket_end(place: Place, text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    due = []
    at = start
    while match := _INSIDE.search(text, at):
        mark, at = match[0][-1], match.end()
        if mark in _REST_OF_STRING:
            at = _string_end(place, text, at - 1)
        elif mark in _CLOSER:
            due.append(_CLOSER[mark])
        elif mark != due.pop():
            raise FormatError(*place, "brackets", shown(text[start:at][-60:]), "each closed by the matching bracket")
        if not due:
            return at
    raise Unclosed(*place, f"`{text[start]}` is not closed", shown(text[start : start + 100]), f"`{_CLOSER[text[start]]}`")


def _string_end(place: Place, text: str, start: int) -> int:
    """The position after the quote that closes the one at `start`."""
    match = _REST_OF_STRING[text[start]].match(text, start + 1)
    if not match:
        raise Unclosed(*place, "a quote is not closed", shown(text[start : start + 100]), f"`{text[start]}`")
    return match.end()
