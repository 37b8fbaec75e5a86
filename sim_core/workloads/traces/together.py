"""Files of a job together: whether they are of one model, batch and step; calls without timestamps, placed as in the others."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import numpy as np

from sim_core.errors import FormatError
from sim_core.units import short
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.meeting import meetings
from sim_core.workloads.traces.stages import TOGETHER
from sim_core.workloads.traces.text import BLOCKS


def placed(job: Job) -> Job:
    """The job with the calls of unstamped ranks where those of stamped ones are.

    Between calls as on a rank with as many tokens, of the same place in its expert group; before the first and after the last
    as on a rank of the same stage, if there is one. A job without any stamps stays as it is.
    """
    stamped = [rank for rank in job.ranks if not _is_unplaced(rank)]
    if not stamped or len(stamped) == len(job.ranks):
        return job

    def like_others(rank: Rank) -> Rank:
        def differs(other: Rank) -> tuple[bool, bool]:
            places = {each.index // job.layout.tp % job.layout.ep for each in (rank, other)}
            return len(places) > 1, other.stage != rank.stage

        within, around = min(stamped, key=differs), min(stamped, key=lambda other: differs(other)[::-1])
        names = {operation.name for operation in rank.operations}
        turns = {name: zip(within.named(name), around.named(name), strict=False) for name in names}
        return replace(rank, operations=tuple(_placed(o, *next(turns[o.name], (o, o))) for o in rank.operations))

    return job._replace(ranks=tuple(like_others(rank) if _is_unplaced(rank) else rank for rank in job.ranks))


def _is_unplaced(rank: Rank) -> bool:
    """Whether all calls of operations with several of them begin at once."""
    several = [operation.calls for operation in rank.operations if len(operation.calls) > 1]
    return bool(several) and not any(call.begin_s for calls in several for call in calls)


def _placed(operation: Operation, within: Operation, around: Operation) -> Operation:
    """The operation with its compute between calls in the parts in which others have it."""
    if not len(operation.calls) == len(within.calls) == len(around.calls):
        within = around = operation
    inner, outer = _between(within), _between(around)
    parts = [outer[0], *inner[1:-1], outer[-1]]
    compute_s = max(operation.duration_s - sum(call.duration_s for call in operation.calls), 0.0)
    calls, at_s = [], 0.0
    for call, part in zip(operation.calls, parts, strict=False):
        at_s += compute_s * part / (sum(parts) or 1.0)
        calls.append(call._replace(begin_s=at_s))
        at_s += call.duration_s
    return operation._replace(calls=tuple(calls))


def _between(operation: Operation) -> list[float]:
    """Seconds of compute before, between and after the calls."""
    ends = [0.0, *(call.end_s for call in operation.calls)]
    begins = [*(call.begin_s for call in operation.calls), operation.duration_s]
    return [max(begin_s - end_s, 0.0) for begin_s, end_s in zip(begins, ends, strict=True)]


APART_S = 60.0
"""Ranks of a job end, and name their files, nearly at once: within 1 s in 16 recorded jobs."""
_STAMP = re.compile(r"_(\d{14})(?=\.|$)")


def check_together(job: Job) -> None:
    """Raise FormatError for two files that contradict each other."""
    whole = [rank for rank in job.ranks if len(rank.named(BLOCKS[0])) == len(rank.named(BLOCKS[1]))]
    for rank in whole[1:]:
        own, others = (len(each.named(BLOCKS[0])) for each in (rank, whole[0]))
        if own != others:
            expected = f"{others}, as in {whole[0].path}"
            raise FormatError(rank.path, rank.operations[0].line, "number of forwards", str(own), expected)
    for meeting in meetings(job):
        if meeting.is_message or meeting.key[0] in TOGETHER:
            (first, one), *others_of_it = (
                (job.ranks[number], job.ranks[number].operations[k]) for number, k, _ in meeting.members
            )
            for rank, operation in others_of_it:
                if min(one.bytes, operation.bytes) > 0 and one.bytes != operation.bytes:
                    found, expected = short(operation.bytes, "B"), f"{short(one.bytes, 'B')}, as in {first.path}"
                    raise FormatError(rank.path, operation.line, f"size of {operation.name}", found, expected)


def clock_warnings(job: Job) -> Iterator[str]:
    """Doubts whether files of equal sizes are of one job: by the times in their names; by the clock of a host, which has
    consecutive ranks. Profiles of ranks by themselves are made one after another."""
    if job.alone:
        return
    named = [(stamp, rank) for rank in job.ranks if (stamp := _named_at(rank)) is not None]
    if named:
        (first, earlier), (last, later) = (pick(named, key=lambda pair: pair[0]) for pick in (min, max))
        if (last - first).total_seconds() > APART_S:
            yield f"{later.path}:1: named {last - first} (h:min:s) later than {earlier.path}: the files of two jobs?"
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
    stamp = _STAMP.search(os.path.basename(rank.path))
    try:
        return datetime.strptime(stamp[1], "%Y%m%d%H%M%S") if stamp else None
    except ValueError:
        return None


def _together(rank: Rank, other: Rank) -> bool:
    return rank.began_s < other.began_s + other.span_s and other.began_s < rank.began_s + rank.span_s
