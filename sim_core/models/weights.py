"""The weights of a model, unit by unit: how many, and how tensor and expert parallelism divide them."""

from __future__ import annotations

from typing import Final, NamedTuple

from sim_core.models.description import EMBEDDING, HEAD, MTP, Model, Unit

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
    "mlp",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "head",
    "mtp",
)


class Weights(NamedTuple):
    """Weights of one part of a unit."""

    part: str  # one of PARTS
    elements: int
    sharding: int
    matrix: bool = True  # else a vector: a bias or a norm


def weights_of(model: Model, unit: Unit) -> tuple[Weights, ...]:
    """The weights of one unit (one layer of a kind)."""
    h, norm = model.hidden, norm_width(model)
    if unit.kind == EMBEDDING:
        positions = (Weights("positions", model.positions * h, REPLICATED),) if model.positions else ()
        norms = (Weights("norms", norm, REPLICATED, False),) if model.embedding_norm else ()
        return (Weights("embedding", model.vocabulary * h, VOCABULARY), *positions, *norms)
    if unit.kind == HEAD:
        head = () if model.tied else (Weights("head", model.vocabulary * h, VOCABULARY),)
        return (Weights("norms", norm, REPLICATED, False), *head)
    layer = (
        *_attention(model),
        *(_experts(model) if unit.moe else _mlp(model, "mlp", model.ffn or 0)),
        Weights("norms", model.norms_per_layer * norm, REPLICATED, False),
    )
    if unit.kind == MTP:  # DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of 2h to h, a layer, a norm
        return (*layer, Weights("mtp", 2 * h * h, TENSOR), Weights("norms", 3 * norm, REPLICATED, False))
    return layer


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
        matrices = (Weights("attention", down, REPLICATED), Weights("attention", up, TENSOR), projection)
        return (*matrices, Weights("attention", vectors, REPLICATED, False)) if vectors else matrices
    found = [Weights("attention", h * a * d, TENSOR), Weights("attention", 2 * h * k * d, KV_HEADS), projection]
    if model.qkv_bias:
        found += [Weights("attention", a * d, TENSOR, False), Weights("attention", 2 * k * d, KV_HEADS, False)]
    if model.attention_sinks:
        found.append(Weights("attention", a, TENSOR, False))
    if model.qk_norm:
        vectors += 2 * norm_width(model, d)
    if vectors:
        found.append(Weights("attention", vectors, REPLICATED, False))
    return tuple(found)


def _mlp(model: Model, part: str, ffn: int) -> tuple[Weights, ...]:
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
    matrices = experts.count * (first + 1) * model.hidden * experts.ffn
    found = [
        Weights("router", model.hidden * experts.count, REPLICATED),
        Weights("routed_experts", matrices, EXPERT),
    ]
    if experts.router_bias:
        found.append(Weights("router", experts.count, REPLICATED, False))
    if model.mlp_bias:
        found.append(Weights("routed_experts", experts.count * (first * experts.ffn + model.hidden), EXPERT, False))
    if experts.shared_ffn:
        found += _mlp(model, "shared_experts", experts.shared_ffn)
    return tuple(found)
