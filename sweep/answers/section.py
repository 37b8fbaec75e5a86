"""A section: what is said of a file, a plan, a result or two of them, as data that terminal, page and JSON render alike."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

from sim_core.documents import Fields


@dataclass(frozen=True)
class Section:
    """A heading, sentences, a list of lines, a table of text with its headings in the first row, sentences below it, notes.

    Each may be empty. `values`: what JSON holds of it, by key. On a page alone: a note below the heading, figures (title, and
    data for charts.js), more HTML, and sections below it.
    """

    heading: str = ""
    lines: Sequence[str] = ()
    _: KW_ONLY
    sentences: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    left: Collection[int] | None = None  # columns of the table that hold words, the others hold numbers; None: all
    gap: int = 2  # spaces between its columns on a terminal
    cut: int | None = None  # the column that a terminal may cut where it is too narrow
    below_table: Sequence[str] = ()
    notes: Sequence[str] = ()
    values: Fields = field(default_factory=dict)
    apart: bool = False  # an empty line before it on a terminal
    note: str = ""
    figures: Sequence[tuple[str, Fields]] = ()
    html: str = ""
    below: Sequence["Section"] = ()


Screen = Iterator[Section | str]
"""Sections, and lines by themselves."""


def table(headings: Sequence[str], rows: Iterable[Iterable[object]], *left: int, gap: int = 3) -> Section:
    """A table alone, of numbers but for the columns `left`, which hold words; a cell is shown as `str` has it."""
    return Section(table=[headings, *(list(map(str, row)) for row in rows)], left=left, gap=gap)


def values_of(sections: Iterable[Section]) -> Fields:
    """What JSON holds of sections."""
    return {name: value for section in sections for name, value in section.values.items()}
