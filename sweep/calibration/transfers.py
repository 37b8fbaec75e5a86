"""Collectives that all ranks of a group recorded: the transfer without the wait for the last rank, or why there is none; and
these as tables from which the numbers of a network are fitted."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import plural
from sweep.calibration.nccl_text import Measured, Table, bus_factor
from sweep.inputs.traces.collectives import Call, Key
from sweep.inputs.traces.profile import Recording

MICRO = 1e-6
TOGETHER_US = 50.0
"""Ends of a collective's ranks agree this well on one host (8 ranks of a DLRM step: within 1 to 7 us)."""
DOUBTFUL = 0.1
"""Calls whose ends disagree, as a share, from which the order of calls is not that of the others."""
MOST_LISTED = 16


class Transfer(NamedTuple):
    """Calls of one key on all ranks of a group.

    `seconds` of each call: the least over the ranks, since the last one to come does not wait.
    `between`: from the last start to the first end; None where the ranks' clocks are not one. `interval`: 10 to 90 % of the
    calls.
    """

    key: Key
    ranks: int
    number: int
    seconds: tuple[float, ...]
    between: tuple[float, ...] | None
    interval: tuple[float, float]


class Bound(NamedTuple):
    """Calls that not all ranks recorded: the shortest is an upper bound, and why."""

    key: Key
    number: int
    least_s: float
    why: str


def of_recordings(recordings: Iterable[Recording]) -> tuple[list[Transfer], list[Bound], list[str]]:
    """Transfers of the ranks of a job, bounds, and names of its GPUs."""
    found: _Calls = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    devices = set[str]()
    for number, each in enumerate(recordings):
        place, base = each.rank.place, each.events.about.get("baseTimeNanoseconds", 0)
        groups = {group.name: group.ranks for group in place.groups}
        offset = each.events.origin_us + (base * 1e-3 if isinstance(base, int) else 0.0)
        rank = number if each.rank.rank is None else each.rank.rank
        for call in each.calls:
            members = groups.get(call.group, ())
            size = call.key.group_size or place.world
            if not members and size is not None and size == place.world:
                members = tuple(range(size))
            found[members][call.key][rank].append((call, offset))
        devices |= {each.rank.device} - {""}
    transfers, bounds = list[Transfer](), list[Bound]()
    for members, by_key in found.items():
        absent = len(set(members) - {rank for by_rank in by_key.values() for rank in by_rank})
        for key, by_rank in by_key.items():
            # by the number that NCCL gives calls, else by time
            rows = [
                sorted(
                    by_rank.get(rank, ()), key=lambda row: (-1 if row[0].sequence is None else row[0].sequence, row[0].start_us)
                )
                for rank in members
            ]
            lengths = [len(each) for each in rows]
            met = None
            if not members:
                why = "the file does not tell the ranks of the group"
            elif len(members) < 2:
                why = "a group of one rank"
            elif absent:
                why = f"{len(members) - absent} of {len(members)} ranks of the group are there"
            elif len(set(lengths)) > 1:
                why = f"ranks recorded {min(lengths)} to {max(lengths)} calls"
            else:
                met = _meet(rows)
                why = f"the ranks' ends differ by more than {TOGETHER_US:g} us: these are not the same calls"
            if met is not None:
                low, high = np.quantile(met[0], (0.1, 0.9)).tolist()
                transfers.append(Transfer(key, len(members), len(met[0]), *met, (low, high)))
            else:
                every = [call.end_us - call.start_us for each in by_rank.values() for call, _ in each]
                bounds.append(Bound(key, len(every), min(every) * MICRO, why))
    return transfers, bounds, sorted(devices)


_Calls = dict[tuple[int, ...], dict[Key, dict[int, list[tuple[Call, float]]]]]
"""By the ranks of their group, key and rank, with what leads from a file's times to those of the clock, in microseconds; a call
without a group is one of all ranks."""


def _meet(rows: Sequence[Sequence[tuple[Call, float]]]) -> tuple[tuple[float, ...], tuple[float, ...] | None] | None:
    """Seconds of each call, and those between the last start and the first end; None where ends do not agree."""
    start = np.array([[call.start_us + offset for call, offset in each] for each in rows])
    lasting = np.array([[call.end_us - call.start_us for call, _ in each] for each in rows])
    end = start + lasting
    apart = end - end[0]
    clocks = np.median(apart, axis=1)  # how far each rank's clock is from the first one's
    if (np.abs(apart - clocks[:, None]) > TOGETHER_US).any(axis=0).mean() > DOUBTFUL:
        return None
    seconds = tuple((lasting.min(axis=0) * MICRO).tolist())
    if (np.abs(clocks) > TOGETHER_US).any():
        return seconds, None
    return seconds, tuple((np.maximum(end.min(axis=0) - start.max(axis=0), 0.0) * MICRO).tolist())


def tables(transfers: Sequence[Transfer], gpu: str) -> list[Table]:
    """A table for each operation and number of ranks whose sizes are known: of each size the middle of its transfers."""
    rows: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in transfers:
        if each.key.bytes:
            rows[each.key.kind, each.ranks][each.key.bytes] += each.seconds
    found = []
    for (kind, ranks), sizes in sorted(rows.items()):
        of_size = tuple(Measured(size, float(np.median(seconds))) for size, seconds in sorted(sizes.items()))
        found.append(Table(1, kind, ranks, None, gpu, of_size, 0))
    return found


def lines(transfers: Sequence[Transfer], bounds: Sequence[Bound]) -> Iterator[str]:
    """What was found, a line for each kind, group and size."""
    for each in sorted(transfers, key=lambda one: tuple(map(str, one.key))):
        yield f"{_words(each.key)}, {plural(each.ranks, 'rank')}: {_times(each)}"
    for bound in sorted(bounds, key=lambda one: tuple(map(str, one.key))):
        yield f"upper bound: {_words(bound.key)}: {bound.least_s * 1e6:,.1f} us, the least of {bound.number}: {bound.why}"


def _words(key: Key) -> str:
    size = "size not in the file" if key.bytes is None else f"{key.bytes:,} bytes"
    return f"{key.kind} ({key.role}), {size}"


def _times(each: Transfer) -> str:
    us = np.array(each.seconds) * 1e6
    number = f"{each.number} {'call' if each.number == 1 else 'calls'}"
    if 1 < len(us) <= MOST_LISTED and each.key.bytes is None:
        return f"{number}, least over the ranks: {', '.join(f'{value:,.10g}' for value in us)} us"
    low, high = (value * 1e6 for value in each.interval)
    middle, rate, between = float(np.median(us)), "", ""
    if each.key.bytes:
        rate = f", {each.key.bytes * bus_factor(each.key.kind, each.ranks) / middle / 1e3:,.1f} GB/s on the bus"
    if each.between is not None:
        between = f", last start to first end {np.median(each.between) * 1e6:,.1f} us"
    return f"{middle:,.1f} us ({low:,.1f} to {high:,.1f}, {number}){rate}{between}"
