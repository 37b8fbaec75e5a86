"""Statistics of a job's time: per operation, per stage, and ranks that are slower than their peers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from sim_core.workloads.traces.job import Job, Operation
from sim_core.workloads.traces.meeting import meetings
from sim_core.workloads.traces.ranks import settle
from sim_core.workloads.traces.stage import BLOCKS
from sim_core.workloads.traces.stages import call_costs, message_costs

STRAGGLER: Final = 1.03
"""A rank is a straggler if its compute takes more than this many times the median of its stage's ranks."""


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The span of a stage's ranks in four parts that add up to it; means over its ranks."""

    stage: int
    ranks: int
    compute_s: float
    communication_s: float
    wait_s: float
    gap_s: float


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds that an operation waits, and each of the calls inside it."""

    own_s: float = 0.0
    calls_s: tuple[float, ...] = ()

    @property
    def total_s(self) -> float:
        return self.own_s + sum(self.calls_s)


@dataclass(frozen=True, kw_only=True)
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
    unknown_waits: tuple[str, ...]
    schedule: str


def statistics(job: Job) -> JobStatistics:
    """The statistics of a job."""
    waits, unknown = recorded_waits(job)
    rows: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            wait_s = waits[number][k].total_s
            rows[rank.stage, operation.name].append((operation.duration_s, wait_s))
            busy_s = operation.duration_s - wait_s
            compute_s = 0.0 if operation.parts or operation.group else min(operation.compute_s, busy_s)
            shares = sums[rank.stage]
            shares[0] += compute_s
            shares[1] += busy_s - compute_s
            shares[2] += wait_s
            shares[3] += operation.gap_s
    ranks = {stage: len(job.of_stage(stage)) for stage in sums}
    return JobStatistics(
        operations=tuple(
            OperationStatistics(
                stage=stage,
                name=name,
                count=len(found),
                mean_s=fmean(duration for duration, _ in found),
                least_s=min(duration for duration, _ in found),
                most_s=max(duration for duration, _ in found),
                total_s=sum(duration for duration, _ in found),
                wait_s=sum(wait for _, wait in found),
            )
            for (stage, name), found in sorted(rows.items(), key=lambda item: item[0][0])
        ),
        shares=tuple(
            Shares(
                stage=stage,
                ranks=ranks[stage],
                compute_s=found[0] / ranks[stage],
                communication_s=found[1] / ranks[stage],
                wait_s=found[2] / ranks[stage],
                gap_s=found[3] / ranks[stage],
            )
            for stage, found in sorted(sums.items())
        ),
        stragglers=tuple(_stragglers(job)),
        unknown_waits=unknown,
        schedule=_schedule(job),
    )


def recorded_waits(job: Job) -> tuple[list[list[Waits]], tuple[str, ...]]:
    """Seconds of waiting inside each operation of each rank; and the kinds of collective for which that is unknown.

    Raises SpecError if the operations of a complete job wait for each other in a cycle.
    """
    met = meetings(job)
    if job.whole:
        settle(job, met)
    together = [meeting for meeting in met if len(meeting.members) > 1]
    costs: Mapping[tuple[int, int, int], float] = call_costs(job, together)
    link_s, usual_s = message_costs(met)
    exchange_s: dict[tuple[int, int], float] = {}
    for meeting in met:
        kind, group, _ = meeting.key
        if kind in ("forward", "backward"):
            cost_s = meeting.cost_s if len(meeting.members) == 2 else link_s.get((group[0][0], group[1][0], kind), usual_s)
            for rank, k, _ in meeting.members:
                exchange_s[rank, k] = max(exchange_s.get((rank, k), 0.0), cost_s)
    unknown = dict.fromkeys(m.key[0] for m in met if len(m.members) == 1 and m.key[0] not in ("forward", "backward"))
    waits = [
        [_wait(operation, number, k, costs, exchange_s) for k, operation in enumerate(rank.operations)]
        for number, rank in enumerate(job.ranks)
    ]
    return waits, tuple(unknown)


def _wait(
    operation: Operation,
    rank: int,
    k: int,
    costs: Mapping[tuple[int, int, int], float],
    exchange_s: Mapping[tuple[int, int], float],
) -> Waits:
    if operation.parts:
        own_s = max(operation.duration_s - exchange_s.get((rank, k), operation.duration_s), 0.0)
        return Waits(own_s=own_s, calls_s=(0.0,) * len(operation.calls))
    if (rank, k, -1) in costs:
        return Waits(own_s=max(operation.duration_s - costs[rank, k, -1], 0.0), calls_s=(0.0,) * len(operation.calls))
    calls = enumerate(operation.calls)
    return Waits(calls_s=tuple(max(call.duration_s - costs.get((rank, k, c), call.duration_s), 0.0) for c, call in calls))


def _stragglers(job: Job) -> list[Straggler]:
    found = []
    for stage in range(job.layout.pp):
        for name in BLOCKS:
            means = {
                rank.rank: fmean(operation.compute_s for operation in rank.named(name))
                for rank in job.of_stage(stage)
                if rank.named(name)
            }
            middle = median(means.values()) if means else 0.0
            slow = [(rank, mean / middle) for rank, mean in means.items() if middle > 0 and mean > STRAGGLER * middle]
            found += [Straggler(rank=rank, stage=stage, name=name, factor=factor) for rank, factor in slow]
    return found


def _schedule(job: Job) -> str:
    """The pipeline schedule, from the number of forwards before the first backward."""
    if job.layout.vpp > 1:
        return "interleaved 1f1b"
    rank = job.ranks[0]
    names = [operation.name for operation in rank.operations if operation.name in BLOCKS]
    ahead = names.index(BLOCKS[1]) if BLOCKS[1] in names else len(names)
    gpipe = ahead == job.layout.ga > job.layout.pp - rank.stage
    return "gpipe" if gpipe and job.layout.pp > 1 else "1f1b"
