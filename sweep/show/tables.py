"""Building blocks of screens: tables, sentences, rows as CSV and JSON."""

import csv
import io
import json
import textwrap
from collections.abc import Collection, Sequence

import pyarrow as pa
from rich.console import Console


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, left: Collection[int] = (), gap: int
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
