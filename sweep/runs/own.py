"""A user's measured runs beside the plans of a result: how far each is from its simulation, and its plan."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sweep.runs.simulation import Run
from sweep.uncertainty.judging import OwnRuns

SIZES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "all_gpus")


def own_runs(runs: Sequence[Run]) -> OwnRuns:
    """The runs with quality ok that were simulated and have a time, beside whose plans the plans of a result are judged."""
    timed = [run for run in runs if run.scored]
    columns = {name: pa.array([run.row.size(name) for run in timed], pa.int64()) for name in SIZES}
    error = np.array([math.log(run.measured_s / run.step_s) for run in timed], np.float64)
    return OwnRuns(plans=pa.table(columns), error=error)
