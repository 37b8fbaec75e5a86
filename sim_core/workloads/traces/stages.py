"""The mean of each stage of a job: seconds of its operations without waiting for other stages.

`stages_of` chooses the recorded ranks that stand for a job: all of them, or, where some have no trace, those that fit together.
More ranks are never worse than one: the step from several lies between the shortest and the longest step that one of them
alone would give. Where it does not, that rank is taken alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from sim_core.errors import SpecError
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.meeting import Link, Meeting, Member, Played, Times, ends_of, meetings, play, settle
from sim_core.workloads.traces.stage import infer, stage_of
from sim_core.workloads.traces.text import EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER

Costs = Mapping[Member, float]
"""Seconds without known waits of operations and calls, by (rank, operation, call or -1)."""
TIED = (EMBEDDING_REDUCTION, OPTIMIZER)
"""Operations that communicate with ranks of other stages."""
TOGETHER = ("dp_allreduce", *EXPERT_REDUCTIONS)
"""Operations that end at the same time on all replicas of a stage, or on those that hold the same experts."""


class Stages(NamedTuple):
    """All stages, a rank each, from the means of some `ranks`; the cost of a message by (stages of the channel, direction), and
    the assumptions."""

    ranks: tuple[Rank, ...]
    stages: list[Rank]
    message_s: Mapping[Link, float]
    usual_message_s: float
    notes: tuple[str, ...]

    @property
    def known(self) -> list[int]:
        """Those that have a trace."""
        return sorted({rank.stage for rank in self.ranks})


Turn = tuple[str, int]
"""An operation's name, and how many of that name came before it on its rank."""


def mean_stages(job: Job) -> Stages:
    """The mean stages of the ranks that have a trace, with the waits of a stage's ranks for each other from a replay of all
    of them, if each has the other end of its messages.

    Raises SpecError if the ranks wait for each other in a cycle.
    """
    met = meetings(job)
    notes: list[str] = []
    times, slowest = None, None
    if all(len(m.members) == 2 for m in met if m.is_message):
        _, times = settle(job, met)
        # the replica whose rank ends the step: it ends with its last rank, not with the mean of them
        ends_s = [times[number, len(rank.operations) - 1][1] for number, rank in enumerate(job.ranks)]
        slowest = job.ranks[ends_s.index(max(ends_s))].index // job.layout.tp
    link_s, usual_s = message_costs(met)
    without_waits = call_costs(job, met)
    known = {stage: stage_of(job, stage, _means(job, stage, without_waits, times, slowest)) for stage in job.stages}
    stages = infer(job, known, usual_s, notes) if len(known) < job.layout.pp else list(known.values())
    return Stages(job.ranks, stages, link_s, usual_s, tuple(notes))


def message_costs(met: list[Meeting]) -> tuple[dict[Link, float], float]:
    """Seconds of a message on each link: the median over its messages, without waiting.

    If only one end has a trace, waiting and transfer cannot be separated: the shortest message is used for all.
    """
    by_link = defaultdict(list)
    messages = [meeting for meeting in met if meeting.is_message]
    for message in messages:
        if len(message.members) == 2:
            by_link[message.link].append(message.cost_s)
    link_s = {link: median(costs) for link, costs in by_link.items()}
    return link_s, median(link_s.values()) if link_s else min((message.cost_s for message in messages), default=0.0)


def call_costs(job: Job, met: list[Meeting]) -> dict[Member, float]:
    """Seconds, without waiting, of each operation or call that takes part in a collective, by (rank, operation, call)."""
    rate = min((o.duration_s / o.bytes for o in job.named("dp_allreduce") if o.bytes > 0), default=None)
    costs = {}
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


def _means(job: Job, stage: int, costs: Costs, times: Times | None, slowest: int | None) -> Iterator[Operation]:
    """Means over the stage's ranks of each operation in turn, in the order of the rank with the most operations.

    With a replay of all ranks (`times`), what follows the last reduction among replicas is that of the replica `slowest`.
    Without it, an operation takes as long as recorded: its waits for ranks of its own stage are the stage's, too.
    """
    work: dict[Turn, list[float]] = defaultdict(list)
    gaps: dict[Turn, list[float]] = defaultdict(list)
    template: dict[Turn, Operation] = {}
    for number, rank in enumerate(job.ranks):
        if rank.stage != stage:
            continue
        rows: dict[Turn, Operation] = {}
        # the first operation after the last that all replicas of a stage end together
        tail = max((k + 1 for k, o in enumerate(rank.operations) if o.name in TOGETHER), default=len(rank.operations))
        counts: Counter[str] = Counter()
        for k, operation in enumerate(rank.operations):
            turn = (operation.name, counts[operation.name])
            counts[operation.name] += 1
            rows[turn] = operation
            if slowest not in (None, rank.index // job.layout.tp) and k >= tail:
                continue
            gaps[turn].append(operation.gap_s)
            seconds = 0.0 if operation.parts else operation.duration_s
            if operation.name in TIED:
                calls = (costs.get((number, k, c), call.duration_s) for c, call in enumerate(operation.calls))
                seconds = costs[number, k, -1] if (number, k, -1) in costs else operation.compute_s + sum(calls)
            elif times is not None and not operation.parts:
                seconds = times[number, k][1] - times[number, k][0]
            work[turn].append(seconds)
        template = max(template, rows, key=len)
    for turn, operation in template.items():
        yield Operation(operation.name, operation.parts, fmean(gaps[turn]), fmean(work[turn]))


def play_stages(job: Job, stages: Stages) -> tuple[Played, ...]:
    """The events of the stages. Raises SpecError if they wait for each other in a cycle."""
    means = job._replace(ranks=tuple(stages.stages), layout=job.layout._replace(tp=1, ep=1, dp=1))
    met = meetings(means)
    for meeting in met:
        meeting.paid_s = stages.message_s.get(meeting.link, stages.usual_message_s)
        if not meeting.is_message:  # costs the mean of the stages that have a trace
            recorded = [o.duration_s for stage in stages.known for o in stages.stages[stage].named(meeting.key[0])]
            meeting.paid_s = sum(recorded) / len(recorded)
    return play(means, met)[0]


MOST_ALONE = 16
"""Ranks that are replayed one by one, spread over the job: the bounds of fewer ranks are as valid, and narrower."""


class _Trial(NamedTuple):
    """Stages from some of the ranks, and the step of these."""

    stages: Stages
    step_s: float
    off_s: float  # between the recorded end of the stages with a trace and the replayed one


def stages_of(job: Job) -> Stages:
    """The mean stages of a job. Raises SpecError if the ranks wait for each other in a cycle."""
    recorded = job.ranks
    if job.whole or len(recorded) == 1:
        return mean_stages(job)
    some = np.unique(np.linspace(0, len(recorded) - 1, min(len(recorded), MOST_ALONE)).round().astype(int)).tolist()
    alone = _trials(job, [(recorded[k],) for k in some])
    # replicas may differ so much that a stage of one and a stage of another make no step: all, each stage, the slowest rank
    number = Counter(rank.index for rank in recorded)
    whole = tuple(rank for rank in recorded if number[rank.index] == job.layout.pp) or recorded  # complete pipelines, if any
    each = [tuple(ranks) for ranks in job.stages.values()] if len(job.stages) > 1 else []
    together = _trials(job, [whole, *each, (max(recorded, key=lambda rank: rank.span_s),)])
    steps_s = [trial.step_s for trial in alone] or [0.0, np.inf]
    inside = [trial for trial in together if min(steps_s) <= trial.step_s <= max(steps_s)]
    if inside:
        taken = min(inside, key=lambda trial: trial.off_s)
    elif together and alone:
        taken = min(alone, key=lambda trial: abs(trial.step_s - together[0].step_s))
    else:
        return mean_stages(job)  # says what is wrong
    notes, ranks = [], taken.stages.ranks
    if len(taken.stages.known) == job.layout.pp:
        notes.append(f"{len(recorded)} of {job.total} ranks have a trace; others are taken as equal")
    left_out = [str(rank.rank) for rank in recorded if rank not in ranks]
    if left_out:
        alike = ranks == whole
        why = "other ranks of their pipelines have no trace" if alike else "the others alone are nearer to the recorded step"
        notes.append(f"ranks {', '.join(left_out)} are skipped: {why}")
    return taken.stages._replace(notes=(*notes, *taken.stages.notes))


def _trials(job: Job, candidates: Sequence[tuple[Rank, ...]]) -> list[_Trial]:
    """Each of some candidates alone, but those that do not make a step."""
    trials = []
    for ranks in candidates:
        some = job._replace(ranks=ranks)
        try:
            stages = mean_stages(some)
            step_s, end_s = ends_of(play_stages(some, stages), job.stages)
        except SpecError:
            continue
        trials.append(_Trial(stages, step_s, abs(end_s - job.span_s)))
    return trials
