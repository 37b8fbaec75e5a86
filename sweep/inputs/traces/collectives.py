"""The collectives of a rank by kind, role of their group and size: how many, the shortest and the middle of their times."""

import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from sim_core import Bools
from sweep.frameworks.names import by_word
from sweep.inputs.traces.events import NONE, Events
from sweep.inputs.traces.groups import WORDS, role_of
from sweep.inputs.traces.kinds import Kind

MICRO = 1e-6

KINDS = by_word(WORDS["kinds"])
_BY_KERNEL = (
    (r"all_?reduce|cross_device_reduce", "all_reduce"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"send_?recv", "send_receive"),
    (r"nccl\w*reduce", "reduce"),
)
_GLOO = "gloo:"
UNNAMED = "unnamed"

BYTES = by_word(WORDS["bytes"])


class Key(NamedTuple):
    """What makes calls equal; `bytes` is the larger of what a rank puts in and gets out, None where the file does not tell."""

    kind: str
    role: str = "unknown"
    group_size: int | None = None
    bytes: int | None = None


class Call(NamedTuple):
    """One call on one rank: GPU event, key, start and end in microseconds."""

    row: int
    key: Key
    start_us: float
    end_us: float


class Row(NamedTuple):
    """Calls of one key; seconds contain the wait for the last rank."""

    key: Key
    number: int
    minimum_s: float
    median_s: float
    total_s: float


def calls(events: Events, chosen: Bools, world: int | None) -> list[Call]:
    """The chosen collectives that ran on a GPU, in the order of their starts."""
    found = []
    for row in np.flatnonzero(chosen & (events.kind == Kind.COMMUNICATION)).tolist():
        start = float(events.gpu.us[row])
        end = start + float(events.gpu.dur_us[row])
        told = events.collectives.get(row)
        if told is None and events.operator[row] != NONE:
            told = events.op_collectives.get(int(events.operator[row]))
        if told is None:
            name = events.names[events.gpu.name[row]]
            by_name = next((each for pattern, each in _BY_KERNEL if re.search(pattern, name, re.IGNORECASE)), UNNAMED)
            found.append(Call(row, Key(by_name), start, end))
            continue
        kind = KINDS.get(told.name.lower(), told.name if re.fullmatch(r"[a-z_]{1,40}", told.name) else "other")
        width = BYTES.get(told.dtype)
        size = None if width is None else max(told.elements_in, told.elements_out) * width
        key = Key(kind, role_of(told.description, told.group_size, world), told.group_size or None, size)
        found.append(Call(row, key, start, end))
    return sorted(found, key=lambda call: call.start_us)


def host_calls(events: Events) -> list[Call]:
    """The collectives of a CPU job (gloo), by the annotations of the host, which have neither sizes nor groups."""
    found = []
    for row, (name, start, duration, _) in enumerate(events.annotations):
        if name.startswith(_GLOO) and (kind := KINDS.get(name[len(_GLOO) :])):
            found.append(Call(row, Key(kind), start, start + duration))
    return found


def table(found: list[Call]) -> list[Row]:
    """Calls by key, those that took longest first."""
    times = defaultdict(list)
    for call in found:
        times[call.key].append((call.end_us - call.start_us) * MICRO)
    rows = [Row(key, len(each), min(each), float(np.median(each)), sum(each)) for key, each in times.items()]
    return sorted(rows, key=lambda row: (-row.total_s, tuple(map(str, row.key))))
