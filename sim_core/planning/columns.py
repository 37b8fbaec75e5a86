"""Parallel plans as columns of equal length, and the words behind coded columns."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.jit import inner_kernel, outer_kernel

FIDELITIES: Final = ("event", "simai")
EVENT, SIMAI = 0, 1
"""The event engine, or the cost model of SimAI-Analytical (simai/model.py)."""

PRECISIONS: Final = ("recorded", "fp32", "bf16")
"""Of gradients on the wire: as in the workload, or 4 or 2 bytes per element."""

SPLITS: Final = (
    "even", "balanced", "embedding_as_layer", "loss_as_layer", "embedding_and_loss_as_layer", "balanced_cost", "listed",
)  # fmt: skip
EVEN, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, ENDS_AS_LAYERS, BALANCED_COST, LISTED = 0, 1, 2, 3, 4, 5, 6
"""How layers are divided among stages (planning/split.py); `balanced_cost`: by modelled seconds (costing/balance.py);
`listed`: by the list in `virtual_layers`."""

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


# --- made by docs/made/plan_fields.py from the rows of fields.py: do not edit
class Plans(NamedTuple):
    """Plans as columns of equal length."""

    tp: Ints  # tensor parallelism: ranks that share a layer
    pp: Ints  # pipeline parallelism: stages
    vpp: Ints  # virtual stages on a stage: interleaving
    ep: Ints  # expert parallelism: ranks that share out the experts
    all_gpus: Ints  # GPUs of the job
    micro_batch: Ints  # sequences of a micro-batch
    ga: Ints  # micro-batches of a replica in a step
    bucket_bytes: Ints  # size of a gradient bucket
    schedule: Ints  # index of a word: order of forwards and backwards
    fidelity: Ints  # index of a word: the event engine, or the cost model of SimAI-Analytical
    layer_split: Ints  # how layers are divided among stages
    virtual_layers: Ints  # layers of each virtual stage in model order, padded with -1; if layer_split is listed
    checkpointing: Ints  # what the backward computes again
    checkpoint_layers: Ints  # the k of every:k and block:k; of modules a bit for each; else 0
    overlap_tp: Ints  # 0 or 1: tensor-parallel messages run behind compute where they can
    overlap_ep: Ints  # 0 or 1: expert-parallel messages run behind compute where they can
    overlap_pp: Ints  # 0 or 1: sends between stages run in the background
    overlap_grad: Ints  # 0 or 1: gradients are reduced behind the last backwards
    overlap_param: Ints  # 0 or 1: parameters are gathered behind the first forwards
    dp_overlap_ratio: Floats  # part of DP communication that fidelity simai counts as hidden
    tp_overlap_ratio: Floats  # part of TP communication that fidelity simai counts as hidden
    ep_overlap_ratio: Floats  # part of EP communication that fidelity simai counts as hidden
    pp_overlap_ratio: Floats  # part of PP communication that fidelity simai counts as hidden, and divides by
    cp: Ints  # context parallelism: ranks that share a sequence; of models
    cp_comm_type: Ints  # index of a word: how context-parallel ranks compute attention
    cp_a2a_size: Ints  # context-parallel ranks of the all-to-all in a2a+p2p; else 1
    sharding: Ints  # index of a word: what data-parallel ranks divide; of models
    dp_shard: Ints  # ranks of dp x cp that divide them; 0: all
    reshard_after_forward: Ints  # 0 or 1: a layer's parameters are freed after its forward and gathered again
    prefetch_layers: Ints  # layers whose parameters are gathered ahead of the one that runs
    optimizer: Ints  # index of a word: what updates the weights; of models
    muon_tp_mode: Ints  # index of a word: what Muon does with a matrix that tp divides
    muon_aligned: Ints  # 0 or 1: Muon's matrices lie in buffers with a whole shard for each rank
    precision: Ints  # index of a word: precision of linear layers; of models
    dispatcher: Ints  # index of a word: how tokens reach their experts; of models
    overlap_shared_experts: Ints  # 0 or 1: shared experts run beside dispatch and combine
    layers: Ints  # layers of the model
    sequence: Ints  # tokens of a sequence; 0: as in the workload
    experts: Ints  # experts of a layer; 0: as in the workload
    microbatch_group_size: Ints  # micro-batches that a virtual stage of interleaved 1F1B takes in turn; 0: pp
    post_validation: Ints  # 0 or 1: a stage begins its next step without waiting for the norm of all gradients
    gradient_precision: Ints  # index of a word: precision of gradients on the wire
    expert_imbalance: Floats  # tokens of the fullest rank over the mean
    straggler_stage: Ints  # the stage whose compute takes straggler_factor times as long
    straggler_factor: Floats  # how many times as long compute takes on straggler_stage
    device_speed: Floats  # compute runs this many times as fast
    hardware: Ints  # row of the HardwareTable


class Plan(NamedTuple):
    """One row of `Plans` as scalars."""

    tp: int
    pp: int
    vpp: int
    ep: int
    all_gpus: int
    micro_batch: int
    ga: int
    bucket_bytes: int
    schedule: int
    fidelity: int
    layer_split: int
    checkpointing: int
    checkpoint_layers: int
    overlap_tp: int
    overlap_ep: int
    overlap_pp: int
    overlap_grad: int
    overlap_param: int
    dp_overlap_ratio: float
    tp_overlap_ratio: float
    ep_overlap_ratio: float
    pp_overlap_ratio: float
    cp: int
    cp_comm_type: int
    cp_a2a_size: int
    sharding: int
    dp_shard: int
    reshard_after_forward: int
    prefetch_layers: int
    optimizer: int
    muon_tp_mode: int
    muon_aligned: int
    precision: int
    dispatcher: int
    overlap_shared_experts: int
    layers: int
    sequence: int
    experts: int
    microbatch_group_size: int
    post_validation: int
    gradient_precision: int
    expert_imbalance: float
    straggler_stage: int
    straggler_factor: float
    device_speed: float
    hardware: int


@outer_kernel
def plan_at(plans: Plans, i: int) -> Plan:
    """Row `i` as scalars."""
    return Plan(
        tp=plans.tp[i],
        pp=plans.pp[i],
        vpp=plans.vpp[i],
        ep=plans.ep[i],
        all_gpus=plans.all_gpus[i],
        micro_batch=plans.micro_batch[i],
        ga=plans.ga[i],
        bucket_bytes=plans.bucket_bytes[i],
        schedule=plans.schedule[i],
        fidelity=plans.fidelity[i],
        layer_split=plans.layer_split[i],
        checkpointing=plans.checkpointing[i],
        checkpoint_layers=plans.checkpoint_layers[i],
        overlap_tp=plans.overlap_tp[i],
        overlap_ep=plans.overlap_ep[i],
        overlap_pp=plans.overlap_pp[i],
        overlap_grad=plans.overlap_grad[i],
        overlap_param=plans.overlap_param[i],
        dp_overlap_ratio=plans.dp_overlap_ratio[i],
        tp_overlap_ratio=plans.tp_overlap_ratio[i],
        ep_overlap_ratio=plans.ep_overlap_ratio[i],
        pp_overlap_ratio=plans.pp_overlap_ratio[i],
        cp=plans.cp[i],
        cp_comm_type=plans.cp_comm_type[i],
        cp_a2a_size=plans.cp_a2a_size[i],
        sharding=plans.sharding[i],
        dp_shard=plans.dp_shard[i],
        reshard_after_forward=plans.reshard_after_forward[i],
        prefetch_layers=plans.prefetch_layers[i],
        optimizer=plans.optimizer[i],
        muon_tp_mode=plans.muon_tp_mode[i],
        muon_aligned=plans.muon_aligned[i],
        precision=plans.precision[i],
        dispatcher=plans.dispatcher[i],
        overlap_shared_experts=plans.overlap_shared_experts[i],
        layers=plans.layers[i],
        sequence=plans.sequence[i],
        experts=plans.experts[i],
        microbatch_group_size=plans.microbatch_group_size[i],
        post_validation=plans.post_validation[i],
        gradient_precision=plans.gradient_precision[i],
        expert_imbalance=plans.expert_imbalance[i],
        straggler_stage=plans.straggler_stage[i],
        straggler_factor=plans.straggler_factor[i],
        device_speed=plans.device_speed[i],
        hardware=plans.hardware[i],
    )


ORDER_COLUMNS: Final = (
    "schedule",
    "pp",
    "vpp",
    "ga",
    "microbatch_group_size",
)
"""What the order of blocks follows from; the schedule first: batches of one schedule need the least memory."""
SEND_COLUMNS: Final = (
    "overlap_pp",
    "post_validation",
)
"""What else decides which block waits for which."""
SPLIT_COLUMNS: Final = (
    "pp",
    "vpp",
    "schedule",
    "layer_split",
    "layers",
)
"""What the layers of a virtual stage follow from, besides the list in `virtual_layers`."""


@inner_kernel
def alike_in_order(plans: Plans, i: int, k: int) -> bool:
    """Whether two plans have the same order of blocks, and send alike."""
    return bool(
        plans.schedule[i] == plans.schedule[k]
        and plans.pp[i] == plans.pp[k]
        and plans.vpp[i] == plans.vpp[k]
        and plans.ga[i] == plans.ga[k]
        and plans.microbatch_group_size[i] == plans.microbatch_group_size[k]
        and plans.overlap_pp[i] == plans.overlap_pp[k]
        and plans.post_validation[i] == plans.post_validation[k]
    )


# --- end of what is made


def by_order(plans: Plans, rows: Ints) -> Ints:
    """Some rows sorted, so that plans with the same order of blocks, sent in the same way, follow each other."""
    columns = [getattr(plans, name)[rows] for name in (*ORDER_COLUMNS, *SEND_COLUMNS)]
    return rows[np.lexsort(columns[::-1])]


def replicas(plans: Plans) -> Ints:
    """Ranks along data parallelism, dp, at least 1, [n]; gradients are reduced over dp x cp ranks."""
    return np.maximum(plans.all_gpus // (plans.tp * plans.cp * plans.pp), 1)


def slice_plans(plans: Plans, rows: slice | Bools | Ints) -> Plans:
    """A copy of some rows."""
    return Plans(**{name: np.ascontiguousarray(column[rows]) for name, column in plans._asdict().items()})
