"""Building blocks of tables: cells with units, short column names, rows as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sim_core import short
from sweep.columns import PERCENT, SHORT_NAMES, SHORT_PARTS

SHORT_PART: Final = {column: head for head, column in SHORT_PARTS.items()}
SHORT_COLUMN: Final = {column: head for head, column in SHORT_NAMES.items()}
ROUNDING_S: Final = 1e-12
TABLE_WIDTH: Final = 250


def print_table(table: Table, console: Console) -> None:
    """Print a table without truncation, however narrow the terminal: a wrapped row is readable, a cut-off cell is not."""
    Console(file=console.file, width=max(console.width, TABLE_WIDTH), markup=False, highlight=False, no_color=True).print(table)


def plain_table(headings: Sequence[str], columns: Sequence[Sequence[str]], console: Console, *, left: int = 0) -> None:
    """Print a table of cells by column, right-aligned but for the first `left` columns, and never cut off.

    Much faster than rich's tables, which take a millisecond a row.
    """
    widths = [max(map(len, (heading, *cells))) for heading, cells in zip(headings, columns, strict=True)]
    forms = [f"{{:{'<' if at < left else '>'}{width}}}" for at, width in enumerate(widths)]
    line = " " + "  ".join(forms)
    rule = " " + "─" * (sum(widths) + 2 * len(widths) - 2)
    lines = [line.format(*headings), rule, *(line.format(*cells) for cells in zip(*columns, strict=True))]
    console.file.write("\n" + "\n".join(text.rstrip() for text in lines) + "\n\n")


def cell(name: str, value: Any) -> str:
    """One value as short text, with the unit that its column name implies."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
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
    return str(value)


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
