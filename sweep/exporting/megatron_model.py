"""The flags of Megatron-LM (core 0.20) that describe a model, and what of the model no flag says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim_core import Model

Flags = dict[str, tuple[str, ...]]
NULL_TOKENIZER_ADDS: Final = 1
"""Megatron's NullTokenizer adds a token for the end of a document."""


def model_flags(model: Model, sequence: int) -> Flags:
    """Flags and their values."""
    flags: Flags = {
        "--num-layers": (str(model.layers),),
        "--hidden-size": (str(model.hidden),),
        "--num-attention-heads": (str(model.heads),),
        "--ffn-hidden-size": (str(model.ffn or (model.experts.ffn if model.experts else 0)),),
        "--seq-length": (str(sequence),),
        "--max-position-embeddings": (str(model.positions or sequence),),
        "--normalization": ("RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",),
        "--hidden-dropout": (f"{model.hidden_dropout:g}",),
        "--attention-dropout": (f"{model.attention_dropout:g}",),
        "--tokenizer-type": ("NullTokenizer",),
        "--vocab-size": (str(model.vocabulary - NULL_TOKENIZER_ADDS),),
        "--make-vocab-size-divisible-by": (str(model.vocabulary_multiple),),
    }
    position = {"rotary": "rope", "learned": "learned_absolute"}.get(model.position, "none")
    flags["--position-embedding-type"] = (position,)
    switches = {
        "--swiglu": model.gated and model.activation == "silu",
        "--quick-geglu": model.gated and model.activation == "gelu",
        "--squared-relu": not model.gated and model.activation == "squared_relu",
        "--disable-bias-linear": not (model.qkv_bias and model.projection_bias and model.mlp_bias),
        "--add-qkv-bias": model.qkv_bias and not model.projection_bias,
        "--qk-layernorm": model.qk_norm,
        "--untie-embeddings-and-output-weights": not model.tied,
    }
    flags |= {flag: () for flag, wanted in switches.items() if wanted}
    if model.attention_sinks:
        flags["--softmax-type"] = ("learnable",)
    return flags | _attention(model) | _experts(model)


def _attention(model: Model) -> Flags:
    flags: Flags = {}
    mla = model.mla
    if mla is not None:
        flags["--multi-latent-attention"] = ()
        if mla.q_rank is not None:
            flags["--q-lora-rank"] = (str(mla.q_rank),)
        flags |= {
            "--kv-lora-rank": (str(mla.kv_rank),),
            "--qk-head-dim": (str(mla.nope_head_dim),),
            "--qk-pos-emb-head-dim": (str(mla.rope_head_dim),),
            "--v-head-dim": (str(mla.v_head_dim),),
        }
    else:
        flags["--kv-channels"] = (str(model.head_dim),)
        if model.kv_heads != model.heads:
            flags |= {"--group-query-attention": (), "--num-query-groups": (str(model.kv_heads),)}
    if model.window is not None:
        flags["--window-size"] = (f"{model.window.tokens - 1},0",)  # a token sees itself and so many before it
        inside = [unit_window > 0 for unit_window in windows_of(model)]
        if not all(inside):
            flags["--window-attn-skip-freq"] = (pattern(inside),)
    return flags


def windows_of(model: Model) -> list[int]:
    """Tokens of the window of each layer, 0 without one."""
    return [model.layer_units[unit].window for unit in model.unit_of_layer]


def _experts(model: Model) -> Flags:
    experts = model.experts
    flags: Flags = {"--mtp-num-layers": (str(model.mtp_layers),)} if model.mtp_layers else {}
    if experts is None:
        return flags
    flags |= {
        "--num-experts": (str(experts.count),),
        "--moe-router-topk": (str(experts.topk),),
        "--moe-ffn-hidden-size": (str(experts.ffn),),
        "--moe-grouped-gemm": (),
    }
    if experts.groups > 1:
        flags["--moe-router-num-groups"] = (str(experts.groups),)
        flags["--moe-router-group-topk"] = (str(experts.topk_groups),)
    if experts.shared_ffn:
        flags["--moe-shared-expert-intermediate-size"] = (str(experts.shared_ffn),)
    if experts.dense_layers:
        flags["--moe-layer-freq"] = (pattern([model.layer_units[unit].moe for unit in model.unit_of_layer]),)
    if experts.capacity_factor is not None:
        flags["--moe-expert-capacity-factor"] = (f"{experts.capacity_factor:g}",)
    if experts.pad_to_capacity:
        flags["--moe-pad-expert-input-to-capacity"] = ()
    return flags


def pattern(inside: Sequence[bool]) -> str:
    """One number per layer, as Megatron-LM's flags of layers take it: ([0]*3+[1]*58)."""
    runs: list[tuple[bool, int]] = []
    for here in inside:
        runs = [*runs[:-1], (here, runs[-1][1] + 1)] if runs and runs[-1][0] == here else [*runs, (here, 1)]
    return "(" + "+".join(f"[{int(here)}]*{count}" for here, count in runs) + ")"


def without_flag(model: Model) -> list[str]:
    """What Megatron-LM has no flag for, one line each."""
    gated, activation = model.gated, model.activation
    biases = (model.projection_bias, model.mlp_bias)
    found = {
        f"position: {model.position}": model.position == "alibi",
        f"{'gated ' * gated}{activation}: the flags mean {'SwiGLU or GEGLU' if gated else 'GELU or squared ReLU'}": (
            activation not in (("silu", "gelu") if gated else ("gelu", "squared_relu"))
        ),
        "biases of the attention's output or the MLP alone": len({*biases, model.qkv_bias}) > 1 and any(biases),
        "a norm after the embedding": model.embedding_norm,
        "attention and MLP side by side": model.parallel_residual,
        f"{model.norms_per_layer} norms a layer": model.norms_per_layer != 2,
        "a soft cap on the logits": model.logit_softcap,
        "a bias of the router": bool(model.experts and model.experts.router_bias),
        f"load of the busiest expert rank {model.experts.imbalance if model.experts else 1:g} x the mean": bool(
            model.experts and model.experts.imbalance != 1
        ),
    }
    return [what for what, there in found.items() if there]
