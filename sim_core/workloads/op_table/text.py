"""The tab-separated operator table: grammar, a `path:line:` message for every fault, one row per operator.

Source of the grammar: docs/formats.md.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from sim_core.documents import Words
from sim_core.errors import FormatError, nearest, shown, shown_near
from sim_core.terms import kinds_by
from sim_core.workloads.lines import Warnings, text_lines
from sim_core.workloads.words import words_of

PHASES = ("forward", "backward", "weight_grad")
COLUMNS = (
    "name",
    *(f"{phase}_{column}" for phase in PHASES for column in ("compute_time", "comm_type", "comm_size")),
    "process_time",
)
NEEDED = COLUMNS[:2]
ASYNC = "ALLREDUCE_ASYNC"
COLLECTIVES = ("NONE", ASYNC, *(word for word in kinds_by("op_table") if word != "NONE"))
GRADIENT = "_grad"

_WORDS = {"None": ("NONE", ""), **words_of(COLLECTIVES)}
_MOST = 2.0**53  # above, a float64 cannot represent every whole number
_LENGTH = 100  # characters of a name or number
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z", re.ASCII)


class OpRow(NamedTuple):
    """One operator; three values are of forward, backward (input gradient) and weight gradient."""

    line: int
    name: str
    compute_s: tuple[float, ...]
    collective: Words  # one of COLLECTIVES each
    suffix: Words  # the group of each: "", "_EP" or "_DP_EP"
    elements: tuple[float, ...]  # whole numbers
    process_s: float


class OpTableText(NamedTuple):
    """The rows in the order of the file."""

    path: str
    warnings: Words
    rows: tuple[OpRow, ...]

    @property
    def names(self) -> list[str]:
        """The names of the operators."""
        return [row.name for row in self.rows]


def looks_like_op_table(head: str) -> bool:
    """Whether a file that begins with `head` is an operator table, by its header or its first rows."""
    whole = head if "\n" not in head else head[: head.rindex("\n")]  # the last line may be truncated
    stripped = (line.strip("\ufeff \t\r") for line in whole.split("\n", 100)[:100])
    lines = [_cells(line) for line in stripped if line][:3]
    return bool(lines) and (len(set(lines[0]) & set(COLUMNS)) >= 3 or all(map(_is_row, lines)))


def read_op_table_text(path: str, data: bytes | None = None) -> OpTableText:
    """Parse the file at `path` (or `data`, with `path` for messages). Raises FormatError, OSError."""
    lines = text_lines(path, data, expected=f"a header: {' '.join(COLUMNS)}")
    table = _Table(path)
    columns, lines = table.header(lines)
    if not lines:
        raise FormatError(path, 1, "the table has no rows", expected="one operator a line")
    rows = tuple(table.row(line, text, columns) for line, text in lines)
    _check_names(path, rows)
    return OpTableText(path, table.warnings.said(), rows)


def _cells(text: str) -> list[str]:
    """The cells of a line, separated by tabs, or by blanks if there is no tab."""
    return [cell.strip() for cell in text.split("\t")] if "\t" in text else text.split()


def _is_row(cells: list[str]) -> bool:
    """Whether these may be the cells of a row: a name, then number, collective and number repeatedly."""
    kinds = (bool(_NUMBER.match(cell)) if k % 3 != 2 else cell.upper() in _WORDS for k, cell in enumerate(cells) if k)
    return 4 <= len(cells) <= len(COLUMNS) and all(kinds)


class _Table:
    """Reads the lines of one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.warnings = Warnings(path)

    def header(self, lines: list[tuple[int, str]]) -> tuple[Words, list[tuple[int, str]]]:
        """The columns in the order of the file, and the lines of the rows."""
        line, text = lines[0]
        cells = _cells(text.strip())
        if not set(cells) & set(COLUMNS) and any(_NUMBER.match(cell) for cell in cells):
            self.warnings.add(line, "no header: the usual order of columns is assumed")
            return COLUMNS, lines
        for k, cell in enumerate(cells, 1):
            what = f"header column {k}"
            if cell not in COLUMNS:
                raise FormatError(self.path, line, f"{what} is unknown", f"{shown(cell)} ({nearest(cell.lower(), COLUMNS)})")
            if cell in cells[: k - 1]:
                raise FormatError(self.path, line, f"{what}: {cell} is repeated")
        absent = [column for column in COLUMNS if column not in cells]
        for column in absent:
            if column in NEEDED:
                raise FormatError(self.path, line, f"header column {column} is missing", expected=" ".join(COLUMNS))
            swap = ("_size", "_type") if column.endswith("_size") else ("_type", "_size")
            partner = column.replace(*swap)
            if partner != column and partner in cells:
                raise FormatError(self.path, line, f"header column {column} is missing", expected=f"it beside {partner}")
        if absent:
            self.warnings.add(line, f"missing columns are taken as 0 and NONE: {' '.join(absent)}")
        return tuple(cells), lines[1:]

    def row(self, line: int, text: str, columns: Words) -> OpRow:
        """The values of a line. Raises FormatError."""
        cells = _cells(text.strip())
        if len(cells) != len(columns) and len(text.split()) == len(columns):
            cells = text.split()  # tabs and blanks mixed
        if len(cells) != len(columns):
            blank = next((cell for cell in cells if len(cell.split()) > 1), None)
            hint = f" (a blank inside {shown(blank)}?)" if blank else ""
            expected = f"{len(columns)}: {' '.join(columns)}"
            raise FormatError(self.path, line, "columns", f"{len(cells)}{hint}", expected)
        values = dict(zip(columns, cells, strict=True))
        name = values["name"]
        if not name or not name.isprintable() or len(name) > _LENGTH:
            expected = f"1 to {_LENGTH} printable characters"
            raise FormatError(self.path, line, "name", shown(name), expected)
        compute_s = tuple(self._number(line, f"{phase}_compute_time", values) / 1e3 for phase in PHASES)
        kinds = [self._collective(line, f"{phase}_comm_type", values) for phase in PHASES]
        elements = tuple(self._number(line, f"{phase}_comm_size", values, whole=True) for phase in PHASES)
        for phase, (kind, _), size in zip(PHASES, kinds, elements, strict=True):
            if kind == "NONE" and size:
                self.warnings.add(line, f"{phase}_comm_size has no effect where {phase}_comm_type is NONE")
            if kind != "NONE" and not size:
                self.warnings.add(line, f"{phase}_comm_type moves nothing: {phase}_comm_size is 0")
        collective, suffix = zip(*kinds, strict=True)
        return OpRow(line, name, compute_s, collective, suffix, elements, self._number(line, "process_time", values) / 1e3)

    def _number(self, line: int, column: str, values: dict[str, str], *, whole: bool = False) -> float:
        """Milliseconds, or a number of elements."""
        text = values.get(column, "0")
        value = float(text) if len(text) <= _LENGTH and _NUMBER.match(text) else math.nan
        if 0 <= value <= _MOST and not (whole and value % 1):
            return value
        expected = f"{'a whole number of elements' if whole else 'milliseconds'}, 0 to 2^53"
        raise FormatError(self.path, line, f"column {column}", shown(text), expected)

    def _collective(self, line: int, column: str, values: dict[str, str]) -> tuple[str, str]:
        """Collective and group suffix of a cell such as `ALLTOALL_EP`."""
        text = values.get(column, "NONE")
        if text in _WORDS:
            return _WORDS[text]
        found = shown_near(text, text.upper(), _WORDS)
        expected = f"{' '.join(COLLECTIVES)}, each with no suffix, _EP or _DP_EP"
        raise FormatError(self.path, line, f"column {column}: unknown collective", found, expected)


def _check_names(path: str, rows: Sequence[OpRow]) -> None:
    """Check that each name is unique, and each gradient is right before its operator."""
    first: dict[str, int] = {}
    for (line, name, *_), following in zip(rows, (*(row.name for row in rows[1:]), None), strict=True):
        if name in first:
            what = f"name {shown(name)} is repeated, first on line {first[name]}"
            raise FormatError(
                path, line, what, expected="unique names; for repeated layers set `repeat: {from, to, times}` in the spec"
            )
        first[name] = line
        operator = name.removesuffix(GRADIENT)
        if operator not in (name, "") and following != operator:
            found = "the end of the table" if following is None else shown(following)
            what = f"gradient {shown(name)} without its operator on the next row"
            raise FormatError(path, line, what, found, shown(operator))
