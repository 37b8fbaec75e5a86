"""Times of a rank's operations and of the calls inside them, also where timestamps are missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.workloads.readers.trace_text import DTYPE_BYTES, TraceText

Floats = npt.NDArray[np.float64]

SENDS: Final = ("send_forward", "recv_forward", "send_backward", "recv_backward")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call inside an operation; `begin_s` counts from the start of the operation."""

    name: str
    group: str
    bytes: float
    begin_s: float
    duration_s: float


def ends_of(file: TraceText, rows: list[int]) -> Floats:
    """End of each row; a missing end (absent or 0) follows directly from the previous row, for the first rows from the next."""
    ends = file.end_s[rows].copy()
    unknown = ~(ends > 0)
    if unknown.all():
        return _in_line(file, rows)
    known = int(np.flatnonzero(~unknown)[0])
    for k in range(known - 1, -1, -1):
        ends[k] = ends[k + 1] - file.duration_s[rows[k + 1]]
    for k in range(known + 1, len(ends)):
        if unknown[k]:
            ends[k] = ends[k - 1] + file.duration_s[rows[k]]
    return ends


def _in_line(file: TraceText, rows: list[int]) -> Floats:
    """End of each row where none is known: one after another, an exchange once."""
    ends = np.zeros(len(rows))
    parts: list[str] = []
    for k, row in enumerate(rows):
        together = bool(parts) and is_fused(file, rows[k - len(parts)], row, parts)
        parts = [*parts, file.name[row]] if together else [file.name[row]] if file.name[row] in SENDS else []
        ends[k] = (ends[k - 1] if k else 0.0) + (0.0 if together else float(file.duration_s[row]))
    return ends


def is_fused(file: TraceText, row: int, after: int, parts: list[str]) -> bool:
    """Whether `after` is part of one exchange with `row`: same duration and timestamp, another pipeline message."""
    same = file.duration_s[row] == file.duration_s[after] and (
        file.end_s[row] == file.end_s[after] or (np.isnan(file.end_s[row]) and np.isnan(file.end_s[after]))
    )
    return bool(same) and file.name[after] in SENDS and file.name[after] not in parts


def calls_of(file: TraceText) -> dict[int, list[Call]]:
    """The communication calls inside each row, sorted by time."""
    rows: dict[int, list[int]] = {}
    for k, row in enumerate(file.sub_row.tolist()):
        rows.setdefault(row, []).append(k)
    begins = np.where(file.sub_end_s > 0, file.sub_end_s - file.sub_duration_s, np.nan)
    found: dict[int, list[Call]] = {}
    for row, inside in rows.items():
        start_s = _start_s(file, row, inside)
        for k in sorted(inside, key=lambda k: begins[k] if np.isfinite(begins[k]) else -np.inf):
            duration_s = float(file.sub_duration_s[k])
            begin_s = float(begins[k] - start_s)
            limit_s = max(float(file.duration_s[row]) - duration_s, 0.0)
            begin_s = min(max(begin_s, 0.0), limit_s) if np.isfinite(begin_s) else 0.0
            size = bytes_of(file.sub_shape[k], file.sub_dtype[k])
            call = Call(name=file.sub_name[k], group=file.sub_group[k], bytes=size, begin_s=begin_s, duration_s=duration_s)
            found.setdefault(row, []).append(call)
    return found


def _start_s(file: TraceText, row: int, inside: list[int]) -> float:
    """When a row began, on the clock of the calls inside it; where its own timestamp is missing, they lie in its middle."""
    if file.end_s[row] > 0:
        return float(file.end_s[row] - file.duration_s[row])
    ends = file.sub_end_s[inside]
    first_s, last_s = float(np.min(ends - file.sub_duration_s[inside])), float(np.max(ends))
    return (first_s + last_s - float(file.duration_s[row])) / 2


def bytes_of(shape: tuple[int, ...], dtype: str) -> float:
    """Bytes of a tensor; 4 an element where the type is unknown."""
    return float(np.prod(np.array(shape, np.float64))) * DTYPE_BYTES.get(dtype, 4) if shape else 0.0
