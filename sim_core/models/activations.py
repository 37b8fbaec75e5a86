"""Bytes of activations that a unit keeps from forward to backward, by recompute mode, as columns over keys."""

import numpy as np

from sim_core.arrays import Floats
from sim_core.models import compressed
from sim_core.models.description import ATTENTION, COMPRESSED, EMBEDDING, HEAD, LAYER, MTP, NONE, Model, Unit
from sim_core.models.keys import Keys, Shape, shape_of
from sim_core.models.recompute import OFFLOAD_MODULES, RECOMPUTE_MODULES, norms_apart
from sim_core.models.recurrent import kept_bytes
from sim_core.models.stack import Stack
from sim_core.models.weights import sequence_of

MODES = ("none", "selective", "full")
"""Columns of `activation_bytes`. Selective: core attention is computed again; full: only the layer's input is kept."""

LOGIT = 8.0
"""Bytes per logit from head to backward: bf16 logits and their gradient, fp32 softmax (Megatron-LM)."""


def activation_bytes(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Floats:
    """Bytes kept for one micro-batch and one unit, [n, MODES]. Raises SpecError if the sequence is unknown.

    Korthikanti et al. 2022 (arXiv 2205.05198), section 4, itemised so that it holds for other layers, too: their eq. 2 and 4
    without flash attention, with dropout, and with as many key-value heads as heads. With full recompute the backward of a
    layer needs `none` of one layer besides.
    """
    shape = shape_of(model, keys, sequence_of(model))
    local, none = shape.local * model.hidden, np.zeros(len(keys.tp))
    if unit.kind == EMBEDDING:
        mask = local if model.hidden_dropout else none
        norm = 2.0 * local if model.embedding_norm else 0.0
        return np.stack([mask + norm] * len(MODES), axis=1)
    ends = none
    if unit.kind in (HEAD, MTP):  # inputs of the final norm and of the logits; the logits
        streams = 2.0 * model.residual_streams if model.residual_streams > 1 else 0.0
        ends = (4.0 + streams) * shape.local * model.hidden + _logits(shape, stack)
    if unit.kind == HEAD:
        return np.stack([ends] * len(MODES), axis=1)
    if unit.kind == MTP:  # inputs of two norms, their concatenation
        ends = ends + 8.0 * shape.local * model.hidden
    core = none if stack.flash_attention or not unit.attends else _core(model, shape)
    # inputs of norms, of attention and MLP, dropout masks
    masks = 1.0 * unit.blocks if model.hidden_dropout else 0.0
    width = 1.0 * model.norms_per_layer * unit.blocks + _normed_widths(model, unit, shape).sum(axis=0) + masks
    channel = none
    if unit.channel != NONE:
        channel = _experts(model, shape, stack) if unit.moe else _mlp(model, shape, stack, model.ffn or 0)
    whole = local * width + _mixer(model, unit, shape, stack) + channel + core
    whole = whole + compressed.streams_bytes(model, shape, unit.blocks)
    of_input = 2.0 * shape.local * model.hidden * model.residual_streams
    return np.stack([whole + ends, whole - core + ends, of_input + ends], axis=1)


def _mixer(model: Model, unit: Unit, shape: Shape, stack: Stack) -> Floats:
    """Inside the sequence mixer of a layer."""
    state, kept = model.state_of(unit), np.zeros(len(shape.tp))
    if unit.mixer == ATTENTION:
        kept = _attention(model, shape, stack)
    elif unit.mixer == COMPRESSED and model.compressed:
        kept = compressed.kept_bytes(model, unit, model.compressed, shape)
    return kept + kept_bytes(state, shape) if state else kept


def module_bytes(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Floats:
    """Bytes of them that a layer does not keep where a module runs again, [n, RECOMPUTE_MODULES].

    Of `layernorm`, `mla_up_proj`, `moe_act` and `mlp_act` the outputs (Megatron-LM, CheckpointWithoutOutput), of the others
    all but the input. Those of `moe` hold those of `moe_act` and `shared_experts`.
    """
    shape = shape_of(model, keys, sequence_of(model))
    saved = np.zeros((len(keys.tp), len(RECOMPUTE_MODULES)))
    if unit.kind != LAYER:
        return saved
    if not stack.flash_attention and unit.attends:
        saved[:, 0] = _core(model, shape)
    normed = _normed_widths(model, unit, shape)[list(norms_apart(model, unit, stack.fused_norms))].sum(axis=0)
    saved[:, 1] = normed * shape.local * model.hidden
    if model.mla and unit.attends:
        latents = (model.mla.q_rank or 0) + model.mla.kv_rank
        each = 2 * model.head_dim + model.v_head_dim
        saved[:, 2] = shape.stored * shape.local * latents + 2.0 * shape.tokens * shape.heads * each
    elif model.compressed and unit.mixer == COMPRESSED:
        saved[:, 2] = shape.stored * shape.local * model.compressed.q_rank + 2.0 * shape.tokens * shape.heads * model.head_dim
    saved[:, 7] = compressed.streams_saved(model, shape, unit.blocks)
    experts = model.experts
    if experts and unit.moe:
        saved[:, 3] = shape.routed * shape.stored * experts.ffn / shape.etp
        saved[:, 5] = _experts(model, shape, stack)
        saved[:, 6] = _mlp(model, shape, stack, experts.shared_ffn) if experts.shared_ffn else 0.0
    elif unit.channel != NONE:
        saved[:, 4] = _mlp(model, shape, stack, model.ffn or 0)
        saved[:, 8] = shape.tokens * shape.stored * (model.ffn or 0) / shape.tp
    return saved


def offload_bytes(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Floats:
    """Bytes of the input of each module that can go to the host, [n, OFFLOAD_MODULES]: of norms, of the projection of queries,
    keys and values, of core attention and its output projection, of the experts' first GEMM and their activation.

    Megatron-LM core 0.19, user guide, "Fine-Grained Activation Offloading". A norm that is part of a linear layer has no input
    of its own to send.
    """
    shape = shape_of(model, keys, sequence_of(model))
    sent = np.zeros((len(keys.tp), len(OFFLOAD_MODULES)))
    if unit.kind != LAYER:
        return sent
    norm, apart = 2.0 * shape.local * model.hidden, norms_apart(model, unit, stack.fused_norms)
    if unit.attends:
        sent[:, 0] = norm * apart[0]
        sent[:, 1] = _normed_widths(model, unit, shape)[0] * shape.local * model.hidden
        each = (2 * model.head_dim + model.v_head_dim) if model.mla else model.head_dim
        kv = 0.0 if model.mla else 2 * shape.kv_heads * model.head_dim
        sent[:, 2] = 2.0 * shape.tokens * (shape.heads * each + kv)
        sent[:, 3] = 2.0 * shape.tokens * shape.heads * model.v_head_dim
    sent[:, 4] = norm * (apart[1] and unit.channel != NONE)
    if model.experts and unit.moe:
        sent[:, 5] = shape.routed * shape.stored * (model.experts.latent or model.hidden)
        inner = stack.activation_input_bytes * (2 if model.gated else 1)
        sent[:, 6] = shape.routed * inner * model.experts.ffn / shape.etp
    return sent


def backward_bytes(model: Model, unit: Unit, keys: Keys) -> Floats:
    """Of gradients that the backward of a layer works on beside what it kept, [n]: the one that comes in; those of what enters
    the activation of its MLP, while that of its output takes the place of the output, if that was kept."""
    shape = shape_of(model, keys, sequence_of(model))
    if unit.kind != LAYER:
        return np.zeros(len(keys.tp))
    entering, experts = (2.0 if model.gated else 1.0) * 2.0, model.experts
    entering += 0.0 if model.lora is None or "fc2" in model.lora.targets else 2.0
    inner = shape.tokens * (model.ffn or 0) / shape.tp if unit.channel != NONE else 0.0
    if experts and unit.moe:
        inner = shape.routed * experts.ffn / shape.etp + shape.tokens * experts.shared_ffn / shape.tp
    return 2.0 * shape.local * model.hidden + entering * inner


def logits_bytes(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Floats:
    """Those of logits and loss among them, [n]."""
    if unit.kind not in (HEAD, MTP):
        return np.zeros(len(keys.tp))
    return _logits(shape_of(model, keys, sequence_of(model)), stack)


def buffer_bytes(model: Model, keys: Keys, queued: float) -> Floats:
    """Bytes of buffers for messages, [n, 3]: of an activation that is gathered, and of what context-parallel ranks pass; of one
    that a stage receives; of products whose messages are still queued, `queued` per token and hidden element (stack).

    Megatron-LM keeps one buffer for gathered inputs (`get_global_memory_buffer`), forward and backward.
    """
    shape = shape_of(model, keys, sequence_of(model))
    gathered = np.where(shape.local < shape.tokens, 2.0 * shape.tokens * model.hidden, 0.0)
    received = 2.0 * shape.local * model.hidden * model.residual_streams
    return np.stack([gathered + _context_buffers(model, shape), received, queued / 2 * gathered], axis=1)


def _context_buffers(model: Model, shape: Shape) -> Floats:
    """The most that context parallelism holds for one layer, in its backward, beside the rank's own queries, keys and values.

    Ring: keys and values of this hop and of the next one (Liu et al. 2023, arXiv 2310.01889, section 3), and as many gradients
    of them. Gathered: those of all ranks, and their gradients (Llama 3, arXiv 2407.21783, section 3.3.2). All-to-all: what it
    sends while it receives: queries, keys and values.
    """
    pair = 2.0 * shape.tokens * shape.kv_heads * (model.head_dim + model.v_head_dim)
    ring = np.where(shape.gathers == 1, 2.0 * shape.ring * pair, 4.0 * pair)
    exchanged = 2.0 * shape.tokens * shape.heads * model.head_dim + pair
    return np.where(shape.ring > 1, ring, 0.0) + np.where(shape.a2a > 1, exchanged, 0.0)


def _normed_widths(model: Model, unit: Unit, shape: Shape) -> Floats:
    """Bytes per local token and hidden element of the outputs of the two norms, [2, n]: the inputs of attention and MLP.

    In 16 bits all that reads one shares it. In fewer, each linear layer keeps a cast of its own (two down projections with
    latents, shared experts), and the router keeps 16 bits: with 8 bits 5 bytes of a layer of DeepSeek-V3.
    """
    narrow = shape.stored < 2.0
    latent = model.mla is not None or model.compressed is not None
    attention, channel = np.where(narrow & latent, 2 * shape.stored, shape.stored), shape.stored
    if model.lora is not None:
        attention, channel = (np.full(len(shape.tp), _adapted(model, name)) for name in ("qkv", "fc1"))
    if unit.moe:
        channel = 2.0 + np.where(narrow & bool(model.experts and model.experts.shared_ffn), shape.stored, 0.0)
    apart = unit.channel != NONE and (unit.moe or model.norms_per_layer > 1)  # else both read the output of one norm
    return np.stack([attention * (unit.mixer != NONE), channel * apart])


def _attention(model: Model, shape: Shape, stack: Stack) -> Floats:
    """Queries, keys, values and the output of core attention; with mla the latents before and after their norms.

    The projection's input is that output, or a narrower copy of it.
    """
    each = (
        np.where(shape.stored < 2.0, shape.stored, 0.0)
        if stack.attention_output_bytes is None
        else stack.attention_output_bytes - 2.0
    )
    if model.lora is not None:  # without a dropout the adapter keeps the output itself
        each = _adapted(model, "projection") if model.lora.dropout else 0.0
    copy = each * shape.tokens * shape.heads * model.v_head_dim
    if model.mla:
        latents = 2.0 * (2 * (model.mla.q_rank or 0) + 2 * model.mla.kv_rank + model.mla.rope_head_dim)
        each = 2 * model.head_dim + 2 * model.v_head_dim
        narrower = (2.0 - shape.stored) * ((model.mla.q_rank or 0) + model.mla.kv_rank)  # up projections keep a cast
        indexed = 0.0
        if model.indexer:  # its queries and key; the choice as 4-byte indices (Megatron-LM, dsa.py)
            indexed = 2.0 * (model.indexer.heads + 1) * model.indexer.head_dim + 4.0 * min(model.indexer.topk, shape.sequence)
        return shape.local * (latents - narrower) + shape.tokens * (2.0 * shape.heads * each + indexed) + copy
    width = ((3 if model.output_gate else 2) * shape.heads + 2 * shape.kv_heads) * model.head_dim
    normed = (shape.heads + shape.kv_heads) * model.head_dim if model.qk_norm or model.qk_norm_whole else 0.0
    inputs = np.where(shape.stored < 2.0, 1.0, 2.0) if stack.fp8_attention else 2.0
    if stack.whole_qkv_kept:  # queries and keys are rotated, values are not
        width = width + (shape.heads + shape.kv_heads) * model.head_dim
    narrow = (2.0 + shape.stored) * shape.local * (model.q_rank or 0)  # before its norm, and as it is multiplied
    return shape.tokens * (inputs * width + 2.0 * normed) + narrow + copy


def _core(model: Model, shape: Shape) -> Floats:
    """Softmax output; with dropout its mask and output, too."""
    per_score = 5.0 if model.attention_dropout else 2.0
    return per_score * shape.micro_batch * shape.heads * shape.sequence**2 / shape.cp


def _mlp(model: Model, shape: Shape, stack: Stack, ffn: int) -> Floats:
    """Output of fc1 (both halves with a gate) and input of fc2."""
    entering = shape.stored if model.lora is None else _adapted(model, "fc2")
    return shape.tokens * (stack.activation_input_bytes * (2 if model.gated else 1) + entering) * ffn / shape.tp


def _adapted(model: Model, name: str) -> float:
    """Bytes kept of an element that enters a frozen matrix: with an adapter its 16-bit input, after a dropout with the mask."""
    if model.lora is None or name not in model.lora.targets:
        return 0.0
    return 3.0 * model.lora.pairs(name) if model.lora.dropout else 2.0


def _experts(model: Model, shape: Shape, stack: Stack) -> Floats:
    """Per routed copy the input and output of its expert, and the inner ones of its MLP."""
    experts = model.experts
    if experts is None:
        raise ValueError(f"{model.name} has no experts")
    inner = (stack.activation_input_bytes * (2 if model.gated else 1) + shape.stored) * experts.ffn / shape.etp
    outputs = 2.0 if stack.expert_outputs_kept else 0.0  # else probabilities are applied before the second GEMM
    routed = shape.routed * ((outputs + shape.stored) * (experts.latent or model.hidden) + inner)
    routed = routed + shape.local * shape.stored * experts.latent
    return routed + (_mlp(model, shape, stack, experts.shared_ffn) if experts.shared_ffn else 0.0)


def _logits(shape: Shape, stack: Stack) -> Floats:
    divided = stack.logit_bytes if stack.divided_logit_bytes is None else stack.divided_logit_bytes
    return np.where(shape.tp > 1, divided, stack.logit_bytes) * shape.tokens * shape.vocabulary / shape.tp
