"""Error bars of the published runs: recorded, checked by leaving one set out at a time, printed for the page."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sweep.uncertainty.evidence import KINDS, LEVEL, Evidence
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


def residuals(runs: Sequence[Run]) -> Residuals:
    """Errors of the runs with quality ok that were simulated and have a time."""
    timed = _judged(runs)
    jobs: dict[tuple[str, ...], int] = {}
    return Residuals(
        error=np.array([math.log(run.measured_s / run.step_s) for run in timed], np.float64),
        set=np.array([run.row.text("set") for run in timed], np.str_),
        experts=np.array([bool(run.row.text("experts")) for run in timed], np.bool_),
        job=np.array([jobs.setdefault(tuple(run.row.text(key) for key in ALIKE), len(jobs)) for run in timed], np.int64),
        sizes=np.log2([[run.row.count(key, 1) for key in SIZES] for run in timed]).reshape(len(timed), len(SIZES)),
        choices=np.array([[run.row.text(key) for key in WORDS] for run in timed], np.str_).reshape(len(timed), len(WORDS)),
    )


def own_runs(runs: Sequence[Run]) -> OwnRuns:
    """The same runs as those of a user, beside whose plans the plans of a result are judged."""
    timed = _judged(runs)
    columns = {name: pa.array([run.row.count(key, 1) for run in timed], pa.int64()) for key, name in OF_PLANS.items()}
    return OwnRuns(plans=pa.table(columns), error=residuals(timed).error)


def _judged(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.timed and run.row.quality == "ok"]


def evidence_of(runs: Sequence[Run]) -> Evidence:
    """What the runs of frameworks with a page say of errors; runs of at least two sets."""
    return fit(residuals([run for run in runs if not run.unmet]))


def out_of_bounds(evidence: Evidence) -> list[str]:
    """A line if intervals contain too few or too many of the runs of sets that were left out."""
    percent = evidence.coverage[ALL]
    if LEAST <= percent <= MOST:
        return []
    bars = f"{LEVEL:.0%} intervals hold {percent:.1f} % of the runs of sets left out"
    return [f"error bars: {bars}, expected {LEAST:g} to {MOST:g}"]


def as_markdown(evidence: Evidence) -> str:
    """Intervals by class, differences of plans, and how many runs of sets that were left out they contain."""
    lines = [
        "| class | runs | sets | measured step over simulated, 90 % | ratio of two plans a doubling apart |",
        "|---|--:|--:|---|--:|",
    ]
    for kind, name in KINDS.items():
        spread, differences = evidence.spreads[kind], evidence.differences[kind]
        low, high = np.expm1(spread.low), np.expm1(spread.high)
        apart = float(np.sqrt(differences.variogram(np.array(1.0))))
        lines.append(f"| {name} | {spread.runs} | {spread.sets} | {low:+.0%} to {high:+.0%} | {apart:.1%} |")
    lines += ["", "Left out, one set after the other:", "", "| set | runs held, % | pairs of plans held, % |", "|---|--:|--:|"]
    for name, percent in sorted(evidence.coverage.items(), key=lambda item: (item[0] == ALL, item[0])):
        pairs = evidence.pair_coverage.get(name)
        shown = f"**{name}**" if name == ALL else name
        lines.append(f"| {shown} | {percent:.0f} | {'-' if pairs is None else f'{pairs:.0f}'} |")
    return "\n".join(lines)
