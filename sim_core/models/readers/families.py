"""Families of `config.json` whose layers are attention and MLP or experts: a function for each, and what they share.

Defaults of missing fields are those of transformers 4.57 and 5.23 for the model type; where a default is the size of one
particular model, the field must be there.
"""

from collections.abc import Mapping
from typing import Any

from sim_core.models.readers.config_fields import ACTIVATIONS, Config, Document

_BIASED: Document = {
    "gated": False, "norm": "layernorm", "qkv_bias": True, "projection_bias": True, "mlp_bias": True,
}  # fmt: skip
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers",), "hidden": ("hidden_size",), "heads": ("num_attention_heads",),
    "activation": ("hidden_act", "hidden_activation", "mlp_hidden_act"),
}  # fmt: skip
_OF_GPT2: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layer",), "hidden": ("n_embd",), "heads": ("n_head",), "activation": ("activation_function",),
}  # fmt: skip
_OF_BLOOM: Mapping[str, tuple[str, ...]] = {
    "layers": ("n_layer", "num_hidden_layers"), "hidden": ("n_embed", "hidden_size"),
    "heads": ("num_attention_heads", "n_head"), "activation": (),
}  # fmt: skip


def base_of(
    config: Config,
    tied: bool = False,
    activation: str | None = None,
    vocabulary: int | None = None,
    names: Mapping[str, tuple[str, ...]] = _NAMES,
    **more: object,
) -> Document:
    """What all families have. `activation`, `vocabulary`: of every model of the family, if not stated; `names`: of fields."""
    at = {**_NAMES, **names}
    counted = "pattern" in more and not config.has("num_hidden_layers")
    document = {} if counted else {"layers": config.layers(*at["layers"])}
    document |= {"hidden": config.number(*at["hidden"]), "heads": config.number(*at["heads"])}
    document |= {"vocabulary": config.number("vocab_size", default=vocabulary)}
    document |= {"tied": config.flag("tie_word_embeddings", tied)}
    stated = config.word(ACTIVATIONS, *at["activation"], default=activation) if at["activation"] else activation
    return document | {"activation": stated} | more


def grouped(config: Config, kv_heads: str | None, head_dim: str | None = None) -> Document:
    """Key-value heads and the size of a head, where stated. The words: what transformers takes where they are missing; None: as
    many as heads, and hidden / heads."""
    document: Document = {}
    if config.has("num_key_value_heads", kv_heads):
        document["kv_heads"] = config.number("num_key_value_heads")
    if config.has("head_dim", head_dim):
        document["head_dim"] = config.number("head_dim")
    return document


def biased(config: Config, default: bool = False) -> Document:
    """Biases of attention."""
    there = config.flag("attention_bias", default)
    return {"qkv_bias": there, "projection_bias": there}


def rotary_of(config: Config, **more: Any) -> Document:
    """Pre-norm decoder with rotary positions: Llama and what follows it. `more`: as `base_of` takes it."""
    config.optional("max_position_embeddings")
    style: Document = {"gated": True, "norm": "rmsnorm", "position": "rotary", **more}
    document = base_of(config, **style)
    document["attention_dropout"] = config.share("attention_dropout")
    if style["gated"]:
        config.share("hidden_dropout")
    return document


def decoder(config: Config, kv_heads: str | None = None, head_dim: str | None = None, **more: Any) -> Document:
    """The same with grouped heads that may have biases."""
    return rotary_of(config, **more) | grouped(config, kv_heads, head_dim) | biased(config)


def window_of(config: Config, layers: int, where: str | tuple[int, ...], otherwise: str | None = None) -> Document:
    """Sliding window in the layers `where`, or in those that `layer_types` names."""
    types = config.words("layer_types", ("full_attention", "sliding_attention"))
    if types is not None:
        where = tuple(layer for layer, kind in enumerate(types) if kind == "sliding_attention")
        if len(types) != layers:
            raise config.error("layer_types", f"found {len(types)} layers, expected {layers}")
    if not config.has("sliding_window", otherwise):
        return {}
    tokens = config.number("sliding_window")
    return {"window": {"tokens": tokens, "layers": pattern_of(where, layers)}} if where else {}


def switched_window_of(config: Config, layers: int, where: str | tuple[int, ...]) -> Document:
    """The same where a switch of its own says whether there is one."""
    if config.flag("use_sliding_window", False):
        return window_of(config, layers, where)
    config.take("sliding_window", "layer_types")
    return {}


def pattern_of(layers: str | tuple[int, ...], count: int) -> str | list[int]:
    """`all`, `even` or `odd` instead of a list where it is the same."""
    if isinstance(layers, str):
        return layers
    named = {"all": range(count), "even": range(0, count, 2), "odd": range(1, count, 2)}
    return next((name for name, numbers in named.items() if tuple(numbers) == layers), list(layers))


def dense_first(layers: tuple[int, ...]) -> int | list[int]:
    """The number of dense layers if they are the first ones, else their list."""
    return len(layers) if layers == tuple(range(len(layers))) else list(layers)


def ffn_of(config: Config) -> Document:
    return {"ffn": config.number("intermediate_size")}


def experts_of(
    config: Config, count: str = "num_local_experts", ffn: str = "intermediate_size", shared: int = 0, **more: Any
) -> Document:
    """Experts, `shared` of the same size besides the routed ones."""
    each, topk = config.number(ffn), config.number("num_experts_per_tok", "experts_per_token")
    return {"experts": {"count": config.number(count), "topk": topk, "ffn": each, "shared_ffn": shared * each, **more}}


def predicted(config: Config, *names: str) -> Document:
    """Layers of multi-token prediction, by the usual name or others."""
    return {"mtp_layers": config.number("num_nextn_predict_layers", *names, default=0, least=0)}


def spaced_experts_of(config: Config, layers: int, **more: Any) -> Document:
    """Experts in each n-th layer but some, and the dense MLP of the others: Qwen."""
    step, dense = config.number("decoder_sparse_step", default=1), set(config.numbers("mlp_only_layers") or ())
    dense |= {layer for layer in range(layers) if (layer + 1) % step}
    ffn = config.number("intermediate_size", default=0)
    if not dense:
        return experts_of(config, "num_experts", "moe_intermediate_size", **more)
    first = dense_first(tuple(sorted(dense)))
    return {"ffn": ffn, **experts_of(config, "num_experts", "moe_intermediate_size", dense_layers=first, **more)}


def many_experts(config: Config, layers: int, otherwise: str) -> Document:
    """Routed and shared experts after the first dense layers: DeepSeek, Kimi, GLM."""
    config.has("first_k_dense_replace", otherwise)
    first = config.number("first_k_dense_replace", least=0)
    every = config.number("moe_layer_freq", default=1)
    dense = dense_layers_of(config, layers, tuple(layer for layer in range(layers) if layer < first or layer % every))
    shared = config.number("n_shared_experts", least=0) if config.has("n_shared_experts", "1 or 2") else 0
    # groups of experts, and how many of them a token may use; the `greedy` choice of DeepSeek-V2-Lite knows no groups
    methods = {"greedy": "", "group_limited_greedy": "limited", "noaux_tc": "limited"}
    limited = config.word(methods, "topk_method", default="noaux_tc")
    groups, allowed = config.number("n_group", default=1), config.number("topk_group", default=1)
    more: Document = {"groups": groups, "topk_groups": allowed} if limited and groups > 1 else {}
    more["dense_layers"] = dense_first(dense)
    experts = experts_of(config, "n_routed_experts", "moe_intermediate_size", shared, **more)
    return ffn_of(config) | experts | predicted(config, "num_mtp_layers")


def dense_layers_of(config: Config, count: int, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """The layers without experts by `mlp_layer_types`, as transformers 5 writes them, or `otherwise`."""
    types = config.words("mlp_layer_types", ("dense", "sparse"))
    if types is not None and len(types) != count:
        raise config.error("mlp_layer_types", f"found {len(types)} layers, expected {count}")
    return otherwise if types is None else tuple(layer for layer, each in enumerate(types) if each == "dense")


def mla_of(config: Config) -> Document:
    """Sizes of latent attention."""
    heads = {"nope_head_dim": "qk_nope_head_dim", "rope_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim"}
    return {"q_rank": config.optional("q_lora_rank"), **config.sizes(kv_rank="kv_lora_rank", **heads)}


def gpt_neox(config: Config, kind: str) -> Document:
    config.optional("max_position_embeddings")
    document = base_of(config, names={"activation": ("hidden_act",)}, position="rotary", **_BIASED)
    document |= ffn_of(config) | biased(config, default=True)
    document |= {key: config.share(key) for key in ("hidden_dropout", "attention_dropout")}
    return document | {"parallel_residual": config.flag("use_parallel_residual", True)}


def gpt2(config: Config, kind: str) -> Document:
    config.only("add_cross_attention", False)
    document = base_of(config, tied=True, names=_OF_GPT2, position="learned", **_BIASED)
    return document | {
        "ffn": config.optional("n_inner") or 4 * document["hidden"],
        "positions": config.number("n_positions"),
        "hidden_dropout": config.share("resid_pdrop", "embd_pdrop", default=0.1),
        "attention_dropout": config.share("attn_pdrop", default=0.1),
    }


def opt(config: Config, kind: str) -> Document:
    document = base_of(config, tied=True, names={"activation": ("activation_function",)}, position="learned", **_BIASED)
    document |= {
        "ffn": config.number("ffn_dim"),
        "positions": config.number("max_position_embeddings") + 2,  # OPTLearnedPositionalEmbedding starts at 2
        "hidden_dropout": config.share("dropout", default=0.1),
        "attention_dropout": config.share("attention_dropout"),
    }
    config.only("word_embed_proj_dim", document["hidden"])
    config.only("do_layer_norm_before", True)
    config.only("_remove_final_layer_norm", False)
    config.only("layer_norm_elementwise_affine", True)
    config.share("activation_dropout")
    return document | dict.fromkeys(("qkv_bias", "projection_bias", "mlp_bias"), config.flag("enable_bias", True))


def bloom(config: Config, kind: str) -> Document:
    document = base_of(config, tied=True, names=_OF_BLOOM, activation="gelu", position="alibi", embedding_norm=True, **_BIASED)
    document["ffn"] = config.optional("n_inner") or 4 * document["hidden"]
    document |= {key: config.share(key) for key in ("hidden_dropout", "attention_dropout")}
    return document | ({"sequence": config.number("seq_length")} if config.has("seq_length") else {})


def llama(config: Config, kind: str) -> Document:
    return decoder(config) | ffn_of(config) | {"mlp_bias": config.flag("mlp_bias", False)}


def mistral(config: Config, kind: str) -> Document:
    document = rotary_of(config) | grouped(config, "8")
    document |= window_of(config, document["layers"], "all", "4096" if kind == "mistral" else None)
    return document | (ffn_of(config) if kind == "mistral" else experts_of(config))


def qwen(config: Config, kind: str) -> Document:
    document = rotary_of(config) | grouped(config, "4" if kind == "qwen3_moe" else "32", "128" if kind == "qwen3" else None)
    document |= {"qkv_bias": True} if kind == "qwen2" else {"qk_norm": True, **biased(config)}
    layers = document["layers"]
    full = config.number("max_window_layers", default=layers, least=0)
    document |= switched_window_of(config, layers, tuple(range(full, layers)))
    return document | (spaced_experts_of(config, layers) if kind == "qwen3_moe" else ffn_of(config))


def deepseek(config: Config, kind: str) -> Document:
    document = rotary_of(config, qk_norm=True)
    config.take("num_key_value_heads", "head_dim", "qk_head_dim")
    config.has("q_lora_rank", "1536")
    document |= {"mla": mla_of(config)} | biased(config)
    return document | many_experts(config, document["layers"], "0" if kind == "deepseek_v2" else "3")


def glm(config: Config, kind: str) -> Document:
    document = decoder(config, "8") | {"projection_bias": False, "qk_norm": config.flag("use_qk_norm", False)}
    return document | many_experts(config, document["layers"], "1")


def gpt_oss(config: Config, kind: str) -> Document:
    document = rotary_of(config, attention_sinks=True, mlp_bias=True) | grouped(config, "8", "64")
    document |= biased(config, default=True) | window_of(config, document["layers"], "even", "128")
    return document | experts_of(config, router_bias=True)


def gemma2(config: Config, kind: str) -> Document:
    document = decoder(config, "4", "256", tied=True, norms_per_layer=4)
    config.take("attn_logit_softcapping")  # inside the attention kernel
    document |= {"logit_softcap": config.has("final_logit_softcapping")}
    return document | window_of(config, document["layers"], "even", "4096") | ffn_of(config)


def nemotron(config: Config, kind: str) -> Document:
    document = decoder(config, gated=False, norm="layernorm") | ffn_of(config)
    return document | {"mlp_bias": config.flag("mlp_bias", False), "hidden_dropout": config.share("hidden_dropout")}


def grok(config: Config, kind: str) -> Document:
    """Grok-1 has no class in transformers: names as in conversions of it, shapes from xai-org/grok-1, model.py."""
    config.optional("max_position_embeddings")
    style: Document = {"gated": True, "norm": "rmsnorm", "norms_per_layer": 4, "position": "rotary"}
    document = base_of(config, True, "gelu", names={"activation": ("hidden_act",)}, **style)
    document["kv_heads"] = config.number("num_key_value_heads")
    return document | grouped(config, None) | experts_of(config, "num_experts")
