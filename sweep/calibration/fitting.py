"""The numbers of a page fitted to a few measured steps: as near to it as the runs allow, from several starts.

Least squares of log(simulated / measured) over the noise, and of the distance of each number from the page over its width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from sim_core import Bools, Fields, Floats, Hardware, Ints, Stack
from sweep.calibration.numbers import Number, Page, bounds_of, facts_at, starts_of
from sweep.runs.table import Row

FELT = 0.01
"""Least relative change of some step by a change of one width; below it, no run depends on the number."""
TRIALS = 6
"""Shorter steps that are tried where one does not lead downhill."""
ENOUGH = 1e-3
"""Less gained by a step: the walk ends."""
STEPS = 25
DELTA = 0.05
DAMPING = 1e-3
INTERVAL = 1.645
"""Standard deviations to each side that hold 90 %."""
FOLDS = 30
"""Fits to the other runs, at most."""
Base = TypeVar("Base", Stack, Hardware)


class Told(NamedTuple):
    """A fact: its value in SI before and after, a 90 % interval, and the run that tells most of it.

    A value is a number, or one for each way or device.
    """

    fact: str
    number: Number
    before: Any
    after: Any
    low: Any
    high: Any
    left: float  # standard deviation after the runs over that before; 1: no step of theirs depends on it
    row: Row | None  # that told it; None: no run does, it stays as it was


class Fit(NamedTuple, Generic[Base]):
    """A page with what the runs told, and errors of the runs in percent: before, after, and each one left out."""

    base: Base
    told: tuple[Told, ...]
    rows: tuple[Row, ...]
    before: Floats
    after: Floats
    left_out: Floats  # empty: not asked for
    starts: int
    not_used: tuple[tuple[Row, str], ...]

    @property
    def facts(self) -> Fields:
        """The facts that the runs tell, in SI."""
        return {told.fact: told.after for told in self.told if told.row is not None}

    @property
    def mean_errors(self) -> list[float]:
        """Size of the errors in the mean: before, after, left out."""
        return [float(np.mean(np.abs(errors))) for errors in (self.before, self.after, self.left_out)]


class Problem(NamedTuple):
    """What is fitted to which runs."""

    simulate: Callable[[Floats], Floats]  # seconds of the runs, [runs], by the values of the numbers in widths, [numbers]
    measured_s: Floats  # [runs]
    low: Floats  # [numbers]
    high: Floats
    fitted: Bools  # [runs]
    seen: Floats | float  # part of its width that the runs may leave of a number that they tell, [numbers]
    noise: float  # standard deviation of log(simulated / measured) that is nobody's fault
    sure: float  # standard deviations from the page from which on a number is taken; above 0 they are dropped one by one

    def rest(self, values: Floats) -> Floats:
        """log(simulated / measured) of all runs, [runs]."""
        return np.log(self.simulate(values) / self.measured_s)

    def cost(self, values: Floats, rest: Floats) -> float:
        """What is made least: squares over the noise, and over the widths."""
        inside = rest[self.fitted] / self.noise
        return float(inside @ inside + values @ values)

    def slopes(self, values: Floats, rest: Floats, active: Bools) -> Floats:
        """Change of `rest` by each active number, [runs, numbers], by a step that stays within the bounds."""
        slopes = np.zeros((len(rest), len(values)))
        for at in np.flatnonzero(active & (self.low < self.high)):
            there = values.copy()
            there[at] += DELTA if values[at] + DELTA <= self.high[at] else -DELTA
            slopes[:, at] = (self.rest(there) - rest) / (there[at] - values[at])
        return slopes


class Found(NamedTuple):
    """A least point: values in widths, [numbers], and there the rest and its slopes."""

    values: Floats
    rest: Floats
    slopes: Floats
    cost: float


def fit_page(
    page: Base,
    numbers: Sequence[Number],
    seconds: Callable[[Fields], Floats],
    runs: Sequence[tuple[Row, float]],
    noise: float,
    sure: float,
    groups: Ints | None,
    not_used: Sequence[tuple[Row, str]],
) -> Fit[Base]:
    """Fit the numbers of a page to the measured seconds of runs; `seconds`: simulated, by facts, [runs].

    `groups`, [runs]: those of one are left out together, to see how far off they are then; None: not asked for.
    """
    low, high = bounds_of(page, numbers)
    rows, measured_s = zip(*runs, strict=True)
    problem = Problem(
        simulate=lambda values: seconds(facts_at(page, numbers, values)),
        measured_s=np.array(measured_s),
        low=low,
        high=high,
        fitted=np.ones(len(rows), bool),
        seen=np.array([number.seen for number in numbers]),
        noise=noise,
        sure=sure,
    )
    starts, as_it_is = starts_of(page, numbers, low, high), np.zeros(len(numbers))
    before = problem.rest(as_it_is)
    found, told, left = fit(problem, starts)
    return Fit(
        base=page,
        told=tuple(_told(page, numbers, problem, found, told, left, rows)),
        rows=rows,
        before=percent(before),
        after=percent(found.rest),
        left_out=np.empty(0) if groups is None else left_out(problem, [found.values, as_it_is], groups),
        starts=len(starts),
        not_used=tuple(not_used),
    )


def fit(problem: Problem, starts: Sequence[Floats]) -> tuple[Found, Bools, Floats]:
    """The least point of all starts; which numbers the runs tell (the others stay as they are); `deviations`."""
    active = np.zeros(len(problem.low), bool)
    for start in starts:
        slopes = problem.slopes(start, problem.rest(start), ~np.zeros_like(active))[problem.fitted]
        active |= np.abs(slopes).max(axis=0, initial=0.0) > FELT
    found, left = _least(problem, starts, active), np.ones(len(active))
    while True:
        left = np.where(active, deviations(problem, found), left)
        unseen = np.flatnonzero(active & (left > problem.seen))
        dropped = unseen if len(unseen) else np.flatnonzero(active & (np.abs(found.values) < problem.sure * left))
        if not len(dropped):
            return found, active, left
        active[dropped[-1:] if problem.sure else dropped] = False
        found = _least(problem, [found.values, *starts], active)


def _least(problem: Problem, starts: Sequence[Floats], active: Bools) -> Found:
    """The lowest point reached from any start: those that are alike are walked once."""
    distinct = {tuple(np.round(start * active, 9)): start * active for start in starts}
    return min((_walked(problem, start, active) for start in distinct.values()), key=lambda found: found.cost)


def _walked(problem: Problem, start: Floats, active: Bools) -> Found:
    """From one start downhill, by Levenberg and Marquardt's steps within the bounds."""
    values, columns = start, np.flatnonzero(active)
    rest = problem.rest(values)
    cost, damping = problem.cost(values, rest), DAMPING
    slopes = problem.slopes(values, rest, active)
    for _ in range(STEPS):
        inside = slopes[problem.fitted][:, columns] / problem.noise
        square = inside.T @ inside + np.eye(len(columns))
        downhill = inside.T @ rest[problem.fitted] / problem.noise + values[columns]
        for _ in range(TRIALS):
            step = np.linalg.solve(square + damping * np.diag(np.diag(square)), -downhill)
            tried = values.copy()
            tried[columns] = np.clip(values[columns] + step, problem.low[columns], problem.high[columns])
            tried_rest = problem.rest(tried)
            tried_cost = problem.cost(tried, tried_rest)
            if tried_cost < cost:
                damping /= 10
                break
            damping *= 10
        else:
            break
        gained = cost - tried_cost
        values, rest, cost = tried, tried_rest, tried_cost
        slopes = problem.slopes(values, rest, active)
        if gained < ENOUGH:
            break
    return Found(values, rest, slopes, cost)


def deviations(problem: Problem, found: Found) -> Floats:
    """Standard deviations of the numbers after the runs, in widths, [numbers]; 1 where the runs say nothing."""
    inside = found.slopes[problem.fitted] / max(problem.noise, float(np.sqrt(np.mean(found.rest[problem.fitted] ** 2))))
    return np.sqrt(np.diag(np.linalg.inv(inside.T @ inside + np.eye(len(found.values)))))


def left_out(problem: Problem, starts: Sequence[Floats], groups: Ints) -> Floats:
    """Percent by which each run is off when its group takes no part in choosing and fitting the numbers."""
    errors = np.empty(len(groups))
    for fold in np.unique(groups % FOLDS):
        out = groups % FOLDS == fold
        errors[out] = percent(fit(problem._replace(fitted=~out), starts)[0].rest[out])
    return errors


def percent(rest: Floats) -> Floats:
    """log(simulated / measured) as errors in percent."""
    return np.expm1(rest) * 100


def _told(
    page: Page, numbers: Sequence[Number], problem: Problem, found: Found, told: Bools, left: Floats, rows: Sequence[Row]
) -> Iterator[Told]:
    """What became of each fact of each number."""
    before = facts_at(page, numbers, np.zeros(len(numbers)))
    for at, number in enumerate(numbers):
        row = rows[int(np.argmax(np.abs(found.slopes[:, at])))] if told[at] else None
        widths = found.values[at] + INTERVAL * left[at] * np.array([0.0, -1.0, 1.0]) if told[at] else np.zeros(3)
        moved = [facts_at(page, [number], np.clip([value], problem.low[at], problem.high[at])) for value in widths]
        for fact in number.facts:
            after, low, high = (each[fact] for each in moved)
            yield Told(fact, number, before[fact], after, low, high, float(left[at]), row)
