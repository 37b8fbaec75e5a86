"""Evidence from residuals: intervals for a plan of a new set, by class, and how often they hold for sets left out.

A user's cluster is a new set: so every set counts the same, however many runs it has, and what is calibrated is
calibrated on sets that were left out. As in Dunn, Wasserman and Ramdas, Distribution-Free Prediction Sets for Two-Layer
Hierarchical Models (JASA 118, 2023), quantiles are those of the mean of the sets' distributions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from sweep.uncertainty.differences import fit_differences, holds
from sweep.uncertainty.evidence import DENSE, EXPERTS, LEVEL, Evidence, Moved, Spread
from sweep.uncertainty.quantiles import weighted
from sweep.uncertainty.residuals import Residuals, pairs_of

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

BORROWED: Final = 1.0
"""Sets' worth of weight that all runs have in the distribution of a class."""
FEW: Final = 2.0
"""A set of n runs counts as n / (n + FEW) sets of evidence for its class."""
ENOUGH_SETS: Final = 6
"""A class with fewer sets takes its widening from all runs: it cannot be calibrated by leaving sets out."""


def fit(runs: Residuals) -> Evidence:
    """The evidence of some runs, of two sets or more."""
    found, pairs = spreads(runs), pairs_of(runs)
    factor = found[EXPERTS].within / found[DENSE].within
    return Evidence(
        spreads=found,
        differences=fit_differences(pairs, factor),
        coverage=coverage(runs),
        pair_coverage=_held(pairs.set, holds(pairs, factor)),
    )


def coverage(runs: Residuals) -> dict[str, float]:
    """Percent of the runs of each set, and of `all`, that intervals fitted to the other sets hold."""
    inside = np.zeros(len(runs.error), np.bool_)
    for name in np.unique(runs.set):
        out = runs.set == name
        found = spreads(runs.chosen(~out))
        for experts, kind in ((False, DENSE), (True, EXPERTS)):
            rows = out & (runs.experts == experts)
            inside[rows] = (runs.error[rows] >= found[kind].low) & (runs.error[rows] <= found[kind].high)
    return _held(runs.set, inside)


def fit_moves(errors: Mapping[str, Sequence[float]]) -> Moved:
    """What moves of recorded jobs say: ln(measured / simulated) of each move, by job."""
    jobs = list(errors)
    error = np.concatenate([np.array(errors[job]) for job in jobs])
    of_job = np.repeat(jobs, [len(errors[job]) for job in jobs])

    def bounds(rows: Bools) -> Floats:
        return weighted(error[rows], _equal(of_job[rows], np.ones(int(rows.sum()), np.bool_)), _levels())

    everything = np.ones(len(error), np.bool_)
    low, middle, high = bounds(everything)
    left_out = np.zeros(len(error), np.bool_)
    for job in jobs if len(jobs) > 1 else ():
        out = of_job == job
        least, _, most = bounds(~out)
        left_out[out] = (error[out] >= least) & (error[out] <= most)
    alike = _equal(of_job, everything)
    return Moved(
        low=float(low),
        middle=float(middle),
        high=float(high),
        mean=float(np.abs(error) @ alike),
        worst=float(np.abs(error).max()),
        inside=float(100 * ((error >= low) & (error <= high)) @ alike),
        left_out=float(100 * left_out @ alike),
        moves=len(error),
        jobs=len(jobs),
    )


def _held(sets: npt.NDArray[np.str_], inside: Bools) -> dict[str, float]:
    if not len(sets):
        return {}
    by_set = {str(name): float(inside[sets == name].mean() * 100) for name in np.unique(sets)}
    return {"all": float(inside.mean() * 100)} | by_set


def spreads(runs: Residuals) -> dict[str, Spread]:
    """The spread of each class: quantiles of its runs and, with a weight of BORROWED sets, of all runs, widened."""
    widening = _widening(runs)
    return {kind: _spread(runs, experts, widening[kind]) for experts, kind in ((False, DENSE), (True, EXPERTS))}


def _spread(runs: Residuals, experts: bool, widening: float) -> Spread:
    of_class = runs.experts == experts
    weights = _weights(runs, experts)
    low, middle, high = weighted(runs.error, weights, _levels())
    between, within = _variances(runs, weights)
    return Spread(
        low=float(middle - (middle - low) * widening),
        middle=float(middle),
        high=float(middle + (high - middle) * widening),
        between=between**0.5,
        within=within**0.5,
        runs=int(of_class.sum()),
        sets=len(np.unique(runs.set[of_class])),
    )


def _levels() -> Floats:
    return np.array([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])


def _weights(runs: Residuals, experts: bool) -> Floats:
    """Weights of all runs in the distribution of a class, [n]; their sum is 1."""
    everything = _equal(runs.set, np.ones(len(runs.set), np.bool_))
    of_class = runs.experts == experts
    if not of_class.any():
        return everything
    _, counts = np.unique(runs.set[of_class], return_counts=True)
    worth = float((counts / (counts + FEW)).sum())
    return (BORROWED * everything + worth * _equal(runs.set, of_class)) / (BORROWED + worth)


def _equal(sets: npt.NDArray[np.str_], rows: Bools) -> Floats:
    """Weights by which each set with some of the rows counts the same, [n]."""
    weights = np.zeros(len(sets))
    names, at, counts = np.unique(sets[rows], return_inverse=True, return_counts=True)
    weights[rows] = 1 / counts[at] / len(names)
    return weights


def _widening(runs: Residuals) -> Mapping[str, float]:
    """By how much the quantiles of a class have to be widened to hold LEVEL of the runs of sets that are left out."""
    score = np.full(len(runs.error), np.nan)
    names = np.unique(runs.set)
    for name in names if len(names) > 1 else ():
        out = runs.set == name
        others = runs.chosen(~out)
        for experts in (False, True):
            rows = out & (runs.experts == experts)
            if rows.any():
                low, middle, high = weighted(others.error, _weights(others, experts), _levels())
                off = runs.error[rows] - middle
                score[rows] = off / np.where(off > 0, high - middle, low - middle)
    known = np.isfinite(score)

    def needed(rows: Bools) -> float:
        if not (rows & known).any():
            return 1.0
        return float(weighted(score[rows & known], _equal(runs.set[rows & known], rows[rows & known]), np.array([LEVEL]))[0])

    of_all = needed(np.ones(len(runs.error), np.bool_))
    found = {}
    for experts, kind in ((False, DENSE), (True, EXPERTS)):
        rows = runs.experts == experts
        found[kind] = needed(rows) if len(np.unique(runs.set[rows])) >= ENOUGH_SETS else of_all
    return found


def _variances(runs: Residuals, weights: Floats) -> tuple[float, float]:
    """Variance of the means of sets, and the mean variance inside sets, by weights of the runs."""
    mean = _by_set(runs.set, weights, lambda rows: float(np.average(runs.error[rows], weights=weights[rows])))
    middle = float(np.average(mean, weights=weights))
    return float(np.average((mean - middle) ** 2, weights=weights)), float(
        np.average((runs.error - mean) ** 2, weights=weights)
    )


def _by_set(sets: npt.NDArray[np.str_], weights: Floats, of_rows: Callable[[npt.NDArray[np.intp]], float]) -> Floats:
    found = np.zeros(len(sets))
    for name in np.unique(sets):
        rows = np.flatnonzero((sets == name) & (weights > 0))
        found[sets == name] = of_rows(rows) if len(rows) else 0.0
    return found
