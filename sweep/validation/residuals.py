"""Simulated runs as residuals: what error bars are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sweep.uncertainty.judging import OwnRuns
from sweep.uncertainty.residuals import Residuals
from sweep.validation.figures import ALIKE
from sweep.validation.simulation import Run

SIZES: Final = ("tp", "pp", "vpp", "cp", "ep", "mbs")
WORDS: Final = ("zero", "recompute")
OF_PLANS: Final = {"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "mbs": "micro_batch", "gpus": "all_gpus"}
"""Sizes of a run, as columns of a result."""


def residuals(runs: Sequence[Run]) -> Residuals:
    """Of the runs with quality ok that were simulated and have a time."""
    timed = [run for run in runs if run.timed and run.row.quality == "ok"]
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
    timed = [run for run in runs if run.timed and run.row.quality == "ok"]
    columns = {name: pa.array([run.row.count(key, 1) for run in timed], pa.int64()) for key, name in OF_PLANS.items()}
    return OwnRuns(plans=pa.table(columns), error=residuals(timed).error)
