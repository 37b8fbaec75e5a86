"""Megatron-LM's flags as they stand in scripts and YAML, and those that say nothing about the shape of a model."""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sim_core.documents import Lines, Values, Words, shipped_document
from sim_core.models.readers.argument import flag_of
from sim_core.models.readers.megatron_arguments import HIDDEN, LAYERS


class Given(NamedTuple):
    """The values of one flag; `()` for a bare flag."""

    values: Words
    line: int  # 0: unknown
    maybe: bool = False  # under a condition of the script, which may not hold


Flags = dict[str, list[Given]]
"""Flag with its dashes -> where it is given, in order."""

_FLAG = re.compile(r"--[A-Za-z]")
_WORD = re.compile(r"""'[^']*'|"[^"]*"|[^\s()'"\\;`]+|[();]""")
_QUOTED_FLAGS = re.compile(r"""(?<![^\s(=])(["'])([^"']*--[^"']*)\1""")
_COMMENT = re.compile(r"(^|\s)#.*$")
_SHELL = re.compile(r"[;|&<>]|\d>")
"""What ends the words of a flag."""
_SET = re.compile(
    r"""(?<![\w$.{,-])([A-Za-z_]\w*)(\+?)=(?!=)("[^"]*"|'[^']*'|\$\(\([^()]*\)\)|[^\s;&|()'"]*)(?=[\s;&|)]|$)"""
    r"""|(?<![\w$.{,-])([A-Za-z_]\w*)\+?="""
)
"""An assignment, anywhere in a line; with a value that is more than one word: its name alone."""
_BEGINS = re.compile(r"(?:^|[;&|({]|\b(?:then|else|do))\s*(if|case)\b")
_ENDS = re.compile(r"(?:^|[;&|})\s])(fi|esac)(?=[\s;&|)}]|$)")
_FOLLOWS = re.compile(r"\bthen\b|\bin\b")
"""What a shell has in the same line or soon after."""
_GUARDED = re.compile(r"^\s*(?:\[\[?\s|test\s|\(\().*(?:&&|\|\|)")
"""A test that a command follows in its line."""
_CHANGED = re.compile(
    r"\bfor\s+(\w+)\s+in\b|\bread\s+(?:-\w+\s+)*(\w+)|\(\(\s*(\w+)\s*(?:[-+*/%]?=[^=]|\+\+|--)|\blet\s+\W?(\w+)|\bunset\s+(\w+)|"
    r"\bgetopts\s+\S+\s+(\w+)"
)
"""Other ways in which a variable gets a value."""
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()$`]|\([^()$`]*\)){1,120})\)\)")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_DEFAULTED = re.compile(r"\$\{\w+:-([^{}$]*)\}")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
MODEL_ARGS = "MODEL_ARGS"
DEEPSPEED = "--deepspeed"
DEEPSPEED_EXPERTS = "--mlp-type"


def flags_of_text(text: str) -> Flags:
    """All `--flag value ...` of a text.

    Comments are left out. Variables that the text sets to one plain value are put in; one that it sets to several, or in the
    branches of an `if` alone, stays a variable: which branch runs is unknown. Flags in such branches are `maybe`.
    """
    taken: list[tuple[str, list[str], int]] = []
    known: dict[str, str] = {}
    lines = [_COMMENT.sub("", line) for line in text.splitlines()]
    maybe = _under_conditions(lines)
    several = _assigned_to_several(lines, maybe)
    taking = False
    for number, raw in enumerate(lines, start=1):
        line = _filled(raw, known)
        assigned = {name: value for name, value in _assigned(line) if name not in several}
        known |= {name: value for name, value in assigned.items() if not re.search(r"[$`(]|--", value)}  # plain ones
        for word in _WORD.findall(_QUOTED_FLAGS.sub(r" \2 ", line)):
            if _FLAG.match(word):
                flag, equals, value = word.partition("=")
                taken.append((flag_of(flag.lstrip("-")), [value] if equals and value else [], number))
                taking = True
            elif word in "()" or _SHELL.match(word):
                taking = False
            elif taking:
                taken[-1][1].append(word.strip("'\""))
        taking = taking and line.rstrip().endswith("\\")
    flags: Flags = {}
    for flag, values, number in taken:
        flags.setdefault(flag, []).append(Given(tuple(values), number, number - 1 in maybe))
    return flags


def _under_conditions(lines: list[str]) -> set[int]:
    """Numbers of the lines, from 0, inside an `if` or a `case`, or behind a test and `&&`."""
    found, depth = set(), 0
    for number, line in enumerate(lines):
        begins, ends = len(_BEGINS.findall(line)), len(_ENDS.findall(line))
        if begins and not _FOLLOWS.search(" ".join(lines[number : number + 4])):
            begins = 0  # of another language, as in a text for Python
        if depth or begins or _GUARDED.match(line):
            found.add(number)
        depth = max(depth + begins - ends, 0)
    return found


def _assigned(line: str) -> Iterator[tuple[str, str]]:
    """Names and values of the assignments in a line; `$` for a value that is more than a word."""
    for match in _SET.finditer(line):
        plain = match[3] is not None and not match[2]
        yield match[1] or match[4], match[3].strip("'\"") if plain else "$"


def _assigned_to_several(lines: list[str], maybe: set[int]) -> set[str]:
    """Variables with several values in the text, or one that no line tells; `maybe`: lines that may not run."""
    values: dict[str, set[str]] = {}
    changed, always = set(), set()
    for number, line in enumerate(lines):
        for name, value in _assigned(line):
            values.setdefault(name, set()).add(value)
            always |= set() if number in maybe else {name}
        changed |= {name for match in _CHANGED.finditer(line) for name in match.groups() if name}
    return changed | {name for name, texts in values.items() if len(texts) > 1 or name not in always}


def _filled(line: str, known: Mapping[str, str]) -> str:
    """A line with the variables that are known put in, and arithmetic on whole numbers worked out."""
    line = _DEFAULTED.sub(lambda match: match[1], line)
    line = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), line)
    return _ARITHMETIC.sub(lambda match: _worked_out(match, known), line) if "$((" in line else line


def _worked_out(match: re.Match[str], known: Mapping[str, str]) -> str:
    try:
        return str(_value(ast.parse(match[1].strip(), mode="eval").body, known))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return match[0]


def _value(node: ast.expr, known: Mapping[str, str]) -> int:
    """The value of an expression of whole numbers and variables. Raises ValueError, ZeroDivisionError."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(known.get(node.id, ""))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known)))
    raise ValueError


def flags_of_document(document: Values, lines: Lines) -> Flags | None:
    """The flags of a YAML document: its MODEL_ARGS, or a mapping of Megatron's names; None if it holds neither."""
    arguments = document.get(MODEL_ARGS, document)
    above = (MODEL_ARGS,) if MODEL_ARGS in document else ()
    if not isinstance(arguments, Mapping) or not {LAYERS.flag, HIDDEN.flag} & {
        flag_of(str(key).lstrip("-")) for key in arguments
    }:
        return None
    flags: Flags = {}
    for key, value in arguments.items():
        if value is not None and value is not False:
            values = () if value is True else tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())
            flags.setdefault(flag_of(str(key).lstrip("-")), []).append(Given(values, lines.get((*above, str(key)), 0)))
    return flags


_ROWS = shipped_document(Path(__file__).with_suffix(".yaml"))
NOT_MODELLED: Mapping[str, str] = _ROWS["not_modelled"]
"""Flags that change the model in a way that is not described here: refused."""
FREE_PREFIXES = tuple(" ".join(_ROWS["free"].values()).split())
"""Beginnings of flags that do not change the shape of the model."""


def is_free(flag: str) -> bool:
    """Whether a flag is known not to change the shape of the model."""
    return flag.startswith(FREE_PREFIXES)
