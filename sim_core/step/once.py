"""What happens around the pipeline: parameters gathered, gradients reduced, the optimizer; on the engine's times.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-a-step collectives and optimizer | [parameter gather, if not overlapped].
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.events import DOWN, Program
from sim_core.hardware.table import HardwareTable
from sim_core.jit import kernel
from sim_core.planning.columns import Plans
from sim_core.planning.split import first_layer
from sim_core.step.gradients import cost_buckets
from sim_core.step.lower import DP_EXPOSED, DP_TOTAL, OPTIMIZER, TOTAL_OF, Lowered, group_s
from sim_core.workloads.moving import BY_LAYERS
from sim_core.workloads.workload import AFTER_GRADIENTS, EMBEDDING, GATHER_PARAMETERS, NO_COMM, Arrays

Floats = npt.NDArray[np.float64]


@kernel
def gather_parameters(
    arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, program: Program, out: Floats
) -> None:
    """Gates of the first forwards, if the parameter gather overlaps them; else its seconds after the optimizer.

    Buckets of a chunk arrive one after the other from the start of the step, those of dense and expert parameters in step; a
    layer runs once its buckets are there.
    Leaves the stage's serial seconds in `low.after_s`.
    """
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    layers = plans.layers[i]
    costed = -1
    chunk_s = 0.0
    for stage in range(pp):
        arrived_s = 0.0
        for chunk in range(vpp):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = cost_buckets(arrays.step, GATHER_PARAMETERS, held, arrays, hardware, plans, i, low)
                costed = held
            program.gate_start_s[cell] = 0.0
            program.gate_end_s[cell] = 0.0
            if plans.overlap_param[i] == 1 and chunk_s > 0:
                first_s, most = 0.0, 1.0
                for k in range(arrays.step.role.shape[0]):
                    if arrays.step.role[k] == GATHER_PARAMETERS and low.piece_bucket_s[k] > 0:
                        first_s += low.piece_bucket_s[k]
                        most = max(most, low.piece_buckets[k])
                program.gate_start_s[cell] = arrived_s + first_s
                program.gate_end_s[cell] = arrived_s + chunk_s + program.duration_s[DOWN, cell] / most
            arrived_s += chunk_s
        low.after_s[stage] = 0.0 if plans.overlap_param[i] == 1 else arrived_s
        out[DP_TOTAL] += arrived_s / pp
        out[DP_EXPOSED] += low.after_s[stage] / pp


@kernel
def after_gradients(arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, out: Floats) -> float:
    """Once-a-step collectives and the optimizer of each stage, added to `low.after_s`; returns the slowest stage's."""
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    layers = plans.layers[i]
    recorded_layers = arrays.unit_layers.shape[1] - 1
    step = arrays.step
    row = plans.hardware[i]
    slowest_s = 0.0
    for stage in range(pp):
        held = 0
        for chunk in range(vpp):
            virtual = chunk * pp + stage
            held += first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
        share = arrays.base[1] * held / recorded_layers
        for k in range(step.role.shape[0]):
            if step.role[k] != AFTER_GRADIENTS:
                continue
            rule = step.compute_rule[k]
            compute_s = step.compute_s[k] * low.scale[rule] * hardware.compute_scale[row] / plans.device_speed[i]
            compute_s *= share if BY_LAYERS[rule] else 1.0
            if stage == plans.straggler_stage[i]:
                compute_s *= plans.straggler_factor[i]
            rule = step.comm_rule[k]
            size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
            seconds = 0.0
            shares = step.comm_group[k] != EMBEDDING or stage == 0 or stage == pp - 1
            if step.comm_kind[k] != NO_COMM and shares:
                seconds = group_s(step.comm_kind[k], step.comm_group[k], size, hardware, row, low)
            low.after_s[stage] += compute_s + seconds
            total = TOTAL_OF[step.comm_group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + 1] += seconds / pp
        slowest_s = max(slowest_s, low.after_s[stage])
    return slowest_s
