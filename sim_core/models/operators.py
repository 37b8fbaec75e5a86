"""The operators of each unit of a model: embedding, layer, head with loss, multi-token prediction; as columns over keys."""

import numpy as np

from sim_core.models import compressed, recurrent, traffic
from sim_core.models.description import COMPRESSED, EMBEDDING, HEAD, LAYER, MTP, NONE, Experts, Mla, Model, Unit
from sim_core.models.keys import Keys, Shape, shape_of
from sim_core.models.rows import GROUPED_GEMM, AttentionShape, Operators, Rows
from sim_core.models.stack import Stack
from sim_core.models.weights import WIDE_BYTES, held, sequence_of
from sim_core.terms import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

FUSED_CASTS = (("experts_fc2", FORWARD), ("experts_fc1", INPUT_GRADIENT))
"""GEMMs whose operand the fused kernel before them writes in 8 bits: the activation's output, and its input's gradient."""


def _layer(rows: Rows, model: Model, unit: Unit, shape: Shape, stack: Stack) -> None:
    """All operators of one layer, in forward order; backward rows stand beside their forward."""
    if unit.mixer != NONE:
        _norm(rows, model, shape, stack, "attention_norm")
        if state := model.state_of(unit):
            recurrent.add_operators(rows, model, state, shape)
            if unit.attends:  # besides, whose output is added
                rows.both("mixers_sum", traffic.RESIDUAL, shape.local * model.hidden)
        if unit.mixer == COMPRESSED and model.compressed:
            compressed.add_operators(rows, model, unit, model.compressed, shape, stack)
        elif unit.attends:
            _attention(rows, model, unit, shape, stack)
        _residual(rows, model, shape, "attention")
    if unit.channel == NONE:
        return
    if model.norms_per_layer > 1:
        _norm(rows, model, shape, stack, "mlp_norm")
    if unit.moe and model.norms_per_layer == 3:
        _norm(rows, model, shape, stack, "shared_norm")
    if unit.moe and model.experts:
        _experts(rows, model, model.experts, shape, stack)
    else:
        _mlp(rows, model, shape, stack, "", model.ffn or 0)
    _residual(rows, model, shape, "mlp")


def _attention(rows: Rows, model: Model, unit: Unit, shape: Shape, stack: Stack) -> None:
    """Projections, core attention, the projection of its output."""
    if model.mla:
        _latent_projections(rows, model, model.mla, shape, stack)
    else:
        _projections(rows, model, shape, stack)
    if any(stack.attention_copies):
        rows.both("attention_copies", stack.attention_copies, shape.tokens * shape.heads * model.head_dim, kernels=(6.0, 8.0))
    if model.attention_sinks and unit.window and not (stack.fused_window_sinks or stack.fp8_attention):
        rows.both("window_sinks", traffic.WINDOW_SINKS, shape.tokens * shape.heads * model.head_dim)
    if stack.flash_attention:
        rows.flash(_attention_shape(model, unit, shape))
        _ring(rows, model, shape, stack)
        # around attention in 8 bits queries, keys and values are cast, its output cast back; backward the gradients of each
        # (Transformer Engine, attention/dot_product_attention/backends.py)
        narrow = np.where(shape.stored < WIDE_BYTES, 1.0, 0.0)
        width = (shape.heads + shape.kv_heads) * (model.head_dim + model.v_head_dim)
        for phase in (FORWARD, INPUT_GRADIENT) if stack.fp8_attention else ():
            rows.memory("attention_casts", phase, traffic.CAST * narrow * shape.tokens * width, kernels=2 * narrow)
    else:
        _unfused_attention(rows, model, shape)
    if model.output_gate:
        rows.both("output_gate", traffic.OUTPUT_GATE, shape.tokens * shape.heads * model.v_head_dim)
    rows.gemm("projection", shape.tokens, model.hidden, shape.heads * model.v_head_dim)
    if model.projection_bias:
        rows.memory("projection_bias", WEIGHT_GRADIENT, traffic.BIAS_GRADIENT * shape.local * model.hidden)


def _norm(rows: Rows, model: Model, shape: Shape, stack: Stack, name: str) -> None:
    """The norm before a block; with four norms per layer one after it, too."""
    after = max(model.norms_per_layer // 2, 1)
    rows.both(name, norm_bytes(model, stack), after * shape.local * model.hidden, kernels=(after, after))


def norm_bytes(model: Model, stack: Stack) -> tuple[float, float]:
    """Traffic of a norm per element; PyTorch has LayerNorm in one kernel."""
    return stack.norm_bytes if model.norm == "rmsnorm" else traffic.NORM


def _residual(rows: Rows, model: Model, shape: Shape, block: str) -> None:
    if model.residual_streams > 1:
        compressed.add_streams(rows, model, shape, block)
        return
    elements = shape.local * model.hidden
    forward, backward = traffic.RESIDUAL
    if model.hidden_dropout:
        forward += traffic.DROPOUT[0]
        rows.memory(f"{block}_residual_dropout", INPUT_GRADIENT, traffic.DROPOUT[1] * elements)
    rows.both(f"{block}_residual", (forward, backward), elements)


def _projections(rows: Rows, model: Model, shape: Shape, stack: Stack) -> None:
    """Queries, keys and values in one GEMM; their norm and rotation."""
    queries = shape.heads * (2 if model.output_gate else 1) * model.head_dim
    width = queries + 2 * shape.kv_heads * model.head_dim
    if model.q_rank:
        rows.gemm("q_down", shape.local, model.q_rank, model.hidden)
        rows.both("q_norm", norm_bytes(model, stack), shape.local * model.q_rank)
        rows.gemm("q_up", shape.tokens, queries, model.q_rank)
    rows.gemm("qkv", shape.tokens, width - queries if model.q_rank else width, model.hidden)
    if model.qkv_bias:
        rows.memory("qkv_bias", WEIGHT_GRADIENT, traffic.BIAS_GRADIENT * shape.tokens * width)
    turned = shape.tokens * (shape.heads + shape.kv_heads) * model.head_dim
    if model.qk_norm or model.qk_norm_whole:
        rows.both("qk_norm", norm_bytes(model, stack), turned, kernels=(2.0, 2.0))
    if model.position == "rotary":
        rows.both("rotary", stack.rotary_bytes, turned)


def _latent_projections(rows: Rows, model: Model, mla: Mla, shape: Shape, stack: Stack) -> None:
    """Megatron-LM (core, multi_latent_attention.py): down projections are not divided by tp, but work on local tokens."""
    if mla.q_rank:
        rows.gemm("q_down", shape.local, mla.q_rank, model.hidden)
        rows.gemm("q_up", shape.tokens, shape.heads * model.head_dim, mla.q_rank)
    else:
        rows.gemm("q", shape.tokens, shape.heads * model.head_dim, model.hidden)
    rows.gemm("kv_down", shape.local, mla.kv_rank + mla.rope_head_dim, model.hidden)
    rows.gemm("kv_up", shape.tokens, shape.heads * (mla.nope_head_dim + mla.v_head_dim), mla.kv_rank)
    if model.qk_norm:
        rows.both("qk_norm", norm_bytes(model, stack), shape.local * ((mla.q_rank or 0) + mla.kv_rank), kernels=(2.0, 2.0))
    if model.position == "rotary":  # queries and keys are copied whole: each head's key gets the rotated part
        rows.both("rotary", stack.rotary_bytes, 2 * shape.tokens * shape.heads * model.head_dim, kernels=(2.0, 2.0))
    if indexer := model.indexer:  # on every tensor-parallel rank; it scores the causal half of all keys
        rows.gemm("indexer_q", shape.tokens, indexer.heads * indexer.head_dim, mla.q_rank or model.hidden)
        rows.gemm("indexer_k", shape.tokens, indexer.head_dim, model.hidden)
        rows.gemm("indexer_weights", shape.tokens, indexer.heads, model.hidden, linear=False)
        compressed.add_scores(rows, indexer, shape, model.attended(shape.sequence))


def _attention_shape(model: Model, unit: Unit, shape: Shape) -> AttentionShape:
    chunked = bool(model.window and model.window.chunked and unit.window and unit.window < shape.sequence)
    window = unit.window
    if model.indexer and unit.attends:  # what it chose is as many pairs as a window of that width has
        window = min(window or model.indexer.topk, model.indexer.topk)
    text = model.attended(shape.sequence)
    length = min(float(unit.window), text) if chunked else text  # a chunk is a sequence of its own, as is a packed one
    return AttentionShape(
        sequences=shape.micro_batch * (shape.sequence / length),
        queries=length / shape.ring,
        keys=np.full(len(shape.tp), length),
        heads=shape.heads / shape.a2a,
        kv_heads=np.maximum(shape.kv_heads / shape.a2a, 1.0),
        head_dim=model.head_dim,
        v_head_dim=model.v_head_dim,
        window=0 if chunked else window,
    )


def _ring(rows: Rows, model: Model, shape: Shape, stack: Stack) -> None:
    """What a ring adds to attention: the output of each step is scaled and added to that of the steps before; so are gradients.

    Transformer Engine (context_parallel.py): of the causal half, a step has three quarters of a rank's queries and of the keys
    that it is given, on average.
    """
    further = np.where(shape.gathers == 1, 0.0, shape.ring - 1)
    if not further.any():
        return
    values, queries = shape.heads * model.v_head_dim, shape.heads * model.head_dim
    keys = shape.kv_heads * (model.head_dim + model.v_head_dim)
    forward, backward = stack.ring_sum_bytes
    rows.memory("attention_sums", FORWARD, forward * further * shape.tokens * values, kernels=further, core=True)
    rows.memory("attention_sums", INPUT_GRADIENT, backward * further * shape.tokens * (queries + keys), kernels=2 * further)


def _unfused_attention(rows: Rows, model: Model, shape: Shape) -> None:
    """Scores, softmax, dropout and context as kernels of their own on the whole square (Megatron-LM before FlashAttention)."""
    s, d, v = shape.sequence, model.head_dim, model.v_head_dim
    queries = s / shape.cp
    batches = shape.micro_batch * shape.heads
    scores = batches * queries * s
    values = shape.tokens * shape.heads * v
    rows.product("scores", FORWARD, queries, s, d, batch=batches, core=True)
    rows.memory("softmax", FORWARD, traffic.SOFTMAX[0] * scores, core=True)
    if model.attention_dropout:
        rows.memory("attention_dropout", FORWARD, traffic.UNFUSED_DROPOUT[0] * scores, core=True)
    rows.product("context", FORWARD, queries, v, s, batch=batches, core=True)
    rows.memory("context_transpose", FORWARD, traffic.CONTEXT_TRANSPOSE * values, core=True)
    rows.product("context_values", INPUT_GRADIENT, s, v, queries, batch=batches)
    rows.product("context_scores", INPUT_GRADIENT, queries, s, v, batch=batches)
    if model.attention_dropout:
        rows.memory("attention_dropout", INPUT_GRADIENT, traffic.UNFUSED_DROPOUT[1] * scores)
    rows.memory("softmax", INPUT_GRADIENT, traffic.SOFTMAX[1] * scores)
    rows.product("scores_queries", INPUT_GRADIENT, queries, d, s, batch=batches)
    rows.product("scores_keys", INPUT_GRADIENT, s, d, queries, batch=batches)
    rows.memory("qkv_gradient_concat", INPUT_GRADIENT, traffic.QKV_GRADIENT_CONCAT * shape.tokens * shape.heads * d)


def _mlp(rows: Rows, model: Model, shape: Shape, stack: Stack, prefix: str, ffn: int) -> None:
    """A tensor-parallel MLP; with a gate its two halves are one GEMM."""
    first = 2 if model.gated else 1
    width = ffn / shape.tp
    rows.gemm(f"{prefix}fc1", shape.tokens, first * width, model.hidden)
    rows.both(f"{prefix}activation", stack.gated_bytes if model.gated else traffic.UNGATED, shape.tokens * width)
    rows.gemm(f"{prefix}fc2", shape.tokens, model.hidden, width)
    if model.mlp_bias:
        elements = first * shape.tokens * width + shape.local * model.hidden
        rows.memory(f"{prefix}mlp_bias", WEIGHT_GRADIENT, traffic.BIAS_GRADIENT * elements, kernels=2.0)


def _experts(rows: Rows, model: Model, experts: Experts, shape: Shape, stack: Stack) -> None:
    """Router, permutation, grouped GEMMs over the experts of a rank, shared experts."""
    h, first = experts.latent or model.hidden, 2 if model.gated else 1
    rows.gemm("router", shape.local, experts.count, model.hidden, linear=False)
    if experts.latent:
        rows.gemm("latent_down", shape.local, experts.latent, model.hidden)
        rows.gemm("latent_up", shape.local, model.hidden, experts.latent)
    fusion = 1.0 if stack.fused_router else traffic.UNFUSED_ROUTER
    forward, backward = traffic.ROUTER_KERNELS
    rows.both("routing", traffic.SCORES, shape.local * experts.count, kernels=(forward * fusion, backward * fusion))
    rows.both("permute", traffic.PERMUTE, shape.sent * h)
    each = shape.routed / shape.experts
    width = experts.ffn / shape.etp
    rows.gemm("experts_fc1", each, first * width, h, batch=shape.experts, kind=GROUPED_GEMM)
    if not stack.fused_experts:
        rows.both("experts_activation", stack.gated_bytes if model.gated else traffic.UNGATED, shape.routed * width)
    rows.gemm("experts_fc2", each, h, width, batch=shape.experts, kind=GROUPED_GEMM)
    if model.mlp_bias and not stack.fused_experts:
        elements = shape.routed * (first * width + h)
        rows.memory("experts_bias", WEIGHT_GRADIENT, traffic.BIAS_GRADIENT * elements, kernels=2.0)
        if any(stack.expert_bias_bytes):
            rows.both("experts_output_bias", stack.expert_bias_bytes, shape.routed * h)
    rows.both("unpermute", traffic.PERMUTE, shape.sent * h)
    if experts.shared_ffn:
        _mlp(rows, model, shape, stack, "shared_", experts.shared_ffn)
        rows.both("shared_add", traffic.RESIDUAL, shape.local * model.hidden)


def _embedding(rows: Rows, model: Model, shape: Shape) -> None:
    """Look-up of the rank's rows for all tokens; the gradient of the table is written whole."""
    rows.both("embedding", traffic.EMBEDDING, shape.tokens * model.hidden)
    rows.memory("embedding_table", WEIGHT_GRADIENT, traffic.EMBEDDING_TABLE * shape.vocabulary * model.hidden / shape.tp)
    local = shape.local * model.hidden
    if model.embedding_norm:
        rows.both("embedding_norm", traffic.NORM, local)
    if model.hidden_dropout:
        rows.both("embedding_dropout", traffic.UNFUSED_DROPOUT, local)


def _head(rows: Rows, model: Model, shape: Shape, stack: Stack) -> None:
    """Final norm, logits over the rank's part of the vocabulary, cross entropy; streams are joined before."""
    if model.residual_streams > 1:
        compressed.add_joined(rows, model, shape)
    rows.both("final_norm", norm_bytes(model, stack), shape.local * model.hidden)
    columns = shape.vocabulary / shape.tp
    rows.gemm("logits", shape.tokens, columns, model.hidden, linear=False)
    if model.logit_softcap:
        rows.both("logit_softcap", traffic.SOFTCAP, shape.tokens * columns)
    counted = traffic.LOSS_FUSED if stack.fused_loss else traffic.LOSS_UNFUSED
    rows.both("loss", stack.loss_bytes or counted, shape.tokens * columns)


def operators(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Operators:
    """The operators of one unit for one micro-batch. Raises SpecError if the sequence is unknown.

    Keys must be free of `refusals`. Operators of the backward stand beside those of the forward; the order in which a rank
    runs them is that of the names, forward, and the reverse of it.
    """
    shape = shape_of(model, keys, sequence_of(model))
    rows = Rows(len(keys.tp), model.lora)
    if unit.kind in (EMBEDDING, MTP):
        _embedding(rows, model, shape)
    if unit.kind == MTP:  # DeepSeek-V3 (arXiv 2412.19437), section 2.2: two norms, a projection of 2h to h, a layer, the head
        rows.both("mtp_norms", norm_bytes(model, stack), 2 * shape.local * model.hidden, kernels=(2.0, 2.0))
        rows.gemm("mtp_projection", shape.tokens, model.hidden / shape.tp, 2 * model.hidden)
    if unit.kind in (LAYER, MTP):
        _layer(rows, model, unit, shape, stack)
    if unit.kind in (HEAD, MTP):
        _head(rows, model, shape, stack)
    rows.casts(keys.precision, shape.tokens / shape.local, fused=FUSED_CASTS if stack.fused_experts else ())
    mine = held(model, unit, keys)
    added = stack.accumulation_bytes * (mine.dense + mine.experts)  # gradients of one micro-batch to those of the step
    rows.memory("gradient_accumulation", WEIGHT_GRADIENT, added, trained=True)
    return rows.stacked()
