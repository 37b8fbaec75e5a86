"""The numbers of a stack fitted to a few measured steps: as near to its page as the runs allow, from several starts.

Least squares of log(simulated / measured) over NOISE, and of the distance of each number from the page over its width.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from sim_core import Bools, Floats, Hardware, SpecError, Stack, plural
from sweep.calibration.stack_numbers import NUMBERS, OF_EXPERTS, Number, bounds_of, facts_at, fitted_facts, starts_of
from sweep.runs.simulation import seconds_by_stack
from sweep.runs.table import Row

NOISE: Final = 0.05
"""Standard deviation of log(simulated / measured) that is nobody's fault: the median error of stacks whose facts are known."""
SEEN: Final = 0.7
"""A number is told by the runs if what they leave of its width is at most this: half of its variance is gone."""
FELT: Final = 0.01
"""Least relative change of some step by a change of one width; below it, no run depends on the number."""
FEWEST, MOST = 3, 30
TRIALS: Final = 6
"""Shorter steps that are tried where one does not lead downhill."""
ENOUGH: Final = 1e-3
"""Less gained by a step: the walk ends."""
STEPS: Final = 25
DELTA: Final = 0.05
DAMPING: Final = 1e-3
INTERVAL: Final = 1.645
"""Standard deviations to each side that hold 90 %."""

Simulate = Callable[[Floats], Floats]
"""Seconds of the runs, [runs], by the values of the numbers in widths, [numbers]."""


class Told(NamedTuple):
    """A fact: its value in SI before and after, a 90 % interval, and the run that tells most of it.

    A value is a number, or one for each device.
    """

    fact: str
    before: Any
    after: Any
    low: Any
    high: Any
    left: float  # standard deviation after the runs over that before; 1: no step of theirs depends on it
    row: Row | None  # that told it; None: no run does, it stays as it was


class StackFit(NamedTuple):
    """A page with what the runs told, and errors of the runs in percent: before, after, and each one left out."""

    base: Stack
    told: tuple[Told, ...]
    rows: tuple[Row, ...]
    before: Floats
    after: Floats
    left_out: Floats  # empty: not asked for
    starts: int
    not_used: tuple[tuple[Row, str], ...]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the runs tell, in SI."""
        return {told.fact: told.after for told in self.told if told.row is not None}


class Problem(NamedTuple):
    """What is fitted to which runs."""

    simulate: Simulate
    measured_s: Floats  # [runs]
    low: Floats  # [numbers]
    high: Floats
    fitted: Bools  # [runs]

    def rest(self, values: Floats) -> Floats:
        """log(simulated / measured) of all runs, [runs]."""
        return np.asarray(np.log(self.simulate(values) / self.measured_s), np.float64)

    def cost(self, values: Floats, rest: Floats) -> float:
        """What is made least: squares over NOISE, and over the widths."""
        inside = rest[self.fitted] / NOISE
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


def fit_stack(
    rows: Sequence[Row], base: Stack | None, device: Hardware | None, source: str, *, leave_out: bool = True
) -> StackFit:
    """Fit the page of the rows' framework, or `base`, to measured steps, on `device` or what the rows state.

    `leave_out`: fit again without each run, to see how far off it is then.

    Raises SpecError if they are few or tell nothing.
    """
    runs, steps = seconds_by_stack(rows, base, device)
    used = [run for run in runs if run.timed]
    not_used = tuple((run.row, run.reason) for run in runs if not run.timed)
    if not FEWEST <= len(used) <= MOST:
        why = f"; {not_used[0][0].where}: {not_used[0][1]}" if not_used else ""
        raise SpecError(f"{source}: found {plural(len(used), 'run')} to fit, expected {FEWEST} to {MOST}{why}")
    numbers = NUMBERS + (OF_EXPERTS if any(run.row.has_experts for run in used) else ())
    own = base or _only(steps.stacks(), numbers, source)
    low, high = bounds_of(own, numbers)
    problem = Problem(
        simulate=lambda values: steps.seconds(facts_at(own, numbers, values)),
        measured_s=np.array([run.measured_s for run in used]),
        low=low,
        high=high,
        fitted=np.ones(len(used), np.bool_),
    )
    starts = starts_of(own, numbers, low, high)
    before = problem.rest(np.zeros(len(numbers)))
    found, told = fit(problem, starts)
    if not told.any():
        raise SpecError(f"{source}: these runs tell no number of a stack (`sweep calibrate stack --plan` prints which do)")
    return StackFit(
        base=own,
        told=tuple(_told(own, numbers, problem, found, told, [run.row for run in used])),
        rows=tuple(run.row for run in used),
        before=_percent(before),
        after=_percent(found.rest),
        left_out=_left_out(problem, [found.values, np.zeros(len(numbers))]) if leave_out else np.empty(0),
        starts=len(starts),
        not_used=not_used,
    )


def fit_rest(fit: StackFit, rows: Sequence[Row], base: Stack | None, device: Hardware | None) -> tuple[Floats, Floats]:
    """Percent by which other runs are off, by the page and with what was told: those that can be simulated."""
    runs, steps = seconds_by_stack(rows, base, device)
    measured_s = np.array([run.measured_s for run in runs if run.timed])
    before, after = (np.log(steps.seconds(facts) / measured_s) for facts in ({}, fit.facts))
    return _percent(before), _percent(after)


def fit(problem: Problem, starts: Sequence[Floats]) -> tuple[Found, Bools]:
    """The least point of all starts, and which numbers the runs tell; the others stay as on the page."""
    active = _felt(problem, starts)
    found = _least(problem, starts, active)
    told = active & (deviations(problem, found) <= SEEN)
    if (told != active).any():
        found = _least(problem, [found.values * told, *(start * told for start in starts)], told)
    return found, told


def _felt(problem: Problem, starts: Sequence[Floats]) -> Bools:
    """Numbers that change some fitted step by more than FELT, at some start."""
    every = np.ones(len(problem.low), np.bool_)
    felt = np.zeros(len(problem.low), np.bool_)
    for start in starts:
        slopes = problem.slopes(start, problem.rest(start), every)[problem.fitted]
        felt |= np.abs(slopes).max(axis=0, initial=0.0) > FELT
    return felt


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
        inside = slopes[problem.fitted][:, columns] / NOISE
        square = inside.T @ inside + np.eye(len(columns))
        downhill = inside.T @ rest[problem.fitted] / NOISE + values[columns]
        tried, tried_rest, tried_cost = values, rest, cost
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
    spread = max(NOISE, float(np.sqrt(np.mean(found.rest[problem.fitted] ** 2))))
    inside = found.slopes[problem.fitted] / spread
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(inside.T @ inside + np.eye(len(found.values))))), np.float64)


def _percent(rest: Floats) -> Floats:
    return np.asarray(np.expm1(rest) * 100, np.float64)


def _only(stacks: Sequence[Stack], numbers: Sequence[Number], source: str) -> Stack:
    """The one page that all runs begin from. Raises SpecError."""
    pages = {tuple(repr(getattr(stack, fact)) for fact in fitted_facts(numbers)): stack for stack in stacks}
    if len(pages) > 1:
        names = " and ".join(sorted({stack.name for stack in stacks}))
        raise SpecError(f"{source}: found runs of {names}, expected one framework: say --stack, or take one --set")
    return next(iter(pages.values()))


def _told(
    own: Stack, numbers: Sequence[Number], problem: Problem, found: Found, told: Bools, rows: Sequence[Row]
) -> Iterator[Told]:
    """What became of each fact of each number."""
    left = deviations(problem, found)
    for at, number in enumerate(numbers):
        row = rows[int(np.argmax(np.abs(found.slopes[:, at])))] if told[at] else None
        widths = found.values[at] + INTERVAL * left[at] * np.array([0.0, -1.0, 1.0]) if told[at] else np.zeros(3)
        moved = [facts_at(own, [number], np.clip([value], problem.low[at], problem.high[at])) for value in widths]
        for fact in number.facts:
            after, low, high = (each[fact] for each in moved)
            yield Told(fact, getattr(own, fact), after, low, high, float(left[at]), row)


def _left_out(problem: Problem, starts: Sequence[Floats]) -> Floats:
    """Percent by which each run is off when it takes no part in choosing and fitting the numbers."""
    errors = np.empty(len(problem.measured_s))
    for at in range(len(errors)):
        others = problem.fitted.copy()
        others[at] = False
        found, _ = fit(problem._replace(fitted=others), starts)
        errors[at] = np.expm1(found.rest[at]) * 100
    return errors
