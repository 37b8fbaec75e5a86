"""Candidates of a job: the plans of a result that may be the best, as points, with what the simulation says of each."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sim_core import Floats, Ints
from sweep.preparation import Sweep
from sweep.tuning.deciding import Candidates
from sweep.tuning.draws import log_steps
from sweep.tuning.process import Axes
from sweep.uncertainty.judging import Coordinates, all_distances, coordinates

MOST: Final = 500
"""Plans that are simulated under draws: the first of the ranking."""
TOO_FULL: Final = 1.15
"""Plans that need up to this part of the device's memory, as simulated, are candidates: the simulation may be wrong."""


def axes_of(points: Coordinates) -> Axes:
    """Plans as points: doublings, and a column for each value of a choice, two of which are a doubling apart."""
    columns = [points.sizes]
    for codes in points.choices.T:
        values = np.unique(codes)
        if len(values) > 1:
            columns.append((codes[:, None] == values) / np.sqrt(2))
    return Axes(np.concatenate(columns, 1), all_distances(points))


def candidates_of(sweep: Sweep, rows: pa.Table, varying: Sequence[str], cost: Floats | None = None) -> Candidates:
    """The plans of some `rows` of a result as candidates. `varying`: the plan columns that tell them apart.

    `cost`, [n]: what is ranked by, in proportion to time, as simulated; default: the seconds of a step.
    """
    plans: Ints = rows["plan"].to_numpy()
    steps = log_steps(sweep, plans)
    nominal, moved = steps[0], np.where(np.isnan(steps[1:]), steps[0], steps[1:])
    mean: Floats = moved.mean(0)
    part = rows["peak_memory_bytes"].to_numpy().astype(np.float64) / rows["device_memory_bytes"].to_numpy()
    return Candidates(
        plans=plans,
        simulated=np.exp(nominal),
        mean=mean,
        draws=moved - mean,
        part=part,
        axes=axes_of(coordinates(rows, list(varying))),
        offset=np.zeros(len(plans)) if cost is None else np.log(cost) - nominal,
    )
