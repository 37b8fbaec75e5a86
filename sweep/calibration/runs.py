"""Measured steps of a user's own runs made into a hardware file: at most three numbers, those that the runs determine."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from sim_core import Bools, Floats, Hardware, Ints, SpecError, plural
from sweep.runs.simulation import seconds_on
from sweep.runs.table import CELLS, FIELDS, NotSimulated, Row

NAMES: Final = ("compute", "network", "fixed")
"""Factor on the seconds of GEMMs and attention, factor on the bandwidth between nodes, seconds of every step. In this order
they are kept where runs cannot tell them apart."""
LIMITS: Final = (0.05, 0.15, 0.03)
"""Largest standard error of each: of a factor as a part of it, of the seconds as a part of the median step."""
FELT: Final = 0.01
"""Least relative change of some run's step by a change of a factor, over that change; below it, no run depends on it."""
NOISE: Final = 0.01
"""Two measurements of one plan differ by this at least (published pairs: 1 to 2.4 %)."""
BETTER: Final = 0.98
"""A factor is kept if it lowers the error of runs left out to this part."""
SURE: Final = 2
STEPS: Final = 60
DELTA: Final = 1e-3
FOLDS: Final = 10
OUTER_FOLDS: Final = 20
FEWEST: Final = 3
COMPUTE: Final = np.log([0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.0])
SLOWEST_NETWORK: Final = np.log(0.1)
NETWORK_POINTS: Final = 8
PLAN: Final = (*CELLS, *FIELDS)
"""Columns that make two rows runs of one plan."""


class Steps(NamedTuple):
    """Simulated steps of runs over the two factors, and the measured ones."""

    compute: Floats  # logarithms, ascending, [c]
    network: Floats  # [n]; one alone where the network is not varied
    seconds: Floats  # [runs, c, n]
    measured_s: Floats  # [runs]
    group: Ints  # [runs]: runs of one plan share a number and are left out together

    def of(self, rows: Bools) -> "Steps":
        """Some of the runs."""
        return self._replace(seconds=self.seconds[rows], measured_s=self.measured_s[rows], group=self.group[rows])


class Choice(NamedTuple):
    """The values of NAMES (logarithms of factors; seconds), their standard errors (nan: not fitted), why others were not."""

    values: Floats
    errors: Floats
    reasons: dict[str, str]


def predicted(steps: Steps, values: Floats) -> Floats:
    """Seconds of each run: linear in the seconds of compute, and in those of messages, the inverse of the bandwidth."""
    seconds = steps.seconds
    for axis, at, sign in ((steps.compute, values[0], 1), (steps.network, values[1], -1)):
        if len(axis) == 1:
            seconds = seconds[:, 0]
            continue
        low = int(np.clip(np.searchsorted(axis, at) - 1, 0, len(axis) - 2))
        start, end, here = (np.exp(sign * x) for x in (axis[low], axis[low + 1], at))
        share = (here - start) / (end - start)
        seconds = seconds[:, low] * (1 - share) + seconds[:, low + 1] * share
    return np.asarray(seconds + values[2], np.float64)


def choose(steps: Steps) -> Choice:
    """Fit the factors that the runs determine, and no others."""
    active, reasons = list(range(len(NAMES))), dict[str, str]()

    def drop(number: int, why: str) -> None:
        active.remove(number)
        reasons[NAMES[number]] = why

    felt = np.abs(_slopes(steps, np.zeros(3))).max(axis=0) * [1, 1, np.median(steps.measured_s)]
    for number in reversed(range(len(NAMES))):
        if felt[number] < FELT:
            drop(number, "no step of these runs depends on it")
    while active:
        groups = len(np.unique(steps.group))
        if groups < len(active) + 2:
            drop(active[-1], f"{groups} different plans tell at most {max(groups - 2, 0)} numbers")
            continue
        values = _fitted(steps, active)
        off = _errors(steps, active, values) / [1, 1, np.median(steps.measured_s)]
        unclear = [number for number in active if not off[number] <= LIMITS[number]]
        if not unclear:
            break
        worst = unclear[-1]
        size = "cannot be told apart from the others" if not off[worst] < 1 else f"known to {off[worst] * 100:.0f} % only"
        drop(worst, f"{size} (limit: {LIMITS[worst] * 100:.0f} %{' of the step' if worst == 2 else ''})")
    for number in reversed(list(active)):
        values = _fitted(steps, active)
        if abs(values[number]) < SURE * _errors(steps, active, values)[number]:
            drop(number, f"no further from no change than {SURE} standard errors")
            continue
        rest = [other for other in active if other != number]
        with_it, without = _error_left_out(steps, active), _error_left_out(steps, rest)
        if with_it > without * BETTER:
            drop(number, f"runs left out are predicted as well without it ({without:.1f} %, with it {with_it:.1f} %)")
    values = _fitted(steps, active)
    return Choice(values, _errors(steps, active, values), reasons)


def left_out(steps: Steps) -> Floats:
    """Percent by which each run is off when its plan takes no part in choosing and fitting."""
    return _percent(_predicted_left_out(steps, OUTER_FOLDS, lambda others: choose(others).values), steps)


def _error_left_out(steps: Steps, active: Sequence[int]) -> float:
    """Mean absolute error of runs left out, percent, when these values are fitted."""
    seconds = _predicted_left_out(steps, FOLDS, lambda others: _fitted(others, active))
    return float(np.mean(np.abs(seconds / steps.measured_s - 1))) * 100


def _predicted_left_out(steps: Steps, most: int, fit: Callable[[Steps], Floats]) -> Floats:
    """Seconds of each run by a fit to the others. The runs of a plan are left out together, in at most so many folds."""
    seconds = np.empty(len(steps.measured_s))
    _, number = np.unique(steps.group, return_inverse=True)
    for fold in range(min(most, int(number.max()) + 1)):
        rows = number % most == fold
        seconds[rows] = predicted(steps, fit(steps.of(~rows)))[rows]
    return seconds


def _fitted(steps: Steps, active: Sequence[int]) -> Floats:
    """The values with the least squares of log(predicted / measured), within the bounds of the simulated factors."""
    low = np.array([steps.compute[0], steps.network[0], 0.0])
    high = np.array([steps.compute[-1], steps.network[-1], 0.5 * steps.measured_s.min()])
    values, columns = np.zeros(3), list(active)
    if not columns:
        return values
    rest = _rest(steps, values)
    for _ in range(STEPS):
        slopes = _slopes(steps, values)[:, columns]
        step = np.zeros(3)
        step[columns] = np.linalg.lstsq(slopes, -rest, rcond=1e-9)[0]
        for _ in range(8):
            tried = np.clip(values + step, low, high)
            tried_rest = _rest(steps, tried)
            if tried_rest @ tried_rest < rest @ rest:
                break
            step /= 2
        else:
            break
        small = np.abs(tried - values).max() < 1e-6
        values, rest = tried, tried_rest
        if small:
            break
    return values


def _rest(steps: Steps, values: Floats) -> Floats:
    return np.log(predicted(steps, values) / steps.measured_s)


def _slopes(steps: Steps, values: Floats) -> Floats:
    """Change of log(predicted) by each value, [runs, 3]."""
    slopes = np.zeros((len(steps.measured_s), 3))
    for number, axis in ((0, steps.compute), (1, steps.network)):
        if len(axis) > 1:
            below, above = values.copy(), values.copy()
            below[number], above[number] = max(values[number] - DELTA, axis[0]), min(values[number] + DELTA, axis[-1])
            width = above[number] - below[number]
            slopes[:, number] = np.log(predicted(steps, above) / predicted(steps, below)) / width
    slopes[:, 2] = 1 / predicted(steps, values)
    return slopes


def _errors(steps: Steps, active: Sequence[int], values: Floats) -> Floats:
    """Standard errors of the active values, nan for the others; infinite where the runs cannot separate them."""
    errors = np.full(3, np.nan)
    if not active:
        return errors
    rest, columns = _rest(steps, values), list(active)
    spread = max(float(rest @ rest) / max(len(rest) - len(columns), 1), NOISE**2)
    slopes = _slopes(steps, values)[:, columns]
    scale = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    inner = (slopes / scale).T @ (slopes / scale)
    if np.linalg.cond(inner) > 1e10:
        errors[columns] = np.inf
    else:
        errors[columns] = np.sqrt(spread * np.diag(np.linalg.inv(inner))) / scale
    return errors


class Fitted(NamedTuple):
    """One of NAMES: its value, its standard error (None: not fitted), and the number of the hardware that it changes."""

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
    """Fit `hardware`, or what the rows name, to the runs. Raises SpecError if they determine no number."""
    used, seconds, reasons = [], [], Counter[str]()
    base = hardware
    for row in rows:
        try:
            if row.quality != "ok":
                raise NotSimulated(f"quality {row.quality}")
            if row.number("step_time_s") is None:
                raise NotSimulated("time not stated")
            stated = hardware or row.hardware
            base = base or stated
            if stated != base:
                raise SpecError(
                    f"{row.where}: other hardware or network than the rows before: calibrate each by itself (--set), "
                    "or say --device for all"
                )
            seconds.append(seconds_on(row, _variants(base)))
            used.append(row)
        except NotSimulated as error:
            reasons[str(error)[:100]] += 1
    if base is None or len(used) < FEWEST:
        why = "".join(f"; {count} x {reason}" for reason, count in reasons.most_common(3))
        raise SpecError(f"{source}: found {plural(len(used), 'run')} to fit, expected at least {FEWEST}{why}")
    steps = _steps(base, used, np.array(seconds))
    chosen, off_before = choose(steps), _percent(predicted(steps, np.zeros(3)), steps)
    if len(chosen.reasons) == len(NAMES):
        why = "; ".join(f"{name}: {reason}" for name, reason in chosen.reasons.items())
        before = float(np.mean(np.abs(off_before)))
        raise SpecError(f"{source}: nothing to fit: {base.name} as it is is {before:.1f} % off; {why}")
    fitted, numbers = _with(base, chosen, f"fitted to {plural(len(used), 'run')} of {source}")
    after = np.array([seconds_on(row, [fitted])[0] for row in used])
    return RunsFit(fitted, numbers, tuple(used), off_before, _percent(after, steps), left_out(steps), dict(reasons))


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
        measured_s=np.array([row.number("step_time_s") or np.nan for row in rows]),
        group=np.array([numbers[plan] for plan in plans], np.int64),
    )


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
