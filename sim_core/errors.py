"""Errors in a user's input; each has a one-line message."""

import difflib
from collections.abc import Iterable

from sim_core.masking import masked

Place = tuple[str, int]
"""A file and the line in it that a message is about."""
_FEW = 20
_PART = 2
"""Words that are all listed where none is near."""


class SimError(Exception):
    """Base of all errors that a user's input can cause; its message is one line without secrets, whatever is in it."""

    def __init__(self, text: str = "") -> None:
        super().__init__(one_line(masked(text)))


class FormatError(SimError):
    """An input file is wrong; reads `path:line: what: found X, expected Y`."""

    def __init__(self, path: str, line: int, what: str, found: str = "", expected: str = "") -> None:
        self.path = path
        self.line = line
        details = ", ".join(part for part in (found and f"found {found}", expected and f"expected {expected}") if part)
        super().__init__(f"{masked(path)}:{line}: {what}" + (f": {details}" if details else ""))


class SpecError(SimError):
    """A sweep spec, a preset or an option is wrong; reads `where: key: what`."""


def one_line(text: str, kept: str = "") -> str:
    """`text` with an escape in place of every line break, control character and other that prints nothing, but those `kept`."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


def named(name: object, limit: int = 60) -> str:
    """A name for a message: as it is; in quotes if it is empty, long, has blanks at its ends or what no print shows."""
    text = masked(name)
    plain = text.isascii() and text.isprintable() and text == text.strip() and 0 < len(text) <= limit
    return text if plain else shown(text, limit)


def shown(text: object, limit: int = 60) -> str:
    """`text` in quotes for a message: one line of ASCII (escapes reveal look-alike characters), cut to `limit` characters."""
    quoted = ascii(masked(text))
    return quoted if len(quoted) <= limit else quoted[: limit - 4] + "...'"


def shown_near(text: str, word: str, valid: Iterable[str]) -> str:
    """`text` as `shown`, with the valid words nearest to `word`, which it stands for, if any is near."""
    hint = nearest(word, valid)
    return f"{shown(text)} ({hint})" if hint.startswith("nearest") else shown(text)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint with the valid words nearest to `name`, or with all of them if none is near and they are few.

    Words that begin with `name`, or end with it, are near; so are those with a part that begins with it, if it has three
    letters or more. '' if there are no words.
    """
    words = sorted(set(valid))
    name = name[:100]
    begin = (f"{name}_", f"{name}-")
    around = [word for word in words if len(name) > 1 and (word.startswith(begin) or word.endswith(f"_{name}"))]
    around += [word for word in words if len(name) > _PART and f"_{name}" in word and word not in around]
    of_preset = bool(around) and "-" in around[0]
    if of_preset or (around and not difflib.get_close_matches(name, words, n=1, cutoff=0.8)):
        close = (sorted(around, key=len) if of_preset else around)[:3]
    else:
        close = difflib.get_close_matches(name, words, n=3, cutoff=0.5)
    if close:
        return f"nearest valid: {', '.join(close)}"
    if name and len(words) > _FEW:
        first = difflib.get_close_matches(name, words, n=5, cutoff=0.0)
        return f"nearest valid: {', '.join(first)} ({len(words)} in all)"
    return f"valid: {', '.join(words)}" if words else ""
