"""Whether the files of a job belong together: one model, one batch, one step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from sim_core.errors import FormatError
from sim_core.units import short
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job, Rank
from sim_core.workloads.traces.meeting import meetings
from sim_core.workloads.traces.stage import BLOCKS

SHARED = ("dp_allreduce", *EXPERT_REDUCTIONS)
"""Reductions whose members hold the same parameters."""
APART_S = 60.0
"""Ranks of a job end, and name their files, nearly at once: within 1 s in 16 recorded jobs."""
_STAMP = re.compile(r"_(\d{14})(?=\.|$)")


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


def clock_warnings(job: Job) -> Iterator[str]:
    """Doubts whether files of equal sizes are of one job: by the times in their names; by the clock of a host, which has
    consecutive ranks. Profiles of ranks by themselves are made one after another."""
    if job.alone:
        return
    named = [(stamp, rank) for rank in job.ranks if (stamp := _named_at(rank)) is not None]
    if named:
        (first, one), (last, other) = (pick(named, key=lambda pair: pair[0]) for pick in (min, max))
        if (last - first).total_seconds() > APART_S:
            yield f"{other.path}:1: named {last - first} (h:min:s) later than {one.path}: the files of two jobs?"
            return
    ranks = [rank for rank in job.ranks if np.isfinite(rank.began_s)]
    for before, rank, after in zip(ranks, ranks[1:], ranks[2:], strict=False):
        if _together(before, after) and not _together(before, rank):
            apart = short(abs(rank.began_s - before.began_s), "s")
            yield (
                f"{rank.path}:1: begins {apart} from {before.path}, but ranks {before.rank} and {after.rank} run at the same "
                "time: the files of two jobs?"
            )
            return


def _named_at(rank: Rank) -> datetime | None:
    """The time at the end of a file's name; None where there is none."""
    found = _STAMP.search(os.path.basename(rank.path))
    try:
        return datetime.strptime(found[1], "%Y%m%d%H%M%S") if found else None
    except ValueError:
        return None


def _together(one: Rank, other: Rank) -> bool:
    return one.began_s < other.began_s + other.span_s and other.began_s < one.began_s + one.span_s
