"""One plan with its hardware and tables: the argument of every kernel of a step; and the seconds of recorded compute in it."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inlined_kernel, inner_kernel
from sim_core.costing.groups import N_GROUPS, Groups, between_nodes, group_nic_s, group_s
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import LOOP, PLACEMENT
from sim_core.hardware.table import Device, HardwareColumns, device_at
from sim_core.metrics import N_SUMS
from sim_core.planning.columns import FILE, SELECTIVE, Plan, Plans, plan_at
from sim_core.planning.split import Split
from sim_core.terms import AS_STACK
from sim_core.workloads.moving import EXPERT_PARAMETERS, N_RULES, PARAMETERS
from sim_core.workloads.workload import Arrays

WEIGHT_GRADIENTS, WEIGHT_COMPUTE, EXPERTS_FORWARD, EXPERTS_BACKWARD = range(4)
LAUNCH_FORWARD, LAUNCH_BACKWARD, WAIT_FORWARD, WAIT_BACKWARD, WAIT_APART, LATE_COPIES = range(4, 10)
"""The part of a backward that can run apart, and the compute in it; exposed messages of experts in forward and backward; what
the host needs to launch both; for how much of it the device waits; how much longer where weight gradients run apart; and by how
much copies to the host and back are longer than the forward and the backward."""


JITTER_FROM = 8
"""GPUs up to which no rank waits for a slower one."""


class Updates(NamedTuple):
    """What other optimizers take beyond AdamW, for the distinct keys of a batch (costing/updates.py)."""

    key: Ints  # [plans] the row of each plan; -1: AdamW
    seconds: Floats  # [rows, stages] of the update of a stage, more than AdamW's
    padding: Floats  # [rows, 2] of dense parameters and of experts: what ranks exchange of them over what they hold


class Blocks(NamedTuple):
    """The block table: the cost of one pass of each unit, for the distinct keys of a batch of plans (costing/blocks.py)."""

    key: Ints  # [plans] the row of each plan
    scale: Floats  # [rows, rules] factors of the rule table
    compute: Floats  # [rows, units, 2] factors of recorded compute, forward and backward
    forward_s: Floats  # [rows, units] one pass of a unit, including exposed collectives
    backward_s: Floats  # [rows, units]
    again_s: Floats  # [rows, units] what recompute adds to the backward
    work: Floats  # [rows, units, N_SUMS] forward and backward in parts
    again: Floats  # [rows, units, N_SUMS] what recompute adds, in parts
    piece_backward_s: Floats  # [rows, pieces] backward of a piece, without recompute
    apart_s: Floats  # [rows, units, 10] by WEIGHT_GRADIENTS to LATE_COPIES
    held: Floats  # [rows, units, 4] parameters of a unit on a rank, dense and of experts, then frozen ones; modelled only
    measured_s: Floats  # [rows, units] part of the seconds that rests on measured kernels
    nic_s: Floats  # [rows, units, 3, 2] of forward, backward, recompute: needs the NICs, and nothing hides it
    updates: Updates


class Tables(NamedTuple):
    """A batch of plans, and the tables that they share; each has the row of every plan."""

    arrays: Arrays
    hardware: HardwareColumns
    plans: Plans
    groups: Groups
    split: Split
    blocks: Blocks


class Case(NamedTuple):
    """One plan, the tables of its batch, and its rows in them."""

    arrays: Arrays
    plan: Plan
    device: Device
    placement: int  # of its virtual stages: that of its schedule
    chunks: int  # virtual stages that a stage runs
    jitter: float  # by how many times compute is longer because some rank is always a little late
    dp: int  # ranks with the same dense parameters: data-parallel and context-parallel ones
    sharding: int  # one of terms.SHARDINGS; AS_STACK: as recorded
    shares: bool  # groups that send at the same time share NICs; recorded messages took what they took beside each other
    groups: Groups
    group: int
    split: Split
    first: int  # row of its first virtual stage
    first_stage: int  # row of its first stage
    blocks: Blocks
    block: int
    update: int  # its row in the updates; -1: AdamW


def allocate_blocks(arrays: Arrays, key: Ints, rows: int) -> Blocks:
    """An empty table of `rows` rows."""
    units, pieces = arrays.unit_layers.shape[0], arrays.pieces.unit.shape[0]
    forward_s, backward_s, again_s, measured_s = np.zeros((4, rows, units))
    work, again = np.zeros((2, rows, units, N_SUMS))
    return Blocks(
        key=key,
        scale=np.empty((rows, N_RULES)),
        compute=np.ones((rows, units, 2)),
        forward_s=forward_s,
        backward_s=backward_s,
        again_s=again_s,
        work=work,
        again=again,
        piece_backward_s=np.zeros((rows, pieces)),
        apart_s=np.zeros((rows, units, 10)),
        held=np.zeros((rows, units, 4)),
        measured_s=measured_s,
        nic_s=np.zeros((rows, units, 3, 2)),
        updates=Updates(np.full(len(key), -1, int), np.zeros((0, 0)), np.zeros((0, 2))),
    )


@inner_kernel
def held_factor(case: Case, rule: int, row: int) -> float:
    """Parameters that a rank holds of the virtual stage in `row` of the split over all of a model at tp 1; -1 for a file.

    By its own units, not by their mean. The last stage of a loop holds a copy of an embedding that is tied to the head.
    """
    arrays, experts = case.arrays, rule == EXPERT_PARAMETERS
    whole = arrays.expert_parameters if experts else arrays.dense_parameters
    if whole <= 0 or (rule != PARAMETERS and not experts):
        return -1.0
    column, total = 1 if experts else 0, 0.0
    for unit in range(case.blocks.held.shape[1]):
        total += case.split.passes[row, unit] * case.blocks.held[case.block, unit, column]
    if arrays.tied and row - case.first == case.plan.pp * case.plan.vpp - 1 and copies_embedding(case.plan):
        total += case.blocks.held[case.block, arrays.first_unit, column]
    return total / whole


@inner_kernel
def copies_embedding(plan: Plan) -> bool:
    """Whether embedding and head lie on different stages."""
    return plan.pp > 1 and PLACEMENT[plan.schedule] == LOOP


@inlined_kernel
def case_at(tables: Tables, i: int) -> Case:
    """The case of plan `i`, which must be legal; `tables` by reference."""
    plan, arrays, split, blocks = plan_at(tables.plans, i), tables.arrays, tables.split, tables.blocks
    device = device_at(tables.hardware, plan.hardware)
    shares = bool(device.shared_nics and not arrays.recorded_messages)
    return Case(
        arrays=arrays,
        plan=plan,
        device=device,
        placement=PLACEMENT[plan.schedule],
        chunks=chunks_of(plan.schedule, plan.vpp),
        jitter=1 + arrays.framework.jitter * max(np.log2(plan.all_gpus / JITTER_FROM), 0.0),
        dp=plan.all_gpus // (plan.tp * plan.pp),
        sharding=sharding_of(arrays, plan),
        shares=shares,
        groups=tables.groups,
        group=tables.groups.key[i],
        split=split,
        first=split.offset[split.key[i]],
        first_stage=split.stage_offset[split.key[i]],
        blocks=blocks,
        block=blocks.key[i],
        update=blocks.updates.key[i],
    )


@inner_kernel
def row_of_chunk(case: Case, stage: int, chunk: int) -> int:
    """The row in the split of a chunk of a stage."""
    return int(case.first + virtual_of(case.placement, stage, chunk, case.plan.pp))


@inner_kernel
def sharding_of(arrays: Arrays, plan: Plan) -> int:
    """What data-parallel ranks divide, one of terms.SHARDINGS; AS_STACK: as recorded."""
    if plan.sharding != AS_STACK:
        return plan.sharding
    return arrays.framework.sharding_in_pipeline if plan.pp > 1 else arrays.framework.sharding


@inner_kernel
def shard_ranks(case: Case, group: int) -> int:
    """Ranks that divide state among themselves; `group`: SHARD or EXPERT_SHARD."""
    return int(case.groups.ranks[case.group, group])


@inner_kernel
def collective_of(case: Case, kind: int, group: int, size: float) -> float:
    """Seconds of a collective of `kind` with `size` bytes on one of the plan's groups."""
    seconds = group_s(case.groups, case.group, case.device, kind, group, size)
    if group >= N_GROUPS:  # shards and replicas: no file records them
        return float(seconds)
    return float(seconds * case.arrays.message_factor[int(between_nodes(case.groups, case.group, group)), group])


@inner_kernel
def nic_of(case: Case, kind: int, group: int, size: float, seconds: float) -> float:
    """Seconds for which a collective of a plan's group, which takes `seconds`, needs the NICs."""
    return float(min(group_nic_s(case.groups, case.group, case.device, kind, group, size), seconds))


@inner_kernel
def compute_factor(scale: float, device: Device, plan: Plan) -> float:
    """Factor from recorded compute time to that of the plan, for pieces of layers; `scale` is the factor of their rule."""
    return scale * device.compute_scale / plan.device_speed


@inner_kernel
def once_s(recorded_s: float, scale: float, device: Device, plan: Plan) -> float:
    """Seconds of compute that runs once per step; `scale` is the factor of its rule."""
    return recorded_s * scale * device.compute_scale / plan.device_speed


@inner_kernel
def rerun_share(plan: Plan, recorded: float, attention_core: bool) -> float:
    """How often the backward runs the forward of a piece again, in a layer with recompute; `recorded`: as in the file."""
    if plan.checkpointing == FILE:
        return recorded
    if plan.checkpointing == SELECTIVE:
        return 1.0 if attention_core else 0.0
    return 1.0


@inner_kernel
def rerun_s(plan: Plan, share: float, forward_s: float, recorded_s: float) -> float:
    """Compute of the forwards that `rerun_share` counts; `recorded_s`: that of the file's, moved to the plan."""
    return recorded_s if plan.checkpointing == FILE else share * forward_s
