"""Families of `config.json` whose layers are attention and MLP or experts: a function for each, and what they share.

Defaults of missing fields are those of transformers 4.57 and 5.23 for the model type; where a default is the size of one
particular model, the field must be there.
"""

from sim_core.models.readers.config_fields import ACTIVATIONS, Config, Document


def _all_biased(document: Document) -> Document:
    return document | {"gated": False, "norm": "layernorm", "qkv_bias": True, "projection_bias": True, "mlp_bias": True}


def gpt_neox(config: Config, kind: str) -> Document:
    config.optional("max_position_embeddings")
    document: Document = {
        "layers": config.layers("num_hidden_layers"),
        "hidden": config.number("hidden_size"),
        "heads": config.number("num_attention_heads"),
        "ffn": config.number("intermediate_size"),
        "vocabulary": config.number("vocab_size"),
        "tied": config.flag("tie_word_embeddings", False),
        "activation": config.word(ACTIVATIONS, "hidden_act"),
        "position": "rotary",
    }
    document = _all_biased(document)
    if not config.flag("attention_bias", True):
        document |= {"qkv_bias": False, "projection_bias": False}
    document["hidden_dropout"] = config.share("hidden_dropout")
    document["attention_dropout"] = config.share("attention_dropout")
    return document | {"parallel_residual": config.flag("use_parallel_residual", True)}


def gpt2(config: Config, kind: str) -> Document:
    hidden = config.number("n_embd")
    config.only("add_cross_attention", False, False)
    document: Document = {
        "layers": config.layers("n_layer"),
        "hidden": hidden,
        "heads": config.number("n_head"),
        "ffn": config.optional("n_inner") or 4 * hidden,
        "vocabulary": config.number("vocab_size"),
        "tied": config.flag("tie_word_embeddings", True),
        "activation": config.word(ACTIVATIONS, "activation_function"),
        "position": "learned",
        "positions": config.number("n_positions"),
        "hidden_dropout": config.share("resid_pdrop", "embd_pdrop", default=0.1),
        "attention_dropout": config.share("attn_pdrop", default=0.1),
    }
    return _all_biased(document)


def opt(config: Config, kind: str) -> Document:
    document: Document = {
        "layers": config.layers("num_hidden_layers"),
        "hidden": config.number("hidden_size"),
        "heads": config.number("num_attention_heads"),
        "ffn": config.number("ffn_dim"),
        "vocabulary": config.number("vocab_size"),
        "tied": config.flag("tie_word_embeddings", True),
        "activation": config.word(ACTIVATIONS, "activation_function"),
        "position": "learned",
        "positions": config.number("max_position_embeddings") + 2,  # OPTLearnedPositionalEmbedding starts at 2
        "hidden_dropout": config.share("dropout", default=0.1),
        "attention_dropout": config.share("attention_dropout"),
    }
    config.only("word_embed_proj_dim", document["hidden"], document["hidden"])
    config.only("do_layer_norm_before", True, True)
    config.only("_remove_final_layer_norm", False, False)
    config.only("layer_norm_elementwise_affine", True, True)
    config.share("activation_dropout")
    document = _all_biased(document)
    if not config.flag("enable_bias", True):
        document |= {"qkv_bias": False, "projection_bias": False, "mlp_bias": False}
    return document


def bloom(config: Config, kind: str) -> Document:
    hidden = config.number("n_embed", "hidden_size")
    document: Document = {
        "layers": config.layers("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": config.number("num_attention_heads", "n_head"),
        "ffn": config.optional("n_inner") or 4 * hidden,
        "vocabulary": config.number("vocab_size"),
        "tied": config.flag("tie_word_embeddings", True),
        "activation": "gelu",
        "position": "alibi",
        "embedding_norm": True,
        "hidden_dropout": config.share("hidden_dropout"),
        "attention_dropout": config.share("attention_dropout"),
    }
    if config.has("seq_length"):
        document["sequence"] = config.number("seq_length")
    return _all_biased(document)


def base_of(
    config: Config, tied: bool, activation: str | None = None, vocabulary: int | None = None, **more: object
) -> Document:
    """What all families with the usual names share. `activation`, `vocabulary`: of every model of the family, if not stated."""
    return {
        **({} if "pattern" in more and not config.has("num_hidden_layers") else {"layers": config.layers("num_hidden_layers")}),
        "hidden": config.number("hidden_size"),
        "heads": config.number("num_attention_heads"),
        "vocabulary": config.number("vocab_size", default=vocabulary),
        "tied": config.flag("tie_word_embeddings", tied),
        "activation": config.word(ACTIVATIONS, "hidden_act", "hidden_activation", "mlp_hidden_act", default=activation),
        **more,
    }


def rotary_of(
    config: Config,
    tied: bool = False,
    gated: bool = True,
    norm: str = "rmsnorm",
    activation: str | None = None,
    vocabulary: int | None = None,
) -> Document:
    """Pre-norm decoder with rotary positions: Llama and what follows it."""
    config.optional("max_position_embeddings")
    document = base_of(config, tied, activation, vocabulary, gated=gated, norm=norm, position="rotary")
    document["attention_dropout"] = config.share("attention_dropout")
    if gated and norm == "rmsnorm":
        config.share("hidden_dropout")
    return document


def kv_heads_of(config: Config, document: Document, otherwise: str | None) -> None:
    """Key-value heads: as many as heads if null, or missing where transformers says so too (`otherwise` None)."""
    stated = config.has("num_key_value_heads") if otherwise is None else config.stated("num_key_value_heads", otherwise)
    if stated:
        document["kv_heads"] = config.number("num_key_value_heads")


def head_dim_of(config: Config, document: Document, otherwise: str | None = None) -> None:
    if config.has("head_dim") if otherwise is None else config.stated("head_dim", otherwise):
        document["head_dim"] = config.number("head_dim")


def bias_of(config: Config, document: Document, default: bool = False, projection: bool = True) -> None:
    if config.flag("attention_bias", default):
        document |= {"qkv_bias": True} | ({"projection_bias": True} if projection else {})


def window_of(config: Config, document: Document, where: str | tuple[int, ...], otherwise: str | None) -> None:
    """Sliding window in the layers `where`, or in those that `layer_types` names."""
    types = config.words("layer_types", ("full_attention", "sliding_attention"))
    if types is not None:
        if len(types) != document["layers"]:
            raise config.error("layer_types", f"found {len(types)} layers, expected {document['layers']}")
        where = tuple(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
    if config.has("sliding_window") if otherwise is None else config.stated("sliding_window", otherwise):
        tokens = config.number("sliding_window")
        if where:
            document["window"] = {"tokens": tokens, "layers": pattern_of(where, document["layers"])}


def pattern_of(layers: str | tuple[int, ...], count: int) -> str | list[int]:
    """`all`, `even` or `odd` instead of a list where it is the same."""
    if isinstance(layers, str):
        return layers
    named = {"all": range(count), "even": range(0, count, 2), "odd": range(1, count, 2)}
    return next((name for name, numbers in named.items() if tuple(numbers) == layers), list(layers))


def dense_first(layers: tuple[int, ...]) -> int | list[int]:
    """The number of dense layers if they are the first ones, else their list."""
    return len(layers) if layers == tuple(range(len(layers))) else list(layers)


def llama(config: Config, kind: str) -> Document:
    document = rotary_of(config) | {"ffn": config.number("intermediate_size")}
    kv_heads_of(config, document, None)
    head_dim_of(config, document)
    bias_of(config, document)
    document["mlp_bias"] = config.flag("mlp_bias", False)
    return document


def mistral(config: Config, kind: str) -> Document:
    document = rotary_of(config)
    kv_heads_of(config, document, "8")
    head_dim_of(config, document)
    window_of(config, document, "all", "4096" if kind == "mistral" else None)
    ffn = config.number("intermediate_size")
    if kind == "mistral":
        return document | {"ffn": ffn}
    return document | {"experts": {"count": config.number("num_local_experts"), "topk": topk_of(config), "ffn": ffn}}


def qwen(config: Config, kind: str) -> Document:
    document = rotary_of(config)
    kv_heads_of(config, document, {"qwen2": "32", "qwen3": "32", "qwen3_moe": "4"}[kind])
    head_dim_of(config, document, "128" if kind == "qwen3" else None)
    if kind == "qwen2":
        document["qkv_bias"] = True
    else:
        document["qk_norm"] = True
        bias_of(config, document)
    full = config.number("max_window_layers", default=document["layers"], least=0)
    if config.flag("use_sliding_window", False):
        window_of(config, document, tuple(range(full, document["layers"])), None)
    else:
        config.has("sliding_window")
        config.has("layer_types")
    if kind != "qwen3_moe":
        return document | {"ffn": config.number("intermediate_size")}
    step, dense = config.number("decoder_sparse_step", default=1), set(config.numbers("mlp_only_layers") or ())
    dense |= {layer for layer in range(document["layers"]) if (layer + 1) % step}
    experts: Document = {"count": config.number("num_experts"), "topk": topk_of(config)}
    experts["ffn"] = config.number("moe_intermediate_size")
    ffn = config.number("intermediate_size", default=0)
    if dense:
        experts["dense_layers"] = dense_first(tuple(sorted(dense)))
        document["ffn"] = ffn
    return document | {"experts": experts}


def topk_of(config: Config) -> int:
    return config.number("num_experts_per_tok", "experts_per_token")


def many_experts(config: Config, document: Document, otherwise: str) -> None:
    """Routed and shared experts after the first dense layers: DeepSeek, Kimi, GLM."""
    config.stated("first_k_dense_replace", otherwise)
    first = config.number("first_k_dense_replace", least=0)
    every = config.number("moe_layer_freq", default=1)
    dense = tuple(layer for layer in range(document["layers"]) if layer < first or layer % every)
    dense = dense_layers_of(config, document["layers"], dense)
    ffn = config.number("moe_intermediate_size")
    shared = config.number("n_shared_experts", least=0) if config.stated("n_shared_experts", "1 or 2") else 0
    document["ffn"] = config.number("intermediate_size")
    document["experts"] = {
        "count": config.number("n_routed_experts"),
        "topk": topk_of(config),
        **_expert_groups(config),
        "ffn": ffn,
        "shared_ffn": shared * ffn,
        "dense_layers": dense_first(dense),
    }
    document["mtp_layers"] = config.number("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0)


def dense_layers_of(config: Config, count: int, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """The layers without experts by `mlp_layer_types`, as transformers 5 writes them, or `otherwise`."""
    types = config.words("mlp_layer_types", ("dense", "sparse"))
    if types is not None and len(types) != count:
        raise config.error("mlp_layer_types", f"found {len(types)} layers, expected {count}")
    return otherwise if types is None else tuple(layer for layer, each in enumerate(types) if each == "dense")


def _expert_groups(config: Config) -> Document:
    """Groups of experts, and how many of them a token may use; the `greedy` choice of DeepSeek-V2-Lite knows no groups."""
    methods = {"greedy": "", "group_limited_greedy": "limited", "noaux_tc": "limited"}
    limited = config.word(methods, "topk_method", default="noaux_tc")
    groups, allowed = config.number("n_group", default=1), config.number("topk_group", default=1)
    return {"groups": groups, "topk_groups": allowed} if limited and groups > 1 else {}


def mla_of(config: Config) -> Document:
    """Sizes of latent attention."""
    return {
        "q_rank": config.optional("q_lora_rank"),
        "kv_rank": config.number("kv_lora_rank"),
        "nope_head_dim": config.number("qk_nope_head_dim"),
        "rope_head_dim": config.number("qk_rope_head_dim"),
        "v_head_dim": config.number("v_head_dim"),
    }


def deepseek(config: Config, kind: str) -> Document:
    document = rotary_of(config)
    for unused in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        config.has(unused)
    config.stated("q_lora_rank", "1536")
    document["mla"] = mla_of(config)
    document["qk_norm"] = True
    bias_of(config, document)
    many_experts(config, document, "0" if kind == "deepseek_v2" else "3")
    return document


def glm(config: Config, kind: str) -> Document:
    document = rotary_of(config)
    kv_heads_of(config, document, "8")
    head_dim_of(config, document)
    bias_of(config, document, projection=False)
    document["qk_norm"] = config.flag("use_qk_norm", False)
    many_experts(config, document, "1")
    return document


def gpt_oss(config: Config, kind: str) -> Document:
    document = rotary_of(config)
    kv_heads_of(config, document, "8")
    head_dim_of(config, document, "64")
    bias_of(config, document, default=True)
    window_of(config, document, "even", "128")
    experts = {"count": config.number("num_local_experts"), "topk": topk_of(config)}
    experts |= {"ffn": config.number("intermediate_size"), "router_bias": True}
    return document | {"attention_sinks": True, "mlp_bias": True, "experts": experts}


def gemma2(config: Config, kind: str) -> Document:
    document = rotary_of(config, tied=True)
    kv_heads_of(config, document, "4")
    head_dim_of(config, document, "256")
    bias_of(config, document)
    window_of(config, document, "even", "4096")
    config.has("attn_logit_softcapping")  # inside the attention kernel
    document["logit_softcap"] = config.has("final_logit_softcapping")
    return document | {"ffn": config.number("intermediate_size"), "norms_per_layer": 4}


def nemotron(config: Config, kind: str) -> Document:
    document = rotary_of(config, gated=False, norm="layernorm") | {"ffn": config.number("intermediate_size")}
    kv_heads_of(config, document, None)
    head_dim_of(config, document)
    bias_of(config, document)
    document["mlp_bias"] = config.flag("mlp_bias", False)
    document["hidden_dropout"] = config.share("hidden_dropout")
    return document


def grok(config: Config, kind: str) -> Document:
    """Grok-1 has no class in transformers: names as in conversions of it, shapes from xai-org/grok-1, model.py."""
    config.optional("max_position_embeddings")
    document: Document = {
        "layers": config.layers("num_hidden_layers"),
        "hidden": config.number("hidden_size"),
        "heads": config.number("num_attention_heads"),
        "kv_heads": config.number("num_key_value_heads"),
        "vocabulary": config.number("vocab_size"),
        "tied": config.flag("tie_word_embeddings", True),
        "gated": True,
        "activation": config.word(ACTIVATIONS, "hidden_act", default="gelu"),
        "norm": "rmsnorm",
        "norms_per_layer": 4,
        "position": "rotary",
        "experts": {"count": config.number("num_experts"), "topk": topk_of(config), "ffn": config.number("intermediate_size")},
    }
    head_dim_of(config, document)
    return document
