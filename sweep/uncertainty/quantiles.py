"""Quantiles of weighted samples, and of the t distribution with three degrees of freedom."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def weighted(values: Floats, weights: Floats, levels: Floats) -> Floats:
    """Quantiles at `levels`: linear between the middles of the steps of the distribution, not beyond the sample."""
    order = np.argsort(values, kind="stable")
    share = weights[order] / weights.sum()
    found: Floats = np.interp(levels, np.cumsum(share) - share / 2, values[order])
    return found


def t3_cdf(values: Floats) -> Floats:
    """Distribution function of Student's t with 3 degrees of freedom."""
    scaled = values / np.sqrt(3.0)
    found: Floats = 0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi
    return found


def t3_quantile(level: float) -> float:
    """Inverse of `t3_cdf` by bisection."""
    low, high = -1e3, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t3_cdf(np.array(middle)) < level else (low, middle)
    return (low + high) / 2
