"""Faults that change nothing that can be seen, each with the reason: they do not count, whatever tests there are."""

from typing import Final

EQUIVALENT: Final[tuple[tuple[str, str, str, str], ...]] = ()
"""End of the file's path, the line, what it becomes (both without spaces around), the reason."""


def why_equivalent(file: str, diff: str) -> str:
    """Why a fault changes nothing; empty where it does, or where nobody has looked. `diff`: lines `-before` and `+after`."""
    lines = diff.splitlines()
    before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    return next((why for path, *fault, why in EQUIVALENT if file.endswith(path) and fault == [before, after]), "")
