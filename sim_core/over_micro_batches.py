"""Reasons of plans over many numbers of micro-batches: those that no rule and no byte tells apart are checked once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.costing.stage_activations import micro_batches_to_fill
from sim_core.distinct import distinct_rows
from sim_core.hardware.table import HardwareTable
from sim_core.planning.columns import Plans, replicas, slice_plans
from sim_core.planning.legality import BESIDE_GA, MAX_BATCH, micro_batches_unfit
from sim_core.simulator import legality
from sim_core.workloads.workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def reasons_over(workload: Workload, hardware: HardwareTable, plans: Plans, ga: Ints) -> Ints:
    """The reason of each plan with each number of micro-batches in `ga`, [n, m], as `legality` gives it.

    `ga` decides a reason by the rules of `micro_batches_unfit`, by the micro-batches that fill a pipeline (peak memory),
    and by a global batch that is too large. Where all of these agree, one number stands for the others.
    """
    kind, first = distinct_rows(np.column_stack([getattr(plans, name) for name in BESIDE_GA]))
    kinds, numbers = len(first), np.arange(len(ga))
    if (replicas(plans).astype(np.float64) * plans.micro_batch * ga.max() > MAX_BATCH).any():
        alike = np.tile(numbers, (kinds, 1))
    else:
        alike = _alike(slice_plans(plans, first), ga)
    used = np.zeros((kinds, len(ga)), np.bool_)
    np.put_along_axis(used, alike, values=True, axis=1)
    row, stands = np.nonzero(used[kind])  # of each plan the numbers to be checked
    checked = slice_plans(plans, row)._replace(ga=ga[stands])
    found = np.zeros((len(kind), len(ga)), np.int64)
    found[row, stands], _ = legality(workload, hardware, checked)
    return np.take_along_axis(found, alike[kind], axis=1)


def _alike(plans: Plans, ga: Ints) -> Ints:
    """The index of the first number in `ga` that a pipeline cannot tell from another, for each of both, [n, m]."""
    row, number = (index.ravel() for index in np.indices((len(plans.tp), len(ga))))
    each = slice_plans(plans, row)._replace(ga=ga[number])
    filling = micro_batches_to_fill(each, np.arange(len(row)))
    rules = [column.astype(np.int64) for column in micro_batches_unfit(each).values()]
    key, first = distinct_rows(np.column_stack([row, filling, *rules]))
    return number[first[key]].reshape(len(plans.tp), len(ga))
