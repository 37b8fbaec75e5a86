"""Files without timestamps among files with them: their calls are placed inside operations as on like ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sim_core.workloads.traces.job import Job, Operation, Rank


def placed(job: Job) -> Job:
    """The job with the calls of unstamped ranks where those of stamped ones are.

    Between calls as on a rank with as many tokens, of the same place in its expert group; before the first and after the last
    as on a rank of the same stage, if there is one. A job without any stamps stays as it is.
    """
    stamped = [rank for rank in job.ranks if not _is_unplaced(rank)]
    if not stamped or len(stamped) == len(job.ranks):
        return job

    def place(rank: Rank) -> int:
        return rank.index // job.layout.tp % job.layout.ep

    ranks = []
    for rank in job.ranks:
        within = min(stamped, key=lambda r, own=rank: (place(r) != place(own), r.stage != own.stage))  # type: ignore[misc]
        around = min(stamped, key=lambda r, own=rank: (r.stage != own.stage, place(r) != place(own)))  # type: ignore[misc]
        ranks.append(_like(rank, within, around) if _is_unplaced(rank) else rank)
    return replace(job, ranks=tuple(ranks))


def _is_unplaced(rank: Rank) -> bool:
    """Whether all calls of operations with several of them begin at once."""
    several = [operation.calls for operation in rank.operations if len(operation.calls) > 1]
    return bool(several) and not any(call.begin_s for calls in several for call in calls)


def _like(rank: Rank, within: Rank, around: Rank) -> Rank:
    turns = {operation.name: _pairs(operation.name, within, around) for operation in rank.operations}
    return replace(rank, operations=tuple(_placed(each, *next(turns[each.name], (each, each))) for each in rank.operations))


def _pairs(name: str, within: Rank, around: Rank) -> Iterator[tuple[Operation, Operation]]:
    return zip(within.named(name), around.named(name), strict=False)


def _placed(operation: Operation, within: Operation, around: Operation) -> Operation:
    """The operation with its compute between calls in the parts in which others have it."""
    if not len(operation.calls) == len(within.calls) == len(around.calls):
        within = around = operation
    inner, outer = _parts(within), _parts(around)
    parts = [outer[0], *inner[1:-1], outer[-1]] if operation.calls else []
    compute_s = max(operation.duration_s - sum(call.duration_s for call in operation.calls), 0.0)
    calls, at_s = [], 0.0
    for call, part in zip(operation.calls, parts, strict=False):
        at_s += compute_s * part / (sum(parts) or 1.0)
        calls.append(replace(call, begin_s=at_s))
        at_s += call.duration_s
    return replace(operation, calls=tuple(calls))


def _parts(operation: Operation) -> list[float]:
    """Seconds of compute before, between and after the calls."""
    ends = [0.0, *(call.begin_s + call.duration_s for call in operation.calls)]
    begins = [*(call.begin_s for call in operation.calls), operation.duration_s]
    return [max(begin_s - end_s, 0.0) for begin_s, end_s in zip(begins, ends, strict=True)]
