"""Measured steps of a user's own runs made into a hardware file: at most three numbers, and only those that the runs tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core import Hardware, SpecError
from sweep.calibration.scalars import NAMES, Choice, Steps, choose, left_out, predicted
from sweep.validation.devices import hardware_of
from sweep.validation.simulation import seconds_on
from sweep.validation.table import COUNTS, SWITCHES, NotSimulated, Row

Floats = npt.NDArray[np.float64]

FEWEST: Final = 3
COMPUTE: Final = np.log([0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.0])
SLOWEST_NETWORK: Final = np.log(0.1)
NETWORK_POINTS: Final = 8
PLAN: Final = (
    *(name for name in COUNTS if name != "dp"), *SWITCHES, "framework", "hw", "model", "dtype", "zero", "recompute", "schedule",
)  # fmt: skip
"""Columns that make two rows runs of one plan."""


class Fitted(NamedTuple):
    """One of NAMES: its value, standard error (None: not fitted), and the number of the hardware that holds it."""

    name: str
    value: float  # a factor, or seconds
    error: float | None  # of a factor: a part of it
    key: str
    before: float
    after: float
    why: str


class RunsFit(NamedTuple):
    """The hardware, its numbers, and errors of the runs in percent: before, after, and each one left out."""

    hardware: Hardware
    numbers: tuple[Fitted, ...]
    rows: tuple[Row, ...]
    before: Floats
    after: Floats
    left_out: Floats
    not_used: dict[str, int]


def fit_runs(rows: Sequence[Row], hardware: Hardware | None, source: str) -> RunsFit:
    """Fit `hardware`, or what the rows name, to the runs. Raises SpecError if they tell nothing."""
    used, found, reasons = [], [], Counter[str]()
    base = hardware
    for row in rows:
        try:
            if row.quality != "ok":
                raise NotSimulated(f"quality {row.quality}")
            if row.number("iter_ms") is None:
                raise NotSimulated("time not stated")
            stated = hardware or hardware_of(row)
            base = base or stated
            if stated != base:
                raise SpecError(
                    f"{row.where}: other hardware or network than the rows before: calibrate each by itself (--set), "
                    "or say --device for all"
                )
            found.append(seconds_on(row, _variants(base)))
            used.append(row)
        except NotSimulated as error:
            reasons[str(error)[:100]] += 1
    if base is None or len(used) < FEWEST:
        why = "".join(f"; {count} x {reason}" for reason, count in reasons.most_common(3))
        raise SpecError(f"{source}: found {len(used)} runs to fit, expected at least {FEWEST}{why}")
    steps = _steps(base, used, np.array(found))
    chosen = choose(steps)
    if len(chosen.reasons) == len(NAMES):
        why = "; ".join(f"{name}: {reason}" for name, reason in chosen.reasons.items())
        before = float(np.mean(np.abs(_percent(_now(steps), steps))))
        raise SpecError(f"{source}: nothing to fit: {base.name} as it is is {before:.1f} % off; {why}")
    fitted, numbers = _with(base, chosen, f"fitted to {len(used)} runs of {source}")
    after = np.array([seconds_on(row, [fitted])[0] for row in used])
    return RunsFit(
        fitted, numbers, tuple(used), _percent(_now(steps), steps), _percent(after, steps), left_out(steps), dict(reasons)
    )


def _network(base: Hardware) -> Floats:
    """Logarithms of factors on the bandwidth between nodes: at most all of it; 1 is one of them."""
    most = -np.log(base.value("nic_efficiency"))
    points = np.linspace(SLOWEST_NETWORK, 0, NETWORK_POINTS)
    return np.append(points, most) if most > 1e-6 else points


def _variants(base: Hardware) -> list[Hardware]:
    """The hardware under each pair of factors, the network's fastest."""
    sustained, nic = base.value("sustained_scale"), base.value("nic_efficiency")
    return [
        base.with_values({"sustained_scale": sustained * np.exp(compute), "nic_efficiency": min(nic * np.exp(network), 1.0)})
        for compute in COMPUTE
        for network in _network(base)
    ]


def _steps(base: Hardware, rows: Sequence[Row], seconds: Floats) -> Steps:
    network = _network(base)
    plans = [tuple(row.text(key) for key in PLAN) for row in rows]
    numbers = {plan: number for number, plan in enumerate(dict.fromkeys(plans))}
    return Steps(
        compute=COMPUTE,
        network=network,
        seconds=seconds.reshape(len(rows), len(COMPUTE), len(network)),
        measured_s=np.array([row.number("iter_ms") or np.nan for row in rows]) / 1e3,
        group=np.array([numbers[plan] for plan in plans], np.int64),
    )


def _now(steps: Steps) -> Floats:
    """Seconds on the hardware as it was."""
    return predicted(steps, np.zeros(3))


def _percent(seconds: Floats, steps: Steps) -> Floats:
    return np.asarray((seconds / steps.measured_s - 1) * 100, np.float64)


def _with(base: Hardware, chosen: Choice, source: str) -> tuple[Hardware, tuple[Fitted, ...]]:
    """The hardware with the fitted numbers, each with what it was before."""
    values: dict[str, object] = {}
    numbers = []
    for number, (name, key) in enumerate(zip(NAMES, ("sustained_scale", "nic_efficiency", "step_overhead"), strict=True)):
        before, error = base.value(key), float(chosen.errors[number])
        value = float(chosen.values[number]) if name == "fixed" else float(np.exp(chosen.values[number]))
        after = before + value if name == "fixed" else before * value
        if name in chosen.reasons:
            numbers.append(Fitted(name, value, None, key, before, before, chosen.reasons[name]))
            continue
        after = float(f"{min(after, 1.0) if name == 'network' else after:.4g}")
        if name == "fixed":
            stated = f"{value:.3g} s a step, standard error {error:.2g} s, {source}"
            values[key] = {"value": f"{after!r} s", "source": stated}
        else:
            stated = f"{before:.4g} x {value:.4g}, standard error {error * 100:.1f} %, {source}"
            values[key] = {"value": after, "source": stated}
        numbers.append(Fitted(name, value, error, key, before, after, ""))
    return base.with_values(values), tuple(numbers)
