"""The weights of a model, unit by unit: how many, what a rank has of them, and the FLOPs that a token costs with them."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.errors import SpecError
from sim_core.models import compressed
from sim_core.models.description import (
    ATTENTION,
    COMPRESSED,
    EMBEDDING,
    HEAD,
    LAYER,
    MLP,
    MTP,
    RECURRENT,
    Lora,
    Model,
    Recurrent,
    Unit,
)
from sim_core.models.keys import Keys, padded_vocabulary
from sim_core.models.precision import COPIES
from sim_core.models.recurrent import sizes_of

REPLICATED: Final = 0
"""Every rank of a tensor-parallel group holds all of it."""
TENSOR: Final = 1
"""Divided among tensor-parallel ranks."""
KV_HEADS: Final = 2
"""The same, but a rank holds at least one key-value head."""
EXPERT: Final = 3
"""Divided among expert-parallel and expert tensor-parallel ranks."""
VOCABULARY: Final = 4
"""Rows of the vocabulary: padded, then divided among tensor-parallel ranks."""

PARTS: Final = (
    "embedding",
    "positions",
    "attention",
    "recurrent",
    "mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "streams",
    "head",
    "mtp",
    "adapters",
)


WIDE_BYTES: Final = 2.0
"""Of an element of 16 bits."""


class Weights(NamedTuple):
    """Weights of one part of a unit."""

    part: str  # one of PARTS
    elements: int
    sharding: int
    matrix: bool = True  # else a vector: a bias or a norm
    adapter: bool = False  # trained beside frozen weights


def weights_of(model: Model, unit: Unit) -> tuple[Weights, ...]:
    """The weights of one unit (one layer of a kind)."""
    h, norm = model.hidden, norm_width(model)
    if unit.kind == EMBEDDING:
        positions = (Weights("positions", model.positions * h, REPLICATED),) if model.positions else ()
        norms = (Weights("norms", norm, REPLICATED, False),) if model.embedding_norm else ()
        return (Weights("embedding", model.vocabulary * h, VOCABULARY), *positions, *norms)
    if unit.kind == HEAD:
        head = () if model.tied else (Weights("head", model.vocabulary * h, VOCABULARY),)
        return (Weights("norms", norm, REPLICATED, False), *head, *_streams(model, 1, head=True))
    layer = (
        *(_attention(model) if unit.mixer == ATTENTION else ()),
        *(_compressed(model, unit) if unit.mixer == COMPRESSED else ()),
        *(_recurrent(model, model.recurrent) if unit.mixer == RECURRENT and model.recurrent else ()),
        *(_channel(model, unit) if unit.channel == MLP else ()),
        Weights("norms", model.norms_per_layer // 2 * unit.blocks * norm, REPLICATED, False),
        *_streams(model, unit.blocks),
    )
    layer = (*layer, *(_adapters(model, unit, model.lora) if model.lora else ()))
    if unit.kind == MTP:  # DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of 2h to h, a layer, a norm
        joined = _streams(model, 1, head=True)
        return (*layer, Weights("mtp", 2 * h * h, TENSOR), Weights("norms", 3 * norm, REPLICATED, False), *joined)
    return layer


def _channel(model: Model, unit: Unit) -> tuple[Weights, ...]:
    return _experts(model) if unit.moe else _mlp(model, "mlp", model.ffn or 0)


def _compressed(model: Model, unit: Unit) -> tuple[Weights, ...]:
    if model.compressed is None:
        return ()
    divided, whole = compressed.weights_by_sharding(model, unit, model.compressed)
    return tuple(
        Weights("attention", elements, sharding, matrix)
        for sharding, pair in ((TENSOR, divided), (REPLICATED, whole))
        for matrix, elements in zip((True, False), pair, strict=True)
    )


def _streams(model: Model, sublayers: int, *, head: bool = False) -> tuple[Weights, ...]:
    matrix, vectors = compressed.streams_weights(model, sublayers, head=head)
    return (Weights("streams", matrix, REPLICATED), Weights("streams", vectors, REPLICATED, False)) if matrix else ()


def _recurrent(model: Model, mixer: Recurrent) -> tuple[Weights, ...]:
    """Of a mixer with a state; heads and groups are divided, the narrow first projections of gates are not."""
    sizes, h = sizes_of(mixer), model.hidden
    weights = [
        Weights("recurrent", h * sizes.projected + sizes.inner * h, TENSOR),
        Weights("recurrent", mixer.conv * sizes.convolved + sizes.vectors, TENSOR, False),
        Weights("recurrent", sizes.normed, TENSOR if sizes.normed == sizes.inner else REPLICATED, False),
    ]
    if sizes.low_rank:
        weights.append(Weights("recurrent", 2 * h * sizes.low_rank, REPLICATED))
        weights.append(Weights("recurrent", 2 * sizes.low_rank * sizes.inner, TENSOR))
    return tuple(weights)


def norm_width(model: Model, width: int | None = None) -> int:
    """Weights of a norm over `width` (default: the hidden size)."""
    return (width or model.hidden) * (2 if model.norm == "layernorm" else 1)


def _attention(model: Model) -> tuple[Weights, ...]:
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    projection = Weights("attention", a * model.v_head_dim * h, TENSOR)
    vectors = h if model.projection_bias else 0
    if model.mla:
        q, kv, rope = model.mla.q_rank, model.mla.kv_rank, model.mla.rope_head_dim
        down = h * (kv + rope) + (h * q if q else 0)
        up = (q or h) * a * d + kv * a * (model.mla.nope_head_dim + model.v_head_dim)
        if model.qk_norm:
            vectors += norm_width(model, kv + (q or 0))
        if model.qkv_bias:
            vectors += kv + rope + (q or 0)
        matrices = (Weights("attention", down, REPLICATED), Weights("attention", up, TENSOR), projection, *_indexer(model))
        return (*matrices, Weights("attention", vectors, REPLICATED, False)) if vectors else matrices
    queries = h * a * d * (2 if model.output_gate else 1)
    weights = [Weights("attention", queries, TENSOR), Weights("attention", 2 * h * k * d, KV_HEADS), projection]
    if model.qkv_bias:
        weights += [Weights("attention", a * d, TENSOR, False), Weights("attention", 2 * k * d, KV_HEADS, False)]
    if model.attention_sinks:
        weights.append(Weights("attention", a, TENSOR, False))
    if model.qk_norm_whole:
        weights += [Weights("attention", norm_width(model, a * d), TENSOR, False)]
        weights += [Weights("attention", norm_width(model, k * d), KV_HEADS, False)]
    elif model.qk_norm:
        vectors += 2 * norm_width(model, d)
    if vectors:
        weights.append(Weights("attention", vectors, REPLICATED, False))
    return tuple(weights)


def _indexer(model: Model) -> tuple[Weights, ...]:
    """Of the lightning indexer: on every tensor-parallel rank (Megatron-LM, experimental_attention_variant/dsa.py)."""
    indexer, mla = model.indexer, model.mla
    if indexer is None or mla is None:
        return ()
    width = indexer.heads * indexer.head_dim
    matrices = (mla.q_rank or model.hidden) * width + model.hidden * (indexer.head_dim + indexer.heads)
    return (Weights("attention", matrices, REPLICATED), Weights("attention", 2 * indexer.head_dim, REPLICATED, False))


def _adapters(model: Model, unit: Unit, lora: Lora) -> tuple[Weights, ...]:
    """Pairs of narrow matrices beside the targets of a layer; the side of a target that is divided is divided here, too."""
    h, a, d, first = model.hidden, model.heads, model.head_dim, 2 if model.gated else 1
    sides: dict[str, tuple[int, int]] = {}  # whole, divided
    if unit.mixer == ATTENTION:
        sides |= {"qkv": (h, (a + 2 * model.kv_heads) * d), "projection": (h, a * model.v_head_dim)}
    if unit.channel == MLP and not unit.moe:
        sides |= {"fc1": (h, first * (model.ffn or 0)), "fc2": (h, model.ffn or 0)}
    weights = []
    for name in lora.targets:
        whole, divided = sides.get(name, (0, 0))
        weights.append(Weights("adapters", lora.rank * whole, REPLICATED, adapter=True))
        weights.append(Weights("adapters", lora.rank * divided, TENSOR, adapter=True))
    return tuple(weights)


def _mlp(model: Model, part: str, ffn: int) -> tuple[Weights, ...]:
    """A dense MLP, or that of all shared experts."""
    first = 2 if model.gated else 1
    matrices = Weights(part, (first + 1) * model.hidden * ffn, TENSOR)
    if not model.mlp_bias:
        return (matrices,)
    return (matrices, Weights(part, first * ffn, TENSOR, False), Weights(part, model.hidden, REPLICATED, False))


def _experts(model: Model) -> tuple[Weights, ...]:
    experts = model.experts
    if experts is None:
        raise ValueError(f"{model.name} has no experts")
    first = 2 if model.gated else 1
    matrices = experts.count * (first + 1) * (experts.latent or model.hidden) * experts.ffn
    weights = [Weights("router", model.hidden * experts.count, REPLICATED), Weights("routed_experts", matrices, EXPERT)]
    if experts.latent:
        weights.append(Weights("shared_experts", 2 * model.hidden * experts.latent, TENSOR))
    if experts.shared_gate:
        weights.append(Weights("shared_experts", model.hidden, REPLICATED))
    if experts.router_bias:
        weights.append(Weights("router", experts.count, REPLICATED, False))
    if model.mlp_bias:
        weights.append(Weights("routed_experts", experts.count * (first * experts.ffn + model.hidden), EXPERT, False))
    if experts.shared_ffn:
        weights += _mlp(model, "shared_experts", experts.shared_ffn)
    return tuple(weights)


class Held(NamedTuple):
    """Parameters of one unit on a rank, [n]. Data-parallel groups: dense all_gpus / (tp cp pp), experts / (etp ep pp)."""

    dense: Floats
    experts: Floats
    replicated: Floats  # of the dense ones: those that every tensor-parallel rank holds


def trained(model: Model, unit: Unit) -> tuple[Weights, ...]:
    """The weights of one unit that are trained: all, or adapters beside frozen ones."""
    return tuple(weights for weights in weights_of(model, unit) if weights.adapter or model.lora is None)


def frozen(model: Model, unit: Unit, keys: Keys) -> Held:
    """Parameters of one unit on a rank that are not trained."""
    return _held(model, _frozen(model, unit), keys)


def frozen_bytes(model: Model, unit: Unit, keys: Keys) -> Held:
    """The same in bytes: 16 bits each, matrices of layers in 8 bits as they are multiplied.

    In 4 bits those of 16 stay (what NVIDIA's fine-tuning in NVFP4 keeps is not published).
    """
    narrow = [weights for weights in _frozen(model, unit) if weights.matrix and unit.kind == LAYER]
    fewer = np.minimum(COPIES[keys.precision], 0.0)
    parts = zip(frozen(model, unit, keys), _held(model, narrow, keys), strict=True)
    return Held(*(WIDE_BYTES * every + fewer * of_layers for every, of_layers in parts))


def _frozen(model: Model, unit: Unit) -> list[Weights]:
    return [weights for weights in weights_of(model, unit) if model.lora and not weights.adapter]


def held(model: Model, unit: Unit, keys: Keys) -> Held:
    """Trained parameters of one unit on a rank, with the vocabulary padded.

    With sequence parallelism the gradients of the replicated ones differ between tensor-parallel ranks, which sum them once a
    step (Megatron-LM, finalize_model_grads).
    """
    return _held(model, trained(model, unit), keys)


def _held(model: Model, weights_held: Iterable[Weights], keys: Keys) -> Held:
    total = Held(*(np.zeros(len(keys.tp)) for _ in Held._fields))
    for weights in weights_held:
        mine = weights.elements * _share(model, weights, keys)
        if weights.sharding == EXPERT:
            total.experts[:] += mine
            continue
        total.dense[:] += mine
        if weights.sharding == REPLICATED:
            total.replicated[:] += mine
    return total


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


BACKWARD_PER_FORWARD: Final = 2
"""Input and weight gradient: each as many FLOPs as the forward (Narayanan et al. 2021, arXiv 2104.04473, appendix)."""


def model_flops_per_token(model: Model) -> float:
    """Forward and backward FLOPs per token of a sequence, without recompute or padding.

    Scores and context count the whole square of the sequence, as the formulas of Narayanan et al. 2021 (eq. 3), PaLM
    (arXiv 2204.02311, appendix B) and Korthikanti et al. 2022 (arXiv 2205.05198, appendix A) do; kernels that skip the
    masked half do less. A window counts its tokens. Raises SpecError if the sequence is unknown.
    """
    forward = sum(unit.number * forward_flops(model, unit) for unit in model.units)
    if model.lora is None:
        return (1 + BACKWARD_PER_FORWARD) * forward
    # frozen weights have no gradient: a forward and an input gradient of all matrices, a weight gradient of adapters;
    # attention has no weights, so its backward is whole
    core = sum(unit.number * core_flops(model, unit) for unit in model.units if unit.kind in (LAYER, MTP))
    narrow = sum(unit.number * 2.0 * w.elements for unit in model.units for w in trained(model, unit))
    return 2 * forward + core + narrow


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
    """Forward FLOPs of the core of the sequence mixer of one layer per token: scores and context, or the scan."""
    if unit.mixer == RECURRENT and model.recurrent:
        return sizes_of(model.recurrent).core_flops
    if unit.mixer == COMPRESSED and model.compressed:
        return compressed.core_flops(model, unit, model.compressed, sequence_of(model))
    if unit.mixer != ATTENTION:
        return 0.0
    sequence = model.attended(sequence_of(model))
    keys, scored = min(sequence, unit.window) if unit.window else sequence, 0.0
    if model.indexer:  # it scores all keys, of which attention reads the best
        keys = min(keys, model.indexer.topk)
        scored = 2.0 * sequence * model.indexer.heads * model.indexer.head_dim
    return 2.0 * keys * model.heads * (model.head_dim + model.v_head_dim) + scored


class UnitParameters(NamedTuple):
    """Parameters of one unit. `by_part` has the keys of PARTS that are not 0; `active` are those that one token meets."""

    name: str
    number: int
    parameters: int
    active: int
    by_part: dict[str, int]


class Parameters(NamedTuple):
    """Parameters of a model without padding; `total` and `active` leave out multi-token prediction, as publishers do."""

    units: tuple[UnitParameters, ...]
    total: int
    active: int
    mtp: int  # of the layers of multi-token prediction; embedding and head are shared
    adapters: int  # trained beside them, where the model itself is frozen
    by_part: dict[str, int]  # of the total


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model. Tied weights count once; a router's correction bias is no parameter."""
    units = []
    for unit in model.units:
        parts: dict[str, int] = {}
        for weights in weights_of(model, unit):
            if not weights.adapter:
                parts[weights.part] = parts.get(weights.part, 0) + weights.elements
        whole = sum(parts.values())
        routed = parts.get("routed_experts", 0)
        experts = model.experts
        active = whole - routed + (routed // experts.count * experts.topk if experts else 0)
        units.append(UnitParameters(unit.name, unit.number, whole, active, parts))
    inside = [unit for unit in units if unit.name != MTP]
    by_part = {part: sum(unit.number * unit.by_part.get(part, 0) for unit in inside) for part in PARTS}
    return Parameters(
        units=tuple(units),
        total=sum(unit.number * unit.parameters for unit in inside),
        active=sum(unit.number * unit.active for unit in inside),
        mtp=sum(unit.number * unit.parameters for unit in units if unit.name == MTP),
        adapters=sum(unit.number * w.elements for unit in model.units for w in weights_of(model, unit) if w.adapter),
        by_part={part: count for part, count in by_part.items() if count},
    )
