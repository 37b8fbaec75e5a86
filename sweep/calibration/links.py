"""Numbers of a network, fitted to measured collectives on a machine: one at a time, and only those that these determine."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import Hardware, SpecError, collective_seconds, preset_names, read_hardware
from sweep.calibration.nccl_text import Table
from sweep.options import wrong
from sweep.runs.devices import preset_of
from sweep.runs.table import NotSimulated

LARGE = 2**26
"""Bytes from which the time of a message depends on bandwidths; up to SMALL it depends on latencies."""
SMALL = 2**17
PASSES = 3
GRID = 24
STEPS = 12
GOLDEN = (math.sqrt(5) - 1) / 2
NEAR_BOUND = 1.02
"""A value this near to its bound is at it."""
AT_BOUND = "at its bound"
NO_BETTER = "no lower error"
FAR = 2.0
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
    operations: tuple[str, ...]
    nodes: str  # "one"; "several", of several ranks each; "single", of one rank each; "any" but one

    def tells(self, placed: Placed, size: int) -> bool:
        """Whether a size of a table determines it: bandwidths large messages, latencies small ones."""
        ranks, nodes = placed.table.ranks, placed.nodes
        kinds = {"one"} if nodes == 1 else {"any", "several" if ranks > nodes else "single"}
        large = size <= SMALL if self.unit else size >= LARGE
        return placed.table.operation in self.operations and self.nodes in kinds and large


_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NUMBERS: Mapping[str, _Number] = {
    "nvlink_efficiency": _Number(0.05, 1.0, "", (*_COLLECTIVES[1:], "send_receive"), "one"),
    "nvls_efficiency": _Number(0.3, 1.0, "", ("all_reduce",), "one"),
    "nic_efficiency": _Number(0.02, 1.0, "", _COLLECTIVES, "single"),
    "fabric_efficiency": _Number(0.02, 1.0, "", _COLLECTIVES, "several"),
    "nic_latency": _Number(1e-7, 1e-3, "s", ("all_reduce", "all_to_all"), "any"),
    "net_overhead": _Number(1e-8, 1e-4, "s", ("all_gather", "reduce_scatter"), "any"),
}
"""In the order in which they are fitted."""


def fit(hardware: Hardware, placed: Sequence[Placed], source: str) -> LinksFit:
    """Fit each number that the tables determine; the others stay as they are. Raises SpecError if there is none."""
    told = {
        name: sum(number.tells(each, row.size) for each in placed for row in each.table.rows)
        for name, number in NUMBERS.items()
        if name != "nvls_efficiency" or hardware.value("nvls")
    }
    names = [name for name, sizes in told.items() if sizes]
    if not names:
        raise SpecError(
            f"nothing to fit: found {len(placed)} tables, expected messages of {LARGE >> 20} MB or more, "
            f"or of {SMALL >> 10} kB or less between nodes"
        )
    left: dict[str, str] = {}
    fitted: dict[str, float] = {}
    while True:
        values: dict[str, float] = {}
        for name in [name for name in names if name not in left] * PASSES:  # each with the others as they are
            values[name] = _best(name, hardware, placed, values)
        fitted |= values
        if (worst := _not_taken(values, hardware, placed)) is None:
            break
        left[worst[0]] = worst[1]
    after = _with(hardware, values, source)
    ratios = [(each, _ratios(hardware, each), _ratios(after, each)) for each in placed]
    far = tuple(
        (each, row.size, ratio)
        for each, _, then in ratios
        for row, ratio in zip(each.table.rows, then, strict=True)
        if not 1 / FAR <= ratio <= FAR
    )
    numbers = tuple(Fitted(name, hardware.value(name), fitted[name], told[name], left.get(name, "")) for name in names)
    return LinksFit(after, numbers, tuple((each, _median(before), _median(then)) for each, before, then in ratios), far)


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


def _off(hardware: Hardware, placed: Sequence[Placed], values: Mapping[str, float], told: _Number | None = None) -> float:
    """Mean of |log(predicted / measured)| over all sizes of all tables, or those that determine a number."""
    tried = _with(hardware, values, "trial")
    off_by = [
        abs(math.log(ratio))
        for each in placed
        for row, ratio in zip(each.table.rows, _ratios(tried, each), strict=True)
        if told is None or told.tells(each, row.size)
    ]
    return float(np.mean(off_by))


def _best(name: str, hardware: Hardware, placed: Sequence[Placed], values: Mapping[str, float]) -> float:
    """The value with the least mean of |log(predicted / measured)| over the sizes that determine it.

    A grid of its logarithm, then golden section: next to the best point the mean has one minimum.
    """
    number = NUMBERS[name]

    def off(exponent: float) -> float:
        return _off(hardware, placed, {**values, name: math.exp(exponent)}, number)

    grid = np.linspace(math.log(number.least), math.log(number.most), GRID).tolist()
    best = int(np.argmin([off(exponent) for exponent in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, GRID - 1)]
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
            name: {"value": f"{value!r} {unit}" if (unit := NUMBERS[name].unit) else value, "source": source}
            for name, value in rounded.items()
        }
    )


def _ratios(hardware: Hardware, placed: Placed) -> list[float]:
    """Predicted over measured seconds of each size of a table."""
    sizes = [row.size for row in placed.table.rows]
    predicted = collective_seconds(placed.table.operation, sizes, placed.table.ranks, placed.nodes, hardware)
    return [float(seconds) / row.seconds for seconds, row in zip(predicted, placed.table.rows, strict=True)]


def _median(ratios: Sequence[float]) -> float:
    return float(np.median([abs(ratio - 1) for ratio in ratios])) * 100


MOST_OF_HOST = 16
"""GPUs of a host at most; a node of more is a rack, whose hosts share NVLink."""


def named_preset(gpu: str, where: str, valid: str) -> str:
    """The preset of a GPU as it calls itself. Raises SpecError."""
    try:
        return preset_of(gpu)
    except NotSimulated as error:
        raise SpecError(f"{where}: {error}: say --device, {valid}{', '.join(preset_names())}") from None


def machine_of(device: str | None, tables: Sequence[Table], nics: str | None, gpus: int | None) -> Hardware:
    """What to start from: the preset named, or that of the GPU in the logs, with GPUs and NICs of the node as stated.

    Raises SpecError, also where the hosts of the logs may have more GPUs than they list.
    """
    if device is None:
        names = sorted({table.gpu for table in tables if table.gpu})
        if len(names) != 1:
            why = f"found {', '.join(names)}" if names else "the logs do not name the GPU"
            raise SpecError(f"calibrate nccl: {why}: say --device, valid: {', '.join(preset_names())}")
        device = named_preset(names[0], "calibrate nccl", "valid: ")
    hardware = read_hardware(device)
    if gpus is not None:
        share = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        hardware = hardware.with_values({"gpus_per_node": gpus, "nics_per_node": share})
    if nics is not None:
        hardware = hardware.with_values(nics_of(nics))
    if gpus is None:
        _check_node(tables, hardware)
    return hardware


def nics_of(text: str) -> dict[str, int | str]:
    """The numbers of a node's NICs, of `--nics 8x400G`. Raises OptionError."""
    count, times, speed = text.lower().partition("x")
    number = speed.rstrip("g")
    if not (times and count.isascii() and count.isdigit() and int(count[:6]) > 0 and number.replace(".", "", 1).isdigit()):
        raise wrong("--nics", text, "a number of NICs and Gb/s, such as 8x400G")
    return {"nics_per_node": int(count), "nic_bandwidth": f"{float(number)} Gb/s"}


def _check_node(tables: Sequence[Table], hardware: Hardware) -> None:
    """Raise SpecError where hosts list several ranks, but fewer than the preset's node has: they say nothing of the other GPUs.

    One rank on each tells of a NIC alone, whatever the node.
    """
    listed = max((math.ceil(table.ranks / table.nodes) for table in tables if table.nodes), default=0)
    most = int(hardware.value("gpus_per_node"))
    if 1 < listed < most <= MOST_OF_HOST:
        raise SpecError(
            f"calibrate nccl: the logs list {listed} ranks on a host, {hardware.name} has {most} GPUs a node: "
            f"say --gpus-per-node {listed} if these are all of them (and --nics), or {most}"
        )


def place(path: Path, table: Table, hardware: Hardware) -> Placed | str:
    """A table with the nodes of its ranks; or why it cannot be used."""
    most = int(hardware.value("gpus_per_node"))
    nodes = table.nodes if table.nodes is not None and most <= MOST_OF_HOST else math.ceil(table.ranks / most)
    if table.operation not in (*_COLLECTIVES, "send_receive"):
        return f"{path}:{table.line}: {table.operation} is not modelled"
    if not nodes <= table.ranks <= nodes * most:
        return f"{path}:{table.line}: {table.ranks} ranks on {nodes} nodes, but {hardware.name} has {most} GPUs a node"
    return Placed(str(path), table, nodes)
