"""What a stage holds of the recorded rank's parameters, and of all that is in proportion to them: gradients, optimizer."""

from __future__ import annotations

from sim_core.jit import inner_kernel, outer_kernel
from sim_core.workloads.moving import ALL_PARAMETERS, BY_LAYERS, EXPERT_PARAMETERS, PARAMETERS, padded
from sim_core.workloads.workload import Arrays, Floats


@outer_kernel
def stage_factor(arrays: Arrays, scale: Floats, tp: int, rule: int, layers: float, ends: int) -> float:
    """Factor from a recorded once-per-step quantity to that of a stage with `layers` layers; `scale`: that of each rule.

    The recorded rank holds 1/pp of the layers, and what stands before and after them. `ends`: 1 on the first and on the last
    stage, 2 on one that is both, else 0.
    """
    if not BY_LAYERS[rule]:
        return float(scale[rule])
    held = arrays.base.pp * layers / (arrays.unit_layers.shape[1] - 1)
    experts = scale[EXPERT_PARAMETERS] * held * (tp / arrays.base.tp if arrays.shares.whole_experts else 1.0)
    if rule == EXPERT_PARAMETERS:
        return float(experts)
    shares = arrays.shares
    dense = scale[PARAMETERS] * held * (1.0 - shares.ends - shares.head - shares.whole)
    if ends > 0:
        padding = padded(shares.vocabulary, tp) / padded(shares.vocabulary, arrays.base.tp) if shares.vocabulary > 0 else 1.0
        held_ends = shares.ends + (shares.head if ends == 2 else 0.0)
        dense += scale[PARAMETERS] * held_ends * padding + shares.whole
    if rule == ALL_PARAMETERS:
        return float((1.0 - shares.experts) * dense + shares.experts * experts)
    return float(dense)


@inner_kernel
def ends_held(number: int, parts: int) -> int:
    """Ends of the model on part `number` of `parts`: embedding, head, or both."""
    return int(number == 0) + int(number == parts - 1)


@inner_kernel
def expert_replicas(arrays: Arrays, dp: float, tp: int, ep: int) -> float:
    """Ranks that hold the same experts."""
    return dp / ep * (tp if arrays.shares.whole_experts else 1)
