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
    layers = (unit for unit in model.units if unit.kind != EMBEDDING)
    return (1 + BACKWARD_PER_FORWARD) * sum(unit.number * _forward(model, unit) for unit in layers)


def sequence_of(model: Model) -> int:
    """The sequence length. Raises SpecError if it is unknown."""
    if model.sequence is None:
        raise SpecError(f"model {model.name}: sequence: missing: give the tokens of a training sequence")
    return model.sequence


def _forward(model: Model, unit: Unit) -> float:
    """Forward FLOPs of one unit per token."""
    head = 2.0 * model.hidden * model.vocabulary
    if unit.kind == HEAD:
        return head
    elements = 0.0
    for weights in weights_of(model, unit):
        if weights.matrix:
            routed = weights.part == "routed_experts" and model.experts is not None
            elements += weights.elements * (model.experts.topk / model.experts.count if routed and model.experts else 1)
    sequence = sequence_of(model)
    keys = min(sequence, unit.window) if unit.window else sequence
    attention = 2.0 * keys * model.heads * (model.head_dim + model.v_head_dim)
    return 2 * elements + attention + (head if unit.kind != LAYER else 0.0)
