"""The file that measure_kernels.py writes, line by line: kernels with their sizes and times, and what was left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sim_core import FormatError, shown
from sim_core.documents import Values, parse_json
from sim_core.limits import whole_number
from sweep.calibration.nccl_text import text_of

Shape = tuple[int, ...]
"""Sizes of a kernel."""

FORMAT = "sweep kernels 1"
LARGEST_SIZE = 2**31 - 1
LARGEST_US = 1e9
DTYPES = ("bf16", "fp16", "fp8")
PHASES = {"gemm": ("forward", "input_gradient", "weight_gradient"), "attention": ("forward", "backward")}
SIZES = {
    "gemm": ("m", "n", "k"),
    "attention": ("heads", "sequence", "head_dim"),
    "memory": ("bytes",),
}
WORDS = {
    "gemm": ("dtype", "phase"),
    "attention": ("dtype", "phase", "backend"),
    "memory": ("name",),
}
IGNORED = ("layer", "grouped", "launch", "trace", "skipped", "conditions", "reference", "end")
LONGEST_WORD = 200


class Kernel(NamedTuple):
    """A kernel: words and sizes as in WORDS and SIZES, the median of its times, and whether its launch took as long."""

    words: tuple[Any, ...]  # of the lists of WORDS
    sizes: Shape
    us: float
    launch_bound: bool


@dataclass(kw_only=True)
class Measured:
    """The contents of a file of measured kernels."""

    path: str
    header: Values = field(default_factory=dict)
    kernels: Mapping[str, list[Kernel]] = field(default_factory=lambda: {kind: [] for kind in SIZES})  # by kind
    skipped: list[tuple[str, str]] = field(default_factory=list)  # kind and reason
    references: list[float] = field(default_factory=list)  # us of the same large GEMM, at the start and at the end
    complete: bool = False

    def text(self, key: str) -> str:
        """A word of the header; empty where it has none."""
        value = self.header.get(key)
        return "" if value is None else " ".join(str(value).split())[:LONGEST_WORD]


class _Line(NamedTuple):
    """A line of a file as an object."""

    path: str
    number: int
    row: Values

    def fault(self, what: str, found: str, expected: str) -> FormatError:
        return FormatError(self.path, self.number, what, found, expected)

    def whole(self, key: str, most: int) -> int:
        """A size. Raises FormatError."""
        value = self.row.get(key)
        if type(value) is not int or not 1 <= value <= most:
            raise self.fault(key, shown(value), whole_number(1, LARGEST_SIZE))
        return value

    def us(self) -> float:
        """A time. Raises FormatError."""
        us = self.row.get("us")
        if not isinstance(us, int | float) or isinstance(us, bool) or not 0 < us < LARGEST_US:
            raise self.fault("us", shown(us), f"microseconds above 0 and below {LARGEST_US:g}")
        return float(us)

    def word(self, kind: str, key: str) -> str:
        """A name, one of few where the key has only these. Raises FormatError."""
        value, valid = self.row.get(key), {"dtype": DTYPES, "phase": PHASES.get(kind, ())}.get(key, ())
        if not isinstance(value, str) or len(value) > LONGEST_WORD or (valid and value not in valid):
            raise self.fault(key, shown(value), ", ".join(valid) or "a name")
        return value


def read_kernels(path: Path) -> Measured:
    """A file of the script. Raises FormatError (`path:line: what`). A last line that was cut off is left out."""
    name, text = str(path), text_of(path)
    measured = Measured(path=name)
    for number, written in enumerate(text.splitlines()[: None if text.endswith("\n") else -1], 1):
        if not written.strip():
            continue
        row, _ = parse_json(written, name, number)
        if not isinstance(row, dict):
            raise FormatError(name, number, "not a JSON object", shown(written), "a line of measure_kernels.py")
        line = _Line(name, number, row)
        if measured.header:
            _take(measured, line)
        elif row.get("kind") != "header" or row.get("format") != FORMAT:
            stated = shown(row.get("format", row.get("kind")))
            raise line.fault("format", stated, f"{FORMAT!r}, as measure_kernels.py writes it")
        else:
            measured.header = row
    if not measured.header:
        raise FormatError(name, 1, "empty file", expected="the lines of measure_kernels.py")
    return measured


def _take(measured: Measured, line: _Line) -> None:
    """Add a line after the header. Raises FormatError."""
    row, kind = line.row, line.row.get("kind")
    if kind in SIZES:
        sizes = tuple(line.whole(key, LARGEST_SIZE * (8 if key == "bytes" else 1)) for key in SIZES[kind])
        words = tuple(line.word(kind, key) for key in WORDS[kind])
        measured.kernels[kind].append(Kernel(words, sizes, line.us(), row.get("launch_bound") is True))
    elif kind == "skipped":
        measured.skipped.append((shown(row.get("of"), 20), shown(row.get("why"), 160)))
    elif kind == "reference":
        measured.references.append(line.us())
    elif kind == "end":
        measured.complete = row.get("complete") is True
    elif kind not in IGNORED:
        raise line.fault("kind", shown(kind), f"one of {', '.join((*SIZES, *IGNORED))}")
