"""Reads any input file as a `Workload`: recognises its kind, and which facts it takes."""

import glob
import os
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from sim_core.errors import SpecError
from sim_core.workloads.facts import Facts
from sim_core.workloads.op_table.text import looks_like_op_table, read_op_table_text
from sim_core.workloads.op_table.workload import workload_from_op_table
from sim_core.workloads.simai.checks import read_checked
from sim_core.workloads.simai.suggestion import Suggestion, suggested_model
from sim_core.workloads.simai.text import read_simai_text
from sim_core.workloads.stages.text import GZIP, looks_like_stages, read_stage_text
from sim_core.workloads.stages.workload import STAGES as STAGES, workload_from_stages
from sim_core.workloads.traces.files import HEAD_CHARS, read_job
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.text import looks_like_trace
from sim_core.workloads.traces.together import check_together, clock_warnings, placed
from sim_core.workloads.traces.workload import workload_from_job
from sim_core.workloads.workload import Workload

SIMAI, TRACE, OP_TABLE = "simai", "trace", "operator table"


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


def read_workload(path: str, facts: Facts | None = None) -> tuple[Workload, tuple[str, ...]]:
    """The workload in the file(s) at `path`, and warnings about it. Raises SimError, OSError."""
    facts = facts or Facts()
    kind = kind_of(path)
    _check(kind, facts)
    if kind == TRACE:
        job = read_traces(path, facts)
        return workload_from_job(job, facts), job.warnings
    if kind == OP_TABLE:
        return workload_from_op_table(read_op_table_text(path), facts)
    if kind == STAGES:
        return workload_from_stages(read_stage_text(path), layers=facts.layers, micro_batch=facts.micro_batch), ()
    return read_checked(path, facts)


def suggest_model(path: str, facts: Facts | None = None) -> Suggestion:
    """The model in numbers that a SimAI text suggests. Raises SimError, OSError."""
    facts = facts or Facts()
    kind = kind_of(path)
    if kind != SIMAI:
        raise SpecError(f"{path}: found a workload of kind {kind}; only SimAI texts suggest a model")
    _check(kind, facts)
    return suggested_model(read_simai_text(path, all_gpus=facts.all_gpus), facts)


def read_traces(path: str, facts: Facts | None = None) -> Job:
    """The job with the traces at `path`. Raises SimError, OSError."""
    job = placed(read_job(path, facts or Facts()))
    check_together(job)
    return replace(job, warnings=(*job.warnings, *clock_warnings(job)))


def _check(kind: str, facts: Facts) -> None:
    for field in fields(facts):
        if getattr(facts, field.name) is not None and field.name not in TAKEN[kind]:
            kinds = ", ".join(other for other, taken in TAKEN.items() if field.name in taken)
            raise SpecError(f"workload.{field.name}: the file is of kind {kind}; this key is for {kinds}")
