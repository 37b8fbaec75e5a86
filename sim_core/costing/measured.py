"""How much of a plan's compute rests on kernels that were measured on its very device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Blocks
from sim_core.metrics import BACKWARD_S, FORWARD_S
from sim_core.workloads.workload import Arrays

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def measured_share(arrays: Arrays, blocks: Blocks, layers: Ints, rows: Ints) -> Floats:
    """Part of the forward and backward seconds of a micro-batch, over all stages, for plans `rows`; recompute is left out.

    `layers` are those of all plans.
    """
    passes = arrays.unit_layers[:, -1].astype(np.float64)
    passes[[unit for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0]] += 1
    seconds = blocks.work[:, :, FORWARD_S] + blocks.work[:, :, BACKWARD_S]
    key = blocks.key[rows]
    measured, total = np.zeros(len(rows)), np.zeros(len(rows))
    for unit, times in enumerate(passes):  # one after another: BLAS adds in an order that depends on the number of rows
        measured += blocks.measured_s[key, unit] * times
        total += seconds[key, unit] * times
    if arrays.layer_unit >= 0:  # all layers are alike, and their number may be another
        unit = arrays.layer_unit
        more = layers[rows] - passes[unit]
        measured, total = measured + blocks.measured_s[key, unit] * more, total + seconds[key, unit] * more
    return _ratio(measured, total)


def _ratio(part: Floats, whole: Floats) -> Floats:
    share: Floats = np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)
    return share
