"""The Megatron rank trace: one rank's operations as columns, with a `path:line:` message for every fault.

Source of the grammar: docs/formats.md.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.errors import FormatError, nearest, shown
from sim_core.workloads.readers.fields import Unclosed
from sim_core.workloads.readers.lines import Warnings, text_lines
from sim_core.workloads.readers.trace_line import (
    KEYS,
    NEWER_KEYS,
    PART_KEYS,
    Extra,
    Texts,
    TraceLine,
    looks_like_trace,
    split_line,
)

__all__ = ["COMM_FUNCTIONS", "DTYPE_BYTES", "OPERATIONS", "STATES", "TraceText", "looks_like_trace", "read_trace_text"]

Shape = tuple[int, ...]

OPERATIONS: Final = (
    *("get_batch", "forward_step", "loss_func", "backward_step"),
    *("send_forward", "recv_forward", "send_backward", "recv_backward"),
    *("dp_allreduce", "ep_dp_allreduce", "exp_dp_allreduce", "ep_allreduce", "ddp_grad_comm", "optimizer_step"),
)
STATES: Final = ("warmup", "help", "steady", "cooldown", "finalize")
GROUPS: Final = ("tp", "cp", "dp", "pp", "ep", "exp", "ep_dp", "exp_dp")
COMM_FUNCTIONS: Final = (
    *("allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "reduce"),
    *("send", "recv", "gather", "scatter", "barrier"),
)
DTYPE_BYTES: Final[Mapping[str, int]] = {
    **{"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}
"""Bytes of one element, by torch's name of its type."""

_ABSENT: Final[Mapping[str | None, str]] = {None: "", "None": ""}
_STATE: Final[Mapping[str | None, str]] = {**_ABSENT, **{word: word for word in STATES}}
_DTYPE: Final[Mapping[str | None, str]] = {**_ABSENT, **{p + d: d for d in DTYPE_BYTES for p in ("", "torch.")}}
_OPERATION: Final = frozenset(OPERATIONS)
_GROUP: Final[Mapping[str | None, str]] = {**_ABSENT, **{word: word for word in GROUPS}}
_COMM_FUNCTION: Final = frozenset(COMM_FUNCTIONS)
_MOST_MS: Final = 2.0**53  # above, a float64 cannot represent every millisecond
_INT64_MAX: Final = 2**63 - 1
_NUMBER_LENGTH: Final = 64
_NEAR_MISSES: Final = 1000  # unknown keys to compare with the known ones; no real file has as many
_NAMED: Final = 20  # unknown words of one kind to name in warnings
_INTEGER = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_SIZES = re.compile(r"\[\s*(?:[0-9]{1,19}\s*(?:,\s*[0-9]{1,19}\s*){0,63})?\]\Z", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class TraceText:
    """The operations of one rank as n rows, and the m communication calls inside them, both in the order of the file.

    `rank` and `stage` are None if no line has them. Times are seconds; `end_s` is the clock at the END of an operation,
    NaN if absent. Other absent values: words "", shapes (), `micro_batch` -1. A `dtype` is a key of DTYPE_BYTES.
    `extra` and `sub_extra` hold fields with unknown keys, as texts.
    """

    path: str
    rank: int | None
    stage: int | None
    warnings: tuple[str, ...]
    truncated: bool  # the last line was truncated and is skipped
    name: tuple[str, ...]
    line: Ints  # [n]
    micro_batch: Ints  # [n]
    state: tuple[str, ...]
    duration_s: Floats  # [n]
    end_s: Floats  # [n]
    group: tuple[str, ...]
    shape: tuple[Shape, ...]
    dtype: tuple[str, ...]
    description: tuple[str, ...]
    extra: tuple[Extra, ...]
    sub_row: Ints  # [m] the row of the operation that contains the call
    sub_name: tuple[str, ...]
    sub_group: tuple[str, ...]
    sub_function: tuple[str, ...]
    sub_duration_s: Floats  # [m]
    sub_end_s: Floats  # [m]
    sub_shape: tuple[Shape, ...]
    sub_dtype: tuple[str, ...]
    sub_extra: tuple[Extra, ...]


def read_trace_text(path: str, data: bytes | None = None) -> TraceText:
    """Parse the file of one rank at `path` (or `data`, with `path` for messages). Raises FormatError, OSError."""
    if data is None:
        data = Path(path).read_bytes()
    lines = text_lines(path, data, expected="rank:N:operation(key=value,...)", may_be_cut=True)
    rows = _Rows(path)
    for line, text in lines[:-1]:
        rows.add(line, split_line(path, line, text.strip(), unended=False))
    line, text = lines[-1]
    try:
        last = split_line(path, line, text.strip(), unended=not data.endswith(b"\n"))
    except Unclosed:
        if len(lines) == 1:
            raise
        rows.warnings.add(line, "the last line is truncated: its operation is skipped")
        return rows.columns(truncated=True)
    rows.add(line, last)
    return rows.columns(truncated=False)


class _Columns:
    """The common columns of operations and sub-operations; lists, because a tuple per row would cost as much as the parsing."""

    def __init__(self) -> None:
        self.name: list[str] = []
        self.duration_ms: list[float] = []
        self.end_ms: list[float] = []
        self.group: list[str] = []
        self.shape: list[Shape] = []
        self.dtype: list[str] = []
        self.extra: list[Extra] = []


class _Rows:
    """The lines of a file so far, checked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.warnings = Warnings(path)
        self.rank: tuple[int, int] | None = None  # and the first line that has it
        self.stage: tuple[int, int] | None = None
        self.named: dict[tuple[str, str], str] = {}
        self.kinds = Counter[str]()
        self.near: dict[tuple[str, Texts], bool] = {}
        self.shapes: dict[str | None, Shape] = {None: (), "None": ()}
        self.rows = _Columns()
        self.parts = _Columns()
        self.line: list[int] = []
        self.micro_batch: list[int] = []
        self.state: list[str] = []
        self.description: list[str] = []
        self.part_row: list[int] = []
        self.part_function: list[str] = []

    def add(self, line: int, texts: TraceLine) -> None:
        """Check and store one line. Raises FormatError."""
        name, extra = texts.name, texts.extra
        stage, batch, state, duration, description, group, shape, dtype, timestamp = texts.values
        self._place(line, texts.prefix, texts.number, self._whole(line, "stage_id", stage))
        micro_batch = self._whole(line, "batch_id", batch)
        if name not in _OPERATION:
            self._unknown(line, "operation", name, OPERATIONS)
        if extra is not None:
            self._near_misses(line, extra, KEYS, texts.values)
        for k, (values, unknown) in enumerate(texts.parts, 1):
            self._part(line, k, values, unknown)
        self._keep(self.rows, line, 0, name, duration, timestamp, group, shape, dtype, extra)
        self.line.append(line)
        self.micro_batch.append(-1 if micro_batch is None else micro_batch)
        self.state.append(_STATE[state] if state in _STATE else self._word(line, f"mg_state of {name}", state, _STATE))
        self.description.append(_text(description))

    def _part(self, line: int, number: int, values: Texts, extra: Extra) -> None:
        source, duration, timestamp, shape, dtype, function, group, comm = values
        if comm not in _COMM_FUNCTION:
            self._comm_function(line, comm)
        if extra is not None:
            self._near_misses(line, extra, PART_KEYS, values)
        self._keep(self.parts, line, number, _text(comm), duration, timestamp, group, shape, dtype, extra)
        self.part_row.append(len(self.line))
        self.part_function.append(_text(function) or _text(source))

    def _keep(
        self,
        columns: _Columns,
        line: int,
        part: int,
        name: str,
        duration: str | None,
        timestamp: str | None,
        group: str | None,
        shape: str | None,
        dtype: str | None,
        extra: Extra,
    ) -> None:
        """Store the common columns of an operation (`part` 0) or sub-operation (from 1)."""
        columns.name.append(name)
        columns.duration_ms.append(
            self._no_duration(line, name, part, extra)
            if duration is None
            else self._milliseconds(line, "duration", name, part, duration, 0.0)
        )
        columns.end_ms.append(
            math.nan if timestamp in _ABSENT else self._milliseconds(line, "timestamp", name, part, str(timestamp), -_MOST_MS)
        )
        columns.group.append(_GROUP[group] if group in _GROUP else self._group(line, group))
        columns.shape.append(self.shapes[shape] if shape in self.shapes else self._shape(line, shape, _owner(name, part)))
        columns.dtype.append(
            _DTYPE[dtype] if dtype in _DTYPE else self._word(line, f"input__dtype of {_owner(name, part)}", dtype, _DTYPE)
        )
        columns.extra.append(extra)

    def columns(self, *, truncated: bool) -> TraceText:
        """The stored lines as columns."""
        rows, parts = self.rows, self.parts
        return TraceText(
            path=self.path,
            rank=self.rank and self.rank[0],
            stage=self.stage and self.stage[0],
            warnings=self.warnings.said(),
            truncated=truncated,
            name=tuple(rows.name),
            line=np.array(self.line, np.int64),
            micro_batch=np.array(self.micro_batch, np.int64),
            state=tuple(self.state),
            duration_s=np.array(rows.duration_ms, np.float64) / 1e3,
            end_s=np.array(rows.end_ms, np.float64) / 1e3,
            group=tuple(rows.group),
            shape=tuple(rows.shape),
            dtype=tuple(rows.dtype),
            description=tuple(self.description),
            extra=tuple(rows.extra),
            sub_row=np.array(self.part_row, np.int64),
            sub_name=tuple(parts.name),
            sub_group=tuple(parts.group),
            sub_function=tuple(self.part_function),
            sub_duration_s=np.array(parts.duration_ms, np.float64) / 1e3,
            sub_end_s=np.array(parts.end_ms, np.float64) / 1e3,
            sub_shape=tuple(parts.shape),
            sub_dtype=tuple(parts.dtype),
            sub_extra=tuple(parts.extra),
        )

    def _milliseconds(self, line: int, what: str, name: str, part: int, text: str, least: float) -> float:
        try:
            value = float(text[:_NUMBER_LENGTH])
        except ValueError:
            value = math.nan
        if len(text) > _NUMBER_LENGTH or not least <= value <= _MOST_MS or "_" in text or not text.isascii():
            length = f" in up to {_NUMBER_LENGTH} characters" if len(text) > _NUMBER_LENGTH else ""
            expected = f"milliseconds, {'-2^53' if least else '0'} to 2^53{length}"
            raise FormatError(self.path, line, f"{what} of {_owner(name, part)}", found=shown(text), expected=expected)
        return value

    def _no_duration(self, line: int, name: str, part: int, extra: Extra) -> float:
        """Raise FormatError for an operation without a duration."""
        near = difflib.get_close_matches("duration", extra or (), n=1, cutoff=0.7)
        found = f"the unknown key `{near[0]}`" if near else ""
        what = f"{_owner(name, part)} has no `duration`"
        raise FormatError(self.path, line, what, found=found, expected="duration=MILLISECONDS")

    def _whole(self, line: int, what: str, text: str | None) -> int | None:
        if text is None or text == "None":
            return None
        if not _INTEGER.match(text) or int(text) > _INT64_MAX:
            raise FormatError(self.path, line, what, found=shown(text), expected="a whole number of at least 0, below 2^63")
        return int(text)

    def _place(self, line: int, prefix: str, index: int, stage: int | None) -> None:
        """Check that the file has one rank in one stage."""
        if prefix == "rank":
            self.rank = self._one(line, "rank", self.rank, index)
        else:
            self.stage = self._one(line, "stage", self.stage, index)
        if stage is not None:
            self.stage = self._one(line, "stage_id", self.stage, stage)

    def _one(self, line: int, what: str, before: tuple[int, int] | None, value: int) -> tuple[int, int]:
        if before is not None and before[0] != value:
            expected = f"{before[0]} as on line {before[1]} (one file per rank)"
            raise FormatError(self.path, line, what, found=str(value), expected=expected)
        return before or (value, line)

    def _group(self, line: int, text: str | None) -> str:
        self._unknown(line, "group", str(text), GROUPS)
        return str(text)

    def _comm_function(self, line: int, text: str | None) -> None:
        if _text(text):
            self._unknown(line, "comm_func", _text(text), COMM_FUNCTIONS)
        else:
            self.warnings.add(line, "a sub-operation without `comm_func` has no name")

    def _shape(self, line: int, text: str | None, owner: str) -> Shape:
        """Sizes of `[2, 3]` or `[[2, 3]]`."""
        text = text or ""
        bare = text[1:-1].strip() if text.startswith("[[") and text.endswith("]]") else text
        if not _SIZES.match(bare):
            raise FormatError(
                self.path, line, f"input__shape of {owner}", found=shown(text), expected="[SIZE, ...], up to 64 sizes, or None"
            )
        sizes = tuple(int(size) for size in bare[1:-1].split(",") if size.strip())
        if math.prod(sizes) > _INT64_MAX:
            raise FormatError(
                self.path, line, f"input__shape of {owner}", found=shown(text), expected="fewer than 2^63 elements"
            )
        self.shapes[text] = sizes
        return sizes

    def _word(self, line: int, what: str, text: str | None, valid: Mapping[str | None, str]) -> str:
        """Raise FormatError for a word outside its closed list."""
        words = [word for key, word in valid.items() if key == word]
        hint = nearest((text or "").removeprefix("torch."), words)
        found = f"{shown(text)} ({hint})" if hint.startswith("nearest") else shown(text)
        raise FormatError(self.path, line, f"unknown {what}", found=found, expected=" ".join(words))

    def _unknown(self, line: int, what: str, text: str, valid: tuple[str, ...]) -> None:
        """Warn about a word outside its open list, which is kept; one warning per word."""
        if (what, text) not in self.named and self.kinds[what] < _NAMED:
            self.kinds[what] += 1
            self.named[what, text] = f"unknown {what} {shown(text)} is kept as it is ({nearest(text, valid)})"
        self.warnings.add(line, self.named.get((what, text), f"further unknown {what}s are kept as they are"))

    def _near_misses(self, line: int, extra: Mapping[str, str], keys: tuple[str, ...], values: Texts) -> None:
        """Warn about an unknown key that may be a misspelled known key, if the line lacks that key."""
        absent = tuple(key for key, value in zip(keys, values, strict=True) if value is None)
        for key in extra:
            near = self.near.get((key, absent))
            if near is None:
                if len(self.near) >= _NEAR_MISSES:
                    return
                near = bool(difflib.get_close_matches(key, absent, n=1, cutoff=0.85)) and key not in NEWER_KEYS
                self.near[key, absent] = near
            if near:
                self._unknown(line, "key", key, absent)


def _owner(name: str, part: int) -> str:
    if not part:
        return name
    return f"sub-operation {part} ({name})" if name else f"sub-operation {part}"


def _text(text: str | None) -> str:
    return "" if text is None or text == "None" else text
