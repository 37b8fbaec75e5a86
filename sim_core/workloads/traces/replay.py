"""Replay of a job's step: recorded compute, communications at their cost, waits computed by the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim_core.errors import SpecError
from sim_core.workloads.traces.chosen import stages_of
from sim_core.workloads.traces.job import ALONE, Job, Rank
from sim_core.workloads.traces.means import play_stages
from sim_core.workloads.traces.meeting import meetings
from sim_core.workloads.traces.program import Played
from sim_core.workloads.traces.ranks import settle
from sim_core.workloads.traces.statistics import recorded_waits


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A replayed step. `of_ranks`: each rank with its own durations; else one rank per stage with the stage's means."""

    step_s: float
    compared_s: float  # end of the stages that have a trace
    recorded_s: float
    of_ranks: bool
    events: tuple[Played, ...]
    notes: tuple[str, ...]

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
    notes: tuple[str, ...] = tuple(_unmet(job))
    recorded = {rank.stage for rank in job.ranks}
    if of_ranks:
        if not job.whole:
            total = job.layout.pp * job.layout.ranks_per_stage
            raise SpecError(f"{len(job.ranks)} of {total} ranks have a trace: a replay of single ranks needs all of them")
        events = settle(job, meetings(job)).events
    else:
        stages = stages_of(job)
        events, notes = play_stages(job, stages), (*notes, *stages.notes)
    return Replay(
        step_s=max(event.end_s for event in events),
        compared_s=max(event.end_s for event in events if event.stage in recorded),
        recorded_s=job.span_s,
        of_ranks=of_ranks,
        events=events,
        notes=(*job.layout.notes, *notes),
    )


def _unmet(job: Job) -> Iterator[str]:
    """A warning about messages that only one of two recorded ranks has: such traces are not of the same step."""
    alone = [m for m in meetings(job) if m.is_message and m.whole and len(m.members) == 1]
    if alone:
        rank, k, _ = alone[0].members[0]
        first = f"{job.ranks[rank].operations[k].name} of rank {job.ranks[rank].rank}"
        what = f"{len(alone)} messages have no counterpart in the other rank's trace (the first: {first})"
        yield f"{what}: are these traces of the same step?"


def recorded_step(job: Job) -> tuple[Played, ...]:
    """The recorded operations and the calls inside them, each rank from its own first start, with known waits."""
    waits, _ = recorded_waits(job)
    events: list[Played] = []
    for rank, own in zip(job.ranks, waits, strict=True):
        for operation, waited in zip(rank.operations, own, strict=True):
            events.append(_played(rank, operation.name, operation.start_s, operation.duration_s, waited.own_s))
            for call, wait_s in zip(operation.calls, waited.calls_s, strict=True):
                start_s = operation.start_s + call.begin_s
                events.append(_played(rank, f"{call.group} {call.name}", start_s, call.duration_s, wait_s))
    return tuple(events)


def _played(rank: Rank, name: str, start_s: float, duration_s: float, wait_s: float) -> Played:
    return Played(row=rank.rank, stage=rank.stage, name=name, start_s=start_s, end_s=start_s + duration_s, wait_s=wait_s)
