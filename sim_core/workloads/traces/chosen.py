"""Which of the recorded ranks stand for a job: all of them, or, where some have no trace, those that fit together.

More ranks are never worse than one: the step from several lies between the shortest and the longest step that one of them
alone would give. Where it does not, that rank is taken alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sim_core.errors import SpecError
from sim_core.workloads.traces.job import Job, Rank
from sim_core.workloads.traces.means import play_stages
from sim_core.workloads.traces.stage import Stages
from sim_core.workloads.traces.stages import mean_stages

ALONE: Final = 16
"""Ranks that are replayed one by one, spread over the job: the bounds of fewer ranks are as valid, and narrower."""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Some of the ranks, the stages that they give, and the step of these."""

    ranks: tuple[Rank, ...]
    stages: Stages
    step_s: float
    off_s: float  # between the recorded end of the stages with a trace and the replayed one


def stages_of(job: Job) -> Stages:
    """The mean stages of a job. Raises SpecError if the ranks wait for each other in a cycle."""
    if job.whole or len(job.ranks) == 1:
        return mean_stages(job)
    alone = [trial for rank in _spread(job.ranks) if (trial := _trial(job, (rank,))) is not None]
    least_s, most_s = min((t.step_s for t in alone), default=0.0), max((t.step_s for t in alone), default=np.inf)
    first: _Trial | None = None
    inside: list[_Trial] = []
    for ranks in _candidates(job):
        trial = _trial(job, ranks)
        first = first or trial
        if trial is not None and least_s <= trial.step_s <= most_s:
            inside.append(trial)
    if inside:
        taken = min(inside, key=lambda trial: trial.off_s)
    elif first is not None and alone:
        taken = min(alone, key=lambda trial, step_s=first.step_s: abs(trial.step_s - step_s))  # type: ignore[misc]
    else:
        return mean_stages(job)  # says what is wrong
    return replace(taken.stages, notes=(*_notes(job, taken), *taken.stages.notes))


def _candidates(job: Job) -> Iterator[tuple[Rank, ...]]:
    """Ranks that may be taken together: complete pipelines, else all; each stage; the rank that the recorded step is from.

    Replicas may differ so much that a stage of one and a stage of another make no step.
    """
    yield whole_pipelines(job)
    stages = sorted({rank.stage for rank in job.ranks})
    if len(stages) > 1:
        for stage in stages:
            yield tuple(job.of_stage(stage))
    yield (max(job.ranks, key=lambda rank: rank.span_s),)


def _trial(job: Job, ranks: tuple[Rank, ...]) -> _Trial | None:
    """These ranks alone; None where they do not make a step."""
    some = replace(job, ranks=ranks)
    try:
        stages = mean_stages(some)
        events = play_stages(some, stages)
    except SpecError:
        return None
    recorded = {rank.stage for rank in job.ranks}
    step_s, end_s = max(e.end_s for e in events), max(e.end_s for e in events if e.stage in recorded)
    return _Trial(ranks=ranks, stages=stages, step_s=step_s, off_s=abs(end_s - job.span_s))


def _spread(ranks: Sequence[Rank]) -> Iterable[Rank]:
    at = np.unique(np.linspace(0, len(ranks) - 1, min(len(ranks), ALONE)).round().astype(np.int64))
    return [ranks[k] for k in at.tolist()]


def whole_pipelines(job: Job) -> tuple[Rank, ...]:
    """The ranks of complete pipelines, if any pipeline is complete; else all ranks."""
    stages: dict[int, set[int]] = defaultdict(set)
    for rank in job.ranks:
        stages[rank.index].add(rank.stage)
    return tuple(rank for rank in job.ranks if len(stages[rank.index]) == job.layout.pp) or job.ranks


def _notes(job: Job, taken: _Trial) -> Iterator[str]:
    """The assumptions about ranks without a trace, and those that are left out."""
    if {rank.stage for rank in taken.ranks} == set(range(job.layout.pp)):
        yield f"{len(job.ranks)} of {job.layout.pp * job.layout.ranks_per_stage} ranks have a trace; others are taken as equal"
    kept = {rank.rank for rank in taken.ranks}
    left_out = [rank for rank in job.ranks if rank.rank not in kept]
    if not left_out:
        return
    numbers = ", ".join(str(rank.rank) for rank in left_out)
    whole = {rank.rank for rank in whole_pipelines(job)}
    if kept == whole:
        yield f"ranks {numbers} are skipped: other ranks of their pipelines have no trace"
    else:
        yield f"ranks {numbers} are skipped: the others alone are nearer to the recorded step"
