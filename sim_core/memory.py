"""Bytes of the model's state on a rank: a lower bound of the memory that a plan needs.

Mixed-precision Adam as Megatron-LM keeps it: bf16 weights 2 + fp32 gradients 4 + fp32 master weights and two moments 12
bytes a parameter; the 12 are divided by dp where the optimizer is sharded (Megatron-LM docs, "Distributed Optimizer",
table of memory; Rajbhandari et al. 2019, ZeRO, section 3.1). Activations come on top; a workload text does not hold them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.moving import EXPERT_PARAMETERS, PARAMETERS
from sim_core.plan import Plans
from sim_core.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS, Workload

Floats = npt.NDArray[np.float64]

WEIGHT_AND_GRADIENT_BYTES: Final = 6.0
OPTIMIZER_BYTES: Final = 12.0
RECORDED_GRADIENT_BYTES: Final = 4.0


def model_state_bytes(workload: Workload, plans: Plans) -> Floats:
    """Bytes of weights, gradients and optimizer on a rank of the stage with the most layers, [n]; NaN where unknown."""
    step, base = workload.arrays.step, workload.base
    reduced = step.role == REDUCE_GRADIENTS
    if not reduced.any():
        return np.full(len(plans.tp), np.nan)
    sharded = bool((step.role == GATHER_PARAMETERS).any())
    share = _most_layers(plans, workload.layers) / workload.layers * base.pp * (base.tp / plans.tp)
    dp = np.maximum(plans.all_gpus // (plans.tp * plans.pp), 1)
    total = np.zeros(len(plans.tp))
    for rule, experts in ((PARAMETERS, 1.0), (EXPERT_PARAMETERS, plans.ep / base.ep)):
        recorded = float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum()) / RECORDED_GRADIENT_BYTES
        parameters = recorded * share / experts
        replicas = dp / (plans.ep if rule == EXPERT_PARAMETERS else 1) if sharded else 1.0
        total += parameters * (WEIGHT_AND_GRADIENT_BYTES + OPTIMIZER_BYTES / replicas)
    return total


def _most_layers(plans: Plans, layers: int) -> Floats:
    """Layers of the stage that holds the most, [n]: the sum over its chunks of layers by balanced shares."""
    pairs, where = np.unique(plans.pp << 31 | plans.vpp, return_inverse=True)
    most = np.empty(len(pairs))
    for k, (pp, vpp) in enumerate(zip(pairs >> 31, pairs & (2**31 - 1), strict=True)):
        if pp * vpp > layers:  # infeasible, unless fidelity simai takes means
            most[k] = layers / pp
            continue
        bounds = np.arange(pp * vpp + 1) * layers // (pp * vpp)
        most[k] = np.diff(bounds).reshape(vpp, pp).sum(axis=0).max()
    return most[where]
