"""The size of the house against its budget: lines and tokens of each room, words of the pages. `make check` runs it.

    python .ci/budget.py [--now]

`budget.csv` has a row a room: a folder of `sim_core` or `sweep`, `*` for the files at their top, and the wholes. A room that
is above its budget, has no row, or a row without a room is an error. Raise a budget in a commit of its own that says what the
room gives for it. `--now` prints the table as the rooms are. Tokens are those of Python 3.11's `tokenize` (later versions cut
f-strings up) without comments, docstrings and layout, so that neither width nor missing words help.
"""

from __future__ import annotations

import ast
import csv
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".csv")
MEASURES = ("lines", "tokens", "words")
LAYOUT = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
)
COUNTED = sys.version_info[:2] == (3, 11)
"""Whether tokens are counted on this Python."""


def tokens_of(text: str) -> int:
    """Tokens of code; a string that stands alone is a docstring."""
    bodies = [body for node in ast.walk(ast.parse(text)) if isinstance(body := getattr(node, "body", None), list)]
    alone = {
        line.lineno
        for body in bodies
        for line in body
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
    }
    return sum(
        token.type not in LAYOUT and not (token.type == tokenize.STRING and token.start[0] in alone)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def room_of(path: Path) -> tuple[str, ...]:
    """The rooms that a file counts in: its own, and the wholes."""
    top, *inside = path.parts
    if path.suffix == ".md":
        return ("Markdown",)
    if top in ("benchmarks", "docs"):
        return (top,)
    return (f"{top}/{inside[0] if len(inside) > 1 else '*'}", "sim_core + sweep")


def sizes() -> dict[str, Counter[str]]:
    """Lines, tokens and words of every room, of the files that git tracks."""
    asked = ["git", "ls-files", "-z", "sim_core/*.py", "sweep/*.py", "benchmarks/*.py", "docs/*.py", "*.md"]
    listed = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=True).stdout
    found: dict[str, Counter[str]] = {}
    for name in filter(None, listed.split("\0")):
        if not (HERE / name).exists():  # deleted, and not yet committed
            continue
        text = (HERE / name).read_text()
        if name.endswith(".md"):
            size = Counter(words=len(text.split()))
        elif name.startswith(("benchmarks", "docs")):
            size = Counter(lines=text.count("\n"))
        else:
            size = Counter(lines=text.count("\n"), tokens=tokens_of(text) if COUNTED else 0)
        for room in room_of(Path(name)):
            found.setdefault(room, Counter()).update(size)
    return found


def faults(found: dict[str, Counter[str]], table: dict[str, dict[str, str]]) -> list[str]:
    """A line for each room that is not within its budget."""
    missing = [f"{room}: is in no row of {TABLE.name}" for room in found if room not in table]
    gone = [f"{room}: has a row in {TABLE.name}, but no file" for room in table if room not in found]
    above = [
        f"{room}: {found[room][measure]:,} {measure}, {over:,} above its budget of {int(row[measure]):,}"
        for room, row in table.items()
        for measure in MEASURES
        if row[measure] and room in found and (over := found[room][measure] - int(row[measure])) > 0
    ]
    return missing + gone + above


def main() -> None:
    """Print the table, or what is above it."""
    found = sizes()
    if "--now" in sys.argv[1:]:
        print("\n".join(["room,lines,tokens,words", *(_row(room, found[room]) for room in sorted(found))]))
        return
    with TABLE.open(newline="") as lines:
        table = {row["room"]: row for row in csv.DictReader(lines)}
    wrong = faults(found, table)
    for line in wrong:
        print(f"budget: {line}")
    sys.exit(1 if wrong else 0)


def _row(room: str, size: Counter[str]) -> str:
    return ",".join([room, *(str(size[measure] or "") for measure in MEASURES)])


if __name__ == "__main__":
    main()
