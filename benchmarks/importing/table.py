"""Tables of measured runs in free text (CSV), read and checked: a `Row` each."""

import csv
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from sim_core import FormatError, shown
from sim_core.limits import whole_number
from sweep.runs.table import FAILED, OK, QUALITIES
from sweep.spec.document import cells_by_column, read_csv

DATA: Final = Path(__file__).parent.parent / "data"
COMMITTED: Final = DATA / "measured.csv"
"""Runs that others published; every row with its source and licence. They ship converted (sweep/runs/data)."""
TABLES: Final = DATA / "measured_tables.csv"
"""Grids of runs beside it: the name of a file, and the cells that all its runs share."""
ANNOTATIONS: Final = DATA / "annotations.csv"
"""Release, dispatcher, recompute and features of some of the runs, by id: read from the recipes of each release."""
REQUIRED: Final = ("set", "framework", "hw", "gpus", "model", "iter_ms")
COUNTS: Final = (
    "gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "experts", "topk", "moe_ffn",
    "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "gbs", "ga",
)  # fmt: skip
NUMBERS: Final = ("params_b", "iter_ms", "tok_s_gpu", "tflops_gpu", "mfu_pct", "hfu_pct", "mem_gib")
SWITCHES: Final = ("sp", "oom")
WORDS: Final = (
    "id", "set", "source", "framework", "hw", "interconnect", "model", "kind", "dtype", "zero", "recompute", "schedule",
    "iter_kind", "tflops_kind", "mem_kind", "simulable", "quality", "notes", "licence", "release", "dispatcher", "features",
)  # fmt: skip
COLUMNS: Final = (*COUNTS, *NUMBERS, *SWITCHES, *WORDS)
MOST: Final = 2**31 - 1
LARGEST_NUMBER: Final = 1e15
OTHER_CAUSES: Final = ("empty stage", "micro-batches <", "inconsistent")
"""In the notes of a run that failed: causes other than memory."""
CLOSE: Final = 0.8
"""How alike a heading must be to a column that is missing to be taken for a slip of the pen."""


class Row(NamedTuple):
    """A measured run: texts by column, checked; an empty text is "not stated"."""

    where: str  # path:line
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The text of a column; empty if the table has no such column."""
        return self.values.get(key, "")

    def count(self, key: str, default: int = 0) -> int:
        """A whole number of at least 1."""
        return int(float(text)) if (text := self.text(key)) else default

    def number(self, key: str) -> float | None:
        """A number above 0, or None."""
        return float(text) if (text := self.text(key)) else None

    @property
    def quality(self) -> str:
        """How far its publisher's figures can be trusted; without the column: ok."""
        return self.text("quality") or OK

    @property
    def out_of_memory(self) -> bool:
        """It did not run because a GPU's memory was too small; of runs that failed: their notes name no other cause."""
        return self.text("oom") == "1" or (self.quality == FAILED and not self.other_cause)

    @property
    def other_cause(self) -> str:
        """Why a run failed, if its notes name a cause other than memory."""
        return next((cause for cause in OTHER_CAUSES if cause in self.text("notes")), "") if self.quality == FAILED else ""


def read_table(path: Path) -> list[Row]:
    """The runs of a table. One with `id`, without the columns that a run needs, annotates the published runs of these ids.

    Raises FormatError (`path:line: column: found X, expected Y`).
    """
    return _read(path, _shared().get(path.stem, {}) if path.resolve().parent == DATA.resolve() else {})


def published_rows() -> list[Row]:
    """The runs that others published, of all tables."""
    return [row for path in (COMMITTED, *(DATA / f"{name}.csv" for name in _shared())) for row in read_table(path)]


def _shared() -> dict[str, dict[str, str]]:
    """The cells that all runs of a grid share, by its name."""
    with TABLES.open(encoding="utf-8", newline="") as file:
        return {cells.pop("table"): cells for cells in csv.DictReader(file)}


def _read(path: Path, shared: Mapping[str, str]) -> list[Row]:
    """The runs of a table, whose heading lacks the columns that all runs share."""
    name, lines = str(path), read_csv(path)
    heading = next(lines, None)
    if heading is None:
        raise FormatError(name, 1, "empty file", expected=f"a heading with at least {', '.join(REQUIRED)}")
    columns = heading[1]
    _check_columns(name, [*shared, *columns])
    annotates = "set" not in (*shared, *columns)
    published = {row.text("id"): row.values for row in published_rows()} if annotates else {}
    more = _annotations() if path.resolve() == COMMITTED.resolve() else {}
    rows = []
    for number, cells in lines:
        values = {**shared, **cells_by_column(path, number, columns, cells)}
        if published:
            values = _over(name, number, published, values)
        values |= more.get(values.get("id", ""), {})
        row = Row(f"{name}:{number}", values)
        _check(name, number, row)
        rows.append(row)
    if not rows:
        raise FormatError(name, heading[0], "no runs", expected="a row a run below the heading")
    return rows


def _annotations() -> dict[str, dict[str, str]]:
    """The cells of ANNOTATIONS by id."""
    lines = read_csv(ANNOTATIONS)
    _, columns = next(lines)
    cells = [cells_by_column(ANNOTATIONS, number, columns, values) for number, values in lines]
    return {row["id"]: {column: value for column, value in row.items() if value} for row in cells}


def _check_columns(name: str, columns: Sequence[str]) -> None:
    """Raises FormatError for columns that are missing, misspelt or there twice; others that we do not know have no effect."""
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise FormatError(name, 1, f"column {shown(twice[0])}", found="it twice", expected="each name once")
    missing = [column for column in COLUMNS if column not in columns]
    for column in columns:
        if column not in COLUMNS and (close := get_close_matches(column[:100], missing, n=1, cutoff=CLOSE)):
            raise FormatError(name, 1, "column", found=shown(column), expected=close[0])
    annotates = "id" in columns and not set(REQUIRED) & set(columns)
    for column in () if annotates else REQUIRED:
        if column not in columns:
            heading = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
            raise FormatError(name, 1, f"column {column}", found=shown(heading, 100), expected="it in the heading")


def _over(name: str, line: int, published: Mapping[str, Mapping[str, str]], values: dict[str, str]) -> dict[str, str]:
    """A published run with what the cells of a line say in place of its own."""
    if values["id"] not in published:
        raise FormatError(name, line, "id", found=shown(values["id"]), expected="that of a published run")
    return {**published[values["id"]], **{column: value for column, value in values.items() if value}}


def _check(name: str, line: int, row: Row) -> None:
    """Numbers are numbers within bounds, and a run has a name, a size, and a time or a reason not to have one."""

    def wrong(column: str, expected: str) -> FormatError:
        return FormatError(name, line, column, found=shown(row.text(column)), expected=expected)

    for column in COUNTS:
        if (text := row.text(column)) and not _is_number(text, MOST, whole=True):
            raise wrong(column, whole_number(1, MOST))
    for column in NUMBERS:
        if (text := row.text(column)) and not _is_number(text, LARGEST_NUMBER, whole=False):
            raise wrong(column, f"a number above 0 and up to {LARGEST_NUMBER:g}")
    for column in SWITCHES:
        if row.text(column) not in ("", "0", "1"):
            raise wrong(column, "0, 1 or nothing")
    if row.quality not in QUALITIES:
        raise wrong("quality", "one of " + ", ".join(QUALITIES))
    if part := next((part for part in row.text("features").split(";") if part.strip() and "=" not in part), ""):
        raise FormatError(name, line, "features", found=shown(part.strip()), expected="key=value; ...")
    for column in ("set", "gpus", "model"):
        if not row.text(column):
            raise wrong(column, "a number" if column == "gpus" else "a name")


def _is_number(text: str, most: float, *, whole: bool) -> bool:
    value = _number(text)
    return math.isfinite(value) and 0 < value <= most and (not whole or value == int(value))


def _number(text: str) -> float:
    """The number in a cell; NaN if it holds none."""
    try:
        return float(text) if text.isascii() and "_" not in text and len(text) <= 40 else math.nan
    except ValueError:
        return math.nan
