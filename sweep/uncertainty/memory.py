"""Which plans run: ln(real / simulated memory) as a Gaussian process, fed by every peak and every run that did not fit."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import Bools, Floats, Ints
from sweep.frameworks.megatron import PAGE as DEFAULT
from sweep.uncertainty.belief import UNNAMED, World, recorded, world_of, worlds_of
from sweep.uncertainty.process import Axes, Shared, along, along_itself, marginals_by_size, normal, weights_of

SHARED = 0.5
"""Part of the variance that all plans of a job have in common."""
SIZED = 0.25
"""The same, times the size of errors that the runs tell: a framework may be another than the one that was simulated."""
NEAR = 0.25
"""The same, of what near plans share."""
DOUBLING = 0.04
"""Variance of the slope along an axis, per doubling."""
RANGE = 4.0


class Guess(NamedTuple):
    """What ln(real / simulated memory) may be before any run: chance; mean and standard deviation, of each plan, [n], where
    their stacks differ."""

    share: float
    mean: float | Floats
    sd: float | Floats


Guesses = tuple[Guess, ...]
LEAST_WIDTH = 0.03
PEAK_NOISE = 0.03
"""Of ln of a peak: allocators and counters differ by so much."""
USABLE = 0.95
"""Part of the device's memory that a job can have."""
FAILED_AT = 1.05
FAILED_WIDTH = 0.1
"""Memory that a run which did not fit is taken to need, over that of the device, and its standard deviation."""
DOUBTFUL = 0.5
"""A crash tells of memory if the plan was expected to need more than this part of the device."""
NEIGHBOURS = 3.0
"""Runs that the usual part of plans that fit and run is worth."""
NEIGHBOUR_RANGE = 1.0
LEAST_LOAD = 1e-9


def guesses_of(stack: str, device: str = "") -> Guesses:
    """What is known of a stack before any run, by its name (`belief.world_of`); UNNAMED: of all that may run on a device, as
    their pages usually differ from the one that is simulated."""
    if stack != UNNAMED:
        return (Guess(1.0, *world_of(stack).memory),)
    return guesses_in(worlds_of(stack, device), {})


def guesses_in(worlds: Sequence[World], beside: Mapping[str, Floats]) -> Guesses:
    """The same of some worlds. `beside`: ln(memory of each plan by a stack / by the page that is simulated), [n], where it is
    known; NaN where the stack cannot run the plan."""
    guesses = []
    for world in worlds:
        mean, sd = world.memory
        if world.stack:
            pages = recorded().pages
            usual, width = pages.get(world.stack, pages[DEFAULT]).beside_memory
            moved = beside.get(world.stack, np.full(1, np.nan))
            unknown = np.isnan(moved)
            each_mean, each_sd = mean + np.where(unknown, usual, moved), np.where(unknown, np.hypot(sd, width), sd)
            one = len(moved) == 1
            guesses.append(Guess(world.chance, each_mean.item() if one else each_mean, each_sd.item() if one else each_sd))
        else:
            guesses.append(Guess(world.chance, mean, sd))
    return tuple(guesses)


def guesses_by_plan(stacks: Sequence[str]) -> Guesses:
    """The same of plans of several named stacks, [n]: what is true of one page tells nothing of another."""
    errors = np.array([world_of(stack).memory for stack in stacks])
    return (Guess(1.0, *(errors[0].tolist() if (errors == errors[0]).all() else errors.T)),)


def chance_before_runs(part: Floats, guesses: Guesses) -> Floats:
    """Chance that a plan runs, by its part of the memory and what may run alone, [n]; NaN where its memory is unknown."""
    return np.where(np.isnan(part), np.nan, _before_runs(np.log(np.fmax(part, LEAST_LOAD)), guesses))


def _before_runs(load: Floats, guesses: Sequence[Guess]) -> Floats:
    """The same of ln of known parts."""
    room = np.log(USABLE) - load
    return np.asarray(recorded().usual * sum(each.share * normal((room - each.mean) / each.sd) for each in guesses))


def chance_in_sql(part: str, guesses: Guesses) -> str:
    """`chance_before_runs` in SQL, of a `part` in SQL, to 0.0002: the distribution function is that of a logistic variable
    (Page, Approximations to the cumulative normal function, Applied Statistics 26, 1977)."""
    cases = []
    for share, mean, sd in guesses:
        z = f"(({np.log(USABLE) - mean} - ln({part})) / {sd})"
        cases.append(f"{recorded().usual * share} / (1 + exp(-1.59576 * {z} - 0.07135 * pow({z}, 3)))")
    return f"({' + '.join(cases)})"


def likely_part(guesses: Guesses, chance: float) -> float:
    """The largest part of the memory, in percent of it, of a plan that runs with at least this chance; 0 if there is none."""
    parts = np.arange(1, 101) / 100
    return float(max(parts[chance_before_runs(parts, guesses) >= chance], default=0.0))


class Outcomes(NamedTuple):
    """Own runs, [m]: rows of the candidates; ln(peak / simulated), NaN where unknown; how it ended."""

    rows: Ints
    peak: Floats
    out_of_memory: Bools
    crashed: Bools


class Fit(NamedTuple):
    """What runs tell of memory: ln of the chance of each guess, [guesses], but for a constant; and if the guess is right, that
    each plan runs, and what is expected of its ln(real / simulated), [guesses, n]."""

    log: Floats
    runs: Floats
    expected: Floats


def fit(axes: Axes, part: Floats, outcomes: Outcomes, guesses: Guesses) -> Fit:
    """What runs tell. `part`: simulated memory over that of the device, NaN where unknown (it fits then), [n].

    `guesses`: before any run; which it is, the runs tell.
    """
    load = np.log(np.where(np.isnan(part), LEAST_LOAD, part))
    if not len(outcomes.rows):
        return Fit(
            np.log([each.share for each in guesses]),
            np.stack([_before_runs(load, [each]) / each.share for each in guesses]),
            np.stack([np.broadcast_to(each.mean, len(load)) for each in guesses]),
        )
    told, noise = outcomes.peak.copy(), np.full(len(outcomes.peak), PEAK_NOISE)  # of ln(real / simulated); NaN: nothing
    full = outcomes.out_of_memory | (outcomes.crashed & (load[outcomes.rows] > np.log(DOUBTFUL)))
    told[full] = np.maximum(np.log(FAILED_AT) - load[outcomes.rows[full]], 0.0)
    noise[full] = FAILED_WIDTH
    failed, known = outcomes.out_of_memory | outcomes.crashed, ~np.isnan(told)
    ran, rows = outcomes.rows[~failed & ~known], outcomes.rows[known]
    fixed = Shared(np.full((len(rows), len(load)), SHARED), np.full(len(load), SHARED))
    near = SIZED + DOUBLING * along(axes, rows) + NEAR * np.exp(-axes.apart[rows] / RANGE)
    sized = Shared(near, SIZED + DOUBLING * along_itself(axes) + NEAR)
    near = np.exp(-axes.apart[:, outcomes.rows] / NEIGHBOUR_RANGE)
    good, bad = near @ (~failed).astype(float), near @ (outcomes.crashed & ~full).astype(float)
    usual = (recorded().usual * NEIGHBOURS + good) / (NEIGHBOURS + good + bad)  # of plans that fit, by what near plans did
    chances, likelihood, means = [], [], []
    for share, mean, sd in guesses:
        mean, sd = np.broadcast_to(mean, len(load)), np.broadcast_to(sd, len(load))
        own_fixed, own_sized = (Shared(np.outer(sd[rows], sd) * each.runs, sd**2 * each.own) for each in (fixed, sized))
        logs, parts = marginals_by_size(own_fixed, own_sized, rows, told[known] - mean[rows], noise[known])
        fits = np.stack([
            normal((np.log(USABLE) - load - mean - expected) / np.sqrt(np.maximum(variance, LEAST_WIDTH**2)))
            for expected, variance in parts
        ])  # fmt: skip
        logs = logs + np.log(np.maximum(fits[:, ran], LEAST_LOAD)).sum(1)
        likelihood.append(np.log(share) + np.logaddexp.reduce(logs))
        chances.append(weights_of(logs) @ fits * usual)
        means.append(mean + weights_of(logs) @ np.stack([expected for expected, _ in parts]))
    chance = np.stack(chances)
    chance[:, outcomes.rows[failed]] = 0.0
    chance[:, outcomes.rows[~failed]] = 1.0
    return Fit(np.array(likelihood), chance, np.stack(means))
