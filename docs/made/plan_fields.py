"""Make from the rows of sim_core/planning/fields.py what is checked in: classes in columns.py, the table in docs/axes.md.

`make reference` runs it; a test holds both to the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from sim_core.planning.fields import FIELDS, Field

ROOT: Final = Path(__file__).parent.parent.parent
COLUMNS: Final = ROOT / "sim_core" / "planning" / "columns.py"
PAGE: Final = ROOT / "docs" / "axes.md"
SOURCE: Final = ("# --- made by docs/made/plan_fields.py from the rows of fields.py: do not edit", "# --- end of what is made")
TABLE: Final = ("<!-- made by docs/made/plan_fields.py -->", "<!-- end of what is made -->")


def main() -> None:
    """Write both files anew."""
    COLUMNS.write_text(columns_file(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


def columns_file() -> str:
    """All of columns.py, with classes and functions that have one line per field."""
    return _with(COLUMNS.read_text(encoding="utf-8"), SOURCE, _source())


def page() -> str:
    """All of docs/axes.md, with a table that has one row per field."""
    return _with(PAGE.read_text(encoding="utf-8"), TABLE, _table())


def _with(text: str, marks: tuple[str, str], lines: Iterator[str]) -> str:
    """A text with other lines between two marks."""
    before, _, rest = text.partition(marks[0] + "\n")
    _, _, after = rest.partition(marks[1] + "\n")
    return "\n".join([before + marks[0], *lines, marks[1] + "\n"]) + after


def _source() -> Iterator[str]:
    rows = [row for row in FIELDS.values() if not row.stands_for]
    yield "class Columns(NamedTuple, Generic[Whole, Real]):"
    yield from ('    """Fields of plans: columns of equal length, or the numbers of one plan."""', "")
    yield from (f"    {row.name}: {'Ints' if row.wide else 'Real' if row.is_real else 'Whole'}{_comment(row)}" for row in rows)
    yield from ("", "", "class Plans(Columns[Ints, Floats]):", '    """Plans as columns of equal length."""', "", "")
    ordering = sorted((row.name for row in rows if row.orders_blocks), key=lambda name: name != "schedule")
    sending = [row.name for row in rows if row.sends_blocks]
    yield from _tuple("ORDER_COLUMNS", ordering)
    yield '"""What the order of blocks follows from; the schedule first: batches of one schedule need the least memory."""'
    yield from _tuple("SEND_COLUMNS", sending)
    yield '"""What else decides which block waits for which."""'
    yield from _tuple("SPLIT_COLUMNS", [row.name for row in rows if row.moves_split and not row.wide])
    yield '"""What the layers of a virtual stage follow from, besides the list in `virtual_layers`."""'
    yield from ("", "")


def _tuple(name: str, words: Iterable[str]) -> Iterator[str]:
    listed = ", ".join(f'"{word}"' for word in words)
    yield f"{name} = ({listed})"


def _comment(row: Field) -> str:
    codes = {"word": "index of a word: ", "switch": "0 or 1: "}
    return f"  # {codes.get(row.kind, '')}{row.doc}"


def _table() -> Iterator[str]:
    yield from ("| axis or fixed value | values | default | what it is |", "|---|---|---|---|")
    for row in FIELDS.values():
        if row.is_set:
            names = f"`{row.name}`" + (f" ({', '.join(f'`{name}`' for name in row.aliases)})" if row.aliases else "")
            default = row.unset or ("the workload's" if row.default is None else f"`{str(row.default).lower()}`")
            yield f"| {names} | {_values(row)} | {default} | {row.doc}{'. ' if row.more else ''}{row.more} |"


def _values(row: Field) -> str:
    if row.words:
        return ", ".join(f"`{word}`" for word in row.words)
    if row.kind == "switch":
        return "`true`, `false`"
    if row.kind == "number":
        return f"a size with its unit, `100 M{row.unit}`" if row.unit else f"{row.least} to {row.most:,}"
    return row.label.forms if row.label else f"{'above 0' if 0 < row.least < 1e-6 else f'{row.least:g}'} to {row.most:g}"


if __name__ == "__main__":
    main()
