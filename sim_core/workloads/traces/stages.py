"""The mean of each stage of a job: seconds of its operations without waiting for other stages.

`stages_of` chooses the recorded ranks that stand for a job: all of them, or, where some have no trace, those that fit together.
More ranks are never worse than one: the step from several lies between the shortest and the longest step that one of them
alone would give. Where it does not, that rank is taken alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

import numpy as np

from sim_core.errors import SpecError
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.meeting import (
    Act,
    Link,
    Meeting,
    Member,
    Played,
    RankTimeline,
    Reference,
    channel,
    meetings,
    run,
    settle,
)
from sim_core.workloads.traces.stage import Stage, Step, infer
from sim_core.workloads.traces.text import EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER

Costs = Mapping[Member, float]
"""Seconds without known waits of operations and calls, by (rank, operation, call or -1)."""
TIED: Final = (EMBEDDING_REDUCTION, OPTIMIZER)
"""Operations that communicate with ranks of other stages."""
TOGETHER: Final = ("dp_allreduce", *EXPERT_REDUCTIONS)
"""Operations that end at the same time on all replicas of a stage, or on those that hold the same experts."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages, the cost of a message by (stages of the channel, direction), and the assumptions."""

    stages: tuple[Stage, ...]
    message_s: Mapping[Link, float]
    usual_message_s: float
    notes: tuple[str, ...]


Turn = tuple[str, int]
"""An operation's name, and how many of that name came before it on its rank."""


def mean_stages(job: Job) -> Stages:
    """The mean stages of the ranks that have a trace, with the waits of a stage's ranks for each other from a replay of all
    of them, if each has the other end of its messages.

    Raises SpecError if the ranks wait for each other in a cycle.
    """
    met = meetings(job)
    notes: list[str] = []
    timeline = settle(job, met) if all(len(m.members) == 2 for m in met if m.is_message) else None
    link_s, usual_s = message_costs(met)
    without_waits = call_costs(job, met)
    slowest = None
    if timeline is not None:  # the replica whose rank ends the step: it ends with its last rank, not with the mean of them
        ends_s = [timeline.end_s(number) for number in range(len(job.ranks))]
        slowest = job.ranks[ends_s.index(max(ends_s))].index // job.layout.tp
    known = {stage: _mean_stage(job, stage, without_waits, timeline, slowest) for stage in job.stages}
    stages = infer(job, known, usual_s, notes) if len(known) < job.layout.pp else list(known.values())
    return Stages(stages=tuple(stages), message_s=link_s, usual_message_s=usual_s, notes=tuple(notes))


def message_costs(met: list[Meeting]) -> tuple[dict[Link, float], float]:
    """Seconds of a message on each link: the median over its messages, without waiting.

    If only one end has a trace, waiting and transfer cannot be separated: the shortest message is used for all.
    """
    by_link: dict[Link, list[float]] = defaultdict(list)
    messages = [meeting for meeting in met if meeting.is_message]
    for message in messages:
        if len(message.members) == 2:
            by_link[message.link].append(message.cost_s)
    link_s = {link: median(costs) for link, costs in by_link.items()}
    return link_s, median(link_s.values()) if link_s else min((message.cost_s for message in messages), default=0.0)


def call_costs(job: Job, met: list[Meeting]) -> dict[Member, float]:
    """Seconds, without waiting, of each operation or call that takes part in a collective, by (rank, operation, call)."""
    reduced = [(o.bytes, o.duration_s) for o in job.named("dp_allreduce") if o.bytes > 0]
    rate = min((seconds / size for size, seconds in reduced), default=None)
    costs: dict[Member, float] = {}
    for meeting in met:
        if meeting.is_message:
            continue
        cost_s = meeting.cost_s
        rank, k, _ = meeting.members[0]
        size = job.ranks[rank].operations[k].bytes
        if meeting.key[0] == EMBEDDING_REDUCTION and len(meeting.members) == 1 and rate is not None and size > 0:
            cost_s = min(cost_s, size * rate)  # its wait for the other end is unknown: as fast as dp_allreduce
        costs.update(dict.fromkeys(meeting.members, cost_s))
    return costs


def _mean_stage(job: Job, stage: int, costs: Costs, timeline: RankTimeline | None, slowest: int | None) -> Stage:
    """Means over the stage's ranks of each operation in turn, in the order of the rank with the most operations.

    With a replay of all ranks (`timeline`), what follows the last reduction among replicas is that of the replica `slowest`.
    Without it, an operation takes as long as recorded: its waits for ranks of its own stage are the stage's, too.
    """
    work: dict[Turn, list[float]] = defaultdict(list)
    gaps: dict[Turn, list[float]] = defaultdict(list)
    template: list[tuple[Operation, Turn]] = []
    for number, rank in enumerate(job.ranks):
        if rank.stage != stage:
            continue
        rows: list[tuple[Operation, Turn]] = []
        # the first operation after the last that all replicas of a stage end together
        tail = max((k + 1 for k, o in enumerate(rank.operations) if o.name in TOGETHER), default=len(rank.operations))
        counts: Counter[str] = Counter()
        for k, operation in enumerate(rank.operations):
            turn = (operation.name, counts[operation.name])
            counts[operation.name] += 1
            rows.append((operation, turn))
            if slowest not in (None, rank.index // job.layout.tp) and k >= tail:
                continue
            gaps[turn].append(operation.gap_s)
            if operation.parts:
                continue
            if operation.name in TIED:
                work[turn].append(work_without_waits(operation, number, k, costs))
            else:
                work[turn].append(operation.duration_s if timeline is None else timeline.duration_s(number, k))
        template = max(template, rows, key=len)
    steps = [
        Step(
            name=operation.name,
            parts=operation.parts,
            gap_s=fmean(gaps[turn]),
            work_s=0.0 if operation.parts else fmean(work[turn]),
            meets=operation.name == EMBEDDING_REDUCTION or (operation.name == OPTIMIZER and not job.has_experts),
        )
        for operation, turn in template
    ]
    return Stage(stage=stage, steps=tuple(steps), inferred=False)


def work_without_waits(operation: Operation, rank: int, k: int, costs: Costs) -> float:
    """Seconds of an operation with all its communications at their cost."""
    if (rank, k, -1) in costs:
        return costs[rank, k, -1]
    calls = (costs.get((rank, k, c), call.duration_s) for c, call in enumerate(operation.calls))
    return operation.compute_s + sum(calls)


def play_stages(job: Job, stages: Stages) -> tuple[Played, ...]:
    """The events of the stages. Raises SpecError if they wait for each other in a cycle."""
    recorded: defaultdict[str, list[float]] = defaultdict(list)
    for step in (step for stage in stages.stages if not stage.inferred for step in stage.steps):
        recorded[step.name].append(step.work_s)
    ranks = []
    for stage in stages.stages:
        counts: Counter[Reference] = Counter()
        acts = []
        for step in stage.steps:
            costs: dict[Reference, float] = {}
            for part in step.parts:
                (sender, _), (receiver, _) = channel(job.layout, stage.stage, 0, part)
                link = (sender, receiver, part.partition("_")[2])
                costs[link] = stages.message_s.get(link, stages.usual_message_s)
            if step.meets:  # costs the mean of the stages that have a trace
                costs = {(step.name,): sum(recorded[step.name]) / len(recorded[step.name])}
            counts.update(costs.keys())
            parts = {(*key, counts[key]): cost_s for key, cost_s in costs.items()}
            acts.append(Act(stage.stage, stage.stage, step.name, step.gap_s, 0.0 if parts else step.work_s, parts))
        ranks.append(acts)
    return run(ranks)


MOST_ALONE: Final = 16
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
    some = np.unique(np.linspace(0, len(job.ranks) - 1, min(len(job.ranks), MOST_ALONE)).round().astype(np.int64)).tolist()
    alone = _trials(job, [(job.ranks[k],) for k in some])
    steps_s = [trial.step_s for trial in alone]
    least_s, most_s = min(steps_s, default=0.0), max(steps_s, default=np.inf)
    # replicas may differ so much that a stage of one and a stage of another make no step: all, each stage, the slowest rank
    whole = _whole_pipelines(job)
    each = [tuple(ranks) for ranks in job.stages.values()] if len(job.stages) > 1 else []
    together = _trials(job, [whole, *each, (max(job.ranks, key=lambda rank: rank.span_s),)])
    inside = [trial for trial in together if least_s <= trial.step_s <= most_s]
    if inside:
        taken = min(inside, key=lambda trial: trial.off_s)
    elif together and alone:
        taken = min(alone, key=lambda trial: abs(trial.step_s - together[0].step_s))
    else:
        return mean_stages(job)  # says what is wrong
    return replace(taken.stages, notes=(*_notes(job, taken, whole), *taken.stages.notes))


def _trials(job: Job, candidates: Sequence[tuple[Rank, ...]]) -> list[_Trial]:
    """Each of some candidates alone, but those that do not make a step."""
    trials, recorded = [], set(job.stages)
    for ranks in candidates:
        some = replace(job, ranks=ranks)
        try:
            stages = mean_stages(some)
            events = play_stages(some, stages)
        except SpecError:
            continue
        end_s = max(event.end_s for event in events if event.stage in recorded)
        step_s = max(event.end_s for event in events)
        trials.append(_Trial(ranks=ranks, stages=stages, step_s=step_s, off_s=abs(end_s - job.span_s)))
    return trials


def _whole_pipelines(job: Job) -> tuple[Rank, ...]:
    """The ranks of complete pipelines, if any pipeline is complete; else all ranks."""
    number = Counter(rank.index for rank in job.ranks)
    return tuple(rank for rank in job.ranks if number[rank.index] == job.layout.pp) or job.ranks


def _notes(job: Job, taken: _Trial, whole: tuple[Rank, ...]) -> Iterator[str]:
    """The assumptions about ranks without a trace, and those that are left out."""
    if {rank.stage for rank in taken.ranks} == set(range(job.layout.pp)):
        yield f"{len(job.ranks)} of {job.total} ranks have a trace; others are taken as equal"
    left_out = [str(rank.rank) for rank in job.ranks if rank not in taken.ranks]
    if left_out:
        alike = taken.ranks == whole
        why = "other ranks of their pipelines have no trace" if alike else "the others alone are nearer to the recorded step"
        yield f"ranks {', '.join(left_out)} are skipped: {why}"
