"""The file of measure_kernels.py, one JSON object a line: read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim_core import FormatError, parse_json, shown, whole_number

FORMAT: Final = "sweep kernels 1"
LARGEST_FILE: Final = 64 * 2**20
LARGEST_SIZE: Final = 2**31 - 1
LARGEST_US: Final = 1e9
DTYPES: Final = ("bf16", "fp16", "fp8")
PHASES: Final = {
    "gemm": ("forward", "input_gradient", "weight_gradient"),
    "attention": ("forward", "backward"),
}
SIZES: Final = {"gemm": ("m", "n", "k"), "attention": ("heads", "sequence", "head_dim"), "memory": ("bytes",)}
WORDS: Final = {"gemm": ("dtype", "phase"), "attention": ("dtype", "phase", "backend"), "memory": ("name",)}
IGNORED: Final = ("skipped", "conditions", "reference", "end")
LONGEST_WORD: Final = 200


class Kernel(NamedTuple):
    """A kernel: words and sizes as in WORDS and SIZES, the median of its times, and whether its launch took as long."""

    words: tuple[str, ...]
    sizes: tuple[int, ...]
    us: float
    launch_bound: bool


class Measured(NamedTuple):
    """What a file holds."""

    path: str
    header: Mapping[str, Any]
    kernels: Mapping[str, list[Kernel]]  # by kind
    skipped: list[tuple[str, str]]  # kind and reason
    conditions: list[Mapping[str, Any]]
    references: list[float]  # us of the same large GEMM, at the start and at the end
    complete: bool

    def text(self, key: str) -> str:
        """A word of the header; empty where it has none."""
        value = self.header.get(key)
        return "" if value is None else " ".join(str(value).split())[:LONGEST_WORD]


def read_kernels(path: Path) -> Measured:
    """A file of the script. Raises FormatError (`path:line: what`). A last line that was cut off is left out."""
    name = str(path)
    if path.stat().st_size > LARGEST_FILE:
        raise FormatError(name, 1, "file size", found=f"{path.stat().st_size:,} bytes", expected=f"at most {LARGEST_FILE:,}")
    text = path.read_bytes().decode("utf-8", errors="replace")
    whole = text.endswith("\n")
    lines = text.splitlines()
    found = Measured(name, {}, {kind: [] for kind in SIZES}, [], [], [], complete=False)
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == len(lines) and not whole):
            continue
        row = _object(name, number, line)
        if not found.header:
            found = found._replace(header=_header(name, number, row))
            continue
        kind = row.get("kind")
        if kind in SIZES:
            found.kernels[str(kind)].append(_kernel(name, number, str(kind), row))
        elif kind == "skipped":
            found.skipped.append((shown(row.get("of"), 20), shown(row.get("why"), 160)))
        elif kind == "conditions":
            found.conditions.append(row)
        elif kind == "reference":
            found.references.append(_us(name, number, row))
        elif kind == "end":
            found = found._replace(complete=row.get("complete") is True)
        else:
            expected = ", ".join((*SIZES, *IGNORED))
            raise FormatError(name, number, "kind", found=shown(kind), expected=f"one of {expected}")
    if not found.header:
        raise FormatError(name, 1, "empty file", expected="the lines of measure_kernels.py")
    return found


def _object(name: str, number: int, line: str) -> Mapping[str, Any]:
    row, _ = parse_json(line, name, number)
    if not isinstance(row, dict):
        raise FormatError(name, number, "not a JSON object", found=shown(line), expected="a line of measure_kernels.py")
    return row


def _header(name: str, number: int, row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row.get("kind") != "header" or row.get("format") != FORMAT:
        found = shown(row.get("format", row.get("kind")))
        raise FormatError(name, number, "format", found=found, expected=f"{FORMAT!r}, as measure_kernels.py writes it")
    return row


def _kernel(name: str, number: int, kind: str, row: Mapping[str, Any]) -> Kernel:
    for key in SIZES[kind]:
        value = row.get(key)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not 0 < value <= LARGEST_SIZE * (8 if key == "bytes" else 1)
        ):
            raise FormatError(name, number, key, found=shown(value), expected=whole_number(1, LARGEST_SIZE))
    for key in WORDS[kind]:
        value, valid = row.get(key), DTYPES if key == "dtype" else PHASES[kind] if key == "phase" else None
        if not isinstance(value, str) or len(value) > LONGEST_WORD or (valid is not None and value not in valid):
            raise FormatError(name, number, key, found=shown(value), expected=", ".join(valid) if valid else "a name")
    words, sizes = tuple(row[key] for key in WORDS[kind]), tuple(row[key] for key in SIZES[kind])
    return Kernel(words, sizes, _us(name, number, row), row.get("launch_bound") is True)


def _us(name: str, number: int, row: Mapping[str, Any]) -> float:
    us = row.get("us")
    if not isinstance(us, int | float) or isinstance(us, bool) or not math.isfinite(us) or not 0 < us < LARGEST_US:
        raise FormatError(name, number, "us", found=shown(us), expected=f"microseconds above 0 and below {LARGEST_US:g}")
    return float(us)
