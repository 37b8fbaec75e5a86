"""Replay of every rank with its own durations; the cost of a communication is the duration of its last member to arrive.

Usually that is the shortest recorded duration. It is too long if members also wait for something else (an exchange with two
neighbours), and too short if other work is included (the optimizer after the gradient norm). In these cases the replay finds
the last member to arrive; recorded timestamps and waits are not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from sim_core.workloads.traces.job import Job, Operation
from sim_core.workloads.traces.meeting import OPTIMIZER, Meeting
from sim_core.workloads.traces.program import Builder, Played, Reference

ROUNDS: Final = 3
"""Rounds of `settle`: which member arrives last depends slightly on the cost of earlier communications."""
Link = tuple[int, int, str]
Place = tuple[int, int]
"""(rank, operation), by number."""


@dataclass(frozen=True, kw_only=True)
class RankTimeline:
    """The events of all ranks; operation k of rank r has `events[first[r][k]:first[r][k + 1]]`."""

    events: tuple[Played, ...]
    first: tuple[tuple[int, ...], ...]

    def start_s(self, place: Place) -> float:
        return self.events[self.first[place[0]][place[1]]].start_s

    def end_s(self, rank: int) -> float:
        return self.events[self.first[rank][-1] - 1].end_s

    def duration_s(self, rank: int, k: int) -> float:
        """Seconds of an operation in the replay, including its waits."""
        return self.events[self.first[rank][k + 1] - 1].end_s - self.start_s((rank, k))


def settle(job: Job, met: Sequence[Meeting]) -> RankTimeline:
    """Set the cost of each communication (`paid_s`) and replay all ranks. Raises SpecError for a cycle of waits."""
    held: dict[Place, list[int]] = defaultdict(list)
    for m, meeting in enumerate(met):
        for rank, k, _ in meeting.members:
            held[rank, k].append(m)
    mixed = [m for m, meeting in enumerate(met) if meeting.is_message and _is_mixed(met, held, meeting)]
    norms = [meeting for meeting in met if meeting.key[0] == OPTIMIZER]
    _settle_messages(met, mixed, {})
    for _ in range(ROUNDS if mixed or norms else 0):
        timeline = play(job, met)
        for meeting in norms:
            member = max(range(len(meeting.members)), key=lambda i, m=meeting: timeline.start_s(m.members[i][:2]))  # type: ignore[misc]
            meeting.paid_s = meeting.recorded_s[member]
        _settle_messages(met, mixed, _paid_by_the_last(met, held, timeline))
    return play(job, met)


def _is_mixed(met: Sequence[Meeting], held: dict[Place, list[int]], meeting: Meeting) -> bool:
    """Whether a member of a message exchanges other messages with another rank at the same time."""
    return any(len({member[:2] for m in held[place[:2]] for member in met[m].members}) > 2 for place in meeting.members)


def _paid_by_the_last(met: Sequence[Meeting], held: dict[Place, list[int]], timeline: RankTimeline) -> dict[int, float]:
    """Seconds of the messages of each exchange that begins after all its counterparts and thus does not wait."""
    paid: dict[int, float] = {}
    for place, messages in held.items():
        if not met[messages[0]].is_message:
            continue
        start_s = timeline.start_s(place)
        if all(start_s >= timeline.start_s(member[:2]) for m in messages for member in met[m].members):
            for m in messages:
                own = next(s for member, s in zip(met[m].members, met[m].recorded_s, strict=True) if member[:2] == place)
                paid[m] = min(paid.get(m, own), own)
    return paid


def _settle_messages(met: Sequence[Meeting], mixed: Sequence[int], paid: dict[int, float]) -> None:
    """Cost of messages in mixed exchanges: of the last member, else of others on the link, else the shortest recorded there."""
    known: dict[Link, list[float]] = defaultdict(list)
    shortest: dict[Link, float] = {}
    for m in mixed:
        link = met[m].link
        shortest[link] = min(shortest.get(link, met[m].recorded_s[0]), *met[m].recorded_s)
        if m in paid:
            known[link].append(paid[m])
    for m in mixed:
        link = met[m].link
        usual_s = median(known[link]) if link in known else shortest[link]
        met[m].paid_s = min(paid.get(m, usual_s), *met[m].recorded_s)


def play(job: Job, met: Sequence[Meeting]) -> RankTimeline:
    """Run all ranks; operations are split at their calls into compute and communications."""
    held: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for m, meeting in enumerate(met):
        for member in meeting.members:
            held[member].append(m)
    builder = Builder()
    first: list[tuple[int, ...]] = []
    for number, rank in enumerate(job.ranks):
        begins: list[int] = []
        for k, operation in enumerate(rank.operations):
            begins.append(len(builder.told))
            own = held.get((number, k, -1), [])
            if own or operation.parts:
                parts: dict[Reference, float] = {(m,): met[m].cost_s for m in own}
                builder.add(rank.rank, rank.stage, operation.name, operation.gap_s, 0.0, parts)
            else:
                called = [held.get((number, k, c)) for c in range(len(operation.calls))]
                _cut(builder, rank.rank, rank.stage, operation, called, met)
        first.append((*begins, len(builder.told)))
        builder.end_of_rank()
    return RankTimeline(events=builder.run(), first=tuple(first))


def _cut(
    builder: Builder, rank: int, stage: int, operation: Operation, called: list[list[int] | None], met: Sequence[Meeting]
) -> None:
    """Add a computation with the calls inside it; compute keeps its position between the calls."""
    gap_s, at_s, work_s = operation.gap_s, 0.0, 0.0
    for call, meeting in zip(operation.calls, called, strict=True):
        work_s += max(call.begin_s - at_s, 0.0)
        at_s = max(at_s, call.begin_s) + call.duration_s
        if meeting is None:  # no other member: counts as compute
            work_s += call.duration_s
            continue
        builder.add(rank, stage, operation.name, gap_s, work_s, {})
        builder.add(rank, stage, f"{call.group} {call.name}", 0.0, 0.0, {(m,): met[m].cost_s for m in meeting})
        gap_s, work_s = 0.0, 0.0
    builder.add(rank, stage, operation.name, gap_s, work_s + max(operation.duration_s - at_s, 0.0), {})
