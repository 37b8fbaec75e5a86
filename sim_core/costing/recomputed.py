"""FLOPs that recompute runs again: those that hardware FLOPs have beyond model FLOPs.

Hardware FLOPs count every forward that runs again, model FLOPs none (PaLM, arXiv 2204.02311, appendix B; Korthikanti et al.
2022, arXiv 2205.05198, appendix A). A flash kernel's own second pass over the scores is part of its backward.
"""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.operators import rows_of_units
from sim_core.models.description import EMBEDDING, LAYER
from sim_core.models.recompute import RECOMPUTE_MODULES, module_flops
from sim_core.models.weights import core_flops, forward_flops
from sim_core.planning.columns import EVERY, FILE, FULL, MODULES, NONE, SELECTIVE, Plans
from sim_core.workloads.lacking import unit_shares
from sim_core.workloads.plausibility import layer_flops
from sim_core.workloads.workload import Workload

WHOLE, CORE, RECORDED, OF_MODULES = 0, 1, 2, 3
"""Columns of the FLOPs of a unit: all of its forward, core attention, what the file runs again, each of RECOMPUTE_MODULES."""


def again_flops(workload: Workload) -> Floats:
    """FLOPs per token of a second forward of one pass of each unit, [units, 3 + modules]; NaN where unknown."""
    units = workload.arrays.unit_layers.shape[0]
    flops = np.full((units, OF_MODULES + len(RECOMPUTE_MODULES)), np.nan)
    if workload.modelled is None:
        flops[:, WHOLE] = layer_flops(workload)
        _fill_recorded(workload, flops)
        return flops
    model = workload.modelled.model
    if workload.from_file:
        kinds = np.array([(forward_flops(model, unit), core_flops(model, unit)) for unit in model.layer_units])
        flops[:, [WHOLE, CORE]] = unit_shares(workload.arrays, workload.modelled) @ kinds
        _fill_recorded(workload, flops)
        return flops
    flops[:] = 0.0
    for at, times, unit in rows_of_units(model):
        if unit.kind == LAYER:
            flops[at, :OF_MODULES] = forward_flops(model, unit), core_flops(model, unit), forward_flops(model, unit)
            flops[at, OF_MODULES:] = module_flops(model, unit)
        elif unit.kind != EMBEDDING:
            flops[at, [WHOLE, RECORDED]] += times * forward_flops(model, unit)
    return flops


def _fill_recorded(workload: Workload, flops: Floats) -> None:
    """Fill what the file runs again."""
    arrays = workload.arrays
    for at in range(len(flops)):
        times = np.unique(arrays.pieces.rerun[arrays.pieces.unit == at])
        if len(times) <= 1:  # all of the unit runs again equally often, or nothing
            often = float(times.sum())
            flops[at, RECORDED] = often * flops[at, WHOLE] if often else 0.0
    for end in (arrays.first_unit, arrays.last_unit):
        if end >= 0 and flops[end, RECORDED] != 0:
            flops[end, RECORDED] = np.nan


@inner_kernel
def flops_again(flops: Floats, again: Floats, checkpointing: int, modules: int) -> float:
    """FLOPs per token that a plan runs again; `again`: passes of each unit that run again; `modules`: a mask, of MODULES."""
    column = CORE if checkpointing == SELECTIVE else RECORDED if checkpointing == FILE else WHOLE
    total = 0.0
    for unit in range(again.shape[0]):
        if again[unit] <= 0:
            continue
        if checkpointing != MODULES:
            total += again[unit] * flops[unit, column]
            continue
        for k in range(flops.shape[1] - OF_MODULES):
            if modules >> k & 1:
                total += again[unit] * flops[unit, OF_MODULES + k]
    return total


def flops_again_simai(workload: Workload, flops: Floats, plans: Plans, rows: Ints) -> Floats:
    """The same in fidelity simai, [rows]; it has no virtual stages, so `block:k` is NaN."""
    arrays = workload.arrays
    layers = arrays.unit_layers[:, -1].astype(float)
    passes = layers.copy()
    passes[[unit for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0]] = 1.0
    how = plans.checkpointing[rows]
    total = np.full(len(rows), np.nan)
    total[how == NONE] = 0.0
    for mode, again, column in (
        (FULL, layers, WHOLE),
        (EVERY, layers, WHOLE),
        (SELECTIVE, layers, CORE),
        (FILE, passes, RECORDED),
    ):
        ran = again > 0
        total[how == mode] = (again[ran] * flops[ran, column]).sum()
    return total
