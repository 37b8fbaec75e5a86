"""ln(measured / simulated) of the plans of a job as a Gaussian process, whose size of errors is learnt from what came out.

Kernel: what all plans share + the covariance of draws of unknown constants + linear in the axes + what near plans share the
more the nearer they are + what each has for itself. A run much slower than the others explain tells of itself only.
"""

from collections.abc import Iterable, Sequence
from math import erf, erfc, exp, pi
from typing import NamedTuple

import numpy as np

from sim_core import Bools, Floats, Ints

SHARED = 0.25
"""Standard deviation of what the errors of all plans of a job have in common."""
DOUBLING = 0.06
"""Of the slope of the error along an axis, per doubling or choice."""
NEAR = 0.12
RANGE = 4.0
"""Doublings over which errors of plans (`NEAR`) fall to 1/e of what they share."""
OWN = 0.03
SLOPE_ENDS = 48.0
"""Squared doublings beyond which two plans are taken to differ no more."""
NOISE = 0.005
"""Of a step measured twice, before repeats tell it."""
SIZES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors on SHARED, DOUBLING, NEAR and OWN, of which the runs tell one. Runs that all come as simulated tell a small one: else
the fastest of 600 plans is never known."""
SIZE_WIDTH = 0.7
"""Standard deviation of ln(factor) beforehand."""
OUTLIER = 0.35
OUTLIER_SD = 2.0
"""A run slower than the others explain by more than both, in ln and in standard deviations, tells of itself only."""

FURTHEST = 30.0
"""Standard deviations beyond which a bound says no more, in 64 bits."""
SAYS_NOTHING = 1e-3
"""A bound that narrows a variance by less is no news."""


class Axes(NamedTuple):
    """Plans by what their errors depend on. `linear` [n, k]: doublings and choices; `apart` [n, n]: distances in doublings."""

    linear: Floats
    apart: Floats


class Shared(NamedTuple):
    """A covariance of errors: of each of m runs with all plans, [m, n], and of each plan with itself, [n]."""

    runs: Floats
    own: Floats


class Runs(NamedTuple):
    """Measured runs, [m]: rows of the candidates, and ln(measured / prior mean). `least`: at least so slow (stopped).
    `noise`: standard deviation of the error."""

    rows: Ints
    error: Floats
    least: Bools
    noise: Floats | float = NOISE

    def of(self, kept: Bools | list[int]) -> "Runs":
        """Some of them."""
        return Runs(*(np.broadcast_to(column, len(self.rows))[kept] for column in self))


class Posterior(NamedTuple):
    """Of the errors of all plans, for each size: weights [s], means [s, n], covariances [s, n, n]; runs set aside, [m].

    `log`: ln of the likelihood of the runs over all sizes, but for a constant.
    """

    weights: Floats
    means: Floats
    covariances: Floats
    aside: Bools
    log: float

    @property
    def mean(self) -> Floats:
        """Over all sizes, [n]."""
        return self.weights @ self.means

    @property
    def sd(self) -> Floats:
        """Standard deviation over all sizes, [n]."""
        own = np.maximum(np.einsum("sii->si", self.covariances), 0.0)
        variance: Floats = self.weights @ (own + (self.means - self.mean) ** 2)
        return np.sqrt(variance)

    @property
    def likeliest(self) -> "Posterior":
        """The same with the size that is the likeliest, as if it were known; of each part of a mixture."""
        parts = self.weights.reshape(-1, len(SIZES))
        return self._replace(weights=(np.eye(len(SIZES))[parts.argmax(1)] * parts.sum(1)[:, None]).ravel())

    def draw(self, count: int, rows: Ints) -> Floats:
        """Joint draws of the errors of some plans, [count, rows]; the same ones at every call."""
        generator = np.random.default_rng(0)
        drawn = []
        for weight, mean, covariance in zip(self.weights, self.means, self.covariances, strict=True):
            if not (n := round(count * weight)):
                continue
            root = np.linalg.cholesky(covariance[np.ix_(rows, rows)] + np.eye(len(rows)) * (NOISE / 2) ** 2)
            drawn.append(mean[rows] + generator.standard_normal((n, len(rows))) @ root.T)
        return np.concatenate(drawn)


def prior(axes: Axes, draws: Floats, size: float = 1.0) -> tuple[Floats, Floats]:
    """Covariances of the errors, [n, n]: the part that has no size, and that which is multiplied by its square.

    `draws`, [d, n]: ln step in each draw of the unknown constants, less their mean. `size`: see `Candidates`.
    """
    fixed = draws.T @ draws / len(draws)
    sized = SHARED**2 + DOUBLING**2 * along(axes) + NEAR**2 * np.exp(-axes.apart / RANGE)
    return size**2 * fixed, size**2 * (sized + OWN**2 * np.eye(len(sized)))


def steady(times: Sequence[float]) -> Floats:
    """Those of one plan's times that no slow machine explains: within OUTLIER of the least."""
    return np.array([each for each in times if each <= np.exp(OUTLIER) * min(times)], float)


def noise_of(times: Iterable[Sequence[float]], before: float = NOISE) -> float:
    """Standard deviation of ln(seconds) from one run of a plan to the next, of which repeats tell; `before` counts as one."""
    logs = [np.log(steady(each)) for each in times]
    squares = sum(float(((log - log.mean()) ** 2).sum()) for log in logs if len(log))
    return float(((before**2 + squares) / (1 + sum(max(len(log) - 1, 0) for log in logs))) ** 0.5)


def variogram(doublings: Floats, squares: Floats) -> Floats:
    """Variance of the difference between the errors of two plans, of size 1: `doublings` between them, by axis and squared in
    sum `squares`. That of `prior` without draws, as far as SLOPE_ENDS."""
    return 2 * OWN**2 + 2 * NEAR**2 * (1 - np.exp(-doublings / RANGE)) + DOUBLING**2 * np.minimum(squares, SLOPE_ENDS)


def along(axes: Axes, rows: Ints | slice = slice(None)) -> Floats:
    """What errors share that are linear in the axes, with a slope of 1, [rows, n]."""
    centred = _centred(axes)
    return centred[rows] @ centred.T


def along_itself(axes: Axes) -> Floats:
    """The same of each plan alone, [n]."""
    return np.asarray((_centred(axes) ** 2).sum(1))


def _centred(axes: Axes) -> Floats:
    return np.asarray(axes.linear - axes.linear.mean(0))


def condition(fixed: Floats, sized: Floats, runs: Runs) -> Posterior:
    """What runs tell of all plans."""
    aside = np.zeros(len(runs.rows), bool)
    while (~runs.least & ~aside).sum() > 1:
        excess = _excess(fixed, sized, runs, ~runs.least & ~aside)
        worst = int(excess.argmax())
        if excess[worst] <= 0:
            break
        aside[worst] = True
    told = runs.of(~runs.least & ~aside)
    for one in np.flatnonzero(runs.least).tolist():
        bound, least = runs.of([one]), float(runs.error[one])
        mean, sd = _expected(fixed, sized, told, bound.rows)
        aside[one] = least - mean > max(OUTLIER, OUTLIER_SD * sd)
        if not aside[one] and (measured := beyond(least, mean, sd)) is not None:
            bound = bound._replace(error=np.array(measured[:1]), noise=np.array(measured[1:]))
            told = Runs(*map(np.append, told, bound))
    likelihood, parts = by_size(fixed, sized, told)
    means, covariances = (np.stack(part) for part in zip(*parts, strict=True))
    alone = runs.of(aside)
    for row, error, noise in zip(alone.rows, alone.error, alone.noise, strict=True):  # type: ignore[arg-type]
        means[:, row] = error
        covariances[:, row, :] = covariances[:, :, row] = 0.0
        covariances[:, row, row] = noise**2
    log = float(np.logaddexp.reduce(likelihood) - 0.5 * (runs.error[aside] ** 2).sum())  # set aside: anything may be, by ln 1
    return Posterior(weights=weights_of(likelihood), means=means, covariances=covariances, aside=aside, log=log)


def mixed(parts: Sequence[tuple[float, Posterior]], moved: Sequence[Floats]) -> Posterior:
    """Several posteriors with the weight of each, whose sum is 1; `moved`, [n]: what each is an error beside."""
    return Posterior(
        weights=np.concatenate([weight * part.weights for weight, part in parts]),
        means=np.concatenate([part.means + shift for (_, part), shift in zip(parts, moved, strict=True)]),
        covariances=np.concatenate([part.covariances for _, part in parts]),
        aside=max(parts, key=lambda each: each[0])[1].aside,
        log=float(np.logaddexp.reduce([part.log for _, part in parts])),
    )


def beyond(least: float, mean: float, sd: float) -> tuple[float, float] | None:
    """What "at least so much" says of a normal variable, as one measurement: its value and standard deviation; None: nothing.

    Together they have the mean and the variance of the variable cut off at `least` (Minka, Expectation propagation, 2001).
    """
    at = min((least - mean) / sd, FURTHEST)
    hazard = (2 / pi) ** 0.5 * exp(-0.5 * at**2) / erfc(at / 2**0.5)
    narrower = hazard * (hazard - at)  # the part of the variance that is gone
    if narrower < SAYS_NOTHING:
        return None
    return mean + sd * hazard / narrower, sd * ((1 - narrower) / narrower) ** 0.5


def by_size(fixed: Floats, sized: Floats, runs: Runs) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """After some runs, for each of the SIZES: ln of its likelihood, mean and covariance of all plans."""
    likelihood, parts = [], []
    for size in SIZES:
        covariance = fixed + size**2 * sized
        log, mean, told = _solved(covariance[runs.rows], runs.rows, runs.error, runs.noise)
        parts.append((mean, covariance - told.T @ told))
        likelihood.append(log)
    return _with_prior(likelihood), parts


def marginals_by_size(
    fixed: Shared, sized: Shared, rows: Ints, error: Floats, noise: Floats
) -> tuple[Floats, list[tuple[Floats, Floats]]]:
    """As `by_size`, with the variance of each plan alone, of covariances that are known of the runs alone."""
    likelihood, parts = [], []
    for size in SIZES:
        log, mean, told = _solved(fixed.runs + size**2 * sized.runs, rows, error, noise)
        parts.append((mean, fixed.own + size**2 * sized.own - (told**2).sum(0)))
        likelihood.append(log)
    return _with_prior(likelihood), parts


def _solved(shared: Floats, rows: Ints, error: Floats, noise: Floats | float) -> tuple[float, Floats, Floats]:
    """Of runs whose covariance with all plans is `shared`, [m, n]: ln of the likelihood, the mean of all plans, and the root of
    what is told of their covariance, [m, n]."""
    root = np.linalg.cholesky(shared[:, rows] + np.eye(len(rows)) * np.square(noise))
    half = np.linalg.solve(root, np.column_stack([error, shared]))
    likelihood = -0.5 * half[:, 0] @ half[:, 0] - np.log(np.diag(root)).sum()  # its logarithm
    return float(likelihood), half[:, 1:].T @ half[:, 0], half[:, 1:]


def _with_prior(likelihood: list[float]) -> Floats:
    """ln of the likelihood of each of the SIZES, and of what is expected of it."""
    return np.array(likelihood) - 0.5 * (np.log(SIZES) / SIZE_WIDTH) ** 2


def weights_of(log: Floats) -> Floats:
    """Likelihoods, given by their logarithms, as weights whose sum is 1."""
    weights = np.exp(log - log.max())
    return np.asarray(weights / weights.sum())


def _expected(fixed: Floats, sized: Floats, runs: Runs, row: Ints) -> tuple[float, float]:
    """Mean and standard deviation of one plan's error after runs."""
    at = np.append(runs.rows, row)
    square = np.ix_(at, at)
    likelihood, parts = by_size(fixed[square], sized[square], runs._replace(rows=np.arange(len(runs.rows))))
    weights = weights_of(likelihood)
    means, variances = (np.array([part[k].flat[-1] for part in parts]) for k in range(2))
    mean = float(weights @ means)
    return mean, float(weights @ (variances + (means - mean) ** 2)) ** 0.5


def _excess(fixed: Floats, sized: Floats, runs: Runs, kept: Bools) -> Floats:
    """By how much each run is slower than the other kept ones explain, beyond what is usual, [m]; at most 0 if it is not."""
    excess = np.full(len(kept), -np.inf)
    for one in np.flatnonzero(kept):
        rest = kept.copy()
        rest[one] = False
        mean, sd = _expected(fixed, sized, runs.of(rest), runs.rows[one : one + 1])
        excess[one] = runs.error[one] - mean - max(OUTLIER, OUTLIER_SD * sd)
    return excess


def normal(z: Floats) -> Floats:
    """Distribution function of the standard normal, elementwise."""
    return 0.5 * (1 + np.reshape([erf(value / 2**0.5) for value in np.ravel(z)], np.shape(z)))
