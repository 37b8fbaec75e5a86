"""Parallel plans as columns of equal length, and the words behind coded columns."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.jit import outer_kernel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FIDELITIES: Final = ("event", "simai")
EVENT, SIMAI = 0, 1
"""The event engine, or the cost model of SimAI-Analytical (simai/model.py)."""

PRECISIONS: Final = ("recorded", "fp32", "bf16")
"""Of gradients on the wire: as in the workload, or 4 or 2 bytes per element."""

SPLITS: Final = ("even", "balanced", "embedding_as_layer", "loss_as_layer", "embedding_and_loss_as_layer", "listed")
EVEN, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, ENDS_AS_LAYERS, LISTED = 0, 1, 2, 3, 4, 5
"""How layers are divided among stages (planning/split.py); `listed`: by the list in `virtual_layers`."""

CP_COMM_TYPES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
P2P, ALL_GATHER, A2A, A2A_P2P = 0, 1, 2, 3
"""How context-parallel ranks compute attention (Megatron's --cp-comm-type): keys and values go round a ring, or are gathered;
heads are exchanged for tokens; or that among `cp_a2a_size` ranks, and a ring over these groups."""

DISPATCHERS: Final = ("alltoall", "flex", "hierarchical")
FLEX, HIERARCHICAL = 1, 2
"""How tokens reach their experts (Megatron's --moe-token-dispatcher-type): a copy for each expert; one to each remote node, as
DeepEP and HybridEP do behind `flex`; a copy for each expert in two stages, between nodes and then inside them."""

NONE, FILE, FULL, SELECTIVE, EVERY, BLOCK, MODULES = 0, 1, 2, 3, 4, 5, 6
CHECKPOINTING: Final = ("none", "file", "full", "selective", "every", "block", "modules")
"""What the backward computes again. `every:k` and `block:k` have a number k: Megatron's recompute methods uniform and block.
`modules`: some of RECOMPUTE_MODULES (models/recompute.py), which a plan names: `layernorm+moe_act`."""


class Plans(NamedTuple):
    """Plans as columns of equal length."""

    tp: Ints
    pp: Ints
    vpp: Ints
    ep: Ints
    cp: Ints
    cp_comm_type: Ints  # index into CP_COMM_TYPES
    cp_a2a_size: Ints  # of a2a+p2p; else 1
    dispatcher: Ints  # index into DISPATCHERS
    precision: Ints  # of linear layers, index into PRECISION_NAMES of models.precision
    all_gpus: Ints
    micro_batch: Ints
    ga: Ints  # 0 where dp * micro_batch does not divide the global batch
    schedule: Ints  # index into engine.codes.SCHEDULES
    microbatch_group_size: Ints  # micro-batches that a virtual stage of interleaved 1F1B takes in turn; 0: pp
    layer_split: Ints  # index into SPLITS
    virtual_layers: Ints  # [n, width] if listed: layers of each virtual stage in model order, padded with -1; else -1
    checkpointing: Ints  # index into CHECKPOINTING
    checkpoint_layers: Ints  # the k of `every:k` and `block:k`; of `modules` a bit for each; else 0
    overlap_tp: Ints  # 0 or 1, like the other switches
    overlap_ep: Ints
    overlap_shared_experts: Ints  # shared experts run beside dispatch and combine
    overlap_pp: Ints
    overlap_grad: Ints
    overlap_param: Ints
    post_validation: Ints  # a stage goes on to the next step without waiting for the norm of all gradients
    bucket_bytes: Ints  # gradient bucket; 0: Megatron's default
    hardware: Ints  # row of the HardwareTable
    fidelity: Ints  # index into FIDELITIES
    layers: Ints  # layers of the model
    sequence: Ints  # tokens; 0: as in the workload
    experts: Ints  # of a layer; 0: as in the workload
    straggler_stage: Ints  # the stage whose compute takes straggler_factor times as long
    gradient_precision: Ints  # index into PRECISIONS
    sharding: Ints  # index into terms.SHARDINGS
    dp_shard: Ints  # ranks of dp x cp that divide them; 0: all. The groups of so many ranks are replicas of each other
    reshard_after_forward: Ints  # 0 or 1: whether a layer's parameters are freed after its forward and gathered again
    prefetch_layers: Ints  # layers whose parameters are gathered ahead of the one that runs
    expert_imbalance: Floats  # tokens of the fullest rank over the mean; 0, and below: planning/imbalance.py
    straggler_factor: Floats
    device_speed: Floats  # compute runs this many times as fast
    dp_overlap_ratio: Floats  # 0 to 1: part of DP, TP, EP communication that fidelity simai counts as hidden
    tp_overlap_ratio: Floats
    ep_overlap_ratio: Floats
    pp_overlap_ratio: Floats  # above 0, up to 1


FLOATS: Final = (
    "expert_imbalance",
    "straggler_factor",
    "device_speed",
    "dp_overlap_ratio",
    "tp_overlap_ratio",
    "ep_overlap_ratio",
    "pp_overlap_ratio",
)
"""The columns of floating-point numbers."""


class Plan(NamedTuple):
    """One row of `Plans` as scalars."""

    tp: int
    pp: int
    vpp: int
    ep: int
    cp: int
    cp_comm_type: int
    cp_a2a_size: int
    dispatcher: int
    precision: int
    all_gpus: int
    micro_batch: int
    ga: int
    schedule: int
    microbatch_group_size: int
    layer_split: int
    checkpointing: int
    checkpoint_layers: int
    overlap_tp: int
    overlap_ep: int
    overlap_shared_experts: int
    overlap_pp: int
    overlap_grad: int
    overlap_param: int
    post_validation: int
    bucket_bytes: int
    hardware: int
    fidelity: int
    layers: int
    sequence: int
    experts: int
    straggler_stage: int
    gradient_precision: int
    sharding: int
    dp_shard: int
    reshard_after_forward: int
    prefetch_layers: int
    expert_imbalance: float
    straggler_factor: float
    device_speed: float
    dp_overlap_ratio: float
    tp_overlap_ratio: float
    ep_overlap_ratio: float
    pp_overlap_ratio: float


@outer_kernel
def plan_at(plans: Plans, i: int) -> Plan:
    """Row `i` as scalars."""
    return Plan(
        tp=plans.tp[i],
        pp=plans.pp[i],
        vpp=plans.vpp[i],
        ep=plans.ep[i],
        cp=plans.cp[i],
        cp_comm_type=plans.cp_comm_type[i],
        cp_a2a_size=plans.cp_a2a_size[i],
        dispatcher=plans.dispatcher[i],
        precision=plans.precision[i],
        all_gpus=plans.all_gpus[i],
        micro_batch=plans.micro_batch[i],
        ga=plans.ga[i],
        schedule=plans.schedule[i],
        microbatch_group_size=plans.microbatch_group_size[i],
        layer_split=plans.layer_split[i],
        checkpointing=plans.checkpointing[i],
        checkpoint_layers=plans.checkpoint_layers[i],
        overlap_tp=plans.overlap_tp[i],
        overlap_ep=plans.overlap_ep[i],
        overlap_shared_experts=plans.overlap_shared_experts[i],
        overlap_pp=plans.overlap_pp[i],
        overlap_grad=plans.overlap_grad[i],
        overlap_param=plans.overlap_param[i],
        post_validation=plans.post_validation[i],
        bucket_bytes=plans.bucket_bytes[i],
        hardware=plans.hardware[i],
        fidelity=plans.fidelity[i],
        layers=plans.layers[i],
        sequence=plans.sequence[i],
        experts=plans.experts[i],
        straggler_stage=plans.straggler_stage[i],
        gradient_precision=plans.gradient_precision[i],
        sharding=plans.sharding[i],
        dp_shard=plans.dp_shard[i],
        reshard_after_forward=plans.reshard_after_forward[i],
        prefetch_layers=plans.prefetch_layers[i],
        expert_imbalance=plans.expert_imbalance[i],
        straggler_factor=plans.straggler_factor[i],
        device_speed=plans.device_speed[i],
        dp_overlap_ratio=plans.dp_overlap_ratio[i],
        tp_overlap_ratio=plans.tp_overlap_ratio[i],
        ep_overlap_ratio=plans.ep_overlap_ratio[i],
        pp_overlap_ratio=plans.pp_overlap_ratio[i],
    )


def by_order(plans: Plans, rows: Ints) -> Ints:
    """Some rows sorted, so that plans with the same order of blocks, sent in the same way, follow each other."""
    how = plans.post_validation, plans.overlap_pp
    columns = (*how, plans.microbatch_group_size, plans.ga, plans.vpp, plans.pp, plans.schedule)
    sorted_rows: Ints = rows[np.lexsort([column[rows] for column in columns])]
    return sorted_rows


def replicas(plans: Plans) -> Ints:
    """Ranks along data parallelism, dp, at least 1, [n]; gradients are reduced over dp x cp ranks."""
    found: Ints = np.maximum(plans.all_gpus // (plans.tp * plans.cp * plans.pp), 1)
    return found


def slice_plans(plans: Plans, rows: slice | npt.NDArray[np.bool_] | Ints) -> Plans:
    """A copy of some rows."""
    return Plans(**{name: np.ascontiguousarray(column[rows]) for name, column in plans._asdict().items()})
