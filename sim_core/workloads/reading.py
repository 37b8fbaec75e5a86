"""Reads any input file as a `Workload`: recognises its kind, and adds the facts that the user gives."""

import glob
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from sim_core.errors import SpecError, shown
from sim_core.limits import LARGEST, whole_number
from sim_core.workloads.readers.op_table import MAX_LAYERS, Repeat, workload_from_op_table
from sim_core.workloads.readers.op_table_text import looks_like_op_table, read_op_table_text
from sim_core.workloads.readers.simai_facts import Given
from sim_core.workloads.readers.simai_text import read_simai_text
from sim_core.workloads.readers.stage_durations import STAGES as STAGES
from sim_core.workloads.readers.stage_durations import workload_from_stages
from sim_core.workloads.readers.stage_text import GZIP, looks_like_stages, read_stage_text
from sim_core.workloads.readers.trace_text import looks_like_trace
from sim_core.workloads.simai_repair.checks import read_checked
from sim_core.workloads.simai_repair.model import Suggestion, suggested_model
from sim_core.workloads.traces.job import HEAD_CHARS, Job, read_job, trace_paths
from sim_core.workloads.traces.together import check_together, clock_warnings, placed
from sim_core.workloads.traces.workload import workload_from_job
from sim_core.workloads.workload import Workload

SIMAI, TRACE, OP_TABLE = "simai", "trace", "operator table"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a workload that its file does not hold; None: unknown.

    `micro_batch` (sequences) and `sequence` (tokens) are those of the recording, `measured_on` is the hardware preset of its
    compute times; tp .. layers are the plan of the recording, for kinds of file without it; `ffn` is the width of the MLP,
    `experts` are those of a layer, `heads` those of attention. `records`: values in place of the file's, `{name: value}`
    (docs/aicb.md).
    `step` is one of several in a trace, counted from 1. Raises SpecError for a value that a fact cannot have.
    """

    micro_batch: int | None = None
    sequence: int | None = None
    measured_on: str | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    all_gpus: int | None = None
    layers: int | None = None
    ffn: int | None = None
    experts: int | None = None
    heads: int | None = None
    repeat: Repeat | None = None
    bytes_per_element: int | None = None
    records: Mapping[str, object] | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not _fits(field.name, value):
                expected = _EXPECTED.get(field.name) or whole_number(1, _MOST[field.name])
                raise SpecError(f"workload.{field.name}: found {shown(value)}, expected {expected}")


_WIDTHS: Final = (1, 2, 4, 8)
_EXPECTED: Final = {
    "measured_on": "the name of a hardware preset",
    "repeat": "a Repeat",
    "records": "a mapping of names to values",
    "bytes_per_element": "1, 2, 4 or 8",
}
_MOST: Final = {**LARGEST, "layers": MAX_LAYERS}


def _fits(name: str, value: object) -> bool:
    """Whether a fact may have this value."""
    if name == "measured_on":
        return isinstance(value, str)
    if name == "repeat":
        return isinstance(value, Repeat)
    if name == "records":
        return isinstance(value, Mapping)
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    if name == "bytes_per_element":
        return value in _WIDTHS
    return 1 <= value <= _MOST[name]


_COMMON: Final = ("micro_batch", "sequence", "measured_on")
TAKEN: Final = {
    SIMAI: (*_COMMON, "ffn", "all_gpus", "experts", "heads", "records"),
    TRACE: (*_COMMON, "tp", "pp", "vpp", "ep", "all_gpus", "layers", "experts", "step"),
    OP_TABLE: (*_COMMON, "all_gpus", "repeat", "bytes_per_element"),
    STAGES: ("micro_batch", "layers"),
}
"""The facts that each kind takes; a SimAI text contains its own plan, one of the first generation all but `all_gpus`."""


def kind_of(path: str) -> str:
    """The kind of input at `path`: a folder or a glob means traces; a file is recognised by its first lines. Raises OSError."""
    if os.path.isdir(path) or (not os.path.exists(path) and glob.has_magic(path)):
        return TRACE
    head = _head(path)
    if looks_like_trace(head):
        return TRACE
    if looks_like_stages(head):
        return STAGES
    return OP_TABLE if looks_like_op_table(head) else SIMAI


def _head(path: str) -> str:
    """The first characters of a file, unpacked if it is gzip. Raises OSError."""
    with Path(path).open("rb") as file:
        data = file.read(HEAD_CHARS)
    if data[:2] == GZIP:
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, HEAD_CHARS)
        except zlib.error:
            return ""
    return data.decode("utf-8", "replace")


def input_paths(path: str) -> list[str]:
    """The files behind a path: itself, or the traces in a folder or of a glob. Raises FormatError, OSError."""
    return trace_paths(path)


def read_workload(path: str, facts: Facts | None = None) -> tuple[Workload, tuple[str, ...]]:
    """The workload in the file(s) at `path`, and warnings about it. Raises SimError, OSError."""
    facts = facts or Facts()
    kind = kind_of(path)
    _check(kind, facts)
    if kind == TRACE:
        job = read_traces(path, facts)
        workload = workload_from_job(job, micro_batch=facts.micro_batch, sequence=facts.sequence, measured_on=facts.measured_on)
        return workload, job.warnings
    if kind == OP_TABLE:
        return workload_from_op_table(
            read_op_table_text(path),
            all_gpus=facts.all_gpus or 1,
            micro_batch=facts.micro_batch,
            repeat=facts.repeat,
            bytes_per_element=facts.bytes_per_element,
            sequence=facts.sequence,
            measured_on=facts.measured_on,
        )
    if kind == STAGES:
        return workload_from_stages(read_stage_text(path), layers=facts.layers, micro_batch=facts.micro_batch), ()
    records = facts.records or {}
    return read_checked(path, _given(facts), records, all_gpus=facts.all_gpus, measured_on=facts.measured_on)


def suggest_model(path: str, facts: Facts | None = None) -> Suggestion:
    """The model in numbers that a SimAI text suggests. Raises SimError, OSError."""
    facts = facts or Facts()
    kind = kind_of(path)
    if kind != SIMAI:
        raise SpecError(f"{path}: found a workload of kind {kind}; only SimAI texts suggest a model")
    _check(kind, facts)
    return suggested_model(read_simai_text(path, all_gpus=facts.all_gpus), _given(facts))


def _given(facts: Facts) -> Given:
    """The facts from which sizes of a SimAI text follow."""
    return Given(facts.sequence, facts.micro_batch, facts.ffn, facts.experts, facts.heads)


def read_traces(path: str, facts: Facts | None = None) -> Job:
    """The job with the traces at `path`. Raises SimError, OSError."""
    facts = facts or Facts()
    job = placed(
        read_job(path, {name: getattr(facts, name) for name in TAKEN[TRACE] if name not in ("measured_on", "sequence")})
    )
    check_together(job)
    return replace(job, warnings=(*job.warnings, *clock_warnings(job)))


def _check(kind: str, facts: Facts) -> None:
    for field in fields(facts):
        if getattr(facts, field.name) is not None and field.name not in TAKEN[kind]:
            kinds = ", ".join(other for other, taken in TAKEN.items() if field.name in taken)
            raise SpecError(f"workload.{field.name}: the file is of kind {kind}; this key is for {kinds}")
