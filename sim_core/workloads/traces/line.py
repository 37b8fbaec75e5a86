"""One line of a rank trace as texts: by a regular expression for the usual order of keys, else by a parser for any order."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from sim_core.errors import FormatError, shown
from sim_core.workloads.traces.fields import FREE_TEXT, Unclosed, split_fields, split_strings

KEYS: Final = (
    *("stage_id", "batch_id", "mg_state", "duration", "description", "group_kind"),
    *("input__shape", "input__dtype", "timestamp"),
)
NEWER_KEYS: Final = ("cmd_uid", "op_semantics", "finalize_base_duration_ms")
PART_KEYS: Final = (
    *("trace_src_func", "duration", "timestamp", "input__shape", "input__dtype"),
    *("func_name", "group", "comm_func"),
)
LINE_LENGTH: Final = 2**24

_PARTS_KEY: Final = "sub_operations"
_KNOWN: Final = frozenset((*KEYS, *NEWER_KEYS, _PARTS_KEY))
_EXPECTED: Final = "rank:N:operation(key=value,...)"

_HEAD = re.compile(r"(rank|stage):([0-9]{1,9}):([A-Za-z_]\w{0,63})\(", re.ASCII)
_HEAD_CUT = re.compile(r"(?:r|ra|ran|rank|s|st|sta|stag|stage|(?:rank|stage):(?:[0-9]{1,9}(?::\w{0,64})?)?)\Z", re.ASCII)
_TEXT_AFTER = re.compile(r"\)[\s,.;]+\Z")
_JOINED = re.compile(r"(?:rank|stage):[0-9]{1,9}:\w+\(\w+=", re.ASCII)
_LOOKS = re.compile(r"(?:rank|stage):\d+:\w+\(", re.ASCII)

_MS: Final = r"([0-9.]+)"
_SHAPE: Final = r"(None|\[[0-9, ]*\])"
_BARE: Final = r"""([^\s,='"\[({]+)"""
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


def split_line(path: str, line: int, text: str, *, unended: bool) -> TraceLine:
    """The texts of one line. Raises FormatError; Unclosed if the line is truncated."""
    return fast_line(text) or any_line(path, line, text, unended=unended)


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


def any_line(path: str, line: int, text: str, *, unended: bool) -> TraceLine:
    """The same for any order of keys, with all error messages. `unended`: no newline follows. Raises FormatError; Unclosed."""
    head = _head(path, line, text)
    fields = split_fields(path, line, text[head.end() : -1], _KNOWN)
    free = fields.get(FREE_TEXT, "")
    joined = _JOINED.search(free)
    if joined:
        both = shown(free[joined.start() : joined.start() + 40])
        raise FormatError(path, line, "two operations on one line", found=both, expected="one operation per line")
    if unended and next(reversed(fields), "") == FREE_TEXT and free.count("(") > free.count(")"):
        raise Unclosed(path, line, "the line is truncated in its description", found=shown(free[-40:] + ")"))
    listed = fields.pop(_PARTS_KEY, "None")
    parts = _fast_parts(listed)
    if parts is None:
        parts = any_parts(path, line, listed)
    return TraceLine(head[1], int(head[2]), head[3], tuple(fields.pop(key, None) for key in KEYS), fields or None, parts)


def _head(path: str, line: int, text: str) -> re.Match[str]:
    """`rank:N:operation(` of a line that ends with `)`."""
    if len(text) > LINE_LENGTH:
        raise FormatError(path, line, "characters in the line", found=f"{len(text):,}", expected=f"up to {LINE_LENGTH:,}")
    head = _HEAD.match(text)
    if head and _TEXT_AFTER.search(text, len(text) - 10) and text.count("(") == text.count(")"):
        raise FormatError(
            path, line, "text after the closing parenthesis", found=shown(text[-40:]), expected="the end of the line"
        )
    if _HEAD_CUT.match(text) or (head and not text.endswith(")")):
        raise Unclosed(path, line, "the line is truncated", found=shown(text[-40:]), expected="`)` at its end")
    if not head:
        raise FormatError(path, line, "operation", found=shown(text[:100]), expected=_EXPECTED)
    return head


def any_parts(path: str, line: int, text: str) -> list[Part]:
    """The same as `_fast_parts` for any order of keys, with all error messages. Raises FormatError."""
    parts: list[Part] = []
    for k, string in enumerate(split_strings(path, line, _PARTS_KEY, text), 1):
        try:
            fields = split_fields(path, line, string, PART_KEYS)
        except Unclosed:  # inside the string: the line itself is complete
            what = f"sub-operation {k}: a bracket or quote is not closed"
            raise FormatError(path, line, what, found=shown(string[:100])) from None
        values = tuple(fields.pop(key, None) for key in PART_KEYS)
        parts.append((values, fields or None))
    return parts
