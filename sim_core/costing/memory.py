"""Bytes of the model's state on a rank: a lower bound on the memory that a plan needs.

Mixed-precision Adam as Megatron-LM keeps it: bf16 weights 2 + fp32 gradients 4 + fp32 master weights and two moments 12
bytes per parameter; the 12 are divided by dp if the optimizer is sharded (Megatron-LM docs, "Distributed Optimizer",
table of memory; Rajbhandari et al. 2019, ZeRO, section 3.1). A workload with other state sets `state_width`.
Activations are not included; no input format holds them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.planning.columns import Plans
from sim_core.planning.split import fullest_stage
from sim_core.workloads.moving import EXPERT_PARAMETERS, PARAMETERS
from sim_core.workloads.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS, Workload

Floats = npt.NDArray[np.float64]


def model_state_bytes(workload: Workload, plans: Plans) -> Floats:
    """Bytes of weights, gradients and optimizer on a rank of the stage with the most layers, [n]; NaN where unknown."""
    arrays, base = workload.arrays, workload.base
    step = arrays.step
    reduced = step.role == REDUCE_GRADIENTS
    unknown = not workload.gradients_known[0] or (workload.has_experts and not workload.gradients_known[1])
    if unknown or not (reduced.any() or arrays.layered_gradients):
        return np.full(len(plans.tp), np.nan)
    replicated, sharded_width = workload.state_width
    sharded = bool((step.role == GATHER_PARAMETERS).any())
    most = fullest_stage(plans)
    dp = np.maximum(plans.all_gpus // (plans.tp * plans.pp), 1)
    total = np.zeros(len(plans.tp))
    for rule, experts in ((PARAMETERS, 1.0), (EXPERT_PARAMETERS, plans.ep / base.ep)):
        recorded = float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum())
        held = recorded * base.pp * most / workload.layers
        if rule == PARAMETERS:
            held += _layered_bytes(workload, most)
        parameters = held / arrays.gradient_width * (base.tp / plans.tp) / experts
        replicas = dp / (plans.ep if rule == EXPERT_PARAMETERS else 1) if sharded else 1.0
        total += parameters * (replicated + sharded_width / replicas)
    return total


def _layered_bytes(workload: Workload, most: Floats) -> Floats:
    """Bytes of gradients that belong to pieces: the layers of the fullest stage, and the units before and after them."""
    arrays = workload.arrays
    by_unit = np.bincount(arrays.pieces.unit, arrays.pieces.gradient_bytes, arrays.unit_layers.shape[0])
    of_layers = float(by_unit @ arrays.unit_layers[:, -1]) / workload.layers
    ends = sum(float(by_unit[unit]) for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0)
    return of_layers * most + ends
