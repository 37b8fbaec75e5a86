"""How well the ratio of two plans is predicted, fitted to pairs of plans of one job."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sweep.uncertainty.evidence import DENSE, EXPERTS, FREEDOM, LEVEL, Differences
from sweep.uncertainty.quantiles import t3_quantile
from sweep.uncertainty.residuals import Pairs

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Scale = tuple[float, float]
"""`same` and `doubling` of dense models."""

START: Final[Scale] = (0.01, 0.05)
LEAST: Final = 0.005
"""Of both: steps of one plan measured again differ by so much."""
MOST: Final = 0.5
STEPS: Final = (2.0, 1.4, 1.2, 1.1, 1.05, 1.02)


def fit_differences(pairs: Pairs, factor: float) -> dict[str, Differences]:
    """Differences of each class by maximum likelihood of a t distribution; every set counts the same.

    `factor`: errors of models with experts over those of dense ones. There are too few pairs of the former to fit it here.
    """
    scale = _fit(pairs, factor, np.ones(len(pairs.error), np.bool_))
    found = {}
    for experts, kind, times in ((False, DENSE, 1.0), (True, EXPERTS, factor)):
        rows = pairs.experts == experts
        found[kind] = Differences(
            same=scale[0] * times, doubling=scale[1] * times, pairs=int(rows.sum()), sets=len(np.unique(pairs.set[rows]))
        )
    return found


def holds(pairs: Pairs, factor: float) -> Bools:
    """Whether the error of each pair is inside the interval at LEVEL that the other sets' pairs give, [pairs]."""
    inside = np.zeros(len(pairs.error), np.bool_)
    bound = t3_quantile((1 + LEVEL) / 2)
    for name in np.unique(pairs.set):
        out = pairs.set == name
        deviation = np.sqrt(_variance(pairs, factor, _fit(pairs, factor, ~out)))
        inside[out] = (np.abs(pairs.error) <= bound * deviation)[out]
    return inside


def _variance(pairs: Pairs, factor: float, scale: Scale) -> Floats:
    plain = Differences(same=scale[0], doubling=scale[1], pairs=0, sets=0).variogram(pairs.doublings)
    found: Floats = plain * np.where(pairs.experts, factor**2, 1.0)
    return found


def _fit(pairs: Pairs, factor: float, rows: Bools) -> Scale:
    """Climbs the likelihood along one of the two at a time, by ever smaller steps."""
    chosen = pairs.chosen(rows)
    if not len(chosen.error):
        return START
    _, at, counts = np.unique(chosen.set, return_inverse=True, return_counts=True)
    weights = 1 / counts[at]

    def likelihood(scale: Scale) -> float:
        variance = _variance(chosen, factor, scale)
        tail = (FREEDOM + 1) / 2 * np.log1p(chosen.error**2 / (FREEDOM * variance))
        return float((weights * (-0.5 * np.log(variance) - tail)).sum())

    best, reached = START, likelihood(START)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for times in ((step, 1.0), (1 / step, 1.0), (1.0, step), (1.0, 1 / step)):
                tried = (_bounded(best[0] * times[0]), _bounded(best[1] * times[1]))
                if (found := likelihood(tried)) > reached + 1e-9:
                    best, reached, moved = tried, found, True
    return best


def _bounded(value: float) -> float:
    return min(max(value, LEAST), MOST)
