"""Which plans run: ln(real / simulated memory) as a Gaussian process, fed by every peak and every run that did not fit."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erf, prod
from typing import Final, NamedTuple

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.uncertainty.process import Axes, Shared, along, along_itself, marginals_by_size, weights_of

SHARED: Final = 0.5
"""Part of the variance that all plans of a job have in common."""
SIZED: Final = 0.25
"""The same, times the size of errors that the runs tell: a framework may be another than the one that was simulated."""
NEAR: Final = 0.25
"""The same, of what near plans share."""
DOUBLING: Final = 0.04
"""Variance of the slope along an axis, per doubling."""
RANGE: Final = 4.0


class Guess(NamedTuple):
    """What ln(real / simulated memory) may be before any run: chance; mean and standard deviation, of each plan, [n], where
    their stacks differ."""

    share: float
    mean: float | Floats
    sd: float | Floats


Guesses = tuple[Guess, ...]
OF_PAGES: Final[Mapping[str, tuple[float, float]]] = {
    "megatron-core": (0.01, 0.08),
    "megatron-deepspeed": (0.04, 0.08),
    "torchtitan": (0.05, 0.10),
    "nanotron": (-0.04, 0.08),
    "nemo": (-0.05, 0.12),
}
"""Mean and standard deviation by a stack's own page, of the published runs with a peak (30, 44, 7, 0 and 4 of them; of nanotron
where 917 plans ran or not). Means of jobs differ by 0.05, plans of a job with 70 % of the device or more by 0.06."""
OF_OTHER_PAGES: Final = (0.0, 0.15)
"""The same of a stack whose page no published peak was held against: the mean of the others, and a width for what they do
not tell. In 26 of 395 such runs the simulation needs more than the device has."""
OF_ANOTHER: Final = ((0.19, 14), (0.20, 2), (-0.20, 2), (0.45, 12))
"""Means where a framework is simulated by the page of another, Megatron-Core's: Megatron-DeepSpeed, torchtitan, NeMo, nanotron;
each as likely as it has jobs (models and numbers of GPUs), of 44, 7, 4 and 838 runs with a peak."""
SD_OF_ANOTHER: Final = 0.2
"""Standard deviation beside each: 0.22, 0.11, 0.10 and 0.25 of plans."""
UNNAMED: Final = ""
"""The stack of a spec that names none: DEFAULT's page is simulated."""
AS_DEFAULT: Final = 0.25
"""Chance that DEFAULT is what runs there. A judgement: no table tells how often."""
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


def guesses_of(stack: str) -> Guesses:
    """What is known of a stack before any run, by its name: with facts in brackets where they are stated, and with " as " where
    it is simulated as another; UNNAMED. Facts change what is simulated, not what is known of the page."""
    page, _, _ = stack.partition(" ")
    if " as " in stack:
        return _others(1.0)
    if stack == UNNAMED:
        return (Guess(AS_DEFAULT, *OF_PAGES[DEFAULT]), *_others(1 - AS_DEFAULT))
    return (Guess(1.0, *OF_PAGES.get(page, OF_OTHER_PAGES)),)


def guesses_by_plan(stacks: Sequence[str]) -> Guesses:
    """The same of plans of several stacks, [n]: what is true of one page tells nothing of another."""
    known = {stack: guesses_of(stack) for stack in dict.fromkeys(stacks)}
    pages = list(dict.fromkeys(known.values()))
    if len(pages) == 1:
        return pages[0]
    page = np.array([pages.index(known[stack]) for stack in stacks])
    return tuple(
        Guess(prod(case.share for case in cases), *np.array([(case.mean, case.sd) for case in cases])[page].T)
        for cases in itertools.product(*pages)
    )


def _others(share: float) -> Guesses:
    jobs = sum(number for _, number in OF_ANOTHER)
    return tuple(Guess(share * number / jobs, mean, SD_OF_ANOTHER) for mean, number in OF_ANOTHER)


def chance_before_runs(part: Floats, stack: str) -> Floats:
    """Chance that a plan runs, by its part of the memory and the stack alone, [n]; NaN where its memory is unknown."""
    known = ~np.isnan(part)
    chance = np.full(len(part), np.nan)
    chance[known] = _before_runs(np.log(np.maximum(part[known], LEAST_LOAD)), guesses_of(stack))
    return chance


def _before_runs(load: Floats, guesses: Guesses) -> Floats:
    """The same of ln of known parts."""
    room = np.log(USABLE) - load
    return np.asarray(USUAL * sum(each.share * normal((room - each.mean) / each.sd) for each in guesses), np.float64)


def chance_in_sql(part: str, stack: str) -> str:
    """`chance_before_runs` in SQL, of a `part` in SQL, to 0.0002: the distribution function is that of a logistic variable
    (Page, Approximations to the cumulative normal function, Applied Statistics 26, 1977)."""
    cases = []
    for share, mean, sd in guesses_of(stack):
        z = f"(({np.log(USABLE) - mean} - ln({part})) / {sd})"
        cases.append(f"{USUAL * share} / (1 + exp(-1.59576 * {z} - 0.07135 * pow({z}, 3)))")
    return f"({' + '.join(cases)})"


def likely_part(stack: str, chance: float) -> float:
    """The largest part of the memory, in percent of it, of a plan that runs with at least this chance; 0 if there is none."""
    parts = np.arange(1, 101) / 100
    return float(max(parts[chance_before_runs(parts, stack) >= chance], default=0.0))


UNKNOWN: Final[Guesses] = (Guess(1.0, *OF_OTHER_PAGES),)


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Own runs, [m]: rows of the candidates; ln(peak / simulated), NaN where unknown; how it ended."""

    rows: Ints
    peak: Floats
    out_of_memory: Bools
    crashed: Bools


def runs_probability(
    axes: Axes, part: Floats, outcomes: Outcomes, guesses: Guesses = UNKNOWN, alike: Floats | None = None
) -> Floats:
    """Chance that each plan runs, [n]. `part`: simulated memory over that of the device, NaN where unknown (it fits then).

    `guesses`: before any run; which it is, the runs tell. `alike`, [n, n]: how much plans of two jobs share.
    """
    load = np.log(np.where(np.isnan(part), LEAST_LOAD, part))
    if not len(outcomes.rows):
        return _before_runs(load, guesses)
    told, noise = outcomes.peak.copy(), np.full(len(outcomes.peak), PEAK_NOISE)  # of ln(real / simulated); NaN: nothing
    full = outcomes.out_of_memory | (outcomes.crashed & (load[outcomes.rows] > np.log(DOUBTFUL)))
    told[full] = np.maximum(np.log(FAILED_AT) - load[outcomes.rows[full]], 0.0)
    noise[full] = FAILED_WIDTH
    failed, known = outcomes.out_of_memory | outcomes.crashed, ~np.isnan(told)
    ran, rows = outcomes.rows[~failed & ~known], outcomes.rows[known]
    alike_runs = 1.0 if alike is None else alike[rows]
    fixed = Shared(np.full((len(rows), len(load)), SHARED) * alike_runs, np.full(len(load), SHARED))
    near = SIZED + DOUBLING * along(axes, rows) + NEAR * np.exp(-axes.apart[rows] / RANGE)
    sized = Shared(near * alike_runs, SIZED + DOUBLING * along_itself(axes) + NEAR)
    likelihood, fits = [], []
    for share, mean, sd in guesses:
        mean, sd = np.broadcast_to(mean, len(load)), np.broadcast_to(sd, len(load))
        own_fixed, own_sized = (Shared(np.outer(sd[rows], sd) * each.runs, sd**2 * each.own) for each in (fixed, sized))
        logs, parts = marginals_by_size(own_fixed, own_sized, rows, told[known] - mean[rows], noise[known])
        for log, (expected, variance) in zip(logs, parts, strict=True):
            fits.append(normal((np.log(USABLE) - load - mean - expected) / np.sqrt(np.maximum(variance, LEAST_WIDTH**2))))
            likelihood.append(np.log(share) + log + np.log(np.maximum(fits[-1][ran], LEAST_LOAD)).sum())
    near = np.exp(-axes.apart[:, outcomes.rows] / NEIGHBOUR_RANGE) * (1.0 if alike is None else alike[:, outcomes.rows])
    good, bad = near @ (~failed).astype(np.float64), near @ (outcomes.crashed & ~full).astype(np.float64)
    usual = (USUAL * NEIGHBOURS + good) / (NEIGHBOURS + good + bad)  # of plans that fit, by what near plans did
    chance: Floats = weights_of(np.array(likelihood)) @ np.array(fits) * usual
    chance[outcomes.rows[failed]] = 0.0
    chance[outcomes.rows[~failed]] = 1.0
    return chance


def normal(z: Floats) -> Floats:
    """Distribution function of the standard normal."""
    return 0.5 * (1 + np.array([erf(value / 2**0.5) for value in z]))
