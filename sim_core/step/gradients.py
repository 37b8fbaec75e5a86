"""Messages of a virtual stage in buckets of about one size: its gradients, and parameters that it gathers once a step.

Gradients are on their own stream, and are reduced as they become ready, during the backward, or after it.
"""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats
from sim_core.compiled.jit import inner_kernel
from sim_core.costing.case import Case, collective_of, held_factor, nic_of, shard_ranks, shares_nics
from sim_core.costing.collectives import send_s
from sim_core.costing.groups import EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD, group_nodes
from sim_core.costing.memory import default_bucket_bytes, ends_held, expert_replicas, stage_factor
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.program import KINDS, LONGER, OF_INPUTS, OF_WEIGHTS, SENT, STREAMS, UP, WEIGHT, Program, Times
from sim_core.engine.schedules import BOTH_WAYS, PLACEMENT, SPLITS
from sim_core.metrics import DP_EXPOSED, DP_TOTAL
from sim_core.models.optimizers import MUON
from sim_core.models.precision import GATHERED
from sim_core.planning.split import count_layers
from sim_core.step.lower import Lowered
from sim_core.terms import (
    ALL_GATHER,
    ALL_REDUCE,
    AS_STACK,
    DP,
    DP_EP,
    GRADIENTS_SHARDED,
    OPTIMIZER_SHARDED,
    REDUCE_SCATTER,
    UNSHARDED,
)
from sim_core.workloads.moving import PARAMETERS
from sim_core.workloads.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS, Arrays

EDGE_BUCKETS: Final = 16.0
PARAMETER_BYTES: Final = 2
DDP_BUCKET_BYTES: Final = 25 * 2**20
"""Default bucket of gradients that become ready one by one: bucket_cap_mb of PyTorch's DistributedDataParallel."""
WIDTH_OF_PRECISION: Final = np.array([0.0, 4.0, 2.0])
"""Bytes of an element by PRECISIONS; 0: as recorded."""


class Buckets(NamedTuple):
    """Messages of a virtual stage, one row for each distinct number of layers per virtual stage of a plan."""

    costed: Bools  # [sizes]
    number: Floats  # [sizes, step pieces] buckets of each piece that has a message: the first ones of a row ...
    bucket_s: Floats  # [sizes, step pieces] ... and seconds of one bucket; 0 behind them
    first_s: Floats  # [sizes] seconds of the first bucket of every piece
    most: Floats  # [sizes] maximum number of buckets of a piece, at least 1
    total_s: Floats  # [sizes] seconds of all buckets of all pieces ...
    nic_s: Floats  # [sizes] ... and those for which they need the NICs


def allocate_buckets(arrays: Arrays, sizes: int) -> Buckets:
    """Scratch for one plan at a time; `sizes`: see Split."""
    step_pieces = arrays.step.role.shape[0]
    return Buckets(
        costed=np.zeros(sizes, np.bool_),
        number=np.empty((sizes, step_pieces)),
        bucket_s=np.empty((sizes, step_pieces)),
        first_s=np.empty(sizes),
        most=np.empty(sizes),
        total_s=np.empty(sizes),
        nic_s=np.empty(sizes),
    )


@inner_kernel
def width_scale(case: Case) -> float:
    """Bytes of a gradient on the wire over the recorded bytes."""
    width = WIDTH_OF_PRECISION[case.plan.gradient_precision]
    return width / case.arrays.gradient_width if width > 0 else 1.0


@inner_kernel
def cost_buckets(case: Case, role: int, row: int, buckets: Buckets) -> None:
    """Fill the row of `buckets` for the step pieces of `role` of the virtual stage in `row` of the split.

    A message is split into equal buckets of at most the bucket size.
    """
    arrays, step = case.arrays, case.arrays.step
    size, bucket = case.split.size[row], float(case.plan.bucket_bytes)
    narrower = width_scale(case)
    width = arrays.gradient_width * narrower
    if bucket == 0:
        bucket = default_bucket_bytes(width, case.dp)
        if case.arrays.framework.reduces_whole and case.sharding == OPTIMIZER_SHARDED:
            bucket = np.inf
        elif case.sharding == UNSHARDED and case.arrays.framework.bucket_bytes > 0:
            bucket = case.arrays.framework.bucket_bytes
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES * GATHERED[case.plan.precision] / width  # the same parameters, in fewer bytes
    first_s, most, total_s, nic_s = 0.0, 1.0, 0.0, 0.0
    kinds = 0
    for k in range(step.role.shape[0]):
        if step.role[k] != role:
            continue
        sent = step.comm_bytes[k] * _of_virtual(case, step.comm_rule[k], row)
        sent *= narrower if role == REDUCE_GRADIENTS else GATHERED[case.plan.precision]
        if case.update >= 0:
            sent *= case.blocks.updates.padding[case.update, int(step.comm_group[k] == DP_EP)]
        number = max(np.ceil(sent / bucket), 1.0)
        seconds, of_nics = _bucket_s(case, role, step.comm_kind[k], step.comm_group[k], sent / number)
        if (
            role == REDUCE_GRADIENTS
            and case.sharding == UNSHARDED
            and arrays.framework.ring_wait_s > 0
            and step.comm_group[k] == DP
        ):
            seconds += _ring_wait_s(case, row) / number
        total_s += number * seconds
        nic_s += number * of_nics
        if seconds > 0:
            buckets.number[size, kinds], buckets.bucket_s[size, kinds] = number, seconds
            kinds += 1
            first_s += seconds
            most = max(most, number)
    buckets.bucket_s[size, kinds:] = 0.0
    buckets.first_s[size] = first_s
    buckets.most[size] = most
    buckets.total_s[size] = total_s
    buckets.nic_s[size] = nic_s
    buckets.costed[size] = True


@inner_kernel
def _ring_wait_s(case: Case, row: int) -> float:
    """What the rings wait that sum the gradients of the virtual stage in `row` of the split, tensor by tensor, in a pipeline
    over several nodes (stack: `reduced_tensors`, `ring_step_in_pipelines`)."""
    if case.plan.pp == 1 or case.plan.all_gpus <= case.device.gpus_per_node:
        return 0.0
    boundaries = group_nodes(case.groups, case.group, DP) - 1
    return float(case.arrays.framework.ring_wait_s * boundaries * (case.split.end[row] - case.split.begin[row]))


@inner_kernel
def _of_virtual(case: Case, rule: int, row: int) -> float:
    """Factor from a once-per-step quantity of the workload to that of the virtual stage in `row` of the split."""
    factor = held_factor(case, rule, row)
    if factor >= 0:
        return factor
    layers, without = float(case.split.end[row] - case.split.begin[row]), float(case.split.dense[row])
    ends = ends_held(row - case.first, case.plan.pp * case.plan.vpp)
    return stage_factor(case.arrays, case.blocks.scale[case.block], case.plan.tp, rule, layers, ends, without)


@inner_kernel
def _bucket_s(case: Case, role: int, kind: int, group: int, size: float) -> tuple[float, float]:
    """Seconds of one bucket, once a step, and those of the NICs. Sharded gradients are scattered in every micro-batch, sharded
    parameters gathered for every layer (step/sharding.py); what is left is to sum the parts of all replicas."""
    if case.sharding == AS_STACK:
        return _both_s(case, kind, group, size)
    shard = EXPERT_SHARD if group == DP_EP else SHARD
    if role == GATHER_PARAMETERS:
        gathered = case.sharding == OPTIMIZER_SHARDED or case.sharding == GRADIENTS_SHARDED
        return _both_s(case, ALL_GATHER, shard, size) if gathered else (0.0, 0.0)
    whole = case.arrays.framework.reduces_whole or (case.plan.optimizer == MUON and case.plan.muon_aligned == 0)
    if case.sharding == UNSHARDED or (case.sharding == OPTIMIZER_SHARDED and whole):
        return _both_s(case, ALL_REDUCE, group, size)
    seconds, of_nics = _both_s(case, REDUCE_SCATTER, shard, size) if case.sharding == OPTIMIZER_SHARDED else (0.0, 0.0)
    replica = EXPERT_REPLICA if group == DP_EP else REPLICA
    more_s, more_of_nics = _both_s(case, ALL_REDUCE, replica, size / shard_ranks(case, shard))
    return seconds + more_s, of_nics + more_of_nics


@inner_kernel
def _both_s(case: Case, kind: int, group: int, size: float) -> tuple[float, float]:
    seconds = collective_of(case, kind, group, size)
    return seconds, nic_of(case, kind, group, size, seconds) if shares_nics(case) else 0.0


@inner_kernel
def cost_gradients(case: Case, virtual: int, buckets: Buckets) -> tuple[float, float, float]:
    """Number of buckets of a virtual stage's gradients, seconds of all of them, and seconds for which they need the NICs."""
    arrays, row = case.arrays, case.first + virtual
    if not arrays.layered_gradients:
        size = case.split.size[row]
        if not buckets.costed[size]:
            cost_buckets(case, REDUCE_GRADIENTS, row, buckets)
        return buckets.most[size], buckets.total_s[size], buckets.nic_s[size]
    pieces, passes = arrays.pieces, case.split.passes
    bucket = float(case.plan.bucket_bytes) if case.plan.bucket_bytes > 0 else float(DDP_BUCKET_BYTES)
    held = 0.0
    for p in range(pieces.unit.shape[0]):
        held += passes[row, pieces.unit[p]] * pieces.gradient_bytes[p]
    held *= case.blocks.scale[case.block, PARAMETERS] * width_scale(case)
    number = max(np.ceil(held / bucket), 1.0)
    seconds, of_nics = _both_s(case, ALL_REDUCE, DP, held / number)
    return number, number * seconds, number * of_nics


@inner_kernel
def _last_bucket_s(number: Floats, bucket_s: Floats, row: int, end_s: float, backward_s: float) -> float:
    """End of a stream that was free when this backward began and takes buckets of all kinds as they become ready.

    This is the maximum, over the times at which a bucket becomes ready, of that time plus the seconds of all buckets that
    become ready then or later. For buckets of one kind the sum is linear, so its two ends suffice. For several kinds,
    EDGE_BUCKETS from either end are examined; the error is less than one bucket.
    """
    latest = 0.0
    begin_s = end_s - backward_s
    kinds = 0
    while kinds < bucket_s.shape[1] and bucket_s[row, kinds] > 0:
        kinds += 1
    for k in range(kinds):
        count = number[row, k]
        edge = 1.0 if kinds == 1 else min(count, EDGE_BUCKETS)
        looked = 0.0
        while looked < 2 * edge:
            bucket = looked if looked < edge else count - 1 - (looked - edge)
            ready = (bucket + 1) / count
            rest_s = 0.0
            for other in range(kinds):
                before = np.ceil(ready * number[row, other] - 1e-9) - 1
                rest_s += (number[row, other] - max(before, 0.0)) * bucket_s[row, other]
            latest = max(latest, begin_s + ready * backward_s + rest_s)
            looked += 1
    return latest


@inner_kernel
def _stream_layers(case: Case, program: Program, virtual: int, begin_s: float, stream_s: float) -> tuple[float, float]:
    """Gradients of a virtual stage that become ready one by one: (end of the stream, seconds of all messages).

    The backward begins at `begin_s` and runs the pieces in reverse. A bucket is sent once it holds the bucket size; a
    gradient is never split. The stream, free at `stream_s`, sends the buckets in order.
    """
    arrays, plan, blocks = case.arrays, case.plan, case.blocks
    pieces = arrays.pieces
    bucket = float(plan.bucket_bytes) if plan.bucket_bytes > 0 else float(DDP_BUCKET_BYTES)
    scale = blocks.scale[case.block, PARAMETERS] * width_scale(case)
    units = arrays.unit_layers.shape[0]
    first = case.split.begin[case.first + virtual]
    layer = case.split.end[case.first + virtual]
    cell = virtual % plan.pp * plan.vpp + virtual // plan.pp
    plain_s = _plain_backward_s(case, virtual)
    stretch = program.duration_s[UP, cell] / plain_s if plain_s > 0 else 0.0  # recompute, a straggler
    now_s = begin_s
    held, total_s = 0.0, 0.0
    # in reverse: the unit after the layers, the layers, the unit before them
    at_end = virtual == plan.pp * plan.vpp - 1 and arrays.last_unit >= 0
    while True:
        unit = -1
        if at_end:
            unit, at_end = arrays.last_unit, False
        elif layer > first:
            layer -= 1
            unit = arrays.layer_unit
            if unit < 0:
                for u in range(units):
                    if count_layers(arrays.unit_layers, arrays.layer_unit, u, layer, layer + 1) > 0:
                        unit = u
        elif layer == first and virtual == 0 and arrays.first_unit >= 0:
            layer -= 1
            unit = arrays.first_unit
        else:
            break
        for p in range(pieces.unit.shape[0] - 1, -1, -1):
            if pieces.unit[p] != unit:
                continue
            now_s += blocks.piece_backward_s[case.block, p] * stretch
            held += pieces.gradient_bytes[p] * scale
            if held >= bucket:
                seconds = collective_of(case, ALL_REDUCE, DP, held)
                stream_s = max(stream_s, now_s) + seconds
                total_s += seconds
                held = 0.0
    seconds = collective_of(case, ALL_REDUCE, DP, held)
    return max(stream_s, now_s) + seconds if held > 0 else stream_s, total_s + seconds


@inner_kernel
def _plain_backward_s(case: Case, virtual: int) -> float:
    """Backward of a virtual stage without recompute or straggler."""
    total_s = 0.0
    for unit in range(case.arrays.unit_layers.shape[0]):
        total_s += case.split.passes[case.first + virtual, unit] * case.blocks.backward_s[case.block, unit]
    return total_s


@inner_kernel
def _exchange_s(case: Case, row: int) -> float:
    """Sum of the gradients of a virtual stage over the two copies of the model, on stages that mirror each other.

    Each rank sends its part of the reduced gradients, 1/dp of them, to the rank of the other copy; between nodes if the job has
    more than one.
    """
    step, plan = case.arrays.step, case.plan
    sent = 0.0
    for k in range(step.role.shape[0]):
        if step.role[k] == REDUCE_GRADIENTS:
            ranks = float(case.dp)
            if step.comm_group[k] == DP_EP:
                ranks = expert_replicas(case.arrays, ranks, plan.tp, plan.ep)
            sent += step.comm_bytes[k] * _of_virtual(case, step.comm_rule[k], row) / ranks
    return send_s(sent * width_scale(case), plan.all_gpus > case.device.gpus_per_node, case.device.links)


@inner_kernel
def shared_s(program: Program, times: Times, cell: int) -> tuple[float, float]:
    """By how much a cell's last backward is longer because it shares NICs, and by how much its stream of gradients is later."""
    part, longer_s = times.shared[cell], program.beside_s[KINDS + LONGER, cell]
    behind_s = program.duration_s[UP, cell] + longer_s - program.beside_s[KINDS + SENT, cell]
    return part * longer_s, part * max(longer_s, behind_s)


@inner_kernel
def _all_sent(case: Case, low: Lowered, stage: int, stage_s: float, stream_s: float, free_s: float) -> float:
    """When a stage has reduced its gradients, of `stage_s` alone: at the end of their stream, slowed by what hides behind
    compute, and not before its NICs have sent all that they carry."""
    reduced_s = max(stream_s, free_s)
    reduced_s += max(stage_s - reduced_s + free_s, 0.0) * case.arrays.framework.dp_contention
    low.longer.full_s[stage] = max(low.carried_s[stage] - reduced_s, 0.0)
    return float(max(reduced_s, low.carried_s[stage]))


@inner_kernel
def reduce_gradients(
    case: Case, low: Lowered, program: Program, times: Times, buckets: Buckets, reduced_s: Floats, out: Floats
) -> float:
    """Reduce the gradients of each virtual stage bucket by bucket, during its last backward or after the pipeline.

    Bucket j of n is ready after (j+1)/n of the backward; the stream takes buckets as they become ready. Writes the end of each
    stage's reduction to `reduced_s` and returns the latest one (the barrier of the gradient norm). No stage is there before its
    NICs have sent all that they carry. `buckets.costed` tells which rows are filled (cost_last_backwards).
    """
    pp, schedule = case.plan.pp, case.plan.schedule
    chunks, placement = chunks_of(schedule, case.plan.vpp), PLACEMENT[schedule]
    overlapped, layered = case.plan.overlap_grad == 1, case.arrays.layered_gradients
    shared = program.shares[STREAMS] and overlapped and not SPLITS[schedule]
    free_s, last_of, duration_s = times.free_s, times.last_s, program.duration_s
    first, size_of = case.first, case.split.size
    costed, number, bucket_s, total_s = buckets.costed, buckets.number, buckets.bucket_s, buckets.total_s
    barrier_s = 0.0
    for stage in range(pp):
        stream_s = 0.0 if overlapped else free_s[stage]
        stage_s = 0.0
        for turn in range(chunks):
            chunk = chunks - 1 - turn
            if placement == BOTH_WAYS and last_of[OF_WEIGHTS, stage * 2] < last_of[OF_WEIGHTS, stage * 2 + 1]:
                chunk = turn
            cell = stage * chunks + chunk
            virtual = virtual_of(placement, stage, chunk, pp)
            last_s = last_of[OF_WEIGHTS, cell]
            longer_s, late_s = 0.0, 0.0
            if shared:
                longer_s, late_s = shared_s(program, times, cell)
                stream_s += times.later_s[cell]
                out[DP_TOTAL] += (late_s + times.later_s[cell]) / pp
            apart = last_of[OF_INPUTS, cell] < last_s
            last_s -= longer_s
            tail_s = duration_s[WEIGHT, cell] if apart else duration_s[UP, cell]
            if layered:
                begin_s = last_s - tail_s
                done_s, sent_s = _stream_layers(case, program, virtual, begin_s, stream_s)
                stream_s = (done_s if overlapped else stream_s + sent_s) + late_s
                stage_s += sent_s
                continue
            size = size_of[first + virtual]
            if not costed[size]:
                cost_buckets(case, REDUCE_GRADIENTS, first + virtual, buckets)
            stage_s += total_s[size]
            stream_s += total_s[size]
            low.carried_s[stage] += buckets.nic_s[size]
            if overlapped:
                stream_s = max(stream_s, _last_bucket_s(number, bucket_s, size, last_s, tail_s)) + late_s
            if placement == BOTH_WAYS:
                exchange_s = _exchange_s(case, first + virtual)
                stage_s += exchange_s
                stream_s = max(stream_s, last_s) + exchange_s
        out[DP_TOTAL] += stage_s / pp
        reduced_s[stage] = _all_sent(case, low, stage, stage_s, stream_s, free_s[stage])
        out[DP_EXPOSED] += (reduced_s[stage] - free_s[stage]) / pp
        barrier_s = max(barrier_s, reduced_s[stage])
    return barrier_s
