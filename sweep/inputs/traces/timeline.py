"""How a rank's GPU spent its time: span, busy, compute, communication, what of it was exposed, idle, and what nobody knows."""

from typing import NamedTuple

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.inputs.traces.events import NONE, Events
from sweep.inputs.traces.intervals import common, length
from sweep.inputs.traces.kinds import Kind, computes, kind_of_event

MICRO = 1e-6


class Timeline(NamedTuple):
    """Seconds of a GPU; each is the time that events of its kind cover together, over all streams.

    Exposed is communication during which nothing computes, exposed memory copies during which nothing computes or
    communicates. Unclassified are kernels that nobody knows; they are busy, but neither compute nor communication.
    """

    events: int
    span_s: float
    busy_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    memory_s: float
    exposed_memory_s: float
    unclassified_s: float
    idle_s: float
    compute_or_memset_s: float  # as TraceLens counts compute; HTA counts memsets as memory, as `compute_s` does


def kinds(events: Events) -> Ints:
    """The `Kind` of each GPU event: by name, else by the operator that launched it."""
    pairs = list(zip(events.gpu.name.tolist(), events.gpu.memory.tolist(), strict=True))
    by_name = {pair: int(kind_of_event(events.names[pair[0]], memory=pair[1] == 1)) for pair in set(pairs)}
    found = np.array([by_name[pair] for pair in pairs], int)
    for row in np.flatnonzero((found == Kind.UNCLASSIFIED) & (events.operator != NONE)).tolist():
        if computes(events.names[events.ops.name[events.operator[row]]]):
            found[row] = Kind.COMPUTE
    return found


def timeline(events: Events, chosen: Bools) -> Timeline:
    """The totals of the chosen GPU events."""
    start, end = events.gpu.us[chosen], (events.gpu.us + events.gpu.dur_us)[chosen]
    kind = events.kind[chosen]

    def of(*which: Kind) -> tuple[Floats, Floats]:
        mask = np.isin(kind, which)
        return start[mask], end[mask]

    span = float(end.max() - start.min()) if len(start) else 0.0
    fills = np.array([name.startswith("Memset") for name in events.names], bool)[events.gpu.name[chosen]]
    works = fills | (kind == Kind.COMPUTE)
    busy, compute, talk = length(start, end), of(Kind.COMPUTE), of(Kind.COMMUNICATION)
    memory = of(Kind.MEMORY)
    micro = (
        span,
        busy,
        length(*compute),
        length(*talk),
        length(*talk) - common(talk, compute),
        length(*memory),
        length(*memory) - common(memory, of(Kind.COMPUTE, Kind.COMMUNICATION)),
        length(*of(Kind.UNCLASSIFIED)),
        span - busy,
        length(start[works], end[works]),
    )
    return Timeline(int(chosen.sum()), *(value * MICRO for value in micro))


def without_last_step(events: Events) -> Bools:
    """The linked GPU events that were launched before the last step began, as HTA takes them; all linked ones of one step."""
    if len(events.steps) < 2:
        return events.linked
    last = max(start for _, start, _ in events.steps)
    launched = events.host.us[events.launch] if len(events.host.us) else np.zeros(len(events.launch))
    return events.linked & (launched < last)
