"""Families of `config.json` of 2025 and 2026: windows by ratio, chunks, layers with a state, indexers, hybrid patterns.

Names and defaults as in transformers 4.57 and 5.23 or in the configuration classes of NVIDIA-NeMo/Automodel (36044ad3d).
"""

from sim_core.models.readers.config_fields import Config, Document
from sim_core.models.readers.families import (
    base_of,
    bias_of,
    deepseek,
    dense_first,
    dense_layers_of,
    head_dim_of,
    kv_heads_of,
    mla_of,
    rotary_of,
    topk_of,
    window_of,
)

_LINEAR, _FULL = "linear_attention", "full_attention"
_FREE_OF_NEMOTRON = (
    "max_position_embeddings", "mamba_hidden_act", "use_mamba_kernels", "mamba_dt_init_floor", "time_step_limit",
    "time_step_floor", "time_step_min", "time_step_max", "residual_in_fp32", "num_logits_to_keep", "rescale_prenorm_residual",
    "expand", "mamba_proj_bias", "use_bias", "use_conv_bias", "sliding_window",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
)  # fmt: skip
_FREE_OF_KIMI = (
    "num_key_value_heads", "head_dim", "qk_head_dim", "mla_use_nope", "model_max_length", "moe_renormalize", "use_grouped_topk",
    "moe_router_activation_func", "max_position_embeddings", "num_expert_group", "topk_group",
)  # fmt: skip
_FREE_OF_LLAMA4 = (
    "use_qk_norm", "attn_temperature_tuning", "attn_scale", "floor_scale", "for_llm_compressor", "layer_types",
)  # fmt: skip
_FREE_OF_MINIMAX = (
    "rotary_dim", "mtp_transformer_layers", "attn_type_list", "use_mtp", "shared_moe_mode", "qk_norm_type",
)  # fmt: skip
_FREE_OF_V4 = (
    "num_hash_layers", "mlp_layer_types", "topk_method", "compress_rope_theta", "hc_sinkhorn_iters", "hc_eps", "expert_dtype",
)  # fmt: skip
_NEAR, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_LETTERS = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E",
}  # fmt: skip
_CHUNK = 64
"""Tokens of a chunk of the kernels of delta rules (fla-org/flash-linear-attention)."""


def _llama_like(config: Config, kv_heads: str | None, *, tied: bool = False) -> Document:
    """Gated MLP, grouped heads, rotary positions."""
    document = rotary_of(config, tied, activation="silu") | {"ffn": config.number("intermediate_size")}
    kv_heads_of(config, document, kv_heads)
    head_dim_of(config, document)
    bias_of(config, document)
    return document


def phi3(config: Config, kind: str) -> Document:
    """Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in one."""
    config.optional("original_max_position_embeddings")
    document = _llama_like(config, None)
    document["hidden_dropout"] = config.share("resid_pdrop", "embd_pdrop")
    window_of(config, document, "all", None)
    return document


def olmo2(config: Config, kind: str) -> Document:
    """OLMo 2: norms after attention and MLP, those of queries and keys over the whole projection."""
    return _llama_like(config, None) | {"qk_norm_whole": True}


def smollm3(config: Config, kind: str) -> Document:
    """SmolLM3: some layers do not rotate, which costs nothing else."""
    config.take(("no_rope_layers", "no_rope_layer_interval", "max_window_layers"))
    window = config.flag("use_sliding_window", False)
    document = _llama_like(config, "4", tied=True)
    if window:
        window_of(config, document, "all", None)
    else:
        config.has("sliding_window")
        config.has("layer_types")
    return document | {"mlp_bias": config.flag("mlp_bias", False)}


def gemma3(config: Config, kind: str) -> Document:
    """Gemma 3: of six layers five see a window; vocabulary 262,208 where it is not stated, as in all sizes."""
    document = rotary_of(config, tied=True, activation="gelu_pytorch_tanh", vocabulary=262_208) | {
        "ffn": config.number("intermediate_size"),
        "qk_norm": True,
    }
    kv_heads_of(config, document, "4")
    head_dim_of(config, document, "256")
    bias_of(config, document)
    config.has("rope_local_base_freq")
    every = config.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
    window_of(config, document, f"{every - 1}:1" if every > 1 else (), "4096")
    config.has("attn_logit_softcapping")
    document["logit_softcap"] = config.has("final_logit_softcapping")
    config.has("use_bidirectional_attention")
    return document | {"norms_per_layer": 4}


def llama4(config: Config, kind: str) -> Document:
    """Llama 4: chunks of attention in all but the layers without rotation, experts in every n-th layer with a shared one."""
    document = rotary_of(config, activation="silu")
    config.take(_FREE_OF_LLAMA4)
    kv_heads_of(config, document, "8")
    head_dim_of(config, document, "128")
    bias_of(config, document)
    count, ffn = document["layers"], config.number("intermediate_size")
    rotated = config.numbers("no_rope_layers")
    every = config.number("no_rope_layer_interval", default=4)
    near = tuple(layer for layer in range(count) if (rotated[layer] if rotated else (layer + 1) % every))
    if config.has("attention_chunk_size"):
        document["window"] = {"tokens": config.number("attention_chunk_size"), "layers": list(near), "chunked": True}
    step = config.number("interleave_moe_layer_step", default=1)
    moe = config.numbers("moe_layers") or tuple(range(step - 1, count, step))
    dense = tuple(layer for layer in range(count) if layer not in moe)
    experts: Document = {"count": config.number("num_local_experts"), "topk": topk_of(config), "ffn": ffn, "shared_ffn": ffn}
    if dense:
        experts["dense_layers"] = dense_first(dense)
        document["ffn"] = config.number("intermediate_size_mlp")
    else:
        config.has("intermediate_size_mlp")
    return document | {"experts": experts}


def minimax_m2(config: Config, kind: str) -> Document:
    """MiniMax-M2: full attention, norms of queries and keys over the whole projection, no shared expert."""
    config.take(_FREE_OF_MINIMAX)
    document = rotary_of(config, activation="silu")
    kv_heads_of(config, document, "8")
    head_dim_of(config, document, "128")
    bias_of(config, document)
    whole = config.flag("use_qk_norm", True)
    config.flag("use_routing_bias", True)
    config.only("shared_intermediate_size", 0, 0)
    experts = {"count": config.number("num_local_experts"), "topk": topk_of(config), "ffn": config.number("intermediate_size")}
    document["mtp_layers"] = config.number("num_mtp_modules", default=0, least=0)
    return document | {"experts": experts, "qk_norm_whole": whole}


def deepseek_v32(config: Config, kind: str) -> Document:
    """DeepSeek-V3.2 and GLM-5: V3 with the lightning indexer, one in each layer."""
    config.words("layer_types", ("indexed_attention",))
    config.words("indexer_types", ("full",))
    return deepseek(config, "deepseek_v3") | {"indexer": _indexer_of(config)}


def _indexer_of(config: Config) -> Document:
    return {
        "heads": config.number("index_n_heads"),
        "head_dim": config.number("index_head_dim"),
        "topk": config.number("index_topk"),
    }


def deepseek_v4(config: Config, kind: str) -> Document:
    """DeepSeek-V4: a window and compressed entries in each layer, hyper-connections, experts everywhere."""
    config.take(_FREE_OF_V4)
    document = rotary_of(config, activation="silu") | {"kv_heads": 1, "qk_norm": True, "attention_sinks": True}
    config.only("num_key_value_heads", 1, 1)
    bias_of(config, document)
    document["head_dim"] = config.number("head_dim")
    document["residual_streams"] = config.number("hc_mult", default=1)
    document["mtp_layers"] = config.number("num_nextn_predict_layers", default=0, least=0)
    rates = config.section("compress_rates") if config.has("compress_rates") else config
    sparse, heavy = (
        rates.number(_SPARSE, "compress_rate_csa", default=4),
        rates.number(_HEAVY, "compress_rate_hca", default=128),
    )
    types, ratios = config.words("layer_types", (_NEAR, _SPARSE, _HEAVY)), config.numbers("compress_ratios")
    if types is not None:
        ratios = tuple({_NEAR: 0, _SPARSE: sparse, _HEAVY: heavy}[each] for each in types)
    if ratios is None:
        raise config.error("compress_ratios", "missing; they decide what each layer costs")
    document["compressed"] = {
        "q_rank": config.number("q_lora_rank"),
        "rope_head_dim": config.number("qk_rope_head_dim", default=64),
        "out_rank": config.number("o_lora_rank"),
        "out_groups": config.number("o_groups"),
        "window": config.number("sliding_window"),
        "ratios": list(ratios[: document["layers"]]),  # those of multi-token prediction come after
        "chosen": sparse,
    }
    document["indexer"] = _indexer_of(config)
    ffn, shared = config.number("moe_intermediate_size"), config.number("n_shared_experts", default=1, least=0)
    experts = {"count": config.number("n_routed_experts"), "topk": topk_of(config), "ffn": ffn, "shared_ffn": shared * ffn}
    return document | {"experts": experts}


def qwen3_next(config: Config, kind: str) -> Document:
    """Qwen3-Next and 3.5: gated delta net in all but every n-th layer, gated attention, experts with a gated shared one."""
    config.only("attn_output_gate", True, True)
    config.take(("mamba_ssm_dtype", "mtp_use_dedicated_embeddings"))
    document = rotary_of(config, activation="silu") | {"qk_norm": True, "output_gate": True}
    kv_heads_of(config, document, "2")
    head_dim_of(config, document, "256")
    bias_of(config, document)
    config.only("use_sliding_window", False, False)
    every = config.number("full_attention_interval", default=4)
    types = config.words("layer_types", (_LINEAR, _FULL))
    document["full_attention"] = every if types is None else [layer for layer, each in enumerate(types) if each == _FULL]
    document["recurrent"] = {
        "kind": "gated_delta",
        "heads": config.number("linear_num_value_heads"),
        "head_dim": config.number("linear_value_head_dim"),
        "state": config.number("linear_key_head_dim"),
        "groups": config.number("linear_num_key_heads"),
        "conv": config.number("linear_conv_kernel_dim", default=4),
        "chunk": _CHUNK,
    }
    document["mtp_layers"] = config.number(
        "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", default=0, least=0
    )
    if kind == "qwen3_5_text":
        return document | {"ffn": config.number("intermediate_size")}
    step, dense = config.number("decoder_sparse_step", default=1), set(config.numbers("mlp_only_layers") or ())
    dense |= {layer for layer in range(document["layers"]) if (layer + 1) % step}
    shared = config.number("shared_expert_intermediate_size", default=0, least=0)
    experts: Document = {"count": config.number("num_experts"), "topk": topk_of(config)}
    experts |= {"ffn": config.number("moe_intermediate_size"), "shared_ffn": shared, "shared_gate": shared > 0}
    ffn = config.number("intermediate_size", default=0)
    if dense:
        experts["dense_layers"] = dense_first(tuple(sorted(dense)))
        document["ffn"] = ffn
    return document | {"experts": experts}


def nemotron_h(config: Config, kind: str) -> Document:
    """Nemotron-H and Nemotron-3: a pattern of Mamba-2, attention, MLP and experts, one mixer a layer."""
    pattern = _pattern_of(config)
    config.take(_FREE_OF_NEMOTRON)
    document = base_of(config, False, "relu2", gated=False, norm="rmsnorm", position="none", pattern=pattern)
    kv_heads_of(config, document, "8")
    head_dim_of(config, document, "128")
    bias_of(config, document)
    config.share("attention_dropout", "hidden_dropout")
    config.flag("mlp_bias", False)
    if "M" in pattern:
        document["recurrent"] = {
            "kind": "mamba2",
            "heads": config.number("mamba_num_heads"),
            "head_dim": config.number("mamba_head_dim"),
            "state": config.number("ssm_state_size"),
            "groups": config.number("n_groups"),
            "conv": config.number("conv_kernel", default=4),
            "chunk": config.number("chunk_size", default=128),
        }
    if "-" in pattern:
        document["ffn"] = config.number("intermediate_size")
    else:
        config.has("intermediate_size")
    if "E" in pattern:
        document["experts"] = {
            "count": config.number("n_routed_experts"),
            "topk": topk_of(config),
            "ffn": config.number("moe_intermediate_size"),
            "shared_ffn": config.number("moe_shared_expert_intermediate_size", default=0, least=0),
            "latent": config.number("moe_latent_size", default=0, least=0),
        }
        config.take(("n_group", "topk_group", "n_shared_experts"))
    document["mtp_layers"] = config.number("num_nextn_predict_layers", default=0, least=0)
    return document


def _pattern_of(config: Config) -> str:
    """The letters of the layers, or their names as transformers 5 writes them."""
    names = config.words("layers_block_type", _LETTERS)
    if names is None or config.has("hybrid_override_pattern"):
        return config.text("hybrid_override_pattern")
    return "".join(_LETTERS[name] for name in names)


def kimi_linear(config: Config, kind: str) -> Document:
    """Kimi Linear: KDA in most layers, latent attention without rotation in the others."""
    document = base_of(config, False, "silu", gated=True, norm="rmsnorm", position="none")
    config.take(_FREE_OF_KIMI)
    document["mla"] = mla_of(config)
    document["qk_norm"] = True
    types = config.words("layer_types", (_LINEAR, _FULL))
    linear = config if types else config.section("linear_attn_config")
    if types:
        document["full_attention"] = [layer for layer, each in enumerate(types) if each == _FULL]
    else:  # counted from 1
        document["full_attention"] = [layer - 1 for layer in linear.numbers("full_attn_layers") or ()]
        linear.numbers("kda_layers")
    heads, size = linear.number("linear_num_heads", "num_heads"), linear.number("linear_head_dim", "head_dim")
    document["recurrent"] = {"kind": "kda", "heads": heads, "head_dim": size, "state": size, "groups": heads, "chunk": _CHUNK}
    document["recurrent"]["conv"] = linear.number("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    if not types:
        linear.refuse_others()
    first = tuple(range(config.number("first_k_dense_replace", default=0, least=0)))
    first = dense_layers_of(config, document["layers"], first)
    config.only("moe_layer_freq", 1, 1)
    ffn = config.number("moe_intermediate_size")
    document["ffn"] = config.number("intermediate_size")
    document["mtp_layers"] = config.number("num_nextn_predict_layers", default=0, least=0)
    shared = config.number("num_shared_experts", "n_shared_experts", default=0, least=0)
    experts: Document = {"count": config.number("num_experts", "n_routed_experts"), "ffn": ffn}
    experts |= {"shared_ffn": shared * ffn, "dense_layers": dense_first(first)}
    experts["topk"] = config.number("num_experts_per_token", "num_experts_per_tok")
    return document | {"experts": experts}
