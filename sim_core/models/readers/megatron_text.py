"""Megatron-LM arguments as text: lines of flags, a shell script, or YAML as in Megatron's own tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Given(NamedTuple):
    """The values of one flag; `()` for a bare flag."""

    values: tuple[str, ...]
    line: int  # 0: unknown


Flags = dict[str, list[Given]]
"""Flag with its dashes -> where it is given, in order."""

_FLAG: Final = re.compile(r"--[A-Za-z]")
_WORD: Final = re.compile(r"""'[^']*'|"[^"]*"|[^\s()'"\\;`]+|[()]""")
_QUOTED_FLAGS: Final = re.compile(r"""(["'])([^"']*--[^"']*)\1""")
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_ASSIGNMENT: Final = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=(?:"([^"$`]*)"|'([^']*)'|([^\s"'$`(;]*))\s*;?\s*$""")
_SET: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_DEFAULTED: Final = re.compile(r"\$\{\w+:-([^{}$]*)\}")
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)")
MODEL_ARGS: Final = "MODEL_ARGS"
_NAMES: Final = frozenset({"num_layers", "hidden_size", "num-layers", "hidden-size", "--num-layers", "--hidden-size"})


def flags_of_text(text: str) -> Flags:
    """All `--flag value ...` of a text.

    Comments are left out. Variables that the text sets to one plain value are put in; one that it sets to several, as in the
    branches of an `if`, stays a variable: which branch runs is unknown.
    """
    found: list[tuple[str, list[str], int]] = []
    known: dict[str, str] = {}
    lines = [_COMMENT.sub("", line) for line in text.splitlines()]
    several = _assigned_to_several(lines)
    taking = False
    for number, raw in enumerate(lines, start=1):
        line = _filled(raw, known)
        assigned = _assignment(line)
        if assigned is not None:
            if assigned[0] not in several:
                known[assigned[0]] = assigned[1]
            continue
        for word in _WORD.findall(_QUOTED_FLAGS.sub(r" \2 ", line)):
            if _FLAG.match(word):
                flag, equals, value = word.partition("=")
                found.append((_dashed(flag), [value] if equals else [], number))
                taking = True
            elif word in "()":
                taking = False
            elif taking:
                found[-1][1].append(word.strip("'\""))
        taking = taking and line.rstrip().endswith("\\")
    flags: Flags = {}
    for flag, values, number in found:
        flags.setdefault(flag, []).append(Given(tuple(values), number))
    return flags


def _assignment(line: str) -> tuple[str, str] | None:
    """Name and value of `NAME=value`, if the value is plain."""
    match = _ASSIGNMENT.match(line)
    if match is None or "--" in line:
        return None
    return match[1], next((value for value in match.groups()[1:] if value is not None), "")


def _assigned_to_several(lines: list[str]) -> set[str]:
    """Variables with several values in the text."""
    values: dict[str, set[str]] = {}
    for line in lines:
        match = _SET.match(line)
        if match:
            values.setdefault(match[1], set()).add(match[2].strip())
    return {name for name, found in values.items() if len(found) > 1}


def _dashed(flag: str) -> str:
    return "--" + flag.lstrip("-").replace("_", "-")


def _filled(line: str, known: Mapping[str, str]) -> str:
    line = _DEFAULTED.sub(lambda match: match[1], line)
    return _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), line)


def flags_of_document(document: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> Flags | None:
    """The flags of a YAML document: its MODEL_ARGS, or a mapping of Megatron's names; None if it holds neither."""
    arguments = document.get(MODEL_ARGS, document)
    above = (MODEL_ARGS,) if MODEL_ARGS in document else ()
    if not isinstance(arguments, Mapping) or not _NAMES & {str(key) for key in arguments}:
        return None
    flags: Flags = {}
    for key, value in arguments.items():
        if value is not None and value is not False:
            values = () if value is True else tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())
            flags.setdefault(_dashed(str(key)), []).append(Given(values, lines.get((*above, str(key)), 0)))
    return flags
