"""The rule table: how a quantity that was recorded under one plan changes under another (docs/moving.md).

A recorded quantity is multiplied by (micro_batch/base)^a * (tp/base)^b * (ep/base)^c. Quantities of the model's weights
follow, besides, the layers of the stage at hand: they are shared out by layers / all layers. Everything else that a plan
changes (group sizes, placement, layers of a stage, number of micro-batches) is not a rule but the plan itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.jit import kernel


class Rule(NamedTuple):
    """Exponents of one rule, with the reason in one sentence."""

    name: str
    micro_batch: int
    tp: int
    ep: int
    by_layers: bool
    why: str


FIXED: Final = 0
COMPUTE: Final = 1
ACTIVATION: Final = 2
SHARDED_ACTIVATION: Final = 3
PARAMETERS: Final = 4
EXPERT_PARAMETERS: Final = 5
VOCABULARY: Final = 6
N_RULES: Final = 7

RULES: Final = (
    Rule("fixed", 0, 0, 0, False, "sizes that no plan changes (the gradient norm's 4 bytes, the tied embedding's gradient)"),
    Rule("compute", 1, -1, 0, False, "a rank computes 1/tp of a layer, for micro_batch sequences; kernel efficiency is held"),
    Rule("activation", 1, 0, 0, False, "TP collectives carry the whole sequence x hidden tensor, whatever tp is"),
    Rule("sharded_activation", 1, -1, 0, False, "expert traffic; sends under sequence parallelism: a rank has 1/tp of them"),
    Rule("parameters", 0, -1, 0, True, "weights, gradients, optimizer work of a rank: 1/tp of the layers of its stage"),
    Rule("expert_parameters", 0, -1, -1, True, "the same of the experts, of which a rank holds 1/ep"),
    Rule("vocabulary", 0, -1, 0, False, "a tied embedding's gradient in a trace: a rank has 1/tp of the vocabulary"),
)  # fmt: skip

EXPONENTS: Final = np.array([(r.micro_batch, r.tp, r.ep) for r in RULES], dtype=np.int64)
BY_LAYERS: Final = np.array([r.by_layers for r in RULES], dtype=np.bool_)


@kernel
def rule_scales(
    micro_batch: float, tp: float, ep: float, exponents: npt.NDArray[np.int64], out: npt.NDArray[np.float64]
) -> None:
    """Fill `out[rule]` with the factors for ratios plan/base of micro-batch, tp and ep; a ratio of 1 gives exactly 1."""
    for rule in range(exponents.shape[0]):
        scale = 1.0
        if exponents[rule, 0] == 1:
            scale *= micro_batch
        if exponents[rule, 1] == -1:
            scale /= tp
        if exponents[rule, 2] == -1:
            scale /= ep
        out[rule] = scale
