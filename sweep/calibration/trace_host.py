"""What a profiled rank tells of its software stack: host time of a launch and a layer, gaps of the GPU, exposed collectives."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import Floats, SpecError, plural, short
from sweep.inputs.traces.intervals import common, length, union
from sweep.inputs.traces.kinds import Kind
from sweep.inputs.traces.profile import Recording

MICRO = 1e-6
SHORTEST_GAP_US = 1.0
"""Shorter gaps lie between any two kernels of a stream."""
_WORDS = 34


class Spread(NamedTuple):
    """A quantity as it was recorded: 10 %, middle and 90 % of `number` values; seconds, or a share."""

    what: str
    number: int
    low: float
    middle: float
    high: float
    is_share: bool = False


class Host(NamedTuple):
    """What one rank tells."""

    rank: str
    spreads: tuple[Spread, ...]
    notes: tuple[str, ...]


def of_recordings(recordings: Iterable[Recording]) -> list[Host]:
    """What each rank with GPU events tells. Raises SpecError if there is none."""
    found = [_host(each) for each in recordings if each.rank.totals is not None]
    if not found:
        raise SpecError("calibrate stack: found no GPU event, expected a profile with the activities CPU and CUDA")
    return found


def lines(hosts: Sequence[Host]) -> Iterator[str]:
    """A line for each quantity, with its interval."""
    yield "recorded under the profiler, whose own work on the host is in these times; intervals of 80 %"
    for host in hosts:
        for each in host.spreads:
            low, middle, high = (f"{x:.1%}" if each.is_share else short(x, "s") for x in (each.low, each.middle, each.high))
            yield f"{host.rank}: {each.what:{_WORDS}} {middle} ({low} to {high}), {plural(each.number, 'value')}"
        yield from (f"{host.rank}: {note}" for note in host.notes)


def _host(recording: Recording) -> Host:
    events = recording.events
    launches = np.unique(events.launch[recording.chosen & events.linked])
    start, thread = events.host.us[launches], events.host.thread[launches]
    order, notes = np.lexsort((start, thread)), list[str]()
    apart: Floats = np.diff(start[order])[np.diff(thread[order]) == 0]  # of successive launches of a thread
    layers = np.array([duration for _, duration in events.layers])
    if not len(layers):
        notes.append("host time of a layer: not in the file (with_stack or with_modules names the layers)")
    late, gaps = _gaps(recording)
    found = {
        "host time of a launch": events.host.dur_us[launches] * MICRO,
        "from one launch to the next": apart * MICRO,
        "host time of a layer's forward": layers * MICRO,
        "host time of a step": np.array([step.host_s for step in recording.rank.steps]),
        "gap of the GPU": gaps * MICRO,
    }
    totals = recording.rank.totals
    if totals is not None and len(gaps) and totals.span_s:
        waited = float(late.sum()) * MICRO
        idle, late_share = totals.idle_s / totals.span_s, waited / totals.span_s
        notes.append(f"gaps: {idle:.1%} of the span; in {late_share:.1%} of it the host had not yet launched")
    spreads = tuple(_spread(what, values) for what, values in found.items() if len(values))
    return Host(recording.rank.name, (*spreads, *_exposed(recording)), tuple(notes))


def _spread(what: str, values: Floats, is_share: bool = False) -> Spread:
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return Spread(what, len(values), low, middle, high, is_share)


def _gaps(recording: Recording) -> tuple[Floats, Floats]:
    """Gaps in which no stream works, in microseconds: what of each the host had not launched what follows; their length."""
    events = recording.events
    chosen = recording.chosen & events.linked
    start = events.gpu.us[chosen]
    launched = events.host.us[events.launch[chosen]]
    first, last = union(start, start + events.gpu.dur_us[chosen])
    gaps = first[1:] - last[:-1]
    next_launch = dict(zip(start.tolist(), launched.tolist(), strict=True))
    ends = zip(first[1:].tolist(), last[:-1].tolist(), strict=True)
    late = np.array([max(0.0, min(at, next_launch[at]) - end) for at, end in ends], np.float64)
    long = gaps >= SHORTEST_GAP_US
    return late[long], gaps[long]


def _exposed(recording: Recording) -> Iterator[Spread]:
    """The part of each collective during which nothing computes, by kind, role of the group and size."""
    events, compute = recording.events, recording.chosen & (recording.events.kind == Kind.COMPUTE)
    first, last = union(events.gpu.us[compute], (events.gpu.us + events.gpu.dur_us)[compute])
    shares = defaultdict(list)
    for call in recording.calls:
        near = slice(int(np.searchsorted(last, call.start_us)), int(np.searchsorted(first, call.end_us)))
        one = np.array([call.start_us]), np.array([call.end_us])
        if (lasting := length(*one)) > 0:
            covered = (np.clip(first[near], call.start_us, call.end_us), np.clip(last[near], call.start_us, call.end_us))
            shares[call.key].append(1 - common(one, covered) / lasting)
    for key, each in shares.items():
        size = "" if key.bytes is None else f" of {short(key.bytes, 'B')}"
        yield _spread(f"exposed: {key.kind}{size} ({key.role})", np.array(each), is_share=True)
