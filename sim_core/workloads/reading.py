"""Reads any input file as a `Workload`: one row for each format, how it is recognised and read, and which facts it takes."""

import glob
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from sim_core.documents import Words
from sim_core.errors import SpecError
from sim_core.places import open_input
from sim_core.workloads.facts import FACTS, Facts
from sim_core.workloads.op_table.text import looks_like_op_table, read_op_table_text
from sim_core.workloads.op_table.workload import workload_from_op_table
from sim_core.workloads.simai.checks import checks_of
from sim_core.workloads.simai.model import model_of, read_file
from sim_core.workloads.simai.records import read_with_records
from sim_core.workloads.simai.workload import workload_from_simai
from sim_core.workloads.stages.text import GZIP, looks_like_stages, read_stage_text
from sim_core.workloads.stages.workload import STAGES as STAGES, workload_from_stages
from sim_core.workloads.traces.files import HEAD_CHARS, read_job
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.line import looks_like_trace
from sim_core.workloads.traces.together import check_together, clock_warnings, placed
from sim_core.workloads.traces.workload import workload_from_job
from sim_core.workloads.workload import Workload

SIMAI, TRACE, OP_TABLE = "simai", "trace", "operator table"
Read = tuple[Workload, Words]
"""A workload, and warnings about its file."""


def read_workload(path: str, facts: Facts | None = None) -> Read:
    """The workload in the file(s) at `path`, and warnings about it. Raises SimError, OSError."""
    facts, kind = facts or Facts(), kind_of(path)
    found = next(each for each in FORMATS if each.kind == kind)
    for name in FACTS:
        if getattr(facts, name) is not None and name not in found.takes:
            kinds = ", ".join(other.kind for other in FORMATS if name in other.takes)
            raise SpecError(f"workload.{name}: the file is of kind {kind}; this key is for {kinds}")
    return found.read(path, facts)


def kind_of(path: str) -> str:
    """The kind of input at `path`: a folder or a glob means traces; a file is recognised by its first lines. Raises OSError."""
    if os.path.isdir(path) or (not os.path.exists(path) and glob.has_magic(path)):
        return TRACE
    head = _head(path)
    return next((each.kind for each in FORMATS if each.looks is not None and each.looks(head)), SIMAI)


def _head(path: str) -> str:
    """The first characters of a file, unpacked if it is gzip. Raises OSError."""
    with open_input(path) as file:
        data = file.read(HEAD_CHARS)
    if data[:2] == GZIP:
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, HEAD_CHARS)
        except zlib.error:
            return ""
    return data.decode("utf-8", "replace")


def _simai(path: str, facts: Facts) -> Read:
    """A text with the values of `facts.records`, its checks and the model it implies. Raises SpecError for a value that does
    not fit it."""
    records = facts.records or {}
    file = read_file(read_with_records(path, records, all_gpus=facts.all_gpus), facts)
    implied = model_of(file)
    told = replace(
        workload_from_simai(file),
        sequence=implied.sequence,
        experts=file.number or None,
        checks=checks_of(file),
        implied=implied,
        records=records,
    )
    return told, tuple(file.warnings)


def _trace(path: str, facts: Facts) -> Read:
    job = read_traces(path, facts)
    return workload_from_job(job, facts), job.warnings


class Format(NamedTuple):
    """A kind of input. `looks`: whether a file that begins so is one, None for what no other format recognises.

    `takes`: the facts that users may give. A SimAI text contains its own plan, one of the first generation all but `all_gpus`.
    """

    kind: str
    looks: Callable[[str], bool] | None
    read: Callable[[str, Facts], Read]
    takes: Words


_COMMON = ("micro_batch", "sequence", "measured_on")
_OF_A_JOB = ("tp", "pp", "vpp", "ep", "all_gpus", "layers", "experts", "step")
FORMATS = (
    Format(SIMAI, None, _simai, (*_COMMON, "ffn", "all_gpus", "experts", "heads", "records")),
    Format(TRACE, looks_like_trace, _trace, _COMMON + _OF_A_JOB),
    Format(
        OP_TABLE, looks_like_op_table, lambda path, facts: workload_from_op_table(read_op_table_text(path), facts),
        (*_COMMON, "all_gpus", "repeat", "bytes_per_element"),
    ),
    Format(
        STAGES, looks_like_stages,
        lambda path, facts: (
            workload_from_stages(read_stage_text(path), layers=facts.layers, micro_batch=facts.micro_batch), ()
        ),
        ("micro_batch", "layers"),
    ),
)  # fmt: skip


def read_traces(path: str, facts: Facts | None = None) -> Job:
    """The job with the traces at `path`. Raises SimError, OSError."""
    job = placed(read_job(path, facts or Facts()))
    check_together(job)
    return job._replace(warnings=(*job.warnings, *clock_warnings(job)))
