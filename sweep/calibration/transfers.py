"""Collectives that all ranks of a group recorded: the transfer without the wait for the last rank, or why there is none; and
these as tables from which the numbers of a network are fitted."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sim_core import Floats, FormatError, plural, shown
from sweep.calibration.nccl_text import LARGEST_FILE, Measured, Table, bus_factor
from sweep.inputs.traces.collectives import BYTES, KINDS, Call, Key
from sweep.inputs.traces.profile import Recording

MICRO: Final = 1e-6
TOGETHER_US: Final = 50.0
"""Ends of a collective's ranks agree this well on one host (8 ranks of a DLRM step: within 1 to 7 us)."""
DOUBTFUL: Final = 0.1
"""Calls whose ends disagree, as a share, from which the order of calls is not that of the others."""
TURNS: Final = 0.05
"""A call of another rank that is shorter by this part than all of a rank: that rank was not always last."""
RANK_TABLE: Final = ("rank", "Collective name", "Group size", "dtype", "In msg nelems", "Out msg nelems", "dur_mean", "dur_min")
MOST_LISTED: Final = 16


class Transfer(NamedTuple):
    """Calls of one key on all ranks of a group.

    `seconds` of each call (of a table by rank, of all): the least over the ranks, since the last one to come does not wait.
    `between`: from the last start to the first end; None where the ranks' clocks are not one. `interval`: 10 to 90 % of the
    calls; of a table, between the least call and the least mean.
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


class _Rank(NamedTuple):
    number: int
    world: int | None
    groups: Mapping[str, tuple[int, ...]]  # ranks by name
    calls: tuple[Call, ...]
    offset_us: float  # from the file's times to those of the clock


def of_recordings(recordings: Iterable[Recording]) -> tuple[list[Transfer], list[Bound], list[str]]:
    """Transfers of the ranks of a job, bounds, and names of its GPUs."""
    ranks, devices = list[_Rank](), set[str]()
    for number, each in enumerate(recordings):
        place, base = each.rank.place, each.events.about.get("baseTimeNanoseconds", 0)
        groups = {group.name: group.ranks for group in place.groups}
        offset = each.events.origin_us + (base * 1e-3 if isinstance(base, int) else 0.0)
        rank = number if each.rank.rank is None else each.rank.rank
        ranks.append(_Rank(rank, place.world, groups, each.calls, offset))
        devices |= {each.rank.device} - {""}
    transfers, bounds = list[Transfer](), list[Bound]()
    for members, of_group in _by_group(ranks).items():
        _match(members, of_group, transfers, bounds)
    return transfers, bounds, sorted(devices)


def _by_group(ranks: Sequence[_Rank]) -> dict[tuple[int, ...], dict[int, list[tuple[Call, float]]]]:
    """Calls by the ranks of their group and by rank; a call without a group is one of all ranks."""
    found: dict[tuple[int, ...], dict[int, list[tuple[Call, float]]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for call in rank.calls:
            members = rank.groups.get(call.group, ())
            size = call.key.group_size or rank.world
            if not members and size is not None and size == rank.world:
                members = tuple(range(size))
            found[members][rank.number].append((call, rank.offset_us))
    return found


def _match(
    members: tuple[int, ...],
    of_group: Mapping[int, list[tuple[Call, float]]],
    transfers: list[Transfer],
    bounds: list[Bound],
) -> None:
    """Transfers of one group, or bounds where ranks are absent, or their calls do not meet."""
    by_key: dict[Key, dict[int, list[tuple[Call, float]]]] = defaultdict(lambda: defaultdict(list))
    for rank, recorded in of_group.items():
        for call, offset in recorded:
            by_key[call.key][rank].append((call, offset))
    absent = sorted(set(members) - set(of_group))
    for key, rows_by_rank in by_key.items():
        rows = [sorted(rows_by_rank.get(rank, ()), key=_order) for rank in members]
        why = ""
        if not members:
            why = "the file does not tell the ranks of the group"
        elif len(members) < 2:
            why = "a group of one rank"
        elif absent:
            why = f"{len(members) - len(absent)} of {len(members)} ranks of the group are there"
        elif len({len(each) for each in rows}) > 1:
            why = f"ranks recorded {min(map(len, rows))} to {max(map(len, rows))} calls"
        else:
            seconds, between = _meet(rows)
            if seconds is not None:
                low, high = (float(x) for x in np.quantile(seconds, (0.1, 0.9)))
                transfers.append(Transfer(key, len(members), len(seconds), seconds, between, (low, high)))
                continue
            why = f"the ranks' ends differ by more than {TOGETHER_US:g} us: these are not the same calls"
        every = [call.end_us - call.start_us for each in rows_by_rank.values() for call, _ in each]
        bounds.append(Bound(key, len(every), min(every) * MICRO, why))


def _order(row: tuple[Call, float]) -> tuple[int, float]:
    """By the number that NCCL gives calls, else by time."""
    call = row[0]
    return (call.sequence if call.sequence is not None else -1, call.start_us)


def _meet(rows: Sequence[Sequence[tuple[Call, float]]]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Seconds of each call, and those between the last start and the first end; None where ends do not agree."""
    start = np.array([[call.start_us + offset for call, offset in each] for each in rows])
    lasting = np.array([[call.end_us - call.start_us for call, _ in each] for each in rows])
    end: Floats = start + lasting
    apart = end - end[0]
    clocks = np.median(apart, axis=1)  # how far each rank's clock is from the first one's
    if (np.abs(apart - clocks[:, None]) > TOGETHER_US).any(axis=0).mean() > DOUBTFUL:
        return None, None
    seconds = tuple((lasting.min(axis=0) * MICRO).tolist())
    if (np.abs(clocks) > TOGETHER_US).any():
        return seconds, None
    return seconds, tuple((np.maximum(end.min(axis=0) - start.max(axis=0), 0.0) * MICRO).tolist())


def is_rank_table(path: Path) -> bool:
    """Whether a file is a table of collectives by rank, as TraceLens writes it (nccl_summary_long.csv). Raises OSError."""
    with path.open("rb") as file:
        head = file.readline(4096).decode("utf-8", "replace")
    return set(RANK_TABLE) <= set(head.strip().split(","))


class _OfRank(NamedTuple):
    """Calls of one rank: how many, their mean and the shortest, in seconds."""

    number: int
    mean_s: float
    least_s: float


def of_rank_table(path: Path) -> tuple[list[Transfer], list[Bound]]:
    """Transfers by the means and minima of each rank. Raises FormatError, OSError."""
    if path.stat().st_size > LARGEST_FILE:
        raise FormatError(str(path), 1, "file size", found=f"{path.stat().st_size:,} bytes", expected="a table by rank")
    found: dict[tuple[str, Key], dict[int, _OfRank]] = defaultdict(dict)
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        for row in rows:
            group, rank, key, of_rank = _row(str(path), rows.line_num, row)
            found[group, key][rank] = of_rank
    transfers, bounds = list[Transfer](), list[Bound]()
    for (_, key), ranks in found.items():
        numbers = {each.number for each in ranks.values()}
        least_s = min(each.least_s for each in ranks.values())
        if len(ranks) != key.group_size:
            why = f"{len(ranks)} of {key.group_size} ranks of the group are there"
        elif len(numbers) > 1:
            why = f"ranks recorded {min(numbers)} to {max(numbers)} calls"
        else:
            most_s = min(each.mean_s for each in ranks.values())
            seconds = (_of_ranks(list(ranks.values())),)
            transfers.append(Transfer(key, len(ranks), numbers.pop(), seconds, None, (least_s, most_s)))
            continue
        bounds.append(Bound(key, max(numbers), least_s, why))
    return transfers, bounds


def _of_ranks(ranks: Sequence[_OfRank]) -> float:
    """Seconds of a transfer: the mean of the rank that is always last; the middle of their minima where ranks take turns.

    A rank is always last if none has a call that is shorter than all of its own.
    """
    last = min(ranks, key=lambda each: each.mean_s)
    least_s = min(each.least_s for each in ranks)
    if least_s >= (1 - TURNS) * last.least_s:
        return last.mean_s
    return float(np.median([each.least_s for each in ranks if each.least_s < last.mean_s]))


def _row(path: str, line: int, row: Mapping[str, str | None]) -> tuple[str, int, Key, _OfRank]:
    """Group, rank, key, and the rank's calls."""
    rank, size = (_whole(path, line, row, name) for name in ("rank", "Group size"))
    elements = max(_whole(path, line, row, name) for name in ("In msg nelems", "Out msg nelems"))
    dtype, name = row.get("dtype") or "", (row.get("Collective name") or "").lower()
    if dtype not in BYTES or name not in KINDS:
        what = f"{shown(name)} of {shown(dtype)}"
        raise FormatError(path, line, "Collective name, dtype", found=what, expected="as PyTorch's profiler names them")
    number = _whole(path, line, row, "operation_count") if row.get("operation_count") else 1
    mean_us, least_us = (_number(path, line, row, column) for column in ("dur_mean", "dur_min"))
    key = Key(KINDS[name], "unknown", size, elements * BYTES[dtype])
    return (
        f"{row.get('Process Group Name')} {row.get('Process Group Ranks')}",
        rank,
        key,
        _OfRank(number, mean_us * MICRO, least_us * MICRO),
    )


def _number(path: str, line: int, row: Mapping[str, str | None], name: str) -> float:
    text = row.get(name) or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e15:
        raise FormatError(path, line, name, found=shown(text), expected="a number of 0 or more")
    return value


def _whole(path: str, line: int, row: Mapping[str, str | None], name: str) -> int:
    value = _number(path, line, row, name)
    if value != int(value):
        raise FormatError(path, line, name, found=shown(row.get(name)), expected="a whole number")
    return int(value)


def tables(transfers: Sequence[Transfer], gpu: str) -> list[Table]:
    """A table for each operation and number of ranks whose sizes are known: of each size the middle of its transfers."""
    rows: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in transfers:
        if each.key.bytes:
            rows[each.key.kind, each.ranks][each.key.bytes] += each.seconds
    found = []
    for (kind, ranks), sizes in sorted(rows.items()):
        of_size = tuple(Measured(size, float(np.median(seconds))) for size, seconds in sorted(sizes.items()))
        found.append(Table(1, kind, ranks, None, gpu, "", "under load", of_size, 0))
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
