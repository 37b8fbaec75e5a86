"""The rule table: how a quantity that was recorded under one plan changes under another (docs/moving.md).

A recorded quantity is multiplied by (micro_batch/base)^a * (tp/base)^b * (ep/base)^c * (sequence/base)^d * (experts/base)^e.
Quantities of the model's weights also depend on what the stage holds (costing/memory.py), compute of a trace's layers on
what launching takes (costing/recorded.py). Everything else that a plan changes (group sizes, placement, layers of a stage,
number of micro-batches) follows from the plan, not from a rule.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel


class Rule(NamedTuple):
    """Exponents of one rule, with the reason in one sentence."""

    name: str
    why: str
    micro_batch: int = 0
    tp: int = 0
    ep: int = 0
    sequence: int = 0
    experts: int = 0
    by_layers: bool = False


FIXED = 0
COMPUTE = 1
ACTIVATION = 2
SHARDED_ACTIVATION = 3
PARAMETERS = 4
EXPERT_PARAMETERS = 5
VOCABULARY = 6
ALL_PARAMETERS = 7
EXPERT_LOAD = 8
EXPERT_WEIGHTS = 9
EXPERT_COUNTS = 10
N_RULES = 11

RULES = (
    Rule("fixed", "sizes that no plan changes (the gradient norm's 4 bytes, the tied embedding's gradient)"),
    Rule(
        "compute",
        "a rank computes 1/tp of a layer, for micro_batch sequences; kernel efficiency is constant",
        micro_batch=1,
        tp=-1,
        sequence=1,
    ),
    Rule("activation", "TP collectives carry the whole sequence x hidden tensor at any tp", micro_batch=1, sequence=1),
    Rule(
        "sharded_activation",
        "expert traffic; sends under sequence parallelism: a rank has 1/tp of them",
        micro_batch=1,
        tp=-1,
        sequence=1,
    ),
    Rule(
        "parameters", "weights, gradients and optimizer work of a rank: 1/tp of the layers of its stage", tp=-1, by_layers=True
    ),
    Rule("expert_parameters", "the same for experts; a rank holds 1/ep of them", tp=-1, ep=-1, experts=1, by_layers=True),
    Rule("vocabulary", "a tied embedding's gradient in a trace: a rank has 1/tp of the vocabulary", tp=-1),
    Rule(
        "all_parameters",
        "one message with the dense parameters and those of the experts, each part by its own rule",
        tp=-1,
        by_layers=True,
    ),
    Rule(
        "expert_load",
        "work and traffic of the rank with the most tokens: x its load at the plan's ep over that at the recorded ep",
        micro_batch=1,
        tp=-1,
        sequence=1,
    ),
    Rule(
        "expert_weights",
        "experts' weights and gradients that a pass reads and writes: a rank holds 1/ep of them",
        tp=-1,
        ep=-1,
        experts=1,
    ),
    Rule(
        "expert_counts",
        "how many tokens each rank has for each expert: all ranks of tp and ep tell each other",
        tp=1,
        ep=1,
        experts=1,
    ),
)

PADDING = 128
"""A vocabulary is padded to a multiple of this x tp (Megatron-LM's --make-vocab-size-divisible-by)."""
EXPONENTS = np.array([(r.micro_batch, r.tp, r.ep, r.sequence, r.experts) for r in RULES])
BY_LAYERS = np.array([r.by_layers for r in RULES])


@kernel
def rule_scales(
    micro_batch: float, tp: float, ep: float, sequence: float, experts: float, exponents: Ints, out: Floats
) -> None:
    """Fill `out[rule]` with the factors for ratios plan/base; ratios of 1 give exactly 1."""
    ratios = (micro_batch, tp, ep, sequence, experts)
    for rule in range(exponents.shape[0]):
        scale = 1.0
        for column in range(len(ratios)):
            if exponents[rule, column] == 1:
                scale *= ratios[column]
            elif exponents[rule, column] == -1:
                scale /= ratios[column]
        out[rule] = scale


@kernel
def times_base(value: int, base: float) -> float:
    """The ratio of a plan's number to the recorded one; 1 where the plan keeps it (0), or nobody recorded it."""
    return value / base if value > 0 and base > 0 else 1.0


@kernel
def padded(vocabulary: float, tp: int) -> float:
    """Rows of an embedding of `vocabulary` rows, those that padding adds included."""
    multiple = PADDING * tp
    return float(np.ceil(vocabulary / multiple) * multiple)
