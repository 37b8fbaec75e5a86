"""Families of `config.json` of 2025 and 2026: windows by ratio, chunks, layers with a state, indexers, hybrid patterns.

Names and defaults as in transformers 4.57 and 5.23 or in the configuration classes of NVIDIA-NeMo/Automodel (36044ad3d).
"""

from sim_core.models.readers.config_fields import Config, Document
from sim_core.models.readers.families import (
    base_of,
    biased,
    decoder,
    deepseek,
    dense_first,
    dense_layers_of,
    experts_of,
    ffn_of,
    grouped,
    mla_of,
    predicted,
    rotary_of,
    spaced_experts_of,
    switched_window_of,
    window_of,
)

_LINEAR, _FULL = "linear_attention", "full_attention"
_FREE = {
    "nemotron": """
        max_position_embeddings mamba_hidden_act use_mamba_kernels mamba_dt_init_floor time_step_limit time_step_floor
        time_step_min time_step_max residual_in_fp32 num_logits_to_keep rescale_prenorm_residual expand mamba_proj_bias use_bias
        use_conv_bias sliding_window mtp_hybrid_override_pattern mtp_layers_block_type mamba_ssm_cache_dtype
        moe_shared_expert_overlap
    """,
    "kimi": """
        num_key_value_heads head_dim qk_head_dim mla_use_nope model_max_length moe_renormalize use_grouped_topk
        moe_router_activation_func max_position_embeddings num_expert_group topk_group
    """,
    "llama4": """
        use_qk_norm attn_temperature_tuning attn_scale floor_scale for_llm_compressor layer_types
    """,
    "minimax": """
        rotary_dim mtp_transformer_layers attn_type_list use_mtp shared_moe_mode qk_norm_type
    """,
    "v4": """
        num_hash_layers mlp_layer_types topk_method compress_rope_theta hc_sinkhorn_iters hc_eps expert_dtype
    """,
}
"""Fields that cost nothing, by family."""
_NEAR, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_LETTERS = {_LINEAR: "M", "mamba": "M", _FULL: "*", "attention": "*", "mlp": "-", "moe": "E"}
_CHUNK = 64
"""Tokens of a chunk of the kernels of delta rules (fla-org/flash-linear-attention)."""


def phi3(config: Config, kind: str) -> Document:
    """Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in one."""
    config.optional("original_max_position_embeddings")
    document = decoder(config, activation="silu") | ffn_of(config)
    document["hidden_dropout"] = config.share("resid_pdrop", "embd_pdrop")
    return document | window_of(config, document["layers"], "all")


def olmo2(config: Config, kind: str) -> Document:
    """OLMo 2: norms after attention and MLP, those of queries and keys over the whole projection."""
    return decoder(config, activation="silu", qk_norm_whole=True) | ffn_of(config)


def smollm3(config: Config, kind: str) -> Document:
    """SmolLM3: some layers do not rotate, which costs nothing else."""
    config.take("no_rope_layers", "no_rope_layer_interval", "max_window_layers")
    document = decoder(config, "4", tied=True, activation="silu") | ffn_of(config)
    return document | switched_window_of(config, document["layers"], "all") | {"mlp_bias": config.flag("mlp_bias", False)}


def gemma3(config: Config, kind: str) -> Document:
    """Gemma 3: of six layers five see a window; vocabulary 262,208 where it is not stated, as in all sizes."""
    style: Document = {"qk_norm": True, "norms_per_layer": 4}
    document = decoder(config, "4", "256", tied=True, activation="gelu_pytorch_tanh", vocabulary=262_208, **style)
    config.take("rope_local_base_freq", "attn_logit_softcapping", "use_bidirectional_attention")
    document |= {"logit_softcap": config.has("final_logit_softcapping")}
    every = config.number("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return document | ffn_of(config) | window_of(config, document["layers"], f"{every - 1}:1" if every > 1 else (), "4096")


def llama4(config: Config, kind: str) -> Document:
    """Llama 4: chunks of attention in all but the layers without rotation, experts in every n-th layer with a shared one."""
    document = decoder(config, "8", "128", activation="silu")
    config.take(*_FREE["llama4"].split())
    layers = range(document["layers"])
    rotated, every = config.numbers("no_rope_layers"), config.number("no_rope_layer_interval", default=4)
    near = [layer for layer in layers if (rotated[layer] if rotated else (layer + 1) % every)]
    if config.has("attention_chunk_size"):
        document["window"] = {"tokens": config.number("attention_chunk_size"), "layers": near, "chunked": True}
    step = config.number("interleave_moe_layer_step", default=1)
    moe = config.numbers("moe_layers") or tuple(layers)[step - 1 :: step]
    dense = tuple(layer for layer in layers if layer not in moe)
    if dense:
        document["ffn"] = config.number("intermediate_size_mlp")
    config.take("intermediate_size_mlp")
    return document | experts_of(config, shared=1, dense_layers=dense_first(dense))


def minimax_m2(config: Config, kind: str) -> Document:
    """MiniMax-M2: full attention, norms of queries and keys over the whole projection, no shared expert."""
    config.take(*_FREE["minimax"].split())
    document = decoder(config, "8", "128", activation="silu") | {"qk_norm_whole": config.flag("use_qk_norm", True)}
    config.flag("use_routing_bias", True)
    config.only("shared_intermediate_size", 0)
    return document | experts_of(config) | {"mtp_layers": config.number("num_mtp_modules", default=0, least=0)}


def deepseek_v32(config: Config, kind: str) -> Document:
    """DeepSeek-V3.2 and GLM-5: V3 with the lightning indexer, one in each layer."""
    config.words("layer_types", ("indexed_attention",))
    config.words("indexer_types", ("full",))
    return deepseek(config, "deepseek_v3") | _indexer_of(config)


def _indexer_of(config: Config) -> Document:
    return {"indexer": config.sizes(heads="index_n_heads", head_dim="index_head_dim", topk="index_topk")}


def deepseek_v4(config: Config, kind: str) -> Document:
    """DeepSeek-V4: a window and compressed entries in each layer, hyper-connections, experts everywhere."""
    config.take(*_FREE["v4"].split())
    document = rotary_of(config, activation="silu", kv_heads=1, qk_norm=True, attention_sinks=True) | biased(config)
    config.only("num_key_value_heads", 1)
    document["head_dim"] = config.number("head_dim")
    document["residual_streams"] = config.number("hc_mult", default=1)
    rates = config.section("compress_rates") if config.has("compress_rates") else config
    sparse = rates.number(_SPARSE, "compress_rate_csa", default=4)
    heavy = rates.number(_HEAVY, "compress_rate_hca", default=128)
    types, ratios = config.words("layer_types", (_NEAR, _SPARSE, _HEAVY)), config.numbers("compress_ratios")
    if types is not None:
        ratios = tuple({_NEAR: 0, _SPARSE: sparse, _HEAVY: heavy}[each] for each in types)
    if ratios is None:
        raise config.error("compress_ratios", "missing; they decide what each layer costs")
    document["compressed"] = {
        "q_rank": config.number("q_lora_rank"),
        "rope_head_dim": config.number("qk_rope_head_dim", default=64),
        **config.sizes(out_rank="o_lora_rank", out_groups="o_groups", window="sliding_window"),
        "ratios": list(ratios[: document["layers"]]),  # those of multi-token prediction come after
        "chosen": sparse,
    }
    shared = config.number("n_shared_experts", default=1, least=0)
    experts = experts_of(config, "n_routed_experts", "moe_intermediate_size", shared)
    return document | _indexer_of(config) | experts | predicted(config)


def qwen3_next(config: Config, kind: str) -> Document:
    """Qwen3-Next and 3.5: gated delta net in all but every n-th layer, gated attention, experts with a gated shared one."""
    config.only("attn_output_gate", True)
    config.only("use_sliding_window", False)
    config.take("mamba_ssm_dtype", "mtp_use_dedicated_embeddings")
    document = decoder(config, "2", "256", activation="silu", qk_norm=True, output_gate=True)
    every, attending = config.number("full_attention_interval", default=4), _attending(config)
    document["full_attention"] = every if attending is None else attending
    document["recurrent"] = {
        "kind": "gated_delta",
        **config.sizes(heads="linear_num_value_heads", head_dim="linear_value_head_dim"),
        **config.sizes(state="linear_key_head_dim", groups="linear_num_key_heads"),
        "conv": config.number("linear_conv_kernel_dim", default=4),
        "chunk": _CHUNK,
    }
    document |= predicted(config, "num_mtp_layers", "mtp_num_hidden_layers")
    if kind == "qwen3_5_text":
        return document | ffn_of(config)
    shared = config.number("shared_expert_intermediate_size", default=0, least=0)
    return document | spaced_experts_of(config, document["layers"], shared_ffn=shared, shared_gate=shared > 0)


def _attending(config: Config) -> list[int] | None:
    """The layers that attend where the others are recurrent, if they are named."""
    types = config.words("layer_types", (_LINEAR, _FULL))
    return None if types is None else [layer for layer, each in enumerate(types) if each == _FULL]


def nemotron_h(config: Config, kind: str) -> Document:
    """Nemotron-H and Nemotron-3: a pattern of Mamba-2, attention, MLP and experts, one mixer a layer."""
    config.take(*_FREE["nemotron"].split())
    names = config.words("layers_block_type", _LETTERS)  # as transformers 5 writes the letters
    if names is None or config.has("hybrid_override_pattern"):
        pattern = config.text("hybrid_override_pattern")
    else:
        pattern = "".join(_LETTERS[name] for name in names)
    style: Document = {"gated": False, "norm": "rmsnorm", "position": "none", "pattern": pattern}
    document = base_of(config, activation="relu2", **style) | grouped(config, "8", "128") | biased(config)
    config.share("attention_dropout", "hidden_dropout")
    config.flag("mlp_bias", False)
    if "M" in pattern:
        document["recurrent"] = {
            "kind": "mamba2",
            **config.sizes(heads="mamba_num_heads", head_dim="mamba_head_dim", state="ssm_state_size", groups="n_groups"),
            "conv": config.number("conv_kernel", default=4),
            "chunk": config.number("chunk_size", default=128),
        }
    document |= ffn_of(config) if "-" in pattern else {}
    config.take("intermediate_size")
    if "E" in pattern:
        shared = config.number("moe_shared_expert_intermediate_size", default=0, least=0)
        latent = config.number("moe_latent_size", default=0, least=0)
        document |= experts_of(config, "n_routed_experts", "moe_intermediate_size", shared_ffn=shared, latent=latent)
        config.take("n_group", "topk_group", "n_shared_experts")
    return document | predicted(config)


def kimi_linear(config: Config, kind: str) -> Document:
    """Kimi Linear: KDA in most layers, latent attention without rotation in the others."""
    config.take(*_FREE["kimi"].split())
    style: Document = {"gated": True, "norm": "rmsnorm", "position": "none", "qk_norm": True}
    document = base_of(config, activation="silu", **style) | {"mla": mla_of(config)} | ffn_of(config)
    attending, linear = _attending(config), config
    if attending is None:  # counted from 1
        linear = config.section("linear_attn_config")
        attending = [layer - 1 for layer in linear.numbers("full_attn_layers") or ()]
        linear.numbers("kda_layers")
    heads, size = linear.number("linear_num_heads", "num_heads"), linear.number("linear_head_dim", "head_dim")
    conv = linear.number("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    sizes = {"heads": heads, "head_dim": size, "state": size, "groups": heads, "conv": conv, "chunk": _CHUNK}
    document |= {"full_attention": attending, "recurrent": {"kind": "kda", **sizes}}
    if linear is not config:
        linear.refuse_others()
    first = tuple(range(config.number("first_k_dense_replace", default=0, least=0)))
    first = dense_layers_of(config, document["layers"], first)
    config.only("moe_layer_freq", 1)
    ffn = config.number("moe_intermediate_size")
    experts = {
        "count": config.number("num_experts", "n_routed_experts"),
        "ffn": ffn,
        "shared_ffn": config.number("num_shared_experts", "n_shared_experts", default=0, least=0) * ffn,
        "dense_layers": dense_first(first),
        "topk": config.number("num_experts_per_token", "num_experts_per_tok"),
    }
    return document | {"experts": experts} | predicted(config)
