"""Error bars of the published runs: recorded, checked by leaving one set out at a time, printed for the page."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sim_core import Floats
from sweep.uncertainty.evidence import (
    ASSUMED_KERNELS,
    EXPERTS,
    HOST_BOUND,
    KINDS,
    LEVEL,
    TRAITS,
    UNSTATED,
    Evidence,
    assumed_kernels,
    host_bound,
    recorded,
)
from sweep.uncertainty.fitting import Residuals, fit
from sweep.uncertainty.judging import OwnRuns
from sweep.validation.figures import ALIKE
from sweep.validation.simulation import Run

SIZES: Final = ("tp", "pp", "vpp", "cp", "ep", "mbs")
WORDS: Final = ("zero", "recompute")
OF_PLANS: Final = {"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "mbs": "micro_batch", "gpus": "all_gpus"}
"""Sizes of a run, as columns of a result."""
ALL: Final = "all"
LEAST, MOST = 85.0, 95.0
"""Percent of the runs of sets that were left out which intervals at LEVEL must contain."""
MARGIN: Final = 1.0
"""Points by which a class outside these bounds may be further outside than when the figures were recorded."""


def residuals(runs: Sequence[Run]) -> Residuals:
    """Errors of the runs with quality ok that were simulated and have a time."""
    timed = [run for run in runs if run.scored]
    jobs: dict[tuple[str, ...], int] = {}
    return Residuals(
        error=np.array([math.log(run.measured_s / run.step_s) for run in timed], np.float64),
        set=np.array([run.row.text("set") for run in timed], np.str_),
        experts=np.array([bool(run.row.text("experts")) for run in timed], np.bool_),
        job=np.array([jobs.setdefault(tuple(run.row.text(key) for key in ALIKE), len(jobs)) for run in timed], np.int64),
        sizes=np.log2([[run.row.count(key, 1) for key in SIZES] for run in timed]).reshape(len(timed), len(SIZES)),
        choices=np.array([[run.row.text(key) for key in WORDS] for run in timed], np.str_).reshape(len(timed), len(WORDS)),
        traits=np.stack([_trait(trait.name, timed) for trait in TRAITS], 1),
    )


def _trait(name: str, runs: Sequence[Run]) -> Floats:
    """How much of a trait each run has, [n]."""
    experts = np.array([bool(run.row.text("experts")) for run in runs], np.bool_)
    stated = np.array([bool(run.row.text("release") or run.row.text("features")) for run in runs], np.bool_)
    of_plans = np.array([[run.launch_s, run.step_s, run.measured_share] for run in runs], np.float64).reshape(len(runs), 3)
    values = {
        EXPERTS: experts,
        UNSTATED: experts & ~stated,
        HOST_BOUND: host_bound(of_plans[:, 0], of_plans[:, 1]),
        ASSUMED_KERNELS: assumed_kernels(of_plans[:, 2]),
    }
    return np.asarray(values[name], np.float64)


def own_runs(runs: Sequence[Run]) -> OwnRuns:
    """The same runs as those of a user, beside whose plans the plans of a result are judged."""
    timed = [run for run in runs if run.scored]
    columns = {name: pa.array([run.row.count(key, 1) for run in timed], pa.int64()) for key, name in OF_PLANS.items()}
    return OwnRuns(plans=pa.table(columns), error=residuals(timed).error)


def evidence_of(runs: Sequence[Run]) -> Evidence:
    """What the runs of frameworks with a page say of errors; runs of at least two sets."""
    return fit(residuals([run for run in runs if not run.unmet]))


def out_of_bounds(evidence: Evidence) -> list[str]:
    """A line for each class whose intervals hold too few or too many runs of sets left out, and did so less when recorded."""
    before, lines = recorded().coverage, []
    for name in (ALL, *KINDS):
        percent = evidence.coverage.get(name, LEVEL * 100)
        if _beyond(percent) > _beyond(before.get(name, LEVEL * 100)) + MARGIN:
            bars = f"{LEVEL:.0%} intervals hold {percent:.1f} % of the runs of sets left out ({KINDS.get(name, name)})"
            lines.append(f"error bars: {bars}, expected {LEAST:g} to {MOST:g}")
    return lines


def _beyond(percent: float) -> float:
    """By how much a share is outside the bounds."""
    return max(LEAST - percent, percent - MOST, 0.0)


def as_markdown(evidence: Evidence) -> str:
    """Intervals by class, what widens them, differences of plans, and how many runs of sets that were left out they contain."""
    lines = [
        "| class | runs | sets | measured step over simulated, 90 % | held of sets left out, % "
        "| ratio of two plans a doubling apart |",
        "|---|--:|--:|---|--:|--:|",
    ]
    for kind, name in KINDS.items():
        spread, differences = evidence.spreads[kind], evidence.differences[kind]
        low, high = np.expm1(spread.low), np.expm1(spread.high)
        apart = float(np.sqrt(differences.variogram(np.array(1.0), np.array(1.0))))
        held = f"{evidence.coverage[kind]:.0f}" if kind in evidence.coverage else "-"
        lines.append(f"| {name} | {spread.runs} | {spread.sets} | {low:+.0%} to {high:+.0%} | {held} | {apart:.1%} |")
    lines += [
        "",
        "What moves both ends away from the middle, until they are a factor of 2 apart:",
        "",
        "| what | factor |",
        "|---|--:|",
    ]
    lines += [f"| {trait.doc} | {evidence.widening[trait.name]:.2f} |" for trait in TRAITS]
    lines += ["", "Left out, one set after the other:", "", "| set | runs held, % | pairs of plans held, % |", "|---|--:|--:|"]
    by_set = {name: percent for name, percent in evidence.coverage.items() if name not in KINDS}
    for name, percent in sorted(by_set.items(), key=lambda item: (item[0] == ALL, item[0])):
        pairs = evidence.pair_coverage.get(name)
        shown = f"**{name}**" if name == ALL else name
        lines.append(f"| {shown} | {percent:.0f} | {'-' if pairs is None else f'{pairs:.0f}'} |")
    return "\n".join(lines)
