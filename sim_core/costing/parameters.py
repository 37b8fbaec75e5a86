"""What a stage holds of the recorded rank's parameters, and of all that is in proportion to them: gradients, optimizer."""

from __future__ import annotations

from sim_core.jit import inner_kernel
from sim_core.workloads.moving import ALL_PARAMETERS, BY_LAYERS, EXPERT_PARAMETERS, PARAMETERS, padded
from sim_core.workloads.workload import Arrays, Floats


@inner_kernel
def stage_factor(arrays: Arrays, scale: Floats, tp: int, rule: int, layers: float, at_end: bool) -> float:
    """Factor from a recorded once-per-step quantity to that of a stage with `layers` layers; `scale`: that of each rule.

    The recorded rank holds 1/pp of the layers, the embedding and the head. A stage `at_end` (the first or the last) holds
    embedding and head too: generators write both into the one stage that a file has.
    """
    if not BY_LAYERS[rule]:
        return float(scale[rule])
    held = arrays.base.pp * layers / (arrays.unit_layers.shape[1] - 1)
    experts = scale[EXPERT_PARAMETERS] * held
    if rule == EXPERT_PARAMETERS:
        return float(experts)
    shares = arrays.shares
    dense = scale[PARAMETERS] * held * (1.0 - shares.ends - shares.whole)
    if at_end:
        padding = padded(shares.vocabulary, tp) / padded(shares.vocabulary, arrays.base.tp) if shares.vocabulary > 0 else 1.0
        dense += scale[PARAMETERS] * shares.ends * padding + shares.whole
    if rule == ALL_PARAMETERS:
        return float((1.0 - shares.experts) * dense + shares.experts * experts)
    return float(dense)
