"""What belongs together in a rank's events: GPU event and launch, launch and operator, launch and step."""

from typing import Final, NamedTuple

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.inputs.traces.events import Events

NONE: Final = -1


class Joins(NamedTuple):
    """For each GPU event its launch, operator and step as row numbers; NONE where the file does not tell."""

    launch: Ints
    operator: Ints
    step: Ints

    @property
    def linked(self) -> Bools:
        """Events whose launch is in the file; the others were launched before the window opened."""
        mask: Bools = self.launch != NONE
        return mask


def join(events: Events) -> Joins:
    """Joins by correlation, by External id or the operator around the launch, and by the host's steps."""
    launch = _rows_of(events.gpu.correlation, events.host.correlation)
    operator = _operators(events, launch)
    return Joins(launch, operator, _steps(events, launch))


def _rows_of(keys: Ints, ids: Ints) -> Ints:
    """The row of `ids` (the first, of equal ones) that holds each key; NONE where none does, and for ids below 0."""
    if not len(ids) or not len(keys):
        return np.full(len(keys), NONE, np.int64)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], keys), len(ids) - 1)
    rows = order[place]
    return np.where((ids[rows] == keys) & (keys >= 0), rows, NONE).astype(np.int64)


def _operators(events: Events, launch: Ints) -> Ints:
    """By External id, unless that repeats the correlation (2022, 2023); else the innermost operator around the launch."""
    named = (events.gpu.external >= 0) & (events.gpu.external != events.gpu.correlation)
    by_id = np.where(named, _rows_of(events.gpu.external, events.ops.external), NONE)
    missing = (by_id == NONE) & (launch != NONE)
    if not missing.any():
        return by_id.astype(np.int64)
    around = _innermost(events, np.unique(launch[missing]))
    by_id[missing] = around[launch[missing]]
    return by_id.astype(np.int64)


def _innermost(events: Events, launches: Ints) -> Ints:
    """For each row of host events the innermost operator of its thread that it lies in; NONE outside of all and unasked."""
    found = np.full(len(events.host.us), NONE, np.int64)
    ops, times, ends = len(events.ops.us), events.ops.us, events.ops.us + events.ops.dur_us
    start = np.concatenate((times, events.host.us[launches]))
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


def _steps(events: Events, launch: Ints) -> Ints:
    """The step in which each GPU event was launched: the host's step, not the time at which the GPU came to it."""
    found = np.full(len(launch), NONE, np.int64)
    if not events.steps or not len(events.host.us):
        return found
    start = np.array([step[1] for step in events.steps])
    end = start + np.array([step[2] for step in events.steps])
    order = np.argsort(start, kind="stable")
    launched: Floats = events.host.us[launch]
    place = np.searchsorted(start[order], launched, side="right") - 1
    within = (launch != NONE) & (place >= 0) & (launched <= end[order][np.maximum(place, 0)])
    found[within] = order[place[within]]
    return found
