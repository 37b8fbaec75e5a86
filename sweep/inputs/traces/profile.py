"""What a profiler's files tell of a job, rank by rank: steps, time of the GPU, collectives, plan, what is missing."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import Bools, SpecError, Words, plural
from sweep.inputs.traces.collectives import Row, calls, host_calls, table
from sweep.inputs.traces.event_reader import read_events
from sweep.inputs.traces.events import Events
from sweep.inputs.traces.groups import PLAN, Place, infer_data_parallel, place_of
from sweep.inputs.traces.joins import join
from sweep.inputs.traces.kinds import Kind
from sweep.inputs.traces.opening import sources
from sweep.inputs.traces.stream import entries
from sweep.inputs.traces.timeline import Timeline, kinds, timeline, without_last_step

MICRO = 1e-6
SAMPLED = 0.5
LEAST_NUMBERED = 50
"""Below this share of the operators that the profiler numbered, of at least so many, a file is a sample."""
MOST_UNKNOWN = 12
_DEVICE = re.compile(r"[\w .()+-]{1,80}", re.ASCII)
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d{1,7})(?!\d)", re.IGNORECASE)


class Step(NamedTuple):
    """One recorded step: on the host, and on the GPU by what was launched in it; None where no GPU event is of it."""

    number: int
    start_s: float
    host_s: float
    gpu_span_s: float | None
    gpu_end_s: float | None  # since the first event of the file


class Rank(NamedTuple):
    """One rank's recording. Totals are None where the file cannot tell them, and `missing` and `warnings` say why."""

    rank: int | None
    place: Place
    device: str
    steps: tuple[Step, ...]
    period_s: float | None
    totals: Timeline | None
    unlinked: int  # events without a launch
    unlinked_s: float  # what they cover
    unlinked_counted: bool
    collectives: tuple[Row, ...]
    unknown: tuple[tuple[str, int, float], ...]  # kernels nobody knows: name, number, seconds
    memory: tuple[int, int, int] | None  # most bytes allocated and reserved, number of events
    missing: Words
    warnings: Words

    @property
    def name(self) -> str:
        """How to speak of it."""
        return "rank ?" if self.rank is None else f"rank {self.rank}"


class Profile(NamedTuple):
    """A file, an archive or a folder of a job's ranks."""

    path: str
    ranks: tuple[Rank, ...]
    plan: Mapping[str, int | None]
    step_time_s: float | None
    missing: Words
    notes: Words
    warnings: Words


def read_profile(path: str, *, last_step: bool = True, step_name: str | None = None) -> Profile:
    """What is at `path`, a rank at a time in memory.

    `last_step` False leaves the last step out, as HTA does; `step_name`: the annotation that is a step, not ProfilerStep.
    Raises FormatError, SpecError, OSError.
    """
    ranks = sorted(
        (each for each, _ in recordings(path, last_step=last_step, step_name=step_name)),
        key=lambda rank: -1 if rank.rank is None else rank.rank,
    )
    periods = [rank.period_s for rank in ranks if rank.period_s is not None]
    plans = [rank.place.plan for rank in ranks]
    stated = {key: sorted({value for plan in plans if (value := plan[key]) is not None}) for key in PLAN}
    plan = {key: values[0] if len(values) == 1 else None for key, values in stated.items()}
    step_s = float(np.median(periods)) if periods else None
    missing = tuple(dict.fromkeys(each for rank in ranks for each in rank.missing))
    notes = tuple(dict.fromkeys(each for rank in ranks for each in rank.place.notes))
    return Profile(path, tuple(ranks), plan, step_s, missing, notes, _warnings(ranks, stated))


def recordings(path: str, *, last_step: bool = True, step_name: str | None = None) -> Iterator[tuple[Rank, Events]]:
    """Each rank of a file, an archive or a folder, and its events, one after the other. Raises as `read_profile`."""
    found = False
    for name, file in sources(path):
        found = True
        events = read_events(name, entries(name, file))
        if step_name is not None:
            named = sorted((start, duration) for each, start, duration, _ in events.annotations if each == step_name)
            events.steps = [(number, *times) for number, times in enumerate(named, 1)]
        yield _recorded(events, last_step), events
    if not found:
        raise SpecError(f"{path}: found no profiler trace in it")


def _recorded(events: Events, last_step: bool) -> Rank:
    join(events)
    events.kind = kinds(events)
    place = place_of(events.about)
    infer_data_parallel(place, (name for name, *_ in events.annotations))
    linked, ran = events.linked, bool(len(events.gpu.us))
    unlinked = int((~linked).sum())
    begin = events.steps[0][1] if len(events.steps) == 1 else None
    # HTA leaves nothing out of a file of one step that all events lie in; those from before it are what the GPU was behind with
    within = begin is not None and ran and bool((events.gpu.us[~linked] >= begin).all())
    counted = within or (begin is not None and not last_step)
    chosen = np.ones(len(linked), bool) if counted else linked if last_step else without_last_step(events)
    talk = calls(events, chosen, place.world) if ran else host_calls(events)
    # whether events were taken out of the file: the profiler numbers its operators, and most numbers are absent
    count, low, high = events.numbered
    sampled = LEAST_NUMBERED <= count < SAMPLED * (high - low + 1)
    doubts = (
        "" if ran else "no GPU event in it: totals cannot be told",
        f"a sample: {count:,} of {high - low + 1:,} operators are in it; totals cannot be told" if sampled else "",
        f"{plural(events.doubtful, 'event')} without a time, left out" if events.doubtful else "",
    )
    warnings = [f"{events.name}: {each}" for each in doubts if each]
    number, steps = _rank(events, place, warnings), _steps(events)
    memory = (events.allocated_bytes, events.reserved_bytes, events.memory_events) if events.memory_events else None
    devices = events.about.get("deviceProperties")
    first = devices[0] if isinstance(devices, list) and devices else None
    device = first.get("name") if isinstance(first, dict) else None
    return Rank(
        rank=number,
        place=place,
        device=device if isinstance(device, str) and _DEVICE.fullmatch(device) else "",
        steps=steps,
        period_s=None if sampled else _period(steps),
        totals=timeline(events, chosen) if ran and not sampled else None,
        unlinked=unlinked,
        unlinked_s=timeline(events, ~linked).busy_s,
        unlinked_counted=counted and unlinked > 0,
        collectives=tuple(table(talk)),
        unknown=_unknown(events, chosen),
        memory=memory,
        missing=tuple(_missing(events, place, len(steps))),
        warnings=tuple(warnings),
    )


def _rank(events: Events, place: Place, warnings: list[str]) -> int | None:
    """The rank that the file states, else the one in its name."""
    if place.rank is not None:
        return place.rank
    if match := _RANK_IN_NAME.search(Path(events.name).name):
        warnings.append(f"{events.name}: no rank in it; {match[1]} is taken from its name")
        return int(match[1])
    warnings.append(f"{events.name}: no rank in it (distributedInfo), nor in its name")
    return None


def _steps(events: Events) -> tuple[Step, ...]:
    """Steps in the order of the host, each with the GPU events that were launched in it."""
    found = []
    end_us = events.gpu.us + events.gpu.dur_us
    for row, (number, start, duration) in sorted(enumerate(events.steps), key=lambda each: each[1][1]):
        of_step = events.step == row
        span = end = None
        if of_step.any():
            span = float(end_us[of_step].max() - events.gpu.us[of_step].min()) * MICRO
            end = float(end_us[of_step].max()) * MICRO
        found.append(Step(number, start * MICRO, duration * MICRO, span, end))
    return tuple(found)


def _period(steps: tuple[Step, ...]) -> float | None:
    """The middle of the times from the end of a step to that of the next: on the GPU, or from start to start without one."""
    ends = [step.gpu_end_s for step in steps if step.gpu_end_s is not None]
    periods = np.diff(np.array(ends if len(ends) == len(steps) else [step.start_s for step in steps]))
    return float(np.median(periods)) if len(periods) and (periods > 0).all() else None


def _unknown(events: Events, chosen: Bools) -> tuple[tuple[str, int, float], ...]:
    rows = np.flatnonzero((events.kind == Kind.UNCLASSIFIED) & chosen)
    names = events.gpu.name[rows]
    found = [(events.names[name], int((names == name).sum()), float(events.gpu.dur_us[rows][names == name].sum()) * MICRO)
             for name in np.unique(names).tolist()]  # fmt: skip
    return tuple(sorted(found, key=lambda each: -each[2])[:MOST_UNKNOWN])


def _missing(events: Events, place: Place, steps: int) -> Iterator[str]:
    """What the file lacks, each with what it would be needed for."""
    ran = len(events.gpu.us)
    if not ran:
        yield "GPU events: no totals"
    if not steps:
        yield "steps (ProfilerStep): no step time; --step-name takes another annotation"
    elif steps == 1:
        yield "a second step: no step time, only the GPU's span"
    talk = calls(events, np.ones(ran, bool), place.world)
    if unsized := [call.row for call in talk if call.key.bytes is None]:
        kernels = sorted({events.names[events.gpu.name[row]].partition("(")[0][:40] for row in unsized})
        yield f"sizes of {len(unsized)} of {len(talk)} communication kernels: {', '.join(kernels[:MOST_UNKNOWN])}"
    if not events.memory_events:
        yield "memory events (profile_memory)"
    if not any(place.plan.values()):
        yield "the plan: " + ("groups with roles (pg_config)" if place.groups else "pg_config")


def _warnings(ranks: list[Rank], stated: Mapping[str, list[int]]) -> Words:
    """Those of each rank, and where ranks contradict each other: in what is `stated` of the plan, or by their numbers."""
    warnings = [each for rank in ranks for each in rank.warnings]
    for key, values in stated.items():
        if len(values) > 1:
            warnings.append(f"ranks disagree on {key}: {', '.join(map(str, values))}; it is not stated")
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    return (*warnings, *(f"rank {number} is there {numbers.count(number)} times" for number in twice))
