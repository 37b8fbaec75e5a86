"""What a stage holds of the recorded rank's parameters, and of all that is in proportion to them: gradients, optimizer."""

from __future__ import annotations

from sim_core.jit import inner_kernel, outer_kernel
from sim_core.workloads.moving import ALL_PARAMETERS, BY_LAYERS, EXPERT_PARAMETERS, PARAMETERS, padded
from sim_core.workloads.workload import Arrays, Floats


@outer_kernel
def stage_factor(arrays: Arrays, scale: Floats, tp: int, rule: int, layers: float, ends: int, dense_layers: float) -> float:
    """Factor from a recorded once-per-step quantity to that of a stage with `layers` layers; `scale`: that of each rule.

    The recorded rank holds 1/pp of the layers, and what stands before and after them. `ends`: 1 on the first and on the last
    stage, 2 on one that is both, else 0. `dense_layers`: those of the stage that have no experts where others do.
    """
    if not BY_LAYERS[rule]:
        return float(scale[rule])
    held = arrays.base.pp * layers / (arrays.unit_layers.shape[1] - 1)
    shares = arrays.shares
    with_experts = held
    if arrays.dense_layers > 0:  # the recorded rank is of the first stage
        recorded = arrays.unit_layers.shape[1] - 1 - arrays.base.pp * arrays.dense_layers
        with_experts = arrays.base.pp * (layers - dense_layers) / recorded
    experts = with_experts * (scale[EXPERT_PARAMETERS] * (1.0 - shares.shared) + scale[PARAMETERS] * shares.shared)
    experts *= tp / arrays.base.tp if shares.whole_experts else 1.0
    if rule == EXPERT_PARAMETERS:
        return float(experts)
    dense = scale[PARAMETERS] * held * (1.0 - shares.ends - shares.head - shares.whole - shares.replicated)
    dense += held * shares.replicated
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


@inner_kernel
def ends_held(number: int, parts: int) -> int:
    """Ends of the model on part `number` of `parts`: embedding, head, or both."""
    return int(number == 0) + int(number == parts - 1)


@inner_kernel
def expert_replicas(arrays: Arrays, dp: float, tp: int, ep: int) -> float:
    """Ranks that hold the same experts."""
    return dp / ep * (tp if arrays.shares.whole_experts else 1)
