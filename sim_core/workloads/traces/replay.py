"""A job's step as recorded and as replayed: operations, waits, statistics, ranks that are slower than their peers."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.documents import Words
from sim_core.errors import SpecError
from sim_core.workloads.traces.files import ALONE
from sim_core.workloads.traces.job import Call, Job
from sim_core.workloads.traces.layout import forwards_ahead
from sim_core.workloads.traces.meeting import Member, Played, ends_of, meetings, settle
from sim_core.workloads.traces.stages import call_costs, message_costs, play_stages, stages_of
from sim_core.workloads.traces.text import BLOCKS

STRAGGLER = 1.03
"""A rank is a straggler if its compute takes more than this many times the median of its stage's ranks."""


@dataclass(frozen=True)
class OperationStatistics:
    """An operation of a stage, over its ranks and micro-batches; `wait_s` is the part of `total_s` spent waiting."""

    stage: int
    name: str
    count: int
    mean_s: float
    least_s: float
    most_s: float
    total_s: float
    wait_s: float


class Shares(NamedTuple):
    """The span of a stage's ranks in four parts that add up to it; means over its ranks."""

    stage: int
    ranks: int
    compute_s: float
    communication_s: float
    wait_s: float
    gap_s: float


@dataclass(frozen=True)
class Straggler:
    """A rank whose compute takes `factor` times the median of its stage's."""

    rank: int
    stage: int
    name: str
    factor: float


@dataclass(frozen=True, kw_only=True)
class JobStatistics:
    """Statistics of a job. `unknown_waits`: names of collectives whose waits are unknown, because members have no trace."""

    operations: tuple[OperationStatistics, ...]
    shares: tuple[Shares, ...]
    stragglers: tuple[Straggler, ...]
    unknown_waits: Words
    schedule: str


def statistics(job: Job) -> JobStatistics:
    """The statistics of a job."""
    waits, unknown = recorded_waits(job)
    rows: dict[tuple[int, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    sums: dict[int, Floats] = defaultdict(lambda: np.zeros(4))
    for rank, own in zip(job.ranks, waits, strict=True):
        for operation, waited in zip(rank.operations, own, strict=True):
            wait_s = sum(waited)
            durations_s, waits_s = rows[rank.stage, operation.name]
            durations_s.append(operation.duration_s)
            waits_s.append(wait_s)
            busy_s = operation.duration_s - wait_s
            compute_s = 0.0 if operation.parts or operation.group else min(operation.compute_s, busy_s)
            sums[rank.stage] += (compute_s, busy_s - compute_s, wait_s, operation.gap_s)
    first, pp, ranks = job.ranks[0], job.layout.pp, Counter(rank.stage for rank in job.ranks)
    gpipe = pp > 1 and forwards_ahead([o.name for o in first.operations]) == job.layout.ga > pp - first.stage
    return JobStatistics(
        operations=tuple(
            OperationStatistics(*key, len(took_s), fmean(took_s), min(took_s), max(took_s), sum(took_s), sum(waits_s))
            for key, (took_s, waits_s) in sorted(rows.items(), key=lambda item: item[0][0])
        ),
        shares=tuple(
            Shares(stage, ranks[stage], *(seconds / ranks[stage]).tolist()) for stage, seconds in sorted(sums.items())
        ),
        stragglers=tuple(_stragglers(job)),
        unknown_waits=unknown,
        schedule="interleaved 1f1b" if job.layout.vpp > 1 else "gpipe" if gpipe else "1f1b",
    )


def recorded_waits(job: Job) -> tuple[list[list[list[float]]], Words]:
    """Seconds that each operation of each rank waits: itself, and in each of its calls. And the kinds of collective for which
    that is unknown.

    Raises SpecError if the operations of a complete job wait for each other in a cycle.
    """
    met = meetings(job)
    if job.whole:
        settle(job, met)
    costs = call_costs(job, [meeting for meeting in met if len(meeting.members) > 1])
    link_s, usual_s = message_costs(met)
    for meeting in met:
        if meeting.is_message:
            cost_s = meeting.cost_s if len(meeting.members) == 2 else link_s.get(meeting.link, usual_s)
            for member in meeting.members:  # an exchange takes as long as the longest of its messages
                costs[member] = max(costs.get(member, 0.0), cost_s)

    def waited(member: Member, seconds: float) -> float:
        return max(seconds - costs.get(member, seconds), 0.0)

    def of_calls(number: int, k: int, calls: Sequence[Call]) -> list[float]:
        if (number, k, -1) in costs:  # the operation as a whole meets others
            return [0.0] * len(calls)
        return [waited((number, k, c), call.duration_s) for c, call in enumerate(calls)]

    waits = [
        [[waited((number, k, -1), o.duration_s), *of_calls(number, k, o.calls)] for k, o in enumerate(rank.operations)]
        for number, rank in enumerate(job.ranks)
    ]
    return waits, tuple(dict.fromkeys(m.key[0] for m in met if len(m.members) == 1 and not m.is_message))


def _stragglers(job: Job) -> Iterator[Straggler]:
    for stage, ranks in job.stages.items():
        for name in BLOCKS:
            means = {rank.rank: fmean(o.compute_s for o in rank.named(name)) for rank in ranks if rank.named(name)}
            middle = median(means.values()) if means else 0.0
            for rank, mean in means.items():
                if middle > 0 and mean > STRAGGLER * middle:
                    yield Straggler(rank, stage, name, mean / middle)


class Replay(NamedTuple):
    """A replayed step. `of_ranks`: each rank with its own durations; else one rank per stage with the stage's means."""

    step_s: float
    compared_s: float  # end of the stages that have a trace
    recorded_s: float
    of_ranks: bool
    events: tuple[Played, ...]
    notes: Words

    @property
    def error(self) -> float:
        """Error of the recorded stages' end relative to the recorded one."""
        return self.compared_s / self.recorded_s - 1 if self.recorded_s > 0 else 0.0


def replay(job: Job, *, of_ranks: bool = False) -> Replay:
    """Replay the step with each stage's mean durations or, `of_ranks`, with each rank's own (needs all ranks).

    Raises SpecError, also for profiles of single ranks, which made no step.
    """
    if job.alone:
        raise SpecError(f"{job.ranks[0].path}: {ALONE}: its messages are made up, there is no step to replay")
    notes = job.layout.notes
    met = meetings(job)
    alone = [m for m in met if m.is_message and m.whole and len(m.members) == 1]
    if alone:  # such traces are not of the same step
        rank, k, _ = alone[0].members[0]
        first = f"{job.ranks[rank].operations[k].name} of rank {job.ranks[rank].rank}"
        what = f"{len(alone)} messages have no counterpart in the other rank's trace (the first: {first})"
        notes = (*notes, f"{what}: are these traces of the same step?")
    if of_ranks:
        if not job.whole:
            raise SpecError(f"{len(job.ranks)} of {job.total} ranks have a trace: a replay of single ranks needs all of them")
        events, _ = settle(job, met)
    else:
        stages = stages_of(job)
        events, notes = play_stages(job, stages), notes + stages.notes
    step_s, compared_s = ends_of(events, job.stages)
    return Replay(step_s, compared_s, job.span_s, of_ranks, events, notes)


def recorded_step(job: Job) -> tuple[Played, ...]:
    """The recorded operations and the calls inside them, each rank from its own first start, with known waits."""
    waits, _ = recorded_waits(job)
    events = []
    for rank, of_rank in zip(job.ranks, waits, strict=True):
        for operation, (own_s, *calls_s) in zip(rank.operations, of_rank, strict=True):
            events.append(Played(rank.rank, rank.stage, operation.name, operation.start_s, operation.end_s, own_s))
            for call, wait_s in zip(operation.calls, calls_s, strict=True):
                start_s, name = operation.start_s + call.begin_s, f"{call.group} {call.name}"
                events.append(Played(rank.rank, rank.stage, name, start_s, start_s + call.duration_s, wait_s))
    return tuple(events)
