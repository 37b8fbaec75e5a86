"""What belongs together in a rank's events: GPU event and launch, launch and operator, launch and step."""

import numpy as np

from sim_core import Ints
from sweep.inputs.traces.events import NONE, Events


def join(events: Events) -> None:
    """Join by correlation, by External id or the operator around the launch, and by the host's steps."""
    events.launch = _rows_of(events.gpu.correlation, events.host.correlation)
    events.operator = _operators(events)
    events.step = _steps(events)


def _rows_of(keys: Ints, ids: Ints) -> Ints:
    """The row of `ids` (the first, of equal ones) that holds each key; NONE where none does, and for ids below 0."""
    if not len(ids) or not len(keys):
        return np.full(len(keys), NONE)
    order = np.argsort(ids, kind="stable")
    rows = order[np.minimum(np.searchsorted(ids[order], keys), len(ids) - 1)]
    return np.where((ids[rows] == keys) & (keys >= 0), rows, NONE)


def _operators(events: Events) -> Ints:
    """By External id, unless that repeats the correlation (2022, 2023); else the innermost operator around the launch."""
    gpu, launch = events.gpu, events.launch
    named = (gpu.external >= 0) & (gpu.external != gpu.correlation)
    found = np.where(named, _rows_of(gpu.external, events.ops.external), NONE)
    missing = (found == NONE) & events.linked
    if missing.any():
        found[missing] = _innermost(events, np.unique(launch[missing]))[launch[missing]]
    return found


def _innermost(events: Events, launches: Ints) -> Ints:
    """For each row of host events the innermost operator of its thread that it lies in; NONE outside of all and unasked."""
    found = np.full(len(events.host.us), NONE)
    ops, ends = len(events.ops.us), events.ops.us + events.ops.dur_us
    start = np.concatenate((events.ops.us, events.host.us[launches]))
    thread = np.concatenate((events.ops.thread, events.host.thread[launches]))
    is_launch = np.arange(len(start)) >= ops
    longest_first = np.concatenate((-events.ops.dur_us, np.zeros(len(launches))))
    around: list[int] = []
    current = -1
    for row in np.lexsort((is_launch, longest_first, start, thread)).tolist():
        if thread[row] != current:
            around, current = [], int(thread[row])
        while around and ends[around[-1]] < start[row]:
            around.pop()
        if row < ops:
            around.append(row)
        elif around:
            found[launches[row - ops]] = around[-1]
    return found


def _steps(events: Events) -> Ints:
    """The step in which each GPU event was launched: the host's step, not the time at which the GPU came to it."""
    found = np.full(len(events.launch), NONE)
    if events.steps and len(events.host.us):
        _, start, duration = np.array(events.steps).T
        order = np.argsort(start, kind="stable")
        launched = events.host.us[events.launch]
        place = np.searchsorted(start[order], launched, side="right") - 1
        within = events.linked & (place >= 0) & (launched <= (start + duration)[order][np.maximum(place, 0)])
        found[within] = order[place[within]]
    return found
