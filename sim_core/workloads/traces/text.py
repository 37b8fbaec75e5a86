"""The Megatron rank trace: one rank's operations as rows, with a `path:line:` message for every fault.

Source of the grammar: docs/formats.md.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from sim_core.documents import Words
from sim_core.errors import FormatError, nearest, shown, shown_near
from sim_core.places import read_input
from sim_core.workloads.lines import Warnings, text_lines
from sim_core.workloads.traces.line import (
    KEYS,
    NEWER_KEYS,
    PART_KEYS,
    Extra,
    Texts,
    TraceLine,
    Unclosed,
    split_line,
)

Shape = tuple[int, ...]

BLOCKS = ("forward_step", "backward_step")
SENDS = ("send_forward", "recv_forward", "send_backward", "recv_backward")
EXPERT_REDUCTIONS = ("ep_dp_allreduce", "exp_dp_allreduce")
EMBEDDING_REDUCTION = "ep_allreduce"
OPTIMIZER = "optimizer_step"
OPERATIONS = (
    *("get_batch", BLOCKS[0], "loss_func", BLOCKS[1], *SENDS),
    *("dp_allreduce", *EXPERT_REDUCTIONS, EMBEDDING_REDUCTION, "ddp_grad_comm", OPTIMIZER),
)
STATES = ("warmup", "help", "steady", "cooldown", "finalize")
GROUPS = ("tp", "cp", "dp", "pp", "ep", "exp", "ep_dp", "exp_dp")
COMM_FUNCTIONS = (
    *("allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "reduce"),
    *("send", "recv", "gather", "scatter", "barrier"),
)
DTYPE_BYTES: Mapping[str, int] = {
    **{"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}
"""Bytes of one element, by torch's name of its type."""

_Words = Mapping[str | None, str]
"""Words of the file, each with what it means."""
_ABSENT: _Words = {None: "", "None": ""}
_STATE: _Words = {**_ABSENT, **{word: word for word in STATES}}
_DTYPE: _Words = {**_ABSENT, **{p + d: d for d in DTYPE_BYTES for p in ("", "torch.")}}
_GROUP: _Words = {**_ABSENT, **{word: word for word in GROUPS}}
_MOST_MS = 2.0**53  # above, a float64 cannot represent every millisecond
_INT64_MAX = 2**63 - 1
_NUMBER_LENGTH = 64
_NEAR_MISSES = 1000  # unknown keys to compare with the known ones; no real file has as many
_NAMED = 20  # unknown words of one kind to name in warnings
_INTEGER = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_SIZES = re.compile(r"\[\s*(?:[0-9]{1,19}\s*(?:,\s*[0-9]{1,19}\s*){0,63})?\]\Z", re.ASCII)


class TraceCall(NamedTuple):
    """A communication call inside an operation; absent values as in `TraceRow`."""

    name: str
    duration_s: float
    end_s: float
    group: str
    shape: Shape
    dtype: str
    extra: Extra


class TraceRow(NamedTuple):
    """One line: an operation, with the calls inside it in the order of the line.

    Times are seconds; `end_s` is the clock at its END, NaN if absent. Other absent values: words "", shapes (), `micro_batch`
    -1. A `dtype` is a key of DTYPE_BYTES. `extra` holds fields with unknown keys, as texts.
    """

    line: int
    name: str
    micro_batch: int
    state: str
    description: str
    calls: tuple[TraceCall, ...]
    duration_s: float
    end_s: float
    group: str
    shape: Shape
    dtype: str
    extra: Extra


class TraceText(NamedTuple):
    """The operations of one rank in the order of the file; `rank` is None, `stage` -1 if no line has it."""

    path: str
    rank: int | None
    stage: int
    warnings: Words
    truncated: bool  # the last line was truncated and is skipped
    rows: tuple[TraceRow, ...]

    @property
    def names(self) -> list[str]:
        """The names of the operations."""
        return [row.name for row in self.rows]

    @property
    def line(self) -> int:
        """The first line."""
        return self.rows[0].line


def read_trace_text(path: str, data: bytes | None = None) -> TraceText:
    """Parse the file of one rank at `path` (or `data`, with `path` for messages). Raises FormatError, OSError."""
    if data is None:
        data = read_input(path)
    lines = text_lines(path, data, expected="rank:N:operation(key=value,...)", may_be_cut=True)
    reader = _Reader(path)
    rows, truncated = [], False
    for line, text in lines:
        last = line == lines[-1][0]
        try:
            rows.append(reader.row(line, split_line((path, line), text.strip(), unended=last and not data.endswith(b"\n"))))
        except Unclosed:
            if not last or len(lines) == 1:
                raise
            truncated = True
            reader.warnings.add(line, "the last line is truncated: its operation is skipped")
    return TraceText(
        path=path,
        rank=reader.places.get("rank", (None, 0))[0],
        stage=reader.places.get("stage", (-1, 0))[0],
        warnings=reader.warnings.said(),
        truncated=truncated,
        rows=tuple(rows),
    )


class _Reader:
    """Checks the lines of a file, one after another."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line = 0
        self.owner = ("", 0)  # the operation, or one of its sub-operations, with its number from 1
        self.warnings = Warnings(path)
        self.places: dict[str, tuple[int, int]] = {}  # rank and stage, each with the first line that has it
        self.named: dict[tuple[str, str], str] = {}
        self.kinds = Counter[str]()
        self.near: dict[tuple[str, Texts], bool] = {}
        self.shapes: dict[str | None, Shape] = {None: (), "None": ()}

    def row(self, line: int, texts: TraceLine) -> TraceRow:
        """The checked values of a line. Raises FormatError."""
        self.line = line
        name, extra = texts.name, texts.extra
        stage, batch, state, duration, description, group, shape, dtype, timestamp = texts.values
        self._place(texts.prefix, texts.number)
        if (stage_id := self._whole("stage_id", stage)) >= 0:
            self._place("stage_id", stage_id)
        micro_batch = self._whole("batch_id", batch)
        if name not in OPERATIONS:
            self._unknown("operation", name, OPERATIONS)
        if extra is not None:
            self._near_misses(extra, KEYS, texts.values)
        calls = tuple(self._call(k, values, unknown) for k, (values, unknown) in enumerate(texts.parts, 1))
        common = self._common((name, 0), (duration, timestamp, group, shape, dtype), extra)
        word = _STATE[state] if state in _STATE else self._word("mg_state", state, _STATE)
        return TraceRow(line, name, micro_batch, word, _text(description), calls, *common)

    def _call(self, number: int, values: Texts, extra: Extra) -> TraceCall:
        _, duration, timestamp, shape, dtype, _, group, comm = values
        name = _text(comm)
        if not name:
            self.warnings.add(self.line, "a sub-operation without `comm_func` has no name")
        elif name not in COMM_FUNCTIONS:
            self._unknown("comm_func", name, COMM_FUNCTIONS)
        if extra is not None:
            self._near_misses(extra, PART_KEYS, values)
        return TraceCall(name, *self._common((name, number), (duration, timestamp, group, shape, dtype), extra))

    def _common(self, owner: tuple[str, int], texts: Texts, extra: Extra) -> tuple[float, float, str, Shape, str, Extra]:
        """The last values of an operation or sub-operation."""
        self.owner = owner
        duration, timestamp, group, shape, dtype = texts
        if duration is None:
            near = difflib.get_close_matches("duration", extra or (), n=1, cutoff=0.7)
            found = f"the unknown key `{near[0]}`" if near else ""
            raise self._fail(f"{self._of()} has no `duration`", found, "duration=MILLISECONDS")
        duration_s = self._seconds("duration", duration, 0.0)
        end_s = math.nan if timestamp in _ABSENT else self._seconds("timestamp", str(timestamp), -_MOST_MS)
        if group not in _GROUP:
            self._unknown("group", str(group), GROUPS)
        sizes = self.shapes[shape] if shape in self.shapes else self._shape(str(shape))
        word = _DTYPE[dtype] if dtype in _DTYPE else self._word("input__dtype", dtype, _DTYPE)
        return duration_s, end_s, _text(group), sizes, word, extra

    def _of(self) -> str:
        name, part = self.owner
        return f"sub-operation {part}" + f" ({name})" * bool(name) if part else name

    def _fail(self, what: str, found: str, expected: str) -> FormatError:
        return FormatError(self.path, self.line, what, found, expected)

    def _seconds(self, what: str, text: str, least: float) -> float:
        """The seconds of a number of milliseconds."""
        try:
            value = float(text[:_NUMBER_LENGTH])
        except ValueError:
            value = math.nan
        if len(text) > _NUMBER_LENGTH or not least <= value <= _MOST_MS or "_" in text or not text.isascii():
            length = f" in up to {_NUMBER_LENGTH} characters" if len(text) > _NUMBER_LENGTH else ""
            expected = f"milliseconds, {'-2^53' if least else '0'} to 2^53{length}"
            raise self._fail(f"{what} of {self._of()}", shown(text), expected)
        return value / 1e3

    def _whole(self, what: str, text: str | None) -> int:
        """A whole number; -1 where there is none."""
        if text is None or text == "None":
            return -1
        if not _INTEGER.match(text) or int(text) > _INT64_MAX:
            raise self._fail(what, shown(text), "a whole number of at least 0, below 2^63")
        return int(text)

    def _place(self, what: str, value: int) -> None:
        """Check that the file has one rank in one stage."""
        before, line = self.places.setdefault(what.removesuffix("_id"), (value, self.line))
        if before != value:
            raise self._fail(what, str(value), f"{before} as on line {line} (one file per rank)")

    def _shape(self, text: str) -> Shape:
        """Sizes of `[2, 3]` or `[[2, 3]]`."""
        bare = text[1:-1].strip() if text.startswith("[[") and text.endswith("]]") else text
        what, found = f"input__shape of {self._of()}", shown(text)
        if not _SIZES.match(bare):
            raise self._fail(what, found, "[SIZE, ...], up to 64 sizes, or None")
        sizes = tuple(int(size) for size in bare[1:-1].split(",") if size.strip())
        if math.prod(sizes) > _INT64_MAX:
            raise self._fail(what, found, "fewer than 2^63 elements")
        self.shapes[text] = sizes
        return sizes

    def _word(self, what: str, text: str | None, valid: _Words) -> str:
        """Raise FormatError for a word outside its closed list."""
        words = [word for key, word in valid.items() if key == word]
        found = shown_near(str(text), str(text).removeprefix("torch."), words)
        raise self._fail(f"unknown {what} of {self._of()}", found, " ".join(words))

    def _unknown(self, what: str, text: str, valid: Words) -> None:
        """Warn about a word outside its open list, which is kept; one warning per word."""
        if (what, text) not in self.named and self.kinds[what] < _NAMED:
            self.kinds[what] += 1
            self.named[what, text] = f"unknown {what} {shown(text)} is kept as it is ({nearest(text, valid)})"
        self.warnings.add(self.line, self.named.get((what, text), f"further unknown {what}s are kept as they are"))

    def _near_misses(self, extra: Mapping[str, str], keys: Words, values: Texts) -> None:
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
                self._unknown("key", key, absent)


def _text(text: str | None) -> str:
    return "" if text is None or text == "None" else text
