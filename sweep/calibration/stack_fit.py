"""The numbers of a stack fitted to a few measured steps."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from sim_core import Floats, Hardware, SpecError, Stack, plural
from sweep.calibration.fitting import Fit, fit_page, percent
from sweep.calibration.numbers import NUMBERS, OF_EXPERTS, Number
from sweep.runs.simulation import seconds_by_stack
from sweep.runs.table import Row

NOISE: Final = 0.05
"""The median error of stacks whose facts are known."""
FEWEST, MOST = 3, 30


def fit_stack(
    rows: Sequence[Row], base: Stack | None, device: Hardware | None, source: str, *, leave_out: bool = True
) -> Fit[Stack]:
    """Fit the page of the rows' framework, or `base`, to measured steps, on `device` or what the rows state.

    `leave_out`: fit again without each run, to see how far off it is then.

    Raises SpecError if they are few or tell nothing.
    """
    runs, steps = seconds_by_stack(rows, base, device)
    used = [(run.row, run.measured_s) for run in runs if run.timed]
    not_used = [(run.row, run.reason) for run in runs if not run.timed]
    if not FEWEST <= len(used) <= MOST:
        why = f"; {not_used[0][0].where}: {not_used[0][1]}" if not_used else ""
        raise SpecError(f"{source}: found {plural(len(used), 'run')} to fit, expected {FEWEST} to {MOST}{why}")
    numbers = NUMBERS + (OF_EXPERTS if any(row.has_experts for row, _ in used) else ())
    page = base or _only(steps.stacks(), numbers, source)
    groups = np.arange(len(used)) if leave_out else None
    fit = fit_page(page, numbers, steps.seconds, used, NOISE, 0.0, groups, not_used)
    if not fit.facts:
        raise SpecError(f"{source}: these runs tell no number of a stack (`sweep calibrate stack --plan` prints which do)")
    return fit


def fit_rest(fit: Fit[Stack], rows: Sequence[Row], base: Stack | None, device: Hardware | None) -> tuple[Floats, Floats]:
    """Percent by which other runs are off, by the page and with what was told: those that can be simulated."""
    runs, steps = seconds_by_stack(rows, base, device)
    measured_s = np.array([run.measured_s for run in runs if run.timed])
    before, after = (percent(np.log(steps.seconds(facts) / measured_s)) for facts in ({}, fit.facts))
    return before, after


def _only(stacks: Sequence[Stack], numbers: Sequence[Number], source: str) -> Stack:
    """The one page that all runs begin from. Raises SpecError."""
    pages = {tuple(repr(getattr(stack, fact)) for number in numbers for fact in number.facts): stack for stack in stacks}
    if len(pages) > 1:
        names = " and ".join(sorted({stack.name for stack in stacks}))
        raise SpecError(f"{source}: found runs of {names}, expected one framework: say --stack, or take one --set")
    return next(iter(pages.values()))
