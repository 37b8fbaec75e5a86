"""Parameters that a rank holds: dense and of experts apart, because other ranks share their gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.models.description import Model, Unit
from sim_core.models.keys import Keys, padded_vocabulary
from sim_core.models.weights import EXPERT, KV_HEADS, REPLICATED, VOCABULARY, Weights, weights_of

Floats = npt.NDArray[np.float64]


class Held(NamedTuple):
    """Parameters of one unit on a rank, [n]. Data-parallel groups: dense all_gpus / (tp cp pp), experts / (etp ep pp)."""

    dense: Floats
    experts: Floats
    replicated: Floats  # of the dense ones: those that every tensor-parallel rank holds


def held(model: Model, unit: Unit, keys: Keys) -> Held:
    """Parameters of one unit on a rank, with the vocabulary padded.

    With sequence parallelism the gradients of the replicated ones differ between tensor-parallel ranks, which sum them once a
    step (Megatron-LM, finalize_model_grads).
    """
    found = Held(*(np.zeros(len(keys.tp)) for _ in Held._fields))
    for weights in weights_of(model, unit):
        mine = weights.elements * _share(model, weights, keys)
        if weights.sharding == EXPERT:
            found.experts[:] += mine
            continue
        found.dense[:] += mine
        if weights.sharding == REPLICATED:
            found.replicated[:] += mine
    return found


def tied_elements(model: Model, keys: Keys) -> Floats:
    """Elements of the embedding's gradient that first and last stage add once a step; 0 if the head is not tied, [n]."""
    if not model.tied:
        return np.zeros(len(keys.tp))
    return padded_vocabulary(model, keys.tp) * model.hidden / keys.tp


def _share(model: Model, weights: Weights, keys: Keys) -> Floats:
    tp = keys.tp.astype(np.float64)
    if weights.sharding == REPLICATED:
        return np.ones(len(tp))
    if weights.sharding == KV_HEADS:
        return np.maximum(1 / tp, 1 / model.kv_heads)
    if weights.sharding == VOCABULARY:
        return padded_vocabulary(model, keys.tp) / model.vocabulary / tp
    if weights.sharding == EXPERT:
        return 1.0 / (keys.ep * keys.etp)
    return 1 / tp
