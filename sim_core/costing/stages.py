"""Memory of each stage of one plan; the results of a sweep keep that of the fullest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.costing.peak import peak_memory
from sim_core.metrics import (
    ACTIVATION_BYTES,
    ALLOCATED,
    ALLOCATOR_BYTES,
    COMMUNICATION_BYTES,
    LOGITS_BYTES,
    PEAK_BYTES,
    STATE_BYTES,
)
from sim_core.planning.columns import Plans
from sim_core.workloads.workload import Workload

Floats = npt.NDArray[np.float64]


def stage_memory(workload: Workload, plans: Plans) -> Floats:
    """Bytes by MEMORY on a rank of each stage of one plan, which must be legal, [len(MEMORY), stages]; NaN where unknown."""
    of_stages = np.full((4, int(plans.pp[0])), np.nan)
    fullest = peak_memory(workload, plans, np.zeros(1, np.int64), of_stages)[:, 0]
    tensors, activations, logits, unsharded = of_stages
    most = int(np.argmax(tensors))
    memory = np.repeat(fullest[:, None], len(tensors), axis=1)  # buffers and reserve are the same on each stage
    memory[STATE_BYTES] = tensors - activations - unsharded
    memory[ACTIVATION_BYTES] = activations - logits
    memory[LOGITS_BYTES] = logits
    memory[COMMUNICATION_BYTES] += unsharded - unsharded[most]
    memory[ALLOCATOR_BYTES] *= memory[ALLOCATED].sum(axis=0) / fullest[ALLOCATED].sum()
    memory[PEAK_BYTES] = memory[:PEAK_BYTES].sum(axis=0)
    return memory
