"""Whether the files of a job belong together: one model, one batch, one step."""

from __future__ import annotations

from collections.abc import Iterator

from sim_core.errors import FormatError
from sim_core.units import short
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job, Rank
from sim_core.workloads.traces.meeting import meetings
from sim_core.workloads.traces.stage import BLOCKS

SHARED = ("dp_allreduce", *EXPERT_REDUCTIONS)
"""Reductions whose members hold the same parameters."""


def check_together(job: Job) -> None:
    """Raise FormatError for two files that contradict each other."""
    for one, other, line, what, found, expected in _contradictions(job):
        raise FormatError(one.path, line, what, found=found, expected=f"{expected}, as in {other.path}")


def _contradictions(job: Job) -> Iterator[tuple[Rank, Rank, int, str, str, str]]:
    whole = [rank for rank in job.ranks if len(rank.named(BLOCKS[0])) == len(rank.named(BLOCKS[1]))]
    for rank in whole[1:]:
        first, own = len(whole[0].named(BLOCKS[0])), len(rank.named(BLOCKS[0]))
        if first != own:
            yield rank, whole[0], rank.operations[0].line, "number of forwards", str(own), str(first)
    for meeting in meetings(job):
        if len(meeting.members) < 2 or not (meeting.is_message or meeting.key[0] in SHARED):
            continue
        number, k, _ = meeting.members[0]
        one, first_op = job.ranks[number], job.ranks[number].operations[k]
        for other, at, _ in meeting.members[1:]:
            operation = job.ranks[other].operations[at]
            if min(first_op.bytes, operation.bytes) > 0 and first_op.bytes != operation.bytes:
                found, expected = short(operation.bytes, "B"), short(first_op.bytes, "B")
                yield job.ranks[other], one, operation.line, f"size of {operation.name}", found, expected
