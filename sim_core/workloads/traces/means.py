"""Replay of a job with one rank per stage, which takes the stage's mean times."""

from __future__ import annotations

from collections import Counter, defaultdict

from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.meeting import channel
from sim_core.workloads.traces.program import Builder, Played, Reference
from sim_core.workloads.traces.stage import Stages, Step


def play_stages(job: Job, stages: Stages) -> tuple[Played, ...]:
    """The events of the stages. Raises SpecError if they wait for each other in a cycle."""
    builder, met = Builder(), _met_s(stages)
    for stage in stages.stages:
        counts: Counter[Reference] = Counter()
        for step in stage.steps:
            parts: dict[Reference, float] = {}
            for key, cost_s in _parts(job, stages, met, stage.stage, step):
                counts[key] += 1
                parts[*key, counts[key]] = cost_s
            builder.add(stage.stage, stage.stage, step.name, step.gap_s, 0.0 if parts else step.work_s, parts)
        builder.end_of_rank()
    return builder.run()


def _met_s(stages: Stages) -> dict[str, float]:
    """Mean seconds of the steps of each name, over the stages that have a trace."""
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for stage in stages.stages:
        for step in stage.steps if not stage.inferred else ():
            costs[step.name].append(step.work_s)
    return {name: sum(found) / len(found) for name, found in costs.items()}


def _parts(job: Job, stages: Stages, met: dict[str, float], stage: int, step: Step) -> list[tuple[Reference, float]]:
    if step.parts:
        found: list[tuple[Reference, float]] = []
        for part in step.parts:
            (sender, _), (receiver, _) = channel(job.layout, stage, 0, part)
            key = (sender, receiver, part.partition("_")[2])
            found.append((key, stages.message_s.get(key, stages.usual_message_s)))
        return found
    if step.meets:
        return [((step.name,), met[step.name])]
    return []
