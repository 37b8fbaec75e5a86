"""The mean of each stage of a job: seconds of its operations without waiting for other stages.

Stages with a trace are known; the others are inferred (`missing`). Which ranks are taken together: `chosen`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean, median

from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.meeting import OPTIMIZER, Meeting, meetings
from sim_core.workloads.traces.missing import infer
from sim_core.workloads.traces.ranks import RankTimeline, settle
from sim_core.workloads.traces.stage import BLOCKS, EMBEDDING_REDUCTION, TIED, TOGETHER, Stage, Stages, Step

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
    slowest = _slowest_replica(job, timeline) if timeline is not None else None
    known = {
        stage: _mean_stage(job, stage, without_waits, timeline, slowest)
        for stage in range(job.layout.pp)
        if any(rank.stage == stage for rank in job.ranks)
    }
    if len(known) < job.layout.pp:
        stages = infer(job, known, usual_s, notes)
    else:
        stages = [known[stage] for stage in range(job.layout.pp)]
    return Stages(stages=tuple(stages), message_s=link_s, usual_message_s=usual_s, notes=tuple(notes))


def chunk_of(job: Job, name: str, occurrence: int) -> int:
    """The virtual stage that the k-th forward or backward runs: groups of pp micro-batches (engine/orders.py)."""
    pp, vpp = job.layout.pp, job.layout.vpp
    if vpp == 1 or name not in BLOCKS:
        return 0
    chunk = occurrence // pp % vpp
    return chunk if name == BLOCKS[0] else vpp - 1 - chunk


def message_costs(met: list[Meeting]) -> tuple[dict[tuple[int, int, str], float], float]:
    """Seconds of a message on each link: the median over its messages, without waiting.

    If only one end has a trace, waiting and transfer cannot be separated: the shortest message is used for all.
    """
    by_link: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    alone: list[float] = []
    for meeting in met:
        if not meeting.is_message:
            continue
        if len(meeting.members) == 2:
            by_link[meeting.link].append(meeting.cost_s)
        else:
            alone.append(meeting.cost_s)
    link_s = {link: median(costs) for link, costs in by_link.items()}
    usual_s = median(link_s.values()) if link_s else min(alone, default=0.0)
    return link_s, usual_s


def call_costs(job: Job, met: list[Meeting]) -> dict[tuple[int, int, int], float]:
    """Seconds, without waiting, of each operation or call that takes part in a collective, by (rank, operation, call)."""
    reduced = [(o.bytes, o.duration_s) for rank in job.ranks for o in rank.named("dp_allreduce") if o.bytes > 0]
    rate = min((seconds / size for size, seconds in reduced), default=None)
    costs: dict[tuple[int, int, int], float] = {}
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


def _slowest_replica(job: Job, timeline: RankTimeline) -> int:
    """The replica whose rank ends the step: a step ends with its last rank, not with the mean of them."""
    last = max(range(len(job.ranks)), key=lambda number: timeline.end_s(number))
    return job.ranks[last].index // job.layout.tp


def _tail(rank: Rank) -> int:
    """The first operation after the last that all replicas of a stage end together."""
    ends = [k for k, operation in enumerate(rank.operations) if operation.name in TOGETHER]
    return ends[-1] + 1 if ends else len(rank.operations)


def _mean_stage(
    job: Job,
    stage: int,
    costs: Mapping[tuple[int, int, int], float],
    timeline: RankTimeline | None,
    slowest: int | None,
) -> Stage:
    """Means over the stage's ranks of each operation in turn, in the order of the rank with the most operations.

    With a replay of all ranks (`timeline`), what follows the last reduction among replicas is that of the replica `slowest`.
    Without it, an operation takes as long as recorded: its waits for ranks of its own stage are the stage's, too.
    """
    work: dict[Turn, list[float]] = defaultdict(list)
    gaps: dict[Turn, list[float]] = defaultdict(list)
    template: list[tuple[Operation, int, Turn]] = []
    for number, rank in enumerate(job.ranks):
        if rank.stage != stage:
            continue
        rows: list[tuple[Operation, int, Turn]] = []
        tail = _tail(rank)
        counts: Counter[str] = Counter()
        for k, (operation, chunk) in enumerate(numbered(job, rank)):
            turn = (operation.name, counts[operation.name])
            counts[operation.name] += 1
            rows.append((operation, chunk, turn))
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
            chunk=chunk,
            state=operation.state,
            gap_s=fmean(gaps[turn]),
            work_s=0.0 if operation.parts else fmean(work[turn]),
            meets=operation.name == EMBEDDING_REDUCTION or (operation.name == OPTIMIZER and not job.has_experts),
        )
        for operation, chunk, turn in template
    ]
    return Stage(stage=stage, steps=tuple(steps), inferred=False)


def numbered(job: Job, rank: Rank) -> Iterable[tuple[Operation, int]]:
    """A rank's operations, each with its virtual stage."""
    counts: dict[str, int] = defaultdict(int)
    for operation in rank.operations:
        yield operation, chunk_of(job, operation.name, counts[operation.name])
        counts[operation.name] += 1


def work_without_waits(operation: Operation, rank: int, k: int, costs: Mapping[tuple[int, int, int], float]) -> float:
    """Seconds of an operation with all its communications at their cost."""
    if (rank, k, -1) in costs:
        return costs[rank, k, -1]
    calls = (costs.get((rank, k, c), call.duration_s) for c, call in enumerate(operation.calls))
    return operation.compute_s + sum(calls)
