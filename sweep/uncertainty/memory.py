"""Which plans run: ln(real / simulated memory) as a Gaussian process, fed by every peak and every run that did not fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf
from typing import Final

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.uncertainty.process import Axes, along, by_size

SHARED: Final = 0.1
"""Standard deviation of what all plans of a job have in common; of the published runs of three stacks 0.06 to 0.10."""
SIZED: Final = 0.1
"""The same, times the size of errors that the runs tell: a framework may be another than the one that was simulated."""
DOUBLING: Final = 0.05
NEAR: Final = 0.15
RANGE: Final = 4.0
BY_STACK: Final[Mapping[str, float]] = {"megatron-core": 0.02, "megatron-deepspeed": 0.06, "torchtitan": 0.05}
"""Mean of ln(real / simulated) of the published runs with a peak: 30, 44 and 7 of them (sweep/validation/data/measured.csv)."""
LEAST_WIDTH: Final = 0.03
PEAK_NOISE: Final = 0.03
"""Of ln of a peak: allocators and counters differ by so much."""
USABLE: Final = 0.95
"""Part of the device's memory that a job can have."""
USUAL: Final = 0.94
"""Part of the plans that fit which run: what is left are crashes and time-outs."""
FAILED_AT: Final = 1.05
FAILED_WIDTH: Final = 0.1
"""Memory that a run which did not fit is taken to need, over that of the device, and its standard deviation."""
DOUBTFUL: Final = 0.5
"""A crash tells of memory if the plan was expected to need more than this part of the device."""
NEIGHBOURS: Final = 3.0
"""Runs that USUAL is worth."""
NEIGHBOUR_RANGE: Final = 1.0
LEAST_LOAD: Final = 1e-9


def chance_before_runs(part: Floats, stack: str) -> Floats:
    """Chance that a plan runs, by its part of the memory and the stack alone, [n]; NaN where its memory is unknown."""
    width = (SHARED**2 + SIZED**2 + NEAR**2) ** 0.5
    known = ~np.isnan(part)
    chance = np.full(len(part), np.nan)
    load = np.log(np.maximum(part[known], LEAST_LOAD))
    chance[known] = USUAL * normal((np.log(USABLE) - load - mean_of(stack)) / width)
    return chance


def mean_of(stack: str) -> float:
    """Mean of ln(real / simulated memory) of a stack, by its name or that of a stack made of it; 0 where nobody measured."""
    return BY_STACK.get(stack.partition(" ")[0], 0.0)


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Own runs, [m]: rows of the candidates; ln(peak / simulated), NaN where unknown; how it ended."""

    rows: Ints
    peak: Floats
    out_of_memory: Bools
    crashed: Bools


def runs_probability(axes: Axes, part: Floats, outcomes: Outcomes, mean: float = 0.0, alike: Floats | None = None) -> Floats:
    """Chance that each plan runs, [n]. `part`: simulated memory over that of the device, NaN where unknown (it fits then).

    `mean`: of ln(real / simulated) before any run. `alike`, [n, n]: how much plans of two jobs share.
    """
    load = np.log(np.where(np.isnan(part), LEAST_LOAD, part))
    fixed = np.full((len(load), len(load)), SHARED**2)
    sized = SIZED**2 + DOUBLING**2 * along(axes) + NEAR**2 * np.exp(-axes.apart / RANGE)
    if alike is not None:
        fixed, sized = fixed * alike, sized * alike
    told, noise, blamed = _told(load, outcomes)
    known = ~np.isnan(told)
    weights, parts = by_size(fixed, sized, outcomes.rows[known], told[known] - mean, noise[known])
    fits = np.zeros(len(load))
    for weight, (expected, covariance) in zip(weights, parts, strict=True):
        width = np.sqrt(np.maximum(np.diag(covariance), LEAST_WIDTH**2))
        fits += weight * normal((np.log(USABLE) - load - mean - expected) / width)
    chance: Floats = fits * _neighbours(axes, outcomes, blamed)
    failed = outcomes.out_of_memory | outcomes.crashed
    chance[outcomes.rows[failed]] = 0.0
    chance[outcomes.rows[~failed]] = 1.0
    return chance


def normal(z: Floats) -> Floats:
    """Distribution function of the standard normal."""
    return 0.5 * (1 + np.array([erf(value / 2**0.5) for value in z]))


def _told(load: Floats, outcomes: Outcomes) -> tuple[Floats, Floats, Bools]:
    """What each run tells of ln(real / simulated), NaN for nothing, with its standard deviation; crashes blamed on the rest."""
    told, noise = outcomes.peak.copy(), np.full(len(outcomes.peak), PEAK_NOISE)
    full = outcomes.out_of_memory | (outcomes.crashed & (load[outcomes.rows] > np.log(DOUBTFUL)))
    told[full] = np.maximum(np.log(FAILED_AT) - load[outcomes.rows[full]], 0.0)
    noise[full] = FAILED_WIDTH
    return told, noise, outcomes.crashed & ~full


def _neighbours(axes: Axes, outcomes: Outcomes, blamed: Bools) -> Floats:
    """Chance that a plan which fits runs, by what near plans did, [n]."""
    near = np.exp(-axes.apart[:, outcomes.rows] / NEIGHBOUR_RANGE)
    ran = ~(outcomes.out_of_memory | outcomes.crashed)
    good, bad = near @ ran.astype(np.float64), near @ blamed.astype(np.float64)
    chance: Floats = (USUAL * NEIGHBOURS + good) / (NEIGHBOURS + good + bad)
    return chance
