"""What happens around the pipeline: parameters gathered, gradients reduced, the optimizer; on the engine's times.

Order of a step: [parameter gather, if overlapped with the first forwards] pipeline with its gradient reduction | barrier
(gradient norm over all stages) | once-a-step collectives and optimizer | [parameter gather, if not overlapped].
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.engine import DOWN, UP, Program, Times
from sim_core.hardware import HardwareTable
from sim_core.jit import kernel
from sim_core.lower import DP_EXPOSED, DP_TOTAL, OPTIMIZER, TOTAL_OF, Lowered, group_s
from sim_core.moving import BY_LAYERS
from sim_core.plan import MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP, Plans, first_layer
from sim_core.workload import AFTER_GRADIENTS, DP, GATHER_PARAMETERS, NO_COMM, REDUCE_GRADIENTS, Arrays, StepPieces

Floats = npt.NDArray[np.float64]

GRADIENT_BYTES: Final = 4
PARAMETER_BYTES: Final = 2
EDGE_BUCKETS: Final = 16.0


@kernel
def _cost_buckets(
    step: StepPieces,
    role: int,
    layers: int,
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
) -> float:
    """Buckets, and seconds a bucket, of the step pieces of `role` for `layers` layers; returns the seconds of all.

    A message is cut into equal buckets of at most the bucket size.
    """
    bucket = float(plans.bucket_bytes[i])
    if bucket == 0:
        parameters = max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP * low.ranks[DP])
        bucket = float(GRADIENT_BYTES * parameters)
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES / GRADIENT_BYTES  # the same parameters, in fewer bytes
    total_layers = arrays.unit_layers.shape[1] - 1
    share = arrays.base[1] * layers / total_layers
    seconds = 0.0
    for k in range(step.role.shape[0]):
        if step.role[k] != role:
            continue
        rule = step.comm_rule[k]
        size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
        count = max(np.ceil(size / bucket), 1.0)
        low.piece_buckets[k] = count
        low.piece_bucket_s[k] = group_s(step.comm_kind[k], step.comm_group[k], size / count, hardware, plans.hardware[i], low)
        seconds += count * low.piece_bucket_s[k]
    return seconds


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
    layers = arrays.unit_layers.shape[1] - 1
    costed = -1
    chunk_s = 0.0
    for stage in range(pp):
        arrived_s = 0.0
        for chunk in range(vpp):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = _cost_buckets(arrays.step, GATHER_PARAMETERS, held, arrays, hardware, plans, i, low)
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
def _last_bucket_s(step: StepPieces, end_s: float, backward_s: float, low: Lowered) -> float:
    """End of a stream that was free when this backward began, taking its buckets, of all kinds, as they get ready.

    It is the greatest, over the moments at which a bucket gets ready, of that moment and the work of all buckets that are
    ready then or later. Along the buckets of one kind that sum is linear, so that its ends suffice; with several kinds
    EDGE_BUCKETS from either end are looked at, which is exact but for less than one bucket in between.
    """
    latest = 0.0
    begin_s = end_s - backward_s
    kinds = 0
    for k in range(step.role.shape[0]):
        if step.role[k] == REDUCE_GRADIENTS and low.piece_bucket_s[k] > 0:
            kinds += 1
    for k in range(step.role.shape[0]):
        if step.role[k] != REDUCE_GRADIENTS or low.piece_bucket_s[k] <= 0:
            continue
        count = low.piece_buckets[k]
        edge = 1.0 if kinds == 1 else min(count, EDGE_BUCKETS)
        looked = 0.0
        while looked < 2 * edge:
            bucket = looked if looked < edge else count - 1 - (looked - edge)
            ready = (bucket + 1) / count
            rest_s = 0.0
            for other in range(step.role.shape[0]):
                if step.role[other] == REDUCE_GRADIENTS and low.piece_bucket_s[other] > 0:
                    before = np.ceil(ready * low.piece_buckets[other] - 1e-9) - 1
                    rest_s += (low.piece_buckets[other] - max(before, 0.0)) * low.piece_bucket_s[other]
            latest = max(latest, begin_s + ready * backward_s + rest_s)
            looked += 1
    return latest


@kernel
def reduce_gradients(
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
    program: Program,
    times: Times,
    out: Floats,
) -> float:
    """Reduce each chunk's gradients bucket by bucket, during its last backward or after the pipeline.

    Bucket j of n is ready when (j+1)/n of the backward is done, and the stream takes them as they get ready. Returns when the
    last stage is through (the barrier of the gradient norm).
    """
    pp, vpp, ga = plans.pp[i], plans.vpp[i], plans.ga[i]
    chunks = pp * vpp
    layers = arrays.unit_layers.shape[1] - 1
    overlapped = plans.overlap_grad[i] == 1
    costed = -1
    chunk_s = 0.0
    barrier_s = 0.0
    for stage in range(pp):
        stream_s = 0.0 if overlapped else times.free_s[stage]
        for chunk in range(vpp - 1, -1, -1):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = _cost_buckets(arrays.step, REDUCE_GRADIENTS, held, arrays, hardware, plans, i, low)
                costed = held
            out[DP_TOTAL] += chunk_s / pp
            if not overlapped:
                stream_s += chunk_s
                continue
            last_s = times.end_s[(pp * vpp + cell) * ga + ga - 1]
            stream_s = max(stream_s + chunk_s, _last_bucket_s(arrays.step, last_s, program.duration_s[UP, cell], low))
        low.stream_end_s[stage] = max(stream_s, times.free_s[stage])
        out[DP_EXPOSED] += (low.stream_end_s[stage] - times.free_s[stage]) / pp
        barrier_s = max(barrier_s, low.stream_end_s[stage])
    return barrier_s


@kernel
def after_gradients(arrays: Arrays, hardware: HardwareTable, plans: Plans, i: int, low: Lowered, out: Floats) -> float:
    """Once-a-step collectives and the optimizer of each stage, added to `low.after_s`; returns the slowest stage's."""
    pp, vpp = plans.pp[i], plans.vpp[i]
    chunks = pp * vpp
    layers = arrays.unit_layers.shape[1] - 1
    step = arrays.step
    row = plans.hardware[i]
    slowest_s = 0.0
    for stage in range(pp):
        held = 0
        for chunk in range(vpp):
            virtual = chunk * pp + stage
            held += first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
        share = arrays.base[1] * held / layers
        for k in range(step.role.shape[0]):
            if step.role[k] != AFTER_GRADIENTS:
                continue
            rule = step.compute_rule[k]
            compute_s = step.compute_s[k] * low.scale[rule] * hardware.compute_scale[row]
            compute_s *= share if BY_LAYERS[rule] else 1.0
            rule = step.comm_rule[k]
            size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
            seconds = 0.0
            if step.comm_kind[k] != NO_COMM:
                seconds = group_s(step.comm_kind[k], step.comm_group[k], size, hardware, row, low)
            low.after_s[stage] += compute_s + seconds
            total = TOTAL_OF[step.comm_group[k]]
            out[OPTIMIZER] += compute_s / pp
            out[total] += seconds / pp
            out[total + 1] += seconds / pp
        slowest_s = max(slowest_s, low.after_s[stage])
    return slowest_s
