"""FLOPs that a model asks for, whatever the plan: those in the numerator of MFU."""

from __future__ import annotations

from typing import Final

from sim_core.errors import SpecError
from sim_core.models.description import EMBEDDING, HEAD, LAYER, Model, Unit
from sim_core.models.weights import weights_of

BACKWARD_PER_FORWARD: Final = 2
"""Input and weight gradient: each as many FLOPs as the forward (Narayanan et al. 2021, arXiv 2104.04473, appendix)."""


def model_flops_per_token(model: Model) -> float:
    """Forward and backward FLOPs per token of a sequence, without recompute or padding.

    Scores and context count the whole square of the sequence, as the formulas of Narayanan et al. 2021 (eq. 3), PaLM
    (arXiv 2204.02311, appendix B) and Korthikanti et al. 2022 (arXiv 2205.05198, appendix A) do; kernels that skip the
    masked half do less. A window counts its tokens. Raises SpecError if the sequence is unknown.
    """
    return (1 + BACKWARD_PER_FORWARD) * sum(unit.number * forward_flops(model, unit) for unit in model.units)


def sequence_of(model: Model) -> int:
    """The sequence length. Raises SpecError if it is unknown."""
    if model.sequence is None:
        raise SpecError(f"model {model.name}: sequence: missing: give the tokens of a training sequence")
    return model.sequence


def forward_flops(model: Model, unit: Unit) -> float:
    """Forward FLOPs of one unit per token; counted as in `model_flops_per_token`."""
    head = 2.0 * model.hidden * model.vocabulary
    if unit.kind == EMBEDDING:
        return 0.0
    if unit.kind == HEAD:
        return head
    elements = 0.0
    for weights in weights_of(model, unit):
        if weights.matrix:
            routed = weights.part == "routed_experts" and model.experts is not None
            elements += weights.elements * (model.experts.topk / model.experts.count if routed and model.experts else 1)
    return 2 * elements + core_flops(model, unit) + (head if unit.kind != LAYER else 0.0)


def core_flops(model: Model, unit: Unit) -> float:
    """Forward FLOPs of the core attention (scores and context) of one layer per token."""
    sequence = sequence_of(model)
    keys = min(sequence, unit.window) if unit.window else sequence
    return 2.0 * keys * model.heads * (model.head_dim + model.v_head_dim)
