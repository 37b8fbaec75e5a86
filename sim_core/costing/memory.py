"""Model state on a rank: bytes of weights, gradients and optimizer, from the parameters that a stage holds.

The bytes are a lower bound on the memory that a plan needs. Mixed-precision Adam as Megatron-LM keeps it: bf16 weights 2 +
fp32 gradients 4 + fp32 master weights and two moments 12 bytes per parameter; what is sharded is divided by the ranks that
share it (Megatron-LM docs, "Distributed Optimizer", table of memory; Rajbhandari et al. 2019, arXiv 1910.02054, section 5). A
workload with other state sets `state_width`. Activations are not included; no input format holds them.
"""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.engine.schedules import BOTH_WAYS, LOOP, PLACEMENT
from sim_core.models.precision import COPIES, GATHERED
from sim_core.planning.columns import Plans
from sim_core.planning.legality import shardings
from sim_core.planning.split import fullest_stages
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED, OPTIMIZER_SHARDED, PARAMETERS_SHARDED, UNSHARDED
from sim_core.workloads.moving import ALL_PARAMETERS, BY_LAYERS, EXPERT_PARAMETERS, PADDING, PARAMETERS, padded
from sim_core.workloads.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS, Arrays, Workload

MEGATRON_BUCKET_PARAMETERS = 40_000_000
MEGATRON_BUCKET_PARAMETERS_PER_DP = 1_000_000
"""Default gradient bucket: max(40e6, 1e6 * dp) parameters; Megatron-LM core/distributed/distributed_data_parallel.py."""


@inner_kernel
def default_bucket_bytes(width: float, dp: int) -> float:
    """Bytes of Megatron's default bucket; `width`: bytes of a gradient."""
    return width * max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP * dp)


@outer_kernel
def stage_factor(arrays: Arrays, scale: Floats, tp: int, rule: int, layers: float, ends: int, dense_layers: float) -> float:
    """Factor from a recorded once-per-step quantity to that of a stage with `layers` layers; `scale`: that of each rule.

    The recorded rank holds 1/pp of the layers, and what stands before and after them. `ends`: 1 on the first and on the last
    stage, 2 on one that is both, else 0. `dense_layers` of its layers have no experts, where others have some.
    """
    if not BY_LAYERS[rule]:
        return float(scale[rule])
    of_recorded = arrays.base.pp * layers / (arrays.unit_layers.shape[1] - 1)
    shares = arrays.shares
    with_experts = of_recorded
    if arrays.dense_layers > 0:  # the recorded rank is of the first stage
        recorded = arrays.unit_layers.shape[1] - 1 - arrays.base.pp * arrays.dense_layers
        with_experts = arrays.base.pp * (layers - dense_layers) / recorded
    experts = with_experts * (scale[EXPERT_PARAMETERS] * (1.0 - shares.shared) + scale[PARAMETERS] * shares.shared)
    experts *= tp / arrays.base.tp if shares.whole_experts else 1.0
    if rule == EXPERT_PARAMETERS:
        return float(experts)
    dense = scale[PARAMETERS] * of_recorded * (1.0 - shares.ends - shares.head - shares.whole - shares.replicated)
    dense += of_recorded * shares.replicated
    if ends > 0:
        padding = padded(shares.vocabulary, tp) / padded(shares.vocabulary, arrays.base.tp) if shares.vocabulary > 0 else 1.0
        held_ends = shares.ends + (shares.head if ends == 2 else 0.0)
        dense += scale[PARAMETERS] * held_ends * padding + shares.whole
    if rule == ALL_PARAMETERS:
        return float((1.0 - shares.experts) * dense + shares.experts * experts)
    return float(dense)


@outer_kernel
def first_stage_layers(arrays: Arrays, unit: int, pp: int) -> float:
    """Layers of a unit on the stage that a SimAI text describes: the first if it differs from others, else the mean one."""
    layers = arrays.unit_layers.shape[1] - 1
    if arrays.dense_layers > 0 and layers % pp == 0:
        return float(arrays.unit_layers[unit, layers // pp])
    return float(arrays.unit_layers[unit, layers] / pp)


@outer_kernel
def first_stage_dense(arrays: Arrays, pp: int) -> float:
    """Layers without experts on that stage, where others have some."""
    layers = arrays.unit_layers.shape[1] - 1
    return float(min(arrays.dense_layers, layers // pp)) if layers % pp == 0 else arrays.dense_layers / pp


PARAMETER_BYTES = 2.0


def dense_shards(plans: Plans) -> Ints:
    """Ranks that divide dense state in each plan if anything does, [n].

    Where two copies of the model run both ways, two stages hold the same parameters and share their state.
    """
    ranks = np.maximum(plans.all_gpus // (plans.tp * plans.pp), 1)
    copies = np.where(PLACEMENT[plans.schedule] == BOTH_WAYS, 2, 1)
    return np.where(plans.dp_shard > 0, plans.dp_shard, ranks * copies)


def model_state_bytes(workload: Workload, plans: Plans) -> Floats:
    """Bytes of weights, gradients and optimizer on a rank of the fullest stage, [n]; NaN where unknown."""
    arrays, base, step, shares = workload.arrays, workload.base, workload.arrays.step, workload.arrays.shares
    reduced = step.role == REDUCE_GRADIENTS
    unknown = not workload.gradients_known[0] or (workload.has_experts and not workload.gradients_known[1])
    if unknown or not (reduced.any() or arrays.layered_gradients):
        return np.full(len(plans.tp), np.nan)
    widths = state_widths(workload, plans)[:2]
    most, at_end = fullest_stages(plans, arrays.dense_layers)
    by_tp = plans.tp / base.tp

    def recorded(rule: int) -> float:
        return float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum())

    of_experts = recorded(EXPERT_PARAMETERS)
    times = np.where((plans.experts > 0) & (arrays.experts > 0), plans.experts / (arrays.experts or 1.0), 1.0)
    dense = recorded(PARAMETERS) + recorded(ALL_PARAMETERS) * (1 - shares.experts)
    replicated = dense * shares.replicated
    in_layers = dense * (1 - shares.ends - shares.head - shares.whole) - replicated
    padding = np.ones(len(plans.tp))
    if shares.vocabulary:
        multiple = PADDING * plans.tp
        padding = np.ceil(shares.vocabulary / multiple) * multiple / padded(shares.vocabulary, base.tp)
    ends = shares.ends + np.where((plans.pp == 1) | (PLACEMENT[plans.schedule] != LOOP), shares.head, 0.0)
    at_ends = dense * (ends / by_tp * padding + shares.whole)
    # gradients that belong to pieces: of the layers of the fullest stage, and of the units before and after them
    by_unit = np.bincount(arrays.pieces.unit, arrays.pieces.gradient_bytes, arrays.unit_layers.shape[0])
    layered = float(by_unit @ arrays.unit_layers[:, -1]) / workload.layers
    layered_ends = sum(float(by_unit[unit]) for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0)
    routed = (1.0 - shares.shared) * times / (plans.ep / base.ep)  # shared experts are on every rank

    def state(stage: Floats, embedding: Floats | float) -> Floats:
        layers = stage[:, 0]
        of_stage = base.pp * layers / workload.layers
        of_pieces = layered * layers + layered_ends
        parameters: Floats = (in_layers * of_stage + of_pieces) / by_tp + replicated * of_stage + embedding
        if of_experts == 0:
            return parameters * widths[0]
        of_tp = 1.0 if shares.whole_experts else by_tp
        of_stage = base.pp * stage[:, 1] / (workload.layers - base.pp * arrays.dense_layers)
        experts = of_experts * of_stage / of_tp * (routed + shares.shared)
        return parameters * widths[0] + experts * widths[1]

    number = 2 if arrays.dense_layers else 1
    of_stages = [state(of[:, k], at) for k in range(number) for of, at in ((most, 0.0), (at_end, at_ends))]
    bytes_: Floats = np.max(of_stages, axis=0) / arrays.gradient_width
    return bytes_


def state_widths(workload: Workload, plans: Plans) -> tuple[Floats, Floats, Floats, Floats]:
    """Bytes of state on a rank per dense parameter that it holds, and per parameter of experts, [n] each; the same of what lies
    on the host: of the optimizer its part, of gradients that ranks share as much, of parameters all (ZeRO-Offload, arXiv
    2101.06840, section 4; FSDP hands over parameters, gradients and optimizer)."""
    of_all, optimizer = workload.state_width
    gradient, framework = workload.arrays.gradient_width, workload.arrays.framework
    copies = COPIES[plans.precision]
    replicated = of_all + (copies if of_all > gradient else np.maximum(copies, 0.0))  # FSDP keeps no weights of 16 bits
    if framework.sharding == AS_STACK:  # a file: its parameters are gathered if its optimizer is sharded
        gathered = (workload.arrays.step.role == GATHER_PARAMETERS).any()
        own = OPTIMIZER_SHARDED if gathered else UNSHARDED
        framework = framework._replace(sharding=own, sharding_in_pipeline=own)
    sharding, (dense, experts) = shardings(framework, plans), _shards(workload, plans)
    # FSDP keeps no 16-bit weights; where only the optimizer is divided, they stay gathered
    gathered = ((sharding == OPTIMIZER_SHARDED) | (sharding == GRADIENTS_SHARDED)) & (of_all == gradient)

    given = np.where(sharding >= GRADIENTS_SHARDED, plans.optimizer_offload, 0.0)

    def width(ranks: Floats) -> tuple[Floats, Floats]:
        copies = np.where(gathered & (ranks > 1), PARAMETER_BYTES * GATHERED[plans.precision], 0.0)
        weights = (replicated - gradient + copies) / np.where(sharding >= PARAMETERS_SHARDED, ranks, 1.0)
        gradients = gradient / np.where(sharding >= GRADIENTS_SHARDED, ranks, 1.0)
        buckets = np.where((sharding == UNSHARDED) & (ranks > 1), framework.bucket_copies, 0.0)
        states = optimizer / np.where(sharding >= OPTIMIZER_SHARDED, ranks, 1.0)
        host = states * plans.optimizer_offload + gradients * given + weights * plans.parameter_offload
        bytes_: Floats = weights + gradients + buckets + states - host
        return bytes_, host

    (of_dense, dense_host) = of_experts, expert_host = width(dense)
    if (experts != dense).any():
        of_experts, expert_host = width(experts)
    return of_dense, of_experts, dense_host, expert_host


def _shards(workload: Workload, plans: Plans) -> tuple[Floats, Floats]:
    """Ranks that divide dense state if anything does, and that of experts, [n] each."""
    dense = dense_shards(plans).astype(float)
    experts = dense / plans.ep * (plans.tp if workload.arrays.shares.whole_experts else 1)
    return dense, np.where(plans.dp_shard > 0, np.maximum(experts, 1.0), experts)


def passing_widths(workload: Workload, plans: Plans) -> Floats:
    """Bytes on a rank, per dense parameter that it holds and per parameter of experts, that are there for a part of the step,
    [4, n]: gradients, where the backward makes them, and what the optimizer's step makes beside its state; of each both."""
    framework, gradient = workload.arrays.framework, workload.arrays.gradient_width
    sharding = shardings(framework, plans)
    return np.stack(
        [
            whole / np.where(sharding >= divided, ranks, 1.0)
            for ranks in _shards(workload, plans)
            for whole, divided in (
                (gradient * framework.gradients_made, GRADIENTS_SHARDED),
                (framework.step_bytes, OPTIMIZER_SHARDED),
            )
        ]
    )
