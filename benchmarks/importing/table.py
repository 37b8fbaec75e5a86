"""Tables of measured runs in free text (CSV), read: a `Row` each, which says what a cell should have been when it is asked."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.importing import words_of
from sim_core import FormatError, shown
from sim_core.limits import whole_number
from sweep.runs.cells import number_in
from sweep.runs.table import FAILED, LARGEST_NUMBER, OK, QUALITIES, NotSimulated, check_columns
from sweep.spec.document import cells_by_column, read_csv

DATA: Final = Path(__file__).parent.parent / "data"
COMMITTED: Final = DATA / "measured.csv"
"""Runs that others published; every row with its source and licence. They ship converted (sweep/runs/data)."""
TABLES: Final = DATA / "measured_tables.csv"
"""Grids of runs beside it: the name of a file, and the cells that all its runs share."""
ANNOTATIONS: Final = DATA / "annotations.csv"
"""Release, dispatcher, recompute and features of some of the runs, by id: read from the recipes of each release; the plan of
four runs on H100s of Grok-1 and Llama 3.1 405B, which have that of GB200s in the table and their own in the recipe's."""
SAID = words_of("table")
COUNTS: Final[Sequence[str]] = SAID.counts
COLUMNS: Final = (*COUNTS, *SAID.numbers, *SAID.switches, *SAID.words)
MOST: Final = 2**31 - 1
HF_TRAINER: Final = "hf trainer"
"""In the name of a framework: transformers' Trainer, with PEFT's adapters."""


class Row(NamedTuple):
    """A measured run: texts by column; an empty text is "not stated"."""

    where: str  # path:line
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """The text of a column; empty if the table has no such column."""
        return self.values.get(key, "")

    def count(self, key: str, default: int = 0) -> int:
        """A whole number of at least 1. Raises NotSimulated."""
        value = self.number(key)
        if value is not None and not (value <= MOST and value == int(value)):
            raise NotSimulated(f"{key}: found {shown(self.text(key))}, expected {whole_number(1, MOST)}")
        return default if value is None else int(value)

    def number(self, key: str) -> float | None:
        """A number above 0, or None. Raises NotSimulated."""
        text = self.text(key)
        if text and not 0 < number_in(text) <= LARGEST_NUMBER:
            raise NotSimulated(f"{key}: found {shown(text)}, expected a number above 0 and up to {LARGEST_NUMBER:g}")
        return number_in(text) if text else None

    def switch(self, key: str) -> bool | None:
        """Whether it is 1, or None. Raises NotSimulated."""
        if self.text(key) not in ("", "0", "1"):
            raise NotSimulated(f"{key}: found {shown(self.text(key))}, expected 0, 1 or nothing")
        return self.text(key) == "1" if self.text(key) else None

    @property
    def sequence(self) -> int:
        """Tokens of a sequence: as its notes tell what its tokens/s over samples/s give, where that is not its column's."""
        stated = self.count("seq")
        told = re.search(SAID.sequence, self.text("notes"))
        return int(told[1]) if told and abs(int(told[1]) / max(stated, 1) - 1) > 0.01 else stated

    @property
    def quality(self) -> str:
        """How far its publisher's figures can be trusted; without the column: ok. Raises NotSimulated."""
        if (text := self.text("quality") or OK) not in QUALITIES:
            raise NotSimulated(f"quality: found {shown(text)}, expected one of {', '.join(QUALITIES)}")
        return text

    @property
    def out_of_memory(self) -> bool:
        """It did not run because a GPU's memory was too small; of runs that failed: their notes name no other cause."""
        return bool(self.switch("oom")) or (self.quality == FAILED and not self.other_cause)

    @property
    def other_cause(self) -> str:
        """Why a run failed, if its notes name a cause other than memory."""
        return next((cause for cause in SAID.other_causes if cause in self.text("notes")), "") if self.quality == FAILED else ""


def read_table(path: Path) -> list[Row]:
    """The runs of a table. One with `id`, without the columns that a run needs, annotates the published runs of these ids.

    Raises FormatError (`path:line: column: found X, expected Y`).
    """
    name, lines = str(path), read_csv(path)
    _, columns = next(lines, (1, []))
    shared = _shared().get(path.stem, {}) if path.resolve().parent == DATA.resolve() else {}
    annotates = "id" in columns and not set(SAID.required) & {*shared, *columns}
    check_columns(name, [*shared, *columns], COLUMNS, () if annotates else SAID.required)
    published = {row.text("id"): row.values for row in published_rows()} if annotates else {}
    more = _annotations() if path.resolve() == COMMITTED.resolve() else {}
    rows = []
    for number, cells in lines:
        values = {**shared, **cells_by_column(path, number, columns, cells)}
        if annotates and values["id"] not in published:
            raise FormatError(name, number, "id", found=shown(values["id"]), expected="that of a published run")
        if annotates:
            values = {**published[values["id"]], **{column: value for column, value in values.items() if value}}
        rows.append(Row(f"{name}:{number}", values | more.get(values.get("id", ""), {})))
    if not rows:
        raise FormatError(name, 1, "no runs", expected="a row a run below the heading")
    return rows


def published_rows() -> list[Row]:
    """The runs that others published, of all tables."""
    return [row for path in (COMMITTED, *(DATA / f"{name}.csv" for name in _shared())) for row in read_table(path)]


def _shared() -> dict[str, dict[str, str]]:
    """The cells that all runs of a grid share, by its name."""
    with TABLES.open(encoding="utf-8", newline="") as file:
        return {cells.pop("table"): cells for cells in csv.DictReader(file)}


def _annotations() -> dict[str, dict[str, str]]:
    """The cells of ANNOTATIONS by id."""
    with ANNOTATIONS.open(encoding="utf-8", newline="") as file:
        return {cells["id"]: {column: text for column, text in cells.items() if text} for cells in csv.DictReader(file)}
