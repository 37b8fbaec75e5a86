"""The SimAI/AICB workload text: its grammar, with a `path:line:` message for every fault; equal lines are stored once.

Source of the grammar: aliyun/SimAI and aliyun/aicb, format of `*.txt` workloads, in its three generations; docs/formats.md.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Ints
from sim_core.documents import Words
from sim_core.errors import FormatError, Place, shown, shown_near
from sim_core.terms import kinds_by
from sim_core.workloads.lines import text_lines
from sim_core.workloads.simai.header import HEADER_KEYS, LIST_KEYS, RERUN_POLICY, Header, integer, read_header
from sim_core.workloads.words import group_of, words_of

COLLECTIVES = tuple(kinds_by("simai"))
BROADCAST = "BROADCAST"
"""In files of the first generation."""
_WORDS = words_of((*COLLECTIVES, BROADCAST))
COLUMNS = (
    "name",
    "dependency",
    *(f"{phase}_{column}" for phase in ("fwd", "ig", "wg") for column in ("ns", "comm", "bytes")),
    "update",
)
_NAME_LENGTH = 100


class Record(NamedTuple):
    """One layer line: per phase (fwd, ig, wg) nanoseconds, collective, group suffix and bytes."""

    name: str
    dependency: int
    compute_ns: tuple[int, ...]
    collective: Words
    suffix: Words
    comm_bytes: tuple[int, ...]
    update: int

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups of the three collectives."""
        return tuple(map(group_of, self.suffix, range(3)))


class SimaiText(NamedTuple):
    """A whole file: a record for each layer line (line `line_of[k]`); equal lines are one object."""

    path: str
    header: Header
    records: tuple[Record, ...]
    line_of: Ints
    warnings: Words

    def fault(self, line: int, what: str, found: str = "", expected: str = "") -> FormatError:
        """The error of a layer line."""
        return FormatError(self.path, int(self.line_of[line]), what, found, expected)

    def at(self, lines: Iterable[int]) -> list[Record]:
        """The records in some layer lines."""
        return [self.records[k] for k in lines]


def read_simai_text(path: str, data: bytes | None = None, *, all_gpus: int | None = None) -> SimaiText:
    """Parse the file at `path` (or `data`, with `path` for messages). Raises FormatError, OSError.

    `all_gpus` is for files of the first generation, which lack it; one that contradicts the header is an error.
    """
    (first, raw), *lines = text_lines(path, data, expected=f"a header that begins with {RERUN_POLICY}")
    header, first_generation, warnings = read_header((path, first), raw, all_gpus)
    what = "the number of layers"
    if not lines:
        raise FormatError(path, first + 1, f"{what} is missing", expected="a whole number above 0")
    (second, raw), *lines = lines
    if len(raw.split()) != 1:
        raise FormatError(path, second, what, shown(raw.strip()), "one whole number")
    count = integer(raw.strip(), (path, second), what, least=1)
    if count != len(lines):
        where = lines[count][0] if count < len(lines) else lines[-1][0] if lines else second
        raise FormatError(path, where, "layer lines", f"{len(lines)}", f"{count} (line {second})")
    kinds = (*COLLECTIVES, BROADCAST) if first_generation else COLLECTIVES
    read: dict[str, Record] = {}  # a repeated line costs only a look-up
    for line, raw in lines:
        if raw not in read:
            read[raw] = _record((path, line), raw, kinds)
    text = SimaiText(path, header, tuple(read[raw] for _, raw in lines), np.array([line for line, _ in lines]), ())
    _check_ids((path, first), header, count)
    return (_of_first_generation(text, warnings) if first_generation else text)._replace(warnings=tuple(warnings))


def _record(place: Place, raw: str, kinds: Words) -> Record:
    """One layer line of 12 columns."""
    fields = raw.split()
    if len(fields) != len(COLUMNS):
        blank = next((cell.strip() for cell in raw.split("\t") if len(cell.split()) > 1), None) if "\t" in raw else None
        hint = f" (a blank inside {shown(blank)}?)" if blank and len(fields) > len(COLUMNS) else ""
        raise FormatError(*place, "columns", f"{len(fields)}{hint}", f"12: {' '.join(COLUMNS)}")

    def number(column: int, least: int) -> int:
        return integer(fields[column], place, f"column {column + 1} ({COLUMNS[column]})", least=least)

    if not fields[0].isprintable() or len(fields[0]) > _NAME_LENGTH:
        raise FormatError(*place, "column 1 (name)", shown(fields[0]), "up to 100 printable characters")
    dependency = number(1, -1)
    phases = [
        (number(column, 0), *_collective(place, column + 1, fields[column + 1], kinds), number(column + 2, 0))
        for column in (2, 5, 8)
    ]
    compute_ns, collective, suffix, comm_bytes = zip(*phases, strict=True)
    return Record(fields[0], dependency, compute_ns, collective, suffix, comm_bytes, update=number(11, 0))


def _collective(place: Place, column: int, text: str, kinds: Words) -> tuple[str, str]:
    """Collective and group suffix of a column such as `ALLTOALL_EP`."""
    if text in _WORDS and _WORDS[text][0] in kinds:
        return _WORDS[text]
    what = f"column {column + 1} ({COLUMNS[column]})"
    stem, _, rest = text.partition("_")
    if stem in kinds[1:]:
        raise FormatError(*place, f"{what}: unknown group", shown("_" + rest), "none, _EP or _DP_EP")
    raise FormatError(*place, f"{what}: unknown collective", shown_near(text, text.upper(), kinds), " ".join(kinds))


def _of_first_generation(text: SimaiText, warnings: list[str]) -> SimaiText:
    """The text with its broadcasts as all-gathers, and a warning at the first of them.

    Raises FormatError for DeepSpeed ZeRO-3, which gathers parameters over DP in columns that belong to the TP group.
    """
    for line, record in enumerate(text.records):
        if text.header.tp == 1 and record.collective[:2] == ("NONE", "ALLGATHER"):
            found = f"{record.name} gathers {record.comm_bytes[1]} bytes in the column of a TP group of 1"
            expected = "work of TP and DP; a gather of parameters layer by layer cannot be told in this format"
            raise text.fault(line, "DeepSpeed ZeRO-3 sample of AICB's first generation", found, expected)
    sent = [line for line, record in enumerate(text.records) if BROADCAST in record.collective]
    if sent:
        where = f"{text.path}:{text.line_of[sent[0]]}"
        warnings.append(f"{where}: BROADCAST is taken as ALLGATHER: both send every byte once round a ring")
    same = {BROADCAST: "ALLGATHER"}
    return text._replace(
        records=tuple(record._replace(collective=tuple(same.get(c, c) for c in record.collective)) for record in text.records)
    )


def _check_ids(place: Place, header: Header, records: int) -> None:
    """Checkpoint ids are layer lines (from 0), each initiate has a checkpoint at or before it."""
    first = min(header.checkpoints, default=records)
    for key in LIST_KEYS:
        for value in getattr(header, key):
            if value >= records:
                raise FormatError(*place, f"id of `{key}`", f"{value}", f"0 to {records - 1}")
    for value in header.checkpoint_initiates:
        if value < first:
            raise FormatError(*place, f"id of `{LIST_KEYS[1]}`", f"{value}", "a checkpoint at or before it")


def write_simai_text(header: Header, records: Sequence[Record]) -> str:
    """The text of a header and its layer lines; `read_simai_text` restores both."""
    lines = [header.policy, str(len(records))]
    for key, value in zip(HEADER_KEYS, header[1:], strict=True):
        lines[0] += f" {key}: {' '.join(map(str, (len(value), *value))) if isinstance(value, tuple) else value}"
    for record in records:
        phases = zip(record.compute_ns, record.collective, record.suffix, record.comm_bytes, strict=True)
        columns = [column for ns, kind, suffix, size in phases for column in (ns, kind + suffix, size)]
        lines.append("\t".join(map(str, (record.name, record.dependency, *columns, record.update))))
    return "\n".join(lines) + "\n"
