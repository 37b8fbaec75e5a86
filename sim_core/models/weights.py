"""The weights of a model, unit by unit: how many, what a rank has of them, and the FLOPs that a token costs with them."""

from collections.abc import Iterable
from typing import NamedTuple

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
    Compressed,
    Lora,
    Mla,
    Model,
    Recurrent,
    Unit,
)
from sim_core.models.keys import Keys, padded_vocabulary
from sim_core.models.precision import FROZEN
from sim_core.models.recurrent import sizes_of

REPLICATED = 0
"""Every rank of a tensor-parallel group holds all of it."""
TENSOR = 1
"""Divided among tensor-parallel ranks."""
KV_HEADS = 2
"""The same, but a rank holds at least one key-value head."""
EXPERT = 3
"""Divided among expert-parallel and expert tensor-parallel ranks."""
VOCABULARY = 4
"""Rows of the vocabulary: padded, then divided among tensor-parallel ranks."""

PARTS = (
    "embedding", "positions", "attention", "recurrent", "mlp", "routed_experts", "shared_experts", "router", "norms", "streams",
    "head", "mtp", "adapters",
)  # fmt: skip
TABLES = ("embedding", "positions", "head")
"""Parts whose matrices Muon leaves to Adam."""
NORM_WEIGHTS = {"layernorm": 2, "rmsnorm": 1, "layernorm_unbiased": 1, "layernorm_plain": 0}
"""Of an element of its input."""
WIDE_BYTES = 2.0
"""Of an element of 16 bits."""


class Matrix(NamedTuple):
    """Matrices that an optimizer sees one by one: `number` of `rows` outputs x `columns` inputs each.

    As Megatron-LM stores them (core/optimizer/emerging_optimizers.py): queries, keys, values apart (--muon-split-qkv), both
    halves of a gated MLP as one.
    """

    rows: int
    columns: int
    number: int = 1
    by_rows: bool = True  # tensor parallelism divides the rows, else the columns


class Weights(NamedTuple):
    """Weights of one part of a unit that are divided alike: matrices, or vectors (biases and norms)."""

    part: str  # one of PARTS
    sharding: int
    matrices: tuple[Matrix, ...] = ()
    vectors: int = 0  # weights in them
    adapter: bool = False  # trained beside frozen weights

    @property
    def elements(self) -> int:
        """How many weights."""
        return sum(matrix.rows * matrix.columns * matrix.number for matrix in self.matrices) + self.vectors


def weights_of(model: Model, unit: Unit) -> list[Weights]:
    """The weights of one unit (one layer of a kind)."""
    h, norm, n = model.hidden, norm_width(model), model.residual_streams
    joined = [Weights("streams", REPLICATED, (Matrix(n, n * h),)), Weights("streams", REPLICATED, vectors=n + 1)] * (n > 1)
    if unit.kind == EMBEDDING:
        found = [Weights("embedding", VOCABULARY, (Matrix(model.vocabulary, h),))]
        found += [Weights("positions", REPLICATED, (Matrix(model.positions, h),))] if model.positions else []
        return found + ([Weights("norms", REPLICATED, vectors=norm)] if model.embedding_norm else [])
    if unit.kind == HEAD:
        head = [] if model.tied else [Weights("head", VOCABULARY, (Matrix(model.vocabulary, h),))]
        head += [Weights("head", VOCABULARY, vectors=model.vocabulary)] * model.head_bias
        return [Weights("norms", REPLICATED, vectors=norm), *head, *joined]
    found = []
    if unit.mixer == ATTENTION:
        found += _latents(model, model.mla) if model.mla else _attention(model)
    elif unit.mixer == COMPRESSED and model.compressed:
        found += _compressed(model, unit, model.compressed)
    if state := model.state_of(unit):
        found += _recurrent(model, state)
    if unit.channel == MLP:
        found += _experts(model) if unit.moe else _mlp(model, "mlp", model.ffn or 0)
    found.append(Weights("norms", REPLICATED, vectors=(model.norms_per_layer * unit.blocks + 1) // 2 * norm))
    if n > 1:  # hyper-connections of each block
        gates = (n + 2) * n
        found += [
            Weights("streams", REPLICATED, (Matrix(gates, n * h, unit.blocks),)),
            Weights("streams", REPLICATED, vectors=unit.blocks * (gates + 3)),
        ]
    if model.lora:
        found += _adapters(model, unit, model.lora)
    if unit.kind == MTP:  # DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of 2h to h, a layer, a norm
        found += [Weights("mtp", TENSOR, (Matrix(h, 2 * h),)), Weights("norms", REPLICATED, vectors=3 * norm), *joined]
    return found


def _compressed(model: Model, unit: Unit, mixer: Compressed) -> list[Weights]:
    h, d = model.hidden, model.head_dim
    width, overlap = model.heads * d, compressed.overlap_of(mixer, unit.ratio)
    indexer = model.indexer if unit.ratio == mixer.chosen else None
    pools = [(overlap, d)] if overlap else []
    scoring = []
    if indexer:
        scoring = [Matrix(indexer.heads * indexer.head_dim, mixer.q_rank), Matrix(indexer.heads, h)]
        pools.append((2, indexer.head_dim))
    pooling = [Matrix(each * size, h, compressed.POOLED) for each, size in pools]
    vectors = mixer.q_rank + d + sum((unit.ratio * each + 1) * size for each, size in pools)
    output = (
        Matrix(mixer.out_rank, width // mixer.out_groups, mixer.out_groups),
        Matrix(h, mixer.out_groups * mixer.out_rank, by_rows=False),
    )
    return [
        Weights("attention", REPLICATED, (Matrix(mixer.q_rank, h), Matrix(d, h))),
        Weights("attention", TENSOR, (Matrix(width, mixer.q_rank),)),
        Weights("attention", REPLICATED, (*scoring, *pooling)),
        Weights("attention", TENSOR, output),
        Weights("attention", TENSOR, vectors=model.heads),
        Weights("attention", REPLICATED, vectors=vectors),
    ]


def _recurrent(model: Model, mixer: Recurrent) -> list[Weights]:
    """Of a mixer with a state; heads and groups are divided, the narrow first projections of gates are not."""
    h, sizes = model.hidden, sizes_of(mixer)
    weights = [
        Weights("recurrent", TENSOR, (Matrix(sizes.projected, h), Matrix(h, sizes.inner, by_rows=False))),
        Weights("recurrent", TENSOR, vectors=mixer.conv * sizes.convolved + sizes.vectors),
        Weights("recurrent", TENSOR if sizes.normed == sizes.inner else REPLICATED, vectors=sizes.normed),
    ]
    if sizes.low_rank:
        weights += [
            Weights("recurrent", REPLICATED, (Matrix(sizes.low_rank, h, 2),)),
            Weights("recurrent", TENSOR, (Matrix(sizes.inner, sizes.low_rank, 2),)),
        ]
    return weights


def norm_width(model: Model, width: int | None = None) -> int:
    """Weights of a norm over `width` (default: the hidden size)."""
    return (width or model.hidden) * NORM_WEIGHTS[model.norm]


def _latents(model: Model, mla: Mla) -> list[Weights]:
    """Of attention with latents; the lightning indexer is on every tensor-parallel rank (Megatron-LM, dsa.py)."""
    h, a, indexer = model.hidden, model.heads, model.indexer
    q, kv, rope = mla.q_rank or 0, mla.kv_rank, mla.rope_head_dim
    down = ([Matrix(q, h)] if q else []) + [Matrix(kv + rope, h)]
    up = Matrix(a * model.head_dim, q or h), Matrix(a * (mla.nope_head_dim + mla.v_head_dim), kv)
    output = Matrix(h, a * mla.v_head_dim, by_rows=False)
    weights = [Weights("attention", REPLICATED, tuple(down))]
    if indexer:
        width, d = indexer.heads * indexer.head_dim, indexer.head_dim
        weights += [
            Weights("attention", REPLICATED, (Matrix(width, q or h), Matrix(d, h), Matrix(indexer.heads, h))),
            Weights("attention", REPLICATED, vectors=2 * d),
        ]
    weights += [Weights("attention", TENSOR, up), Weights("attention", TENSOR, (output,))]
    vectors = (h if model.projection_bias else 0) + (norm_width(model, kv + q) if model.qk_norm else 0)
    vectors += kv + rope + q if model.qkv_bias else 0
    return [*weights, Weights("attention", REPLICATED, vectors=vectors)]


def _attention(model: Model) -> list[Weights]:
    h, a, k, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    weights = [
        Weights("attention", TENSOR, (Matrix(a * d, model.q_rank or h, 2 if model.output_gate else 1),)),
        Weights("attention", KV_HEADS, (Matrix(k * d, h, 2),)),
        Weights("attention", TENSOR, (Matrix(h, a * d, by_rows=False),)),
    ]
    vectors = h if model.projection_bias else 0
    if model.q_rank:
        weights.append(Weights("attention", REPLICATED, (Matrix(model.q_rank, h),)))
        vectors += norm_width(model, model.q_rank)
    if model.qkv_bias:
        own = a * d * (2 if model.output_gate else 1)
        weights += [Weights("attention", TENSOR, vectors=own), Weights("attention", KV_HEADS, vectors=2 * k * d)]
    if model.attention_sinks:
        weights.append(Weights("attention", TENSOR, vectors=a))
    if model.qk_norm_whole:
        weights += [Weights("attention", TENSOR, vectors=a * d), Weights("attention", KV_HEADS, vectors=k * d)]
    elif model.qk_norm:
        vectors += 2 * norm_width(model, d)
    return [*weights, Weights("attention", REPLICATED, vectors=vectors)]


def _adapters(model: Model, unit: Unit, lora: Lora) -> list[Weights]:
    """Pairs of narrow matrices beside the targets of a layer; the side of a target that is divided is divided here, too."""
    a, d, first = model.heads, model.head_dim, 2 if model.gated else 1
    divided: dict[str, int] = {}  # the side of each target
    if unit.mixer == ATTENTION:
        divided |= {"qkv": (a + 2 * model.kv_heads) * d, "projection": a * model.v_head_dim}
    if unit.channel == MLP and not unit.moe:
        divided |= {"fc1": first * (model.ffn or 0), "fc2": model.ffn or 0}
    weights = []
    for name in (name for name in lora.targets if name in divided):
        whole, part = Matrix(lora.rank, model.hidden, lora.pairs(name)), Matrix(divided[name], lora.rank)
        if name in ("projection", "fc2"):  # the input is divided, and the adapter's first matrix
            whole, part = Matrix(model.hidden, lora.rank), Matrix(lora.rank, divided[name], by_rows=False)
        weights += [Weights("adapters", REPLICATED, (whole,), adapter=True), Weights("adapters", TENSOR, (part,), adapter=True)]
    return weights


def _pair(model: Model, ffn: int, width: int, number: int = 1) -> tuple[Matrix, Matrix]:
    """The matrices of an MLP."""
    first = 2 if model.gated else 1
    return Matrix(first * ffn, width, number), Matrix(width, ffn, number, by_rows=False)


def _mlp(model: Model, part: str, ffn: int) -> list[Weights]:
    """A dense MLP, or that of all shared experts."""
    weights = [Weights(part, TENSOR, _pair(model, ffn, model.hidden))]
    if model.mlp_bias:
        weights += [
            Weights(part, TENSOR, vectors=(2 if model.gated else 1) * ffn),
            Weights(part, REPLICATED, vectors=model.hidden),
        ]
    return weights


def _experts(model: Model) -> list[Weights]:
    experts, h = model.experts, model.hidden
    if experts is None:
        raise ValueError(f"{model.name} has no experts")
    count, latent, first = experts.count, experts.latent, 2 if model.gated else 1
    weights = [
        Weights("router", REPLICATED, (Matrix(count, h),)),
        Weights("routed_experts", EXPERT, _pair(model, experts.ffn, latent or h, count)),
    ]
    if latent:
        weights.append(Weights("shared_experts", TENSOR, (Matrix(latent, h), Matrix(h, latent, by_rows=False))))
    if experts.shared_gate:
        weights.append(Weights("shared_experts", REPLICATED, (Matrix(1, h),)))
    if experts.router_bias:
        weights.append(Weights("router", REPLICATED, vectors=count))
    if model.mlp_bias:
        weights.append(Weights("routed_experts", EXPERT, vectors=count * (first * experts.ffn + h)))
    return weights + (_mlp(model, "shared_experts", experts.shared_ffn) if experts.shared_ffn else [])


class Held(NamedTuple):
    """Parameters of one unit on a rank, [n]. Data-parallel groups: dense all_gpus / (tp cp pp), experts / (etp ep pp)."""

    dense: Floats
    experts: Floats
    replicated: Floats  # of the dense ones: those that every tensor-parallel rank holds


def trained(model: Model, unit: Unit) -> list[Weights]:
    """The weights of one unit that are trained: all, or adapters beside frozen ones."""
    return [weights for weights in weights_of(model, unit) if weights.adapter or model.lora is None]


def _still(model: Model, unit: Unit) -> list[Weights]:
    """Those that are not."""
    return [weights for weights in weights_of(model, unit) if model.lora and not weights.adapter]


def frozen(model: Model, unit: Unit, keys: Keys) -> Held:
    """Parameters of one unit on a rank that are not trained."""
    return _held(model, _still(model, unit), keys)


def frozen_bytes(model: Model, unit: Unit, keys: Keys) -> Held:
    """The same in bytes: 16 bits each, matrices of layers as they are multiplied, or as the base of adapters is kept.

    Llama 2 70B with adapters ran so in 8 bits on H200s, at tp 1 (MLPerf v5.0), where two copies of 69 GB leave nothing.
    """
    narrow = [weights for weights in _still(model, unit) if weights.matrices and unit.kind == LAYER]
    kept = model.lora.base_bytes if model.lora else WIDE_BYTES
    fewer = (FROZEN[keys.precision] if kept == WIDE_BYTES else kept) - WIDE_BYTES
    parts = zip(frozen(model, unit, keys), _held(model, narrow, keys), strict=True)
    return Held(*(WIDE_BYTES * every + fewer * of_layers for every, of_layers in parts))


def held(model: Model, unit: Unit, keys: Keys) -> Held:
    """Trained parameters of one unit on a rank, with the vocabulary padded.

    With sequence parallelism the gradients of the replicated ones differ between tensor-parallel ranks, which sum them once a
    step (Megatron-LM, finalize_model_grads).
    """
    return _held(model, trained(model, unit), keys)


def _held(model: Model, weights_held: Iterable[Weights], keys: Keys) -> Held:
    tp = keys.tp.astype(float)
    share = {
        REPLICATED: np.ones(len(tp)),
        TENSOR: 1 / tp,
        KV_HEADS: np.maximum(1 / tp, 1 / model.kv_heads),
        VOCABULARY: padded_vocabulary(model, keys.tp) / model.vocabulary / tp,
        EXPERT: 1.0 / (keys.ep * keys.etp),
    }
    total = Held(*(np.zeros(len(tp)) for _ in Held._fields))
    for weights in weights_held:
        mine = weights.elements * share[weights.sharding]
        (total.experts if weights.sharding == EXPERT else total.dense)[:] += mine
        if weights.sharding == REPLICATED:
            total.replicated[:] += mine
    return total


BACKWARD_PER_FORWARD = 2
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
    return 2 * forward + core + sum(unit.number * 2.0 * w.elements for unit in model.units for w in trained(model, unit))


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
    elements, experts = 0.0, model.experts
    for weights in weights_of(model, unit):
        if weights.matrices:
            routed = experts is not None and weights.part == "routed_experts"
            elements += weights.elements * (experts.topk / experts.count if experts and routed else 1)
    return 2 * elements + core_flops(model, unit) + (head if unit.kind != LAYER else 0.0)


def core_flops(model: Model, unit: Unit) -> float:
    """Forward FLOPs of the core of the sequence mixer of one layer per token: scores and context, or the scan."""
    state = model.state_of(unit)
    scan = sizes_of(state).core_flops if state else 0.0
    if unit.mixer == COMPRESSED and model.compressed:
        return compressed.core_flops(model, unit, model.compressed, sequence_of(model))
    if unit.mixer != ATTENTION:
        return scan
    sequence = model.attended(sequence_of(model))
    keys, scored = min(sequence, unit.window) if unit.window else sequence, 0.0
    if model.indexer:  # it scores all keys, of which attention reads the best
        keys = min(keys, model.indexer.topk)
        scored = 2.0 * sequence * model.indexer.heads * model.indexer.head_dim
    return 2.0 * keys * model.heads * (model.head_dim + model.v_head_dim) + scored + scan


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
