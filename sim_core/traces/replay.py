"""A job's step rebuilt from what its ranks did: every communication at its cost, every wait found anew by the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sim_core.errors import SpecError
from sim_core.rank_engine import RankProgram, RankTimes, run_ranks
from sim_core.traces.job import Job, Operation
from sim_core.traces.meeting import Meeting, channel, meetings
from sim_core.traces.stages import Stages, Step, stages_of
from sim_core.traces.statistics import recorded_waits

Reference = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Played:
    """One operation as it was replayed, seconds from the start of the step; `row` names the rank or stage."""

    row: int
    stage: int
    name: str
    start_s: float
    end_s: float
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A replayed step. `of_ranks`: each rank with its own durations; else a rank a stage with the stage's mean."""

    step_s: float
    recorded_s: float
    of_ranks: bool
    events: tuple[Played, ...]
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the predicted step, relative to the recorded."""
        return self.step_s / self.recorded_s - 1 if self.recorded_s > 0 else 0.0


@dataclass(kw_only=True)
class _Builder:
    """Collects operations rank by rank; communications are referred to by any key."""

    first: list[int] = field(default_factory=lambda: [0])
    gap_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    first_part: list[int] = field(default_factory=lambda: [0])
    part: list[int] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)
    number: dict[Reference, int] = field(default_factory=dict)
    told: list[tuple[int, int, str]] = field(default_factory=list)  # row, stage, name

    def add(self, row: int, stage: int, name: str, gap_s: float, work_s: float, parts: Mapping[Reference, float]) -> None:
        """One operation; `parts` are the communications it takes part in, with their cost."""
        self.told.append((row, stage, name))
        self.gap_s.append(gap_s)
        self.work_s.append(work_s)
        for key, cost_s in parts.items():
            number = self.number.setdefault(key, len(self.cost_s))
            if number == len(self.cost_s):
                self.cost_s.append(cost_s)
            self.part.append(number)
        self.first_part.append(len(self.part))

    def end_of_rank(self) -> None:
        self.first.append(len(self.told))

    def run(self) -> tuple[Played, ...]:
        """Raises SpecError where the ranks wait for each other in a circle."""
        members = np.bincount(np.array(self.part, np.int64), minlength=len(self.cost_s)).astype(np.int64)
        program = RankProgram(
            np.array(self.first, np.int64),
            np.array(self.gap_s, np.float64),
            np.array(self.work_s, np.float64),
            np.array(self.first_part, np.int64),
            np.array(self.part, np.int64),
            members,
            np.array(self.cost_s, np.float64),
        )
        times = RankTimes(*(np.zeros(len(self.told)) for _ in range(3)))
        stuck = run_ranks(program, times)
        if stuck >= 0:
            row, stage, name = self.told[stuck]
            raise SpecError(f"the recorded operations wait for each other in a circle: {name} of rank {row} (stage {stage})")
        columns = zip(self.told, times.start_s.tolist(), times.end_s.tolist(), times.wait_s.tolist(), strict=True)
        return tuple(
            Played(row=row, stage=stage, name=name, start_s=start_s, end_s=end_s, wait_s=wait_s)
            for (row, stage, name), start_s, end_s, wait_s in columns
        )


def replay(job: Job, *, of_ranks: bool = False) -> Replay:
    """Rebuild the step: with each stage's mean durations, or (`of_ranks`, needs all ranks) with each rank's own.

    Raises SpecError.
    """
    met = meetings(job)
    notes: tuple[str, ...] = ()
    if of_ranks:
        if not job.whole:
            total = job.layout.pp * job.layout.ranks_per_stage
            raise SpecError(f"{len(job.ranks)} of {total} ranks are at hand: a replay of single ranks needs them all")
        events = _ranks(job, met)
    else:
        stages = stages_of(job, met)
        events, notes = _stages(job, stages), stages.notes
    return Replay(
        step_s=max(event.end_s for event in events),
        recorded_s=job.span_s,
        of_ranks=of_ranks,
        events=events,
        notes=(*job.layout.notes, *notes),
    )


def recorded(job: Job) -> tuple[Played, ...]:
    """The operations as they were recorded, each rank from its own first start, with the waits that can be told."""
    waits, _ = recorded_waits(job)
    return tuple(
        Played(row=rank.rank, stage=rank.stage, name=o.name, start_s=o.start_s, end_s=o.end_s, wait_s=wait_s)
        for rank, own in zip(job.ranks, waits, strict=True)
        for o, wait_s in zip(rank.operations, own, strict=True)
    )


def _ranks(job: Job, met: list[Meeting]) -> tuple[Played, ...]:
    """Every rank with its own durations: an operation is cut at its calls into pieces of compute and communications."""
    held: dict[tuple[int, int, int], list[int]] = {}
    for m, meeting in enumerate(met):
        for member in meeting.members:
            held.setdefault(member, []).append(m)
    builder = _Builder()
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            own = held.get((number, k, -1), [])
            if own or operation.parts:
                builder.add(rank.rank, rank.stage, operation.name, operation.gap_s, 0.0, {(m,): met[m].cost_s for m in own})
            else:
                _cut(
                    builder,
                    rank.rank,
                    rank.stage,
                    operation,
                    [held.get((number, k, c)) for c in range(len(operation.calls))],
                    met,
                )
        builder.end_of_rank()
    return builder.run()


def _cut(
    builder: _Builder, rank: int, stage: int, operation: Operation, called: list[list[int] | None], met: list[Meeting]
) -> None:
    """A computation with the calls inside it; the pieces of compute keep their places between the calls."""
    gap_s, at_s, work_s = operation.gap_s, 0.0, 0.0
    for call, meeting in zip(operation.calls, called, strict=True):
        work_s += max(call.begin_s - at_s, 0.0)
        at_s = max(at_s, call.begin_s) + call.duration_s
        if meeting is None:  # nobody else takes part: it is work like any other
            work_s += call.duration_s
            continue
        builder.add(rank, stage, operation.name, gap_s, work_s, {})
        builder.add(rank, stage, f"{call.group} {call.name}", 0.0, 0.0, {(m,): met[m].cost_s for m in meeting})
        gap_s, work_s = 0.0, 0.0
    builder.add(rank, stage, operation.name, gap_s, work_s + max(operation.duration_s - at_s, 0.0), {})


def _stages(job: Job, stages: Stages) -> tuple[Played, ...]:
    """One rank a stage, with the stage's means."""
    builder = _Builder()
    for stage in stages.stages:
        counts: Counter[Reference] = Counter()
        for step in stage.steps:
            parts: dict[Reference, float] = {}
            for key, cost_s in _parts(job, stages, stage.stage, step):
                counts[key] += 1
                parts[*key, counts[key]] = cost_s
            builder.add(stage.stage, stage.stage, step.name, step.gap_s, 0.0 if parts else step.work_s, parts)
        builder.end_of_rank()
    return builder.run()


def _parts(job: Job, stages: Stages, stage: int, step: Step) -> list[tuple[Reference, float]]:
    if step.parts:
        found: list[tuple[Reference, float]] = []
        for part in step.parts:
            (sender, _), (receiver, _) = channel(job.layout, stage, 0, part)
            key = (sender, receiver, part.partition("_")[2])
            found.append((key, stages.message_s.get(key, stages.usual_message_s)))
        return found
    if step.meets:
        costs = [s.work_s for other in stages.stages for s in other.steps if s.name == step.name and not other.inferred]
        return [((step.name,), sum(costs) / len(costs))]
    return []
