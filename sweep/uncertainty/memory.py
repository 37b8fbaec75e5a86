"""Which plans run: ln(real / simulated memory) as a Gaussian process, fed by every peak and every run that did not fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf
from typing import Final

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.uncertainty.process import Axes, along, by_size, weights_of

SHARED: Final = 0.1
"""Standard deviation of what all plans of a job have in common; of the published runs of three stacks 0.06 to 0.10."""
SIZED: Final = 0.1
"""The same, times the size of errors that the runs tell: a framework may be another than the one that was simulated."""
DOUBLING: Final = 0.05
NEAR: Final = 0.15
RANGE: Final = 4.0
BY_STACK: Final[Mapping[str, float]] = {
    "megatron-core": 0.02,
    "megatron-deepspeed": 0.06,
    "torchtitan": 0.05,
    "nanotron": -0.04,
}
"""Mean of ln(real / simulated) by a stack's own page: of the published runs with a peak, 30, 44 and 7 of them
(sweep/validation/data/measured.csv), and where 917 plans of nanotron ran or not (ultrascale.csv)."""
OF_ANOTHER: Final = 0.42
"""The same where a framework is simulated by the page of another: 1,045 plans of nanotron as Megatron-Core, of which 207
failed, by likelihood; their width is that of a page's own runs."""
NAMED: Final = 0.25
"""Chance that DEFAULT, named and no more, is what runs: it is also what one writes whose framework has no page. With it 63, 35
and 16 % run of plans that need 60, 75 and 85 % of the device; of these 1,045 it was 61, 32 and 2 % of those that need 50 to
70, 70 to 80 and 80 to 90 %."""
DEFAULT: Final = "megatron-core"
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


Means = tuple[tuple[float, float], ...]
"""Means that ln(real / simulated memory) may have, each with its chance."""


def means_of(stack: str) -> Means:
    """What is known of a stack before any run, by its name: with facts in brackets where they are stated, and with " as " where
    it is simulated as another."""
    page, _, stated = stack.partition(" ")
    if page not in BY_STACK or " as " in stack:
        return ((1.0, OF_ANOTHER),)
    if page == DEFAULT and not stated:
        return ((NAMED, BY_STACK[page]), (1 - NAMED, OF_ANOTHER))
    return ((1.0, BY_STACK[page]),)


def chance_before_runs(part: Floats, stack: str) -> Floats:
    """Chance that a plan runs, by its part of the memory and the stack alone, [n]; NaN where its memory is unknown."""
    width = (SHARED**2 + SIZED**2 + NEAR**2) ** 0.5
    known = ~np.isnan(part)
    chance = np.full(len(part), np.nan)
    load = np.log(np.maximum(part[known], LEAST_LOAD))
    chance[known] = USUAL * sum(share * normal((np.log(USABLE) - load - mean) / width) for share, mean in means_of(stack))
    return chance


def likely_part(stack: str, chance: float) -> float:
    """The largest part of the memory, in percent of it, of a plan that runs with at least this chance; 0 if there is none."""
    parts = np.arange(1, 101) / 100
    return float(max(parts[chance_before_runs(parts, stack) >= chance], default=0.0))


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Own runs, [m]: rows of the candidates; ln(peak / simulated), NaN where unknown; how it ended."""

    rows: Ints
    peak: Floats
    out_of_memory: Bools
    crashed: Bools


def runs_probability(
    axes: Axes, part: Floats, outcomes: Outcomes, means: Means = ((1.0, 0.0),), alike: Floats | None = None
) -> Floats:
    """Chance that each plan runs, [n]. `part`: simulated memory over that of the device, NaN where unknown (it fits then).

    `means`: before any run; which it is, the runs tell. `alike`, [n, n]: how much plans of two jobs share.
    """
    load = np.log(np.where(np.isnan(part), LEAST_LOAD, part))
    fixed = np.full((len(load), len(load)), SHARED**2)
    sized = SIZED**2 + DOUBLING**2 * along(axes) + NEAR**2 * np.exp(-axes.apart / RANGE)
    if alike is not None:
        fixed, sized = fixed * alike, sized * alike
    told, noise, blamed = _told(load, outcomes)
    failed, known = outcomes.out_of_memory | outcomes.crashed, ~np.isnan(told)
    ran = outcomes.rows[~failed & ~known]
    likelihood, fits = [], []
    for share, mean in means:
        logs, parts = by_size(fixed, sized, outcomes.rows[known], told[known] - mean, noise[known])
        for log, (expected, covariance) in zip(logs, parts, strict=True):
            width = np.sqrt(np.maximum(np.diag(covariance), LEAST_WIDTH**2))
            fits.append(normal((np.log(USABLE) - load - mean - expected) / width))
            likelihood.append(np.log(share) + log + np.log(np.maximum(fits[-1][ran], LEAST_LOAD)).sum())
    chance: Floats = weights_of(np.array(likelihood)) @ np.array(fits) * _neighbours(axes, outcomes, blamed)
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
