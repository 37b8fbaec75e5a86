"""Tables of Markdown as files of comma-separated values, for docs/data/."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent.parent / "data"


def cells_of(lines: Iterable[str]) -> list[list[str]]:
    """The cells of each row of a table, its heading first, without bold type and code marks."""
    rows = [line.strip() for line in lines if line.startswith("|") and set(line) - set("|-: ")]
    return [[re.sub(r"\*\*|`", "", cell).replace("\\|", "|").strip() for cell in _split(row)] for row in rows]


def _split(row: str) -> list[str]:
    return re.split(r"(?<!\\)\|", row)[1:-1]


def tables_of(text: str) -> list[list[list[str]]]:
    """All tables of a text, each as rows of cells."""
    blocks = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [cells_of(block.splitlines()) for block in blocks]


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown from rows of cells, its heading first; the first column is left, others right."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---|" + "--:|" * (len(rows[0]) - 1), *lines[1:]])


def write(name: str, rows: Iterable[Sequence[str]]) -> None:
    """docs/data/NAME.csv with these rows."""
    with (DATA / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def read(name: str) -> list[list[str]]:
    """The rows of docs/data/NAME.csv."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))
