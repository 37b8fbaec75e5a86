"""Building blocks of screens: tables, cells with units, short column names, rows as CSV and JSON."""

import csv
import io
import json
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from sim_core import short
from sweep.columns import PERCENT, SHORT_NAMES, SHORT_PARTS

SHORT_PART: Final = {column: head for head, column in SHORT_PARTS.items()}
SHORT_COLUMN: Final = {column: head for head, column in SHORT_NAMES.items()}
ROUNDING_S: Final = 1e-12


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, left: Collection[int] = (), gap: int = 3
) -> None:
    """Print rows of text, right-aligned but for the columns `left`, `gap` spaces apart; rows may be wider than the terminal.

    Much faster than rich's tables, which take a millisecond a row and cut off what does not fit.
    """
    widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
    line = " " + (gap * " ").join(f"{{:{'<' if at in left else '>'}{width}}}" for at, width in enumerate(widths))
    rule = " " + "─" * (sum(widths) + gap * (len(widths) - 1))
    lines = [line.format(*headings), rule, *(line.format(*cells) for cells in rows)]
    console.file.write("\n" + "\n".join(text.rstrip() for text in lines) + "\n\n")


def say(text: str, console: Console) -> None:
    """Print a sentence; a terminal breaks it between words, so that none is cut."""
    if console.is_terminal:
        text = textwrap.fill(text, max(console.width - 1, 20), break_long_words=False, break_on_hyphens=False)
    console.print(text)


def heading(name: str) -> str:
    """The short name of a column."""
    return SHORT_COLUMN.get(name, name)


def values_text(values: Mapping[str, Any]) -> str:
    """Columns with their values on one line: `tp 2, mbs 1`."""
    return ", ".join(f"{heading(name)} {cell(name, value)}" for name, value in values.items())


def span(low: str, high: str) -> str:
    """Two ends of a range as text, one where they are the same."""
    return low if low == high else f"{low} to {high}"


def cell(name: str, value: Any) -> str:
    """One value as short text, with the unit that its column name implies."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if name in PERCENT:
            return f"{value:.1%}"
        if name.endswith("_s") and not name.endswith("per_s"):
            return short(value, "s") if abs(value) >= ROUNDING_S else "0"
        if name.endswith("_bytes"):
            return short(value, "B")
        if name.endswith("bandwidth"):
            return short(value, "B/s")
        if name.endswith("latency"):
            return short(value, "s")
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return word(value)


def word(value: object) -> str:
    """A value that needs no unit."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def plain_values(record: object, names: str) -> dict[str, object]:
    """Some fields of a record for JSON, lists and dicts in place of tuples and mappings; None: an empty text."""
    values: dict[str, object] = {}
    for name in names.split():
        value = getattr(record, name)
        values[name] = dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
        if value == "":
            values[name] = None
    return values


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of name, value and text as indented lines; the last cell is as long as it is."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)][:-1]
    return ["  " + "  ".join([*(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows]


def rows_text(table: pa.Table, form: str) -> str:
    """Rows as CSV or JSON (a list of objects), at full precision."""
    rows = table.to_pylist()
    if form == "json":
        return json.dumps(rows, indent=1)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(row.values() for row in rows)
    return out.getvalue().rstrip("\n")
