"""Messages of a virtual stage in buckets of about one size: its gradients, and parameters that it gathers once a step.

Gradients are on their own stream, and are reduced as they become ready, during the backward, or after it.
"""

import numpy as np

from sim_core.compiled.jit import inner_kernel
from sim_core.costing.case import Case, collective_of, held_factor, nic_of, row_of_chunk, shard_ranks
from sim_core.costing.collectives import send_s
from sim_core.costing.groups import EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD, group_nodes
from sim_core.costing.memory import default_bucket_bytes, stage_factor
from sim_core.engine.program import KINDS, LONGER, OF_INPUTS, OF_WEIGHTS, OWN, READY, SENT, STREAMS, UP, WEIGHT, Program, Times
from sim_core.engine.schedules import BOTH_WAYS, SPLITS
from sim_core.metrics import DP_EXPOSED, DP_TOTAL
from sim_core.models.optimizers import MUON
from sim_core.models.precision import GATHERED
from sim_core.planning.split import count_layers
from sim_core.step.scratch import Buckets, Layers, Scratch
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
from sim_core.workloads.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS

EDGE_BUCKETS = 16.0
PARAMETER_BYTES = 2
DDP_BUCKET_BYTES = 25 * 2**20
"""Default bucket of gradients that become ready one by one: bucket_cap_mb of PyTorch's DistributedDataParallel."""
WIDTH_OF_PRECISION = np.array([0.0, 4.0, 2.0])
"""Bytes of an element by PRECISIONS; 0: as recorded."""


@inner_kernel
def width_scale(case: Case) -> float:
    """Bytes of a gradient on the wire over the recorded bytes."""
    width = WIDTH_OF_PRECISION[case.plan.gradient_precision]
    return width / case.arrays.gradient_width if width > 0 else 1.0


@inner_kernel
def list_layers(case: Case, virtual: int, layers: Layers) -> int:
    """Write the units of a virtual stage, in model order; returns their number."""
    arrays, row, count = case.arrays, case.first + virtual, 0
    if virtual == 0 and arrays.first_unit >= 0:
        layers.unit[0] = arrays.first_unit
        count = 1
    for layer in range(case.split.begin[row], case.split.end[row]):
        unit = arrays.layer_unit
        if unit < 0:
            for each in range(arrays.unit_layers.shape[0]):
                if count_layers(arrays.unit_layers, -1, each, layer, layer + 1) > 0:
                    unit = each
        layers.unit[count] = unit
        count += 1
    if virtual == case.plan.pp * case.plan.vpp - 1 and arrays.last_unit >= 0:
        layers.unit[count] = arrays.last_unit
        count += 1
    return count


@inner_kernel
def row_of_buckets(case: Case, role: int, row: int, buckets: Buckets) -> int:
    """The row of `buckets` for the step pieces of `role` of the virtual stage in `row` of the split; fills it."""
    size = int(case.split.size[row])
    if not buckets.costed[size]:
        _cost_buckets(case, role, row, size, buckets)
    return size


@inner_kernel
def _cost_buckets(case: Case, role: int, row: int, size: int, buckets: Buckets) -> None:
    """Fill a row of `buckets`. A message is split into equal buckets of at most the bucket size."""
    arrays, step, framework = case.arrays, case.arrays.step, case.arrays.framework
    bucket, narrower = float(case.plan.bucket_bytes), width_scale(case)
    width = arrays.gradient_width * narrower
    if bucket == 0:
        bucket = default_bucket_bytes(width, case.dp)
        if framework.reduces_whole and case.sharding == OPTIMIZER_SHARDED:
            bucket = np.inf
        elif case.sharding == UNSHARDED and framework.bucket_bytes > 0:
            bucket = framework.bucket_bytes
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES * GATHERED[case.plan.precision] / width  # the same parameters, in fewer bytes
    ring_wait_s = 0.0  # of rings that sum gradients tensor by tensor, over several nodes (stack: `reduced_tensors`)
    across = case.plan.pp > 1 and case.plan.all_gpus > case.device.gpus_per_node
    if role == REDUCE_GRADIENTS and case.sharding == UNSHARDED and framework.ring_wait_s > 0 and across:
        boundaries = group_nodes(case.groups, case.group, DP) - 1
        ring_wait_s = framework.ring_wait_s * boundaries * (case.split.end[row] - case.split.begin[row])
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
        if step.comm_group[k] == DP and seconds > 0:  # what is not sent waits for nothing
            seconds += ring_wait_s / number
        total_s += number * seconds
        nic_s += number * of_nics
        if seconds > 0:
            buckets.number[size, kinds], buckets.bucket_s[size, kinds] = number, seconds
            kinds += 1
            first_s += seconds
            most = max(most, number)
    buckets.bucket_s[size, kinds:] = 0.0
    buckets.first_s[size], buckets.most[size] = first_s, most
    buckets.total_s[size], buckets.nic_s[size] = total_s, nic_s
    buckets.costed[size] = True


@inner_kernel
def _of_virtual(case: Case, rule: int, row: int) -> float:
    """Factor from a once-per-step quantity of the workload to that of the virtual stage in `row` of the split."""
    factor = held_factor(case, rule, row)
    if factor >= 0:
        return factor
    layers, without = float(case.split.end[row] - case.split.begin[row]), float(case.split.dense[row])
    virtual = row - case.first
    ends = int(virtual == 0) + int(virtual == case.plan.pp * case.plan.vpp - 1)
    return stage_factor(case.arrays, case.blocks.scale[case.block], case.plan.tp, rule, layers, ends, without)


@inner_kernel
def _bucket_s(case: Case, role: int, kind: int, group: int, size: float) -> tuple[float, float]:
    """Seconds of one bucket, once a step, and those of the NICs. Sharded gradients are scattered in every micro-batch, sharded
    parameters gathered for every layer (step/sharding.py); what is left is to sum the parts of all replicas."""
    sharding = case.sharding
    if sharding == AS_STACK:
        return _both_s(case, kind, group, size)
    shard = EXPERT_SHARD if group == DP_EP else SHARD
    if role == GATHER_PARAMETERS:
        gathered = sharding in (OPTIMIZER_SHARDED, GRADIENTS_SHARDED)
        return _both_s(case, ALL_GATHER, shard, size) if gathered else (0.0, 0.0)
    whole = case.arrays.framework.reduces_whole or (case.plan.optimizer == MUON and case.plan.muon_aligned == 0)
    if sharding == UNSHARDED or (sharding == OPTIMIZER_SHARDED and whole):
        return _both_s(case, ALL_REDUCE, group, size)
    seconds, of_nics = _both_s(case, REDUCE_SCATTER, shard, size) if sharding == OPTIMIZER_SHARDED else (0.0, 0.0)
    replica = EXPERT_REPLICA if group == DP_EP else REPLICA
    more_s, more_of_nics = _both_s(case, ALL_REDUCE, replica, size / shard_ranks(case, shard))
    return seconds + more_s, of_nics + more_of_nics


@inner_kernel
def _both_s(case: Case, kind: int, group: int, size: float) -> tuple[float, float]:
    seconds = collective_of(case, kind, group, size)
    return seconds, nic_of(case, kind, group, size, seconds) if case.shares else 0.0


@inner_kernel
def _layered_bucket(case: Case) -> float:
    """Bytes of a bucket of gradients that become ready one by one."""
    return float(case.plan.bucket_bytes) if case.plan.bucket_bytes > 0 else float(DDP_BUCKET_BYTES)


@inner_kernel
def cost_gradients(case: Case, virtual: int, buckets: Buckets) -> tuple[float, float, float]:
    """Number of buckets of a virtual stage's gradients, seconds of all of them, and seconds for which they need the NICs."""
    arrays, row = case.arrays, case.first + virtual
    if not arrays.layered_gradients:
        size = row_of_buckets(case, REDUCE_GRADIENTS, row, buckets)
        return buckets.most[size], buckets.total_s[size], buckets.nic_s[size]
    pieces, held = arrays.pieces, 0.0
    for p in range(pieces.unit.shape[0]):
        held += case.split.passes[row, pieces.unit[p]] * pieces.gradient_bytes[p]
    held *= case.blocks.scale[case.block, PARAMETERS] * width_scale(case)
    number = max(np.ceil(held / _layered_bucket(case)), 1.0)
    seconds, of_nics = _both_s(case, ALL_REDUCE, DP, held / number)
    return number, number * seconds, number * of_nics


@inner_kernel
def _last_bucket_s(buckets: Buckets, row: int, end_s: float, backward_s: float) -> float:
    """End of a stream that was free when this backward began and takes buckets of all kinds as they become ready.

    This is the maximum, over the times at which a bucket becomes ready, of that time plus the seconds of all buckets that
    become ready then or later. For buckets of one kind the sum is linear, so its two ends suffice. For several kinds,
    EDGE_BUCKETS from either end are examined; the error is less than one bucket.
    """
    number, bucket_s = buckets.number, buckets.bucket_s
    latest, begin_s = 0.0, end_s - backward_s
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
def _stream_layers(case: Case, scratch: Scratch, virtual: int, begin_s: float, stream_s: float) -> tuple[float, float]:
    """Gradients of a virtual stage that become ready one by one: (end of the stream, seconds of all messages).

    The backward begins at `begin_s` and runs the pieces in reverse. A bucket is sent once it holds the bucket size; a
    gradient is never split. The stream, free at `stream_s`, sends the buckets in order.
    """
    plan, blocks, pieces = case.plan, case.blocks, case.arrays.pieces
    bucket, scale = _layered_bucket(case), blocks.scale[case.block, PARAMETERS] * width_scale(case)
    plain_s = 0.0  # without recompute or straggler
    for unit in range(case.arrays.unit_layers.shape[0]):
        plain_s += case.split.passes[case.first + virtual, unit] * blocks.backward_s[case.block, unit]
    cell = virtual % plan.pp * plan.vpp + virtual // plan.pp
    stretch = scratch.program.duration_s[UP, cell] / plain_s if plain_s > 0 else 0.0
    now_s, held, total_s = begin_s, 0.0, 0.0
    for layer in range(list_layers(case, virtual, scratch.layers) - 1, -1, -1):
        for p in range(pieces.unit.shape[0] - 1, -1, -1):
            if pieces.unit[p] != scratch.layers.unit[layer]:
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
                ranks = ranks / plan.ep * (plan.tp if case.arrays.shares.whole_experts else 1)  # with the same experts
            sent += step.comm_bytes[k] * _of_virtual(case, step.comm_rule[k], row) / ranks
    return send_s(sent * width_scale(case), plan.all_gpus > case.device.gpus_per_node, case.device)


@inner_kernel
def shared_s(program: Program, times: Times, cell: int) -> tuple[float, float]:
    """By how much a cell's last backward is longer because it shares NICs, and by how much its stream of gradients is later.

    The stream is later as the backward ends later, and as more is left by then of what was ready before its last bucket.
    """
    beside_s, gone_s = program.beside_s, program.beside_s[KINDS + SENT, cell]
    left_s, ready_s, own_s = times.shared[cell] * gone_s, beside_s[READY, cell], beside_s[OWN, cell]
    longer_s = min(times.shared[cell], 1.0) * beside_s[KINDS + LONGER, cell]
    before_last = ready_s / min(own_s, gone_s) if own_s > 0 else 0.0
    left_s += before_last * own_s - ready_s
    late_s = longer_s
    for sign, through_s in ((1.0, gone_s), (-1.0, program.duration_s[UP, cell])):
        late_s += sign * max(left_s - through_s, before_last * (own_s - through_s), 0.0)
    return longer_s, late_s


@inner_kernel
def reduce_gradients(case: Case, scratch: Scratch) -> float:
    """Reduce the gradients of each virtual stage bucket by bucket, during its last backward or after the pipeline.

    Bucket j of n is ready after (j+1)/n of the backward; the stream takes buckets as they become ready. Writes the end of each
    stage's reduction to `reduced_s` and returns the latest one (the barrier of the gradient norm): the end of its stream,
    slowed by what hides behind compute, and not before its NICs have sent all that they carry.
    `buckets.costed` tells which rows are filled (cost_last_backwards).
    """
    program, times, buckets, out = scratch.program, scratch.times, scratch.buckets, scratch.sums
    carried_s = scratch.low.carried_s
    pp, chunks, both = case.plan.pp, case.chunks, case.placement == BOTH_WAYS
    overlapped, last_of = case.plan.overlap_grad == 1, times.last_s
    shared = program.shares[STREAMS] and overlapped and not SPLITS[case.plan.schedule]
    barrier_s = 0.0
    for stage in range(pp):
        free_s, stage_s = times.free_s[stage], 0.0
        stream_s = 0.0 if overlapped else free_s
        for turn in range(chunks):
            chunk = chunks - 1 - turn
            if both and last_of[OF_WEIGHTS, stage * 2] < last_of[OF_WEIGHTS, stage * 2 + 1]:
                chunk = turn
            cell, row = stage * chunks + chunk, row_of_chunk(case, stage, chunk)
            last_s = last_of[OF_WEIGHTS, cell]
            longer_s, late_s = 0.0, 0.0
            if shared:
                longer_s, late_s = shared_s(program, times, cell)
                stream_s += times.later_s[cell]
                out[DP_TOTAL] += (late_s + times.later_s[cell]) / pp
            tail_s = program.duration_s[WEIGHT if last_of[OF_INPUTS, cell] < last_s else UP, cell]
            last_s -= longer_s
            if case.arrays.layered_gradients:
                done_s, sent_s = _stream_layers(case, scratch, row - case.first, last_s - tail_s, stream_s)
                stream_s = (done_s if overlapped else stream_s + sent_s) + late_s
                stage_s += sent_s
                continue
            size = row_of_buckets(case, REDUCE_GRADIENTS, row, buckets)
            stage_s += buckets.total_s[size]
            stream_s += buckets.total_s[size]
            carried_s[stage] += buckets.nic_s[size]
            if overlapped:
                stream_s = max(stream_s, _last_bucket_s(buckets, size, last_s, tail_s)) + late_s
            if both:
                exchange_s = _exchange_s(case, row)
                stage_s += exchange_s
                stream_s = max(stream_s, last_s) + exchange_s
        out[DP_TOTAL] += stage_s / pp
        reduced_s = max(stream_s, free_s)
        reduced_s += max(stage_s - reduced_s + free_s, 0.0) * case.arrays.framework.dp_contention
        scratch.longer.full_s[stage] = max(carried_s[stage] - reduced_s, 0.0)
        reduced_s = scratch.once.reduced_s[stage] = max(reduced_s, carried_s[stage])
        out[DP_EXPOSED] += (reduced_s - scratch.longer.full_s[stage] - free_s) / pp
        barrier_s = max(barrier_s, reduced_s)
    return barrier_s
