"""Three factors on simulated steps, fitted to measured ones: least squares, what the runs can tell, errors of runs left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NAMES: Final = ("compute", "network", "fixed")
"""Factor on the seconds of GEMMs and attention, factor on the bandwidth between nodes, seconds of every step. In this order
they are kept where runs cannot tell them apart."""
LIMITS: Final = (0.05, 0.15, 0.03)
"""Largest standard error of each: of a factor as a part of it, of the seconds as a part of the median step."""
FELT: Final = 0.01
"""Least change of the step of some run, as a part of the change of a factor; below it, no run tells the factor."""
NOISE: Final = 0.01
"""Two measurements of one plan differ by this at least (published pairs: 1 to 2.4 %)."""
BETTER: Final = 0.98
"""A factor is kept if it lowers the error of runs left out to this part."""
SURE: Final = 2
STEPS: Final = 60
DELTA: Final = 1e-3
FOLDS: Final = 10
OUTER_FOLDS: Final = 20


class Steps(NamedTuple):
    """Simulated steps of runs over the two factors, and the measured ones."""

    compute: Floats  # logarithms, ascending, [c]
    network: Floats  # [n]; one alone where the network is not varied
    seconds: Floats  # [runs, c, n]
    measured_s: Floats  # [runs]
    group: Ints  # [runs]: runs of one plan share a number and are left out together

    def of(self, rows: npt.NDArray[np.bool_]) -> Steps:
        """Some of the runs."""
        return self._replace(seconds=self.seconds[rows], measured_s=self.measured_s[rows], group=self.group[rows])


class Choice(NamedTuple):
    """The values of NAMES (logarithms of factors; seconds), their standard errors (nan: not fitted), why others were not."""

    values: Floats
    errors: Floats
    reasons: dict[str, str]


def predicted(steps: Steps, values: Floats) -> Floats:
    """Seconds of each run: linear in the seconds of compute, and in those of messages, the inverse of the bandwidth."""
    found = steps.seconds
    for axis, at, sign in ((steps.compute, values[0], 1), (steps.network, values[1], -1)):
        if len(axis) == 1:
            found = found[:, 0]
            continue
        low = int(np.clip(np.searchsorted(axis, at) - 1, 0, len(axis) - 2))
        start, end, here = (np.exp(sign * x) for x in (axis[low], axis[low + 1], at))
        share = (here - start) / (end - start)
        found = found[:, low] * (1 - share) + found[:, low + 1] * share
    return np.asarray(found + values[2], np.float64)


def choose(steps: Steps) -> Choice:
    """Fit the factors that the runs tell, and no others."""
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
    found = np.empty(len(steps.measured_s))
    for rows in _folds(steps, OUTER_FOLDS):
        found[rows] = predicted(steps, choose(steps.of(~rows)).values)[rows]
    return (found / steps.measured_s - 1) * 100


def _error_left_out(steps: Steps, active: Sequence[int]) -> float:
    """Mean absolute error of runs left out, percent, with given factors."""
    found = np.empty(len(steps.measured_s))
    for rows in _folds(steps, FOLDS):
        found[rows] = predicted(steps, _fitted(steps.of(~rows), active))[rows]
    return float(np.mean(np.abs(found / steps.measured_s - 1))) * 100


def _folds(steps: Steps, most: int) -> list[npt.NDArray[np.bool_]]:
    """Runs that are left out together: those of one plan, or of several where there are many."""
    _, number = np.unique(steps.group, return_inverse=True)
    return [number % most == fold for fold in range(min(most, int(number.max()) + 1))]


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
    found = np.zeros((len(steps.measured_s), 3))
    for number, axis in ((0, steps.compute), (1, steps.network)):
        if len(axis) > 1:
            below, above = values.copy(), values.copy()
            below[number], above[number] = max(values[number] - DELTA, axis[0]), min(values[number] + DELTA, axis[-1])
            width = above[number] - below[number]
            found[:, number] = np.log(predicted(steps, above) / predicted(steps, below)) / width
    found[:, 2] = 1 / predicted(steps, values)
    return found


def _errors(steps: Steps, active: Sequence[int], values: Floats) -> Floats:
    """Standard errors of the active values, nan for the others; infinite where the runs do not tell them apart."""
    found = np.full(3, np.nan)
    if not active:
        return found
    rest, columns = _rest(steps, values), list(active)
    spread = max(float(rest @ rest) / max(len(rest) - len(columns), 1), NOISE**2)
    slopes = _slopes(steps, values)[:, columns]
    scale = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    inner = (slopes / scale).T @ (slopes / scale)
    if np.linalg.cond(inner) > 1e10:
        found[columns] = np.inf
    else:
        found[columns] = np.sqrt(spread * np.diag(np.linalg.inv(inner))) / scale
    return found
