"""Buckets of a virtual stage: its gradients, or its parameters, in messages of about one size, and what they take."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Case, collective_of, nic_of, shard_ranks, shares_nics
from sim_core.costing.groups import EXPERT_REPLICA, EXPERT_SHARD, REPLICA, SHARD
from sim_core.costing.memory import default_bucket_bytes, ends_held, stage_factor
from sim_core.jit import inner_kernel
from sim_core.models.precision import GATHERED
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

Floats = npt.NDArray[np.float64]

PARAMETER_BYTES: Final = 2
DDP_BUCKET_BYTES: Final = 25 * 2**20
"""Default bucket of gradients that become ready one by one: bucket_cap_mb of PyTorch's DistributedDataParallel."""
WIDTH_OF_PRECISION: Final = np.array([0.0, 4.0, 2.0])
"""Bytes of an element by PRECISIONS; 0: as recorded."""


class Buckets(NamedTuple):
    """Messages of a virtual stage, one row for each distinct number of layers per virtual stage of a plan."""

    costed: npt.NDArray[np.bool_]  # [sizes]
    number: Floats  # [sizes, step pieces] buckets of a step piece ...
    bucket_s: Floats  # [sizes, step pieces] ... and seconds of one bucket
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
    layers, size = float(case.split.end[row] - case.split.begin[row]), case.split.size[row]
    without, ends = float(case.split.dense[row]), ends_held(row - case.first, case.plan.pp * case.plan.vpp)
    bucket = float(case.plan.bucket_bytes)
    narrower = width_scale(case)
    width = arrays.gradient_width * narrower
    if bucket == 0:
        bucket = default_bucket_bytes(width, case.dp)
    if role == GATHER_PARAMETERS:
        bucket *= PARAMETER_BYTES * GATHERED[case.plan.precision] / width  # the same parameters, in fewer bytes
    scale = case.blocks.scale[case.block]
    first_s, most, total_s, nic_s = 0.0, 1.0, 0.0, 0.0
    for k in range(step.role.shape[0]):
        buckets.bucket_s[size, k] = 0.0
        if step.role[k] != role:
            continue
        sent = step.comm_bytes[k] * stage_factor(arrays, scale, case.plan.tp, step.comm_rule[k], layers, ends, without)
        sent *= narrower if role == REDUCE_GRADIENTS else GATHERED[case.plan.precision]
        number = max(np.ceil(sent / bucket), 1.0)
        seconds, of_nics = _bucket_s(case, role, step.comm_kind[k], step.comm_group[k], sent / number)
        buckets.number[size, k] = number
        buckets.bucket_s[size, k] = seconds
        total_s += number * seconds
        nic_s += number * of_nics
        if seconds > 0:
            first_s += seconds
            most = max(most, number)
    buckets.first_s[size] = first_s
    buckets.most[size] = most
    buckets.total_s[size] = total_s
    buckets.nic_s[size] = nic_s
    buckets.costed[size] = True


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
    if case.sharding == UNSHARDED:
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
