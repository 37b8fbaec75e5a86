"""A user's measured runs beside the plans of a result: how far each is from its simulation, and its plan."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sweep.uncertainty.judging import OwnRuns
from sweep.validation.simulation import Run

OF_PLANS: Final = {"tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "mbs": "micro_batch", "gpus": "all_gpus"}
"""Sizes of a run, as columns of a result."""


def own_runs(runs: Sequence[Run]) -> OwnRuns:
    """The runs with quality ok that were simulated and have a time, beside whose plans the plans of a result are judged."""
    timed = [run for run in runs if run.scored]
    columns = {name: pa.array([run.row.count(key, 1) for run in timed], pa.int64()) for key, name in OF_PLANS.items()}
    error = np.array([math.log(run.measured_s / run.step_s) for run in timed], np.float64)
    return OwnRuns(plans=pa.table(columns), error=error)
