"""DeepSeek-V4's compressed attention and hyper-connections: FLOPs, kernels, activations, messages of a layer.

Attention: DeepSeek-V4, section 2.3, as in Megatron-LM (experimental_attention_variant/csa.py) and NVIDIA-NeMo/Automodel
(components/models/deepseek_v4/layers.py). Every query reads a window of tokens, and entries that are weighted sums of `ratio`
tokens. Heads and groups of the output are divided over tensor-parallel ranks; the one head of keys, the compressor and the
indexer are on all of them. Hyper-connections: arXiv 2512.24880, sections 4.1 to 4.3.
"""

import numpy as np

from sim_core.arrays import Floats
from sim_core.models import traffic
from sim_core.models.description import Compressed, Indexer, Model, Unit
from sim_core.models.keys import Shape
from sim_core.models.rows import FUSED, Rows
from sim_core.models.stack import Stack
from sim_core.terms import FORWARD, INPUT_GRADIENT

WIDE = 2.0
"""Bytes of an element in 16 bits."""
POOLED = 2
"""Projections of a compressor: what is summed, and the weights of the sum."""


def overlap_of(compressed: Compressed, ratio: int) -> int:
    """Widths of a head that a compressor projects to: two where entries overlap, none without entries."""
    return (2 if ratio == compressed.chosen else 1) if ratio else 0


def keys_read(compressed: Compressed, indexer: Indexer | None, ratio: int, sequence: float) -> tuple[float, float]:
    """What a query reads on average: tokens of its window, entries."""
    window = min(float(compressed.window), sequence)
    near = window - window * (window - 1) / (2 * sequence)
    if not ratio:
        return near, 0.0
    entries = sequence / ratio
    if ratio != compressed.chosen or indexer is None:
        return near, entries / 2
    best = min(float(indexer.topk), entries)
    return near, best * (1 - best / (2 * entries))


def core_flops(model: Model, unit: Unit, compressed: Compressed, sequence: int) -> float:
    """Of a token, forward: scores and context, the indexer over all entries (Megatron-Bridge's flop_utils.py, dsv4_hybrid)."""
    _, entries = keys_read(compressed, model.indexer, unit.ratio, sequence)
    flops = 4.0 * model.heads * model.head_dim * (min(compressed.window, sequence) + entries)
    if model.indexer and unit.ratio == compressed.chosen:
        flops += 2.0 * model.indexer.heads * model.indexer.head_dim * (sequence / unit.ratio)
    return flops


def add_operators(rows: Rows, model: Model, unit: Unit, compressed: Compressed, shape: Shape, stack: Stack) -> None:
    """Projections, compressor, indexer, core attention, the grouped projection of its output."""
    h, d, ratio = model.hidden, model.head_dim, unit.ratio
    rows.gemm("q_down", shape.local, compressed.q_rank, h)
    rows.gemm("q_up", shape.tokens, shape.heads * d, compressed.q_rank)
    rows.gemm("kv_down", shape.local, d, h)
    rows.both("qk_norm", stack.norm_bytes, shape.local * (compressed.q_rank + d), kernels=(2.0, 2.0))
    rows.both("rotary", stack.rotary_bytes, shape.tokens * (shape.heads + 1) * d)
    if ratio:
        _pool(rows, "compressor", model, shape, overlap_of(compressed, ratio) * d)
    if model.indexer and ratio == compressed.chosen:  # scores of all entries before a query, on every tensor-parallel rank
        indexer = model.indexer
        rows.gemm("indexer_q", shape.tokens, indexer.heads * indexer.head_dim, compressed.q_rank)
        _pool(rows, "indexer_k", model, shape, 2 * indexer.head_dim)
        rows.gemm("indexer_weights", shape.tokens, indexer.heads, h, linear=False)
        add_scores(rows, indexer, shape, shape.sequence / compressed.chosen)
    keys = sum(keys_read(compressed, model.indexer, ratio, shape.sequence))
    queries = shape.tokens * shape.heads
    rows.product("attention", FORWARD, queries, keys, 2.0 * d, kind=FUSED, core=True)
    rows.product("attention", INPUT_GRADIENT, queries, keys, 5.0 * d, kind=FUSED)  # scores again
    groups = compressed.out_groups / shape.tp
    rows.gemm("out_down", shape.tokens, compressed.out_rank, model.heads * d / compressed.out_groups, batch=groups)
    rows.gemm("projection", shape.tokens, h, groups * compressed.out_rank)


def _pool(rows: Rows, name: str, model: Model, shape: Shape, width: int) -> None:
    """Two projections in one product, not in 8 bits, and their weighted sum."""
    rows.gemm(name, shape.local, POOLED * width, model.hidden, linear=False)
    rows.both(f"{name}_pool", traffic.POOL, shape.local * POOLED * width, kernels=(2.0, 3.0))


def add_scores(rows: Rows, indexer: Indexer, shape: Shape, keys: float) -> None:
    """An indexer's scores of the causal half of `keys`, their gradients, and the choice of the best."""
    queries, seen = shape.sequence / shape.cp, keys / 2
    batch, size = shape.micro_batch * indexer.heads, float(indexer.head_dim)
    rows.product("indexer_scores", FORWARD, queries, seen, size, batch=batch, linear=True, kind=FUSED)
    rows.product("indexer_scores_q", INPUT_GRADIENT, queries, size, seen, batch=batch, kind=FUSED)
    rows.product("indexer_scores_k", INPUT_GRADIENT, seen, size, queries, batch=batch, kind=FUSED)
    rows.memory("indexer_topk", FORWARD, traffic.TOPK * shape.micro_batch * queries * seen, kernels=2.0)


def kept_bytes(model: Model, unit: Unit, compressed: Compressed, shape: Shape) -> Floats:
    """Bytes inside the mixer: latents, queries, keys, what compressors sum, entries, the output and its narrow projection."""
    d, q = model.head_dim, compressed.q_rank
    pooled, entries = overlap_of(compressed, unit.ratio) * d, d / unit.ratio if unit.ratio else 0.0
    whole = 0.0  # of what each tensor-parallel rank holds for all tokens
    if model.indexer and unit.ratio == compressed.chosen:
        pooled += 2 * model.indexer.head_dim
        entries += model.indexer.head_dim / unit.ratio
        chosen = min(model.indexer.topk, shape.sequence / unit.ratio)
        whole += WIDE * model.indexer.heads * model.indexer.head_dim + 4.0 * chosen  # 4-byte indices
    local = WIDE * (q + d) + shape.stored * q + 4.0 * POOLED * pooled  # compressors work in 32 bits
    divided = WIDE * 2 * shape.heads * d + shape.stored * shape.heads * d + 4.0 * shape.heads  # sums of the softmax
    divided = divided + (WIDE + shape.stored) * compressed.out_groups * compressed.out_rank / shape.tp
    return np.asarray(shape.local * local + shape.tokens * (divided + whole + WIDE * (d + entries)))


def add_streams(rows: Rows, model: Model, shape: Shape, name: str) -> None:
    """A sublayer's gates from all streams, the streams joined before it, and its output spread over them after.

    Fused kernels read and write (4n + 2) h elements of a token (arXiv 2512.24880, section 4.3.1): gates n; joining n and 1;
    spreading 2n + 1. Their gradients (6n + 3) h: read those of the streams, streams twice, what is added to, input and output;
    write both kinds. The product of the gates is narrow: its time is that of reading the streams.
    """
    n, elements = model.residual_streams, shape.local * model.hidden
    rows.both(f"{name}_streams", (WIDE * (4 * n + 2), WIDE * (6 * n + 3)), elements, kernels=(3.0, 4.0))


def add_joined(rows: Rows, model: Model, shape: Shape) -> None:
    """The streams joined before the head: read for the gates and for the sum; as often again in the backward, and gradients."""
    n = model.residual_streams
    rows.both("head_streams", (WIDE * (2 * n + 1), WIDE * (4 * n + 1)), shape.local * model.hidden)


def streams_bytes(model: Model, shape: Shape, sublayers: int) -> Floats:
    """Bytes that hyper-connections keep beside a plain residual: of each sublayer all streams, and its output."""
    if model.residual_streams == 1:
        return np.zeros(len(shape.tp))
    return WIDE * shape.local * model.hidden * sublayers * (model.residual_streams + 1)


def streams_saved(model: Model, shape: Shape, sublayers: int) -> Floats:
    """Bytes of them, and of joined inputs, that are not kept where streams are computed again from those of a layer's begin."""
    n = model.residual_streams
    if n == 1 or not sublayers:
        return np.zeros(len(shape.tp))
    return WIDE * shape.local * model.hidden * (sublayers * (n + 1) - n)
