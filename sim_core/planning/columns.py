"""Parallel plans as columns of equal length, and the words behind coded columns."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.references import row_at

Whole = TypeVar("Whole")
Real = TypeVar("Real")

FIDELITIES = ("event", "simai")
EVENT, SIMAI = 0, 1
"""The event engine, or the cost model of SimAI-Analytical (simai/model.py)."""

PRECISIONS = ("recorded", "fp32", "bf16")
"""Of gradients on the wire: as in the workload, or 4 or 2 bytes per element."""

SPLITS = (
    "even", "balanced", "embedding_as_layer", "loss_as_layer", "embedding_and_loss_as_layer", "balanced_cost", "listed",
)  # fmt: skip
EVEN, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, ENDS_AS_LAYERS, BALANCED_COST, LISTED = 0, 1, 2, 3, 4, 5, 6
"""How layers are divided among stages (planning/split.py); `balanced_cost`: by modelled seconds (costing/running.py);
`listed`: by the list in `virtual_layers`."""

CP_COMM_TYPES = ("p2p", "all_gather", "a2a", "a2a+p2p")
P2P, ALL_GATHER, A2A, A2A_P2P = range(len(CP_COMM_TYPES))
"""How context-parallel ranks compute attention (Megatron's --cp-comm-type): keys and values go round a ring, or are gathered;
heads are exchanged for tokens; or that among `cp_a2a_size` ranks, and a ring over these groups."""

DISPATCHERS = ("alltoall", "flex", "hierarchical")
FLEX, HIERARCHICAL = 1, 2
"""How tokens reach their experts (as Megatron-LM names it): a copy for each expert; one to each remote node, as
DeepEP and HybridEP do behind `flex`; a copy for each expert in two stages, between nodes and then inside them."""

CHECKPOINTING = ("none", "file", "full", "selective", "every", "block", "modules")
NONE, FILE, FULL, SELECTIVE, EVERY, BLOCK, MODULES = range(len(CHECKPOINTING))
"""What the backward computes again. `every:k` and `block:k` have a number k: Megatron's recompute methods uniform and block.
`modules`: some of RECOMPUTE_MODULES (models/recompute.py), which a plan names: `layernorm+moe_act`."""


# --- made by docs/made/plan_fields.py from the rows of fields.py: do not edit
class Columns(NamedTuple, Generic[Whole, Real]):
    """Fields of plans: columns of equal length, or the numbers of one plan."""

    tp: Whole  # tensor parallelism: ranks that share a layer
    pp: Whole  # pipeline parallelism: stages
    vpp: Whole  # virtual stages on a stage: interleaving
    ep: Whole  # expert parallelism: ranks that share out the experts
    all_gpus: Whole  # GPUs of the job
    micro_batch: Whole  # sequences of a micro-batch
    ga: Whole  # micro-batches of a replica in a step
    bucket_bytes: Whole  # size of a gradient bucket
    schedule: Whole  # index of a word: order of forwards and backwards
    fidelity: Whole  # index of a word: the event engine, or the cost model of SimAI-Analytical
    layer_split: Whole  # how layers are divided among stages
    virtual_layers: Ints  # layers of each virtual stage in model order, padded with -1; if layer_split is listed
    checkpointing: Whole  # what the backward computes again
    checkpoint_layers: Whole  # the k of every:k and block:k; of modules a bit for each; else 0
    overlap_tp: Whole  # 0 or 1: tensor-parallel messages run behind compute where they can
    overlap_ep: Whole  # 0 or 1: expert-parallel messages run behind compute where they can
    overlap_pp: Whole  # 0 or 1: sends between stages run in the background
    overlap_grad: Whole  # 0 or 1: gradients are reduced behind the last backwards
    overlap_param: Whole  # 0 or 1: parameters are gathered behind the first forwards
    dp_overlap_ratio: Real  # part of DP communication that fidelity simai counts as hidden
    tp_overlap_ratio: Real  # part of TP communication that fidelity simai counts as hidden
    ep_overlap_ratio: Real  # part of EP communication that fidelity simai counts as hidden
    pp_overlap_ratio: Real  # part of PP communication that fidelity simai counts as hidden, and divides by
    cp: Whole  # context parallelism: ranks that share a sequence; of models
    cp_comm_type: Whole  # index of a word: how context-parallel ranks compute attention
    cp_a2a_size: Whole  # context-parallel ranks of the all-to-all in a2a+p2p; else 1
    sharding: Whole  # index of a word: what data-parallel ranks divide; of models
    dp_shard: Whole  # ranks of dp x cp that divide them; 0: all
    reshard_after_forward: Whole  # 0 or 1: a layer's parameters are freed after its forward and gathered again
    prefetch_layers: Whole  # layers whose parameters are gathered ahead of the one that runs
    optimizer: Whole  # index of a word: what updates the weights; of models
    muon_tp_mode: Whole  # index of a word: what Muon does with a matrix that tp divides
    muon_aligned: Whole  # 0 or 1: Muon's matrices lie in buffers with a whole shard for each rank
    activation_offload: Real  # activations that a layer sends to the host's memory; of models
    offload_modules: Whole  # a bit for each module that activation_offload names
    optimizer_offload: Real  # part of the optimizer, state and update, that the host has; of models
    parameter_offload: Whole  # 0 or 1: parameters lie on the host until a layer needs them
    overlap_offload: Whole  # 0 or 1: copies of gradients and parameters run beside the host's update
    precision: Whole  # index of a word: precision of linear layers; of models
    dispatcher: Whole  # index of a word: how tokens reach their experts; of models
    overlap_shared_experts: Whole  # 0 or 1: shared experts run beside dispatch and combine
    layers: Whole  # layers of the model
    sequence: Whole  # tokens of a sequence; 0: as in the workload
    experts: Whole  # experts of a layer; 0: as in the workload
    microbatch_group_size: Whole  # micro-batches that a virtual stage of interleaved 1F1B takes in turn; 0: pp
    post_validation: Whole  # 0 or 1: a stage begins its next step without waiting for the norm of all gradients
    gradient_precision: Whole  # index of a word: precision of gradients on the wire
    expert_imbalance: Real  # tokens of the fullest rank over the mean
    straggler_stage: Whole  # the stage whose compute takes straggler_factor times as long
    straggler_factor: Real  # how many times as long compute takes on straggler_stage
    device_speed: Real  # compute runs this many times as fast
    hardware: Whole  # row of the HardwareTable


class Plans(Columns[Ints, Floats]):
    """Plans as columns of equal length."""


ORDER_COLUMNS = ("schedule", "pp", "vpp", "ga", "microbatch_group_size")
"""What the order of blocks follows from; the schedule first: batches of one schedule need the least memory."""
SEND_COLUMNS = ("overlap_pp", "post_validation")
"""What else decides which block waits for which."""
SPLIT_COLUMNS = ("pp", "vpp", "schedule", "layer_split", "layers")
"""What the layers of a virtual stage follow from, besides the list in `virtual_layers`."""


# --- end of what is made


Plan = Columns[int, float]
"""One row of `Plans` as scalars."""
plan_at: Callable[[Plans, int], Plan] = row_at
"""Row `i` as scalars."""


def order_table(plans: Plans) -> Ints:
    """What decides which block waits for which, [n, columns]: plans with equal rows run together."""
    return np.stack([getattr(plans, name) for name in (*ORDER_COLUMNS, *SEND_COLUMNS)], axis=1)


def by_order(plans: Plans, rows: Ints) -> Ints:
    """Some rows sorted, so that plans with the same order of blocks, sent in the same way, follow each other."""
    return rows[np.lexsort([getattr(plans, name)[rows] for name in reversed((*ORDER_COLUMNS, *SEND_COLUMNS))])]


def replicas(plans: Plans) -> Ints:
    """Ranks along data parallelism, dp, at least 1, [n]; gradients are reduced over dp x cp ranks."""
    return np.maximum(plans.all_gpus // (plans.tp * plans.cp * plans.pp), 1)


def slice_plans(plans: Plans, rows: slice | Bools | Ints) -> Plans:
    """A copy of some rows."""
    return Plans(**{name: np.ascontiguousarray(column[rows]) for name, column in plans._asdict().items()})
