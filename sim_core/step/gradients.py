"""Gradients on their own stream: cut into buckets, reduced as they get ready, hidden behind the backward or after it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.engine.events import UP, Program, Times
from sim_core.hardware.table import HardwareTable
from sim_core.jit import kernel
from sim_core.planning.columns import Plans
from sim_core.planning.split import first_layer
from sim_core.step.lower import DP_EXPOSED, DP_TOTAL, Lowered, count_layers, group_s
from sim_core.workloads.moving import BY_LAYERS, PARAMETERS
from sim_core.workloads.workload import ALL_REDUCE, DP, GATHER_PARAMETERS, REDUCE_GRADIENTS, Arrays, StepPieces

Floats = npt.NDArray[np.float64]

PARAMETER_BYTES: Final = 2
MEGATRON_BUCKET_PARAMETERS: Final = 40_000_000
MEGATRON_BUCKET_PARAMETERS_PER_DP: Final = 1_000_000
"""Default gradient bucket: max(40e6, 1e6 * dp) parameters; Megatron-LM core/distributed/distributed_data_parallel.py."""
EDGE_BUCKETS: Final = 16.0
DDP_BUCKET_BYTES: Final = 25 * 2**20
"""Default bucket of gradients that get ready one by one: bucket_cap_mb of PyTorch's DistributedDataParallel."""
WIDTH_OF_PRECISION: Final = np.array([0.0, 4.0, 2.0])
"""Bytes of an element by PRECISIONS; 0: as recorded."""


@kernel
def _width_scale(arrays: Arrays, plans: Plans, i: int) -> float:
    """Bytes of a gradient on the wire over those recorded."""
    width = WIDTH_OF_PRECISION[plans.gradient_precision[i]]
    return width / arrays.gradient_width if width > 0 else 1.0


@kernel
def cost_buckets(
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
    narrower = _width_scale(arrays, plans, i)
    width = arrays.gradient_width * narrower
    if bucket == 0:
        parameters = max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP * low.ranks[DP])
        bucket = width * parameters
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES / width  # the same parameters, in fewer bytes
    total_layers = arrays.unit_layers.shape[1] - 1
    share = arrays.base[1] * layers / total_layers
    seconds = 0.0
    for k in range(step.role.shape[0]):
        if step.role[k] != role:
            continue
        rule = step.comm_rule[k]
        size = step.comm_bytes[k] * low.scale[rule] * (share if BY_LAYERS[rule] else 1.0)
        if role == REDUCE_GRADIENTS:
            size *= narrower
        count = max(np.ceil(size / bucket), 1.0)
        low.piece_buckets[k] = count
        low.piece_bucket_s[k] = group_s(step.comm_kind[k], step.comm_group[k], size / count, hardware, plans.hardware[i], low)
        seconds += count * low.piece_bucket_s[k]
    return seconds


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
def _stream_layers(
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
    program: Program,
    chunk: int,
    begin_s: float,
    stream_s: float,
) -> tuple[float, float]:
    """Gradients of a chunk that get ready one by one: (end of the stream, seconds of all messages).

    The backward, which begins at `begin_s`, runs the pieces in reverse. A bucket is sent once it holds the bucket size; a
    gradient is not cut. The stream, free at `stream_s`, takes them first come, first served.
    """
    chunks = plans.pp[i] * plans.vpp[i]
    pieces, layers = arrays.pieces, plans.layers[i]
    bucket = float(plans.bucket_bytes[i]) if plans.bucket_bytes[i] > 0 else float(DDP_BUCKET_BYTES)
    scale = low.scale[PARAMETERS] * _width_scale(arrays, plans, i)
    units = arrays.unit_layers.shape[0]
    first = first_layer(chunk, chunks, layers)
    layer = first_layer(chunk + 1, chunks, layers)
    cell = chunk % plans.pp[i] * plans.vpp[i] + chunk // plans.pp[i]
    plain_s = _plain_backward_s(arrays, plans, i, low, chunk)
    stretch = program.duration_s[UP, cell] / plain_s if plain_s > 0 else 0.0  # recompute, a straggler
    now_s = begin_s
    held, total_s = 0.0, 0.0
    # after the layers, the layers from last to first, before the layers
    at_end = chunk == chunks - 1 and arrays.last_unit >= 0
    while True:
        unit = -1
        if at_end:
            unit, at_end = arrays.last_unit, False
        elif layer > first:
            layer -= 1
            unit = arrays.layer_unit
            if unit < 0:
                for u in range(units):
                    if count_layers(arrays, u, layer, layer + 1) > 0:
                        unit = u
        elif layer == first and chunk == 0 and arrays.first_unit >= 0:
            layer -= 1
            unit = arrays.first_unit
        else:
            break
        for p in range(pieces.unit.shape[0] - 1, -1, -1):
            if pieces.unit[p] != unit:
                continue
            now_s += low.piece_backward_s[p] * stretch
            held += pieces.gradient_bytes[p] * scale
            if held >= bucket:
                seconds = group_s(ALL_REDUCE, DP, held, hardware, plans.hardware[i], low)
                stream_s = max(stream_s, now_s) + seconds
                total_s += seconds
                held = 0.0
    seconds = group_s(ALL_REDUCE, DP, held, hardware, plans.hardware[i], low)
    return max(stream_s, now_s) + seconds if held > 0 else stream_s, total_s + seconds


@kernel
def _plain_backward_s(arrays: Arrays, plans: Plans, i: int, low: Lowered, chunk: int) -> float:
    """Backward of a chunk without recompute or straggler."""
    chunks = plans.pp[i] * plans.vpp[i]
    begin, end = first_layer(chunk, chunks, plans.layers[i]), first_layer(chunk + 1, chunks, plans.layers[i])
    total_s = 0.0
    for unit in range(arrays.unit_layers.shape[0]):
        count = count_layers(arrays, unit, begin, end)
        if (chunk == 0 and unit == arrays.first_unit) or (chunk == chunks - 1 and unit == arrays.last_unit):
            count += 1
        total_s += count * low.unit_backward_s[unit]
    return total_s


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
    layers = plans.layers[i]
    overlapped = plans.overlap_grad[i] == 1
    costed = -1
    chunk_s = 0.0
    barrier_s = 0.0
    for stage in range(pp):
        stream_s = 0.0 if overlapped else times.free_s[stage]
        for chunk in range(vpp - 1, -1, -1):
            cell = stage * vpp + chunk
            virtual = chunk * pp + stage
            if arrays.layered_gradients:
                last_s = times.end_s[(pp * vpp + cell) * ga + ga - 1]
                begin_s = last_s - program.duration_s[UP, cell]
                free_s, chunk_s = _stream_layers(arrays, hardware, plans, i, low, program, virtual, begin_s, stream_s)
                stream_s = free_s if overlapped else stream_s + chunk_s
                out[DP_TOTAL] += chunk_s / pp
                continue
            held = first_layer(virtual + 1, chunks, layers) - first_layer(virtual, chunks, layers)
            if held != costed:
                chunk_s = cost_buckets(arrays.step, REDUCE_GRADIENTS, held, arrays, hardware, plans, i, low)
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
