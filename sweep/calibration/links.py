"""Numbers of a network, fitted to measured collectives: one at a time, and only those that the measurements determine."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from sim_core import Hardware, SpecError, collective_seconds
from sweep.calibration.nccl_text import Table

LARGE: Final = 2**26
"""Bytes from which the time of a message depends on bandwidths; up to SMALL it depends on latencies."""
SMALL: Final = 2**17
PASSES: Final = 3
GRID: Final = 24
STEPS: Final = 12
GOLDEN: Final = (math.sqrt(5) - 1) / 2
NEAR_BOUND: Final = 1.02
"""A value this near to its bound is at it."""
AT_BOUND: Final = "at its bound"
NO_BETTER: Final = "no lower error"
FAR: Final = 2.0
"""A size that is still off by this factor is named in the report."""


class Placed(NamedTuple):
    """A table and the nodes that its ranks were on."""

    path: str
    table: Table
    nodes: int


class Fitted(NamedTuple):
    """A number of the hardware, its value before and after the fit, and how many sizes determine it."""

    key: str
    before: float
    value: float
    sizes: int
    left: str = ""  # why it stays as it was; empty: the fitted value is taken


class LinksFit(NamedTuple):
    """The hardware with the fitted numbers that are taken, and the median error of each table before and after, percent."""

    hardware: Hardware
    numbers: tuple[Fitted, ...]
    errors: tuple[tuple[Placed, float, float], ...]
    far: tuple[tuple[Placed, int, float], ...]  # size, predicted over measured


class _Number(NamedTuple):
    """What can be fitted: between which values, and by which sizes of which tables."""

    least: float
    most: float
    unit: str
    tells: Callable[[Placed, int], bool]


def _one_node(*operations: str) -> Callable[[Placed, int], bool]:
    return lambda placed, size: placed.nodes == 1 and placed.table.operation in operations and size >= LARGE


def _large_between(several: bool) -> Callable[[Placed, int], bool]:
    """Large messages of collectives over nodes, of several ranks on each or of one."""
    return lambda placed, size: (
        placed.nodes > 1
        and placed.table.operation != "send_receive"
        and size >= LARGE
        and (placed.table.ranks > placed.nodes) == several
    )


def _small_between(*operations: str) -> Callable[[Placed, int], bool]:
    return lambda placed, size: placed.nodes > 1 and placed.table.operation in operations and size <= SMALL


NUMBERS: Final[Mapping[str, _Number]] = {
    "nvlink_efficiency": _Number(0.05, 1.0, "", _one_node("all_gather", "reduce_scatter", "all_to_all", "send_receive")),
    "nvls_efficiency": _Number(0.3, 1.0, "", _one_node("all_reduce")),
    "nic_efficiency": _Number(0.02, 1.0, "", _large_between(several=False)),
    "fabric_efficiency": _Number(0.02, 1.0, "", _large_between(several=True)),
    "nic_latency": _Number(1e-7, 1e-3, "s", _small_between("all_reduce", "all_to_all")),
    "net_overhead": _Number(1e-8, 1e-4, "s", _small_between("all_gather", "reduce_scatter")),
}
"""In the order in which they are fitted."""


def fit(hardware: Hardware, placed: Sequence[Placed], source: str) -> LinksFit:
    """Fit each number that the tables determine; the others stay as they are. Raises SpecError if there is none."""
    names = [name for name in NUMBERS if _told(name, hardware, placed)]
    if not names:
        raise SpecError(
            f"nothing to fit: found {len(placed)} tables, expected messages of {LARGE >> 20} MB or more, "
            f"or of {SMALL >> 10} kB or less between nodes"
        )
    left: dict[str, Fitted] = {}
    while True:
        values = _fitted([name for name in names if name not in left], hardware, placed)
        worst = _not_taken(values, hardware, placed)
        if worst is None:
            break
        name, why = worst
        left[name] = Fitted(name, hardware.value(name), values[name], _told(name, hardware, placed), why)
    fitted = _with(hardware, values, source)
    errors = tuple((each, _median(hardware, each), _median(fitted, each)) for each in placed)
    far = tuple(
        (each, row.size, ratio)
        for each in placed
        for row, ratio in zip(each.table.rows, _ratios(fitted, each), strict=True)
        if not 1 / FAR <= ratio <= FAR
    )
    numbers = tuple(
        left.get(name) or Fitted(name, hardware.value(name), values[name], _told(name, hardware, placed)) for name in names
    )
    return LinksFit(fitted, numbers, errors, far)


def _fitted(names: Sequence[str], hardware: Hardware, placed: Sequence[Placed]) -> dict[str, float]:
    """The numbers, each fitted with the others as they are."""
    values: dict[str, float] = {}
    for _ in range(PASSES):
        for name in names:
            values[name] = _best(name, hardware, placed, values)
    return values


def _not_taken(values: Mapping[str, float], hardware: Hardware, placed: Sequence[Placed]) -> tuple[str, str] | None:
    """A number that has to stay as it was, and why: it ran into a bound, or the error over all sizes is as low without it."""
    for name, value in values.items():
        number = NUMBERS[name]
        if value > number.most / NEAR_BOUND or value < number.least * NEAR_BOUND:
            return name, f"{AT_BOUND} {number.most if value > number.most / NEAR_BOUND else number.least:g}"
    with_all = _off(hardware, placed, values)
    gains = {
        name: _off(hardware, placed, {key: value for key, value in values.items() if key != name}) - with_all for name in values
    }
    least = min(gains, key=lambda each: gains[each], default="")
    return (least, NO_BETTER) if least and gains[least] <= 0 else None


def _off(hardware: Hardware, placed: Sequence[Placed], values: Mapping[str, float]) -> float:
    """Mean of |log(predicted / measured)| over all sizes of all tables."""
    tried = _with(hardware, values, "trial")
    return float(np.mean([abs(math.log(ratio)) for each in placed for ratio in _ratios(tried, each)]))


def _told(name: str, hardware: Hardware, placed: Sequence[Placed]) -> int:
    """How many measured sizes determine a number."""
    if name == "nvls_efficiency" and not hardware.value("nvls"):
        return 0
    return sum(NUMBERS[name].tells(each, row.size) for each in placed for row in each.table.rows)


def _best(name: str, hardware: Hardware, placed: Sequence[Placed], values: Mapping[str, float]) -> float:
    """The value with the least mean of |log(predicted / measured)| over the sizes that determine it.

    A grid of its logarithm, then golden section: next to the best point the mean has one minimum.
    """
    number = NUMBERS[name]

    def off(exponent: float) -> float:
        tried = _with(hardware, {**values, name: math.exp(exponent)}, "trial")
        off_by = [
            abs(math.log(ratio))
            for each in placed
            for row, ratio in zip(each.table.rows, _ratios(tried, each), strict=True)
            if number.tells(each, row.size)
        ]
        return float(np.mean(off_by))

    grid = np.linspace(math.log(number.least), math.log(number.most), GRID)
    best = int(np.argmin([off(float(exponent)) for exponent in grid]))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, GRID - 1)])
    for _ in range(STEPS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if off(left) <= off(right):
            high = right
        else:
            low = left
    return math.exp((low + high) / 2)


def _with(hardware: Hardware, values: Mapping[str, float], source: str) -> Hardware:
    rounded = {name: float(f"{value:.4g}") for name, value in values.items()}
    return hardware.with_values(
        {
            name: {"value": f"{value!r} {NUMBERS[name].unit}".strip() if NUMBERS[name].unit else value, "source": source}
            for name, value in rounded.items()
        }
    )


def _ratios(hardware: Hardware, placed: Placed) -> list[float]:
    sizes = [row.size for row in placed.table.rows]
    predicted = collective_seconds(placed.table.operation, sizes, placed.table.ranks, placed.nodes, hardware)
    return [float(seconds) / row.seconds for seconds, row in zip(predicted, placed.table.rows, strict=True)]


def _median(hardware: Hardware, placed: Placed) -> float:
    return float(np.median([abs(ratio - 1) for ratio in _ratios(hardware, placed)])) * 100
