"""The numbers of a stack, or of a device, fitted to the measured steps of a user's own runs: those that the runs tell."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from sim_core import Floats, Hardware, SpecError, Stack, plural
from sweep.calibration.fitting import Fit, fit_page, percent
from sweep.calibration.numbers import NUMBERS, OF_EXPERTS, Number
from sweep.runs.simulation import seconds_by_stack, seconds_on
from sweep.runs.table import CELLS, FIELDS, OK, NotSimulated, Row

STACK_NOISE = 0.05
"""The median error of stacks whose facts are known."""
FEWEST, MOST = 3, 30
COMPUTE, NETWORK, FIXED = "sustained_scale", "nic_efficiency", "step_overhead"
NOISE = 0.01
"""Two measurements of one plan differ by this at least (published pairs: 1 to 2.4 %)."""
OF_DEVICE = {COMPUTE: (0.5, 0.05), NETWORK: (1.0, 0.15), FIXED: (0.3, 0.03)}
"""Width and largest standard error of each: of the logarithm of a factor; of seconds, as a part of the median step."""
SURE = 2.0
SLOWER_COMPUTE = np.array([0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.0])
SLOWER_NETWORK = np.geomspace(1, 10, 8)
"""Factors on the seconds of GEMMs and attention, and of messages between nodes, at which steps are simulated."""
PLAN = CELLS + FIELDS
"""Columns that make two rows runs of one plan."""


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
    fit = fit_page(page, numbers, steps.seconds, used, STACK_NOISE, 0.0, np.arange(len(used)) if leave_out else None, not_used)
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


def fit_runs(rows: Sequence[Row], hardware: Hardware | None, source: str) -> Fit[Hardware]:
    """Fit `hardware`, or what the rows name, to the runs. Raises SpecError if they tell no number."""
    used, grids, not_used, base = [], [], [], hardware
    for row in rows:
        try:
            if row.quality != OK:
                raise NotSimulated(f"quality {row.quality}")
            if (measured_s := row.number("step_time_s")) is None:
                raise NotSimulated("time not stated")
            stated = hardware or row.hardware
            base = base or stated
            if stated != base:
                raise SpecError(
                    f"{row.where}: other hardware or network than the rows before: calibrate each by itself (--set), "
                    "or say --device for all"
                )
            grids.append(seconds_on(row, _variants(base)))
            used.append((row, measured_s))
        except NotSimulated as error:
            not_used.append((row, str(error)[:100]))
    plans, groups = np.unique(["\n".join(row.text(key) for key in PLAN) for row, _ in used], return_inverse=True)
    if base is None or len(plans) < FEWEST:
        why = "".join(f"; {count} x {reason}" for reason, count in Counter(why for _, why in not_used).most_common(3))
        found = f"{plural(len(used), 'run')} of {plural(len(plans))}"
        raise SpecError(f"{source}: found {found} to fit, expected at least {plural(FEWEST)}{why}")
    unit = {FIXED: float(np.median([measured_s for _, measured_s in used]))}
    numbers = [
        Number(key, unit.get(key, 1.0) * width, key != FIXED, seen=most / width) for key, (width, most) in OF_DEVICE.items()
    ]
    steps = np.array(grids).reshape(len(used), len(SLOWER_COMPUTE), -1)

    def seconds(facts: Mapping[str, float]) -> Floats:
        """Linear in the seconds of compute and of messages."""
        at_compute = _between(SLOWER_COMPUTE, steps, facts[COMPUTE] / base.value(COMPUTE))
        at_both = _between(_slower_network(base), at_compute, base.value(NETWORK) / facts[NETWORK])
        return at_both + facts[FIXED] - base.value(FIXED)

    return fit_page(base, numbers, seconds, used, NOISE, SURE, groups, not_used)


def _slower_network(base: Hardware) -> Floats:
    """Factors on the seconds of messages, from those of the whole bandwidth on."""
    whole = base.value(NETWORK)
    return np.append(whole, SLOWER_NETWORK) if whole < 1 else SLOWER_NETWORK


def _variants(base: Hardware) -> list[Hardware]:
    """The hardware under each pair of factors."""
    return [
        base.with_values({COMPUTE: base.value(COMPUTE) * compute, NETWORK: min(base.value(NETWORK) / network, 1.0)})
        for compute in SLOWER_COMPUTE
        for network in _slower_network(base)
    ]


def _between(points: Floats, seconds: Floats, at: float) -> Floats:
    """Seconds between two points of axis 1, [runs, ...]."""
    low = int(np.clip(np.searchsorted(points, at) - 1, 0, len(points) - 2))
    share = (at - points[low]) / (points[low + 1] - points[low])
    return np.asarray(seconds[:, low] * (1 - share) + seconds[:, low + 1] * share)
