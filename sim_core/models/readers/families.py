"""Parts of the layers of a `config.json`: a function for each reads its fields, whatever the family (families.yaml).

A part that a family has, or that a file of an unknown family names, adds numbers to the model.
"""

import re
from collections.abc import Callable, Mapping

from sim_core.documents import Words
from sim_core.models.readers.config_fields import Config, Document, tables

_NEAR, _LOCAL, _SPARSE, _HEAVY = "sliding_attention", "local", "compressed_sparse_attention", "heavily_compressed_attention"
_FULL = ("full_attention", "attention", "indexed_attention", "global", "hybrid")
_STATE = ("linear_attention", "mamba", "mamba2", "recurrent")
_LETTERS = dict.fromkeys(_STATE, "M") | dict.fromkeys(_FULL, "*") | {"mlp": "-", "moe": "E"}
_DROPOUTS = ("hidden_dropout", "resid_pdrop", "embd_pdrop")
_ROUTING = {"greedy": "", "group_limited_greedy": "limited", "noaux_tc": "limited"}
"""Groups of experts, and how many of them a token may use: the `greedy` choice of DeepSeek-V2-Lite knows no groups."""
_POSITIONS = {word: word for word in ("learned", "alibi", "none")} | {
    "nope": "none", "rope": "rotary", "rotary": "rotary", "rope_gptj": "rotary",
}  # fmt: skip


def decoder(config: Config, parts: str) -> Document:
    """The numbers of a decoder with these parts, for `parse_model`."""
    document: Document = {"gated": True, "norm": "rmsnorm", "position": "rotary"}
    if "pattern" in parts:
        document |= _pattern(config)
    document.setdefault("layers", 0)
    if config.value("num_hidden_layers") is not None or not document["layers"]:
        document["layers"] = config.layers()
    document |= config.sizes(hidden="hidden_size", heads="num_attention_heads", vocabulary="vocab_size")
    document |= {"tied": config.flag("tie_word_embeddings"), "activation": config.word(tables()["activations"], "hidden_act")}
    if "mla" in parts:
        config.take("num_key_value_heads", "head_dim", "qk_head_dim")
    else:
        given = {"kv_heads": config.optional("num_key_value_heads"), "head_dim": config.optional("head_dim")}
        document |= {key: size for key, size in given.items() if size is not None}
    everywhere = config.flag("use_bias")
    attention = config.flag("attention_bias", everywhere)
    document["qkv_bias"] = config.flag("qkv_bias") or attention
    document["projection_bias"] = config.flag("attention_out_bias", attention)
    document["mlp_bias"] = config.flag("mlp_bias", everywhere)
    document["head_bias"] = config.flag("lm_head_bias")
    document["qk_norm_whole" if config.row.rules.get("qk_norm") else "qk_norm"] = config.flag("use_qk_norm")
    document["hidden_dropout"] = config.share(*_DROPOUTS)
    document["attention_dropout"] = config.share("attention_dropout")
    if sequence := config.optional("seq_length"):
        document["sequence"] = sequence
    for part in parts.split():
        document |= PARTS[part](config, document)
    some = "experts" not in document or "dense_layers" in document["experts"]
    if "ffn" not in document and ("-" in document["pattern"] if "pattern" in document else some):
        wide = 4 * document["hidden"] if config.reads("intermediate_size") else None
        document["ffn"] = config.number("intermediate_size", default=wide)
    config.take("intermediate_size")
    whole = {key: value for key, value in config.row.has.items() if "." not in key}
    document |= whole
    for key in config.row.has.keys() - whole.keys():
        section, _, name = key.partition(".")
        if section in document and (name != "shared_gate" or document[section]["shared_ffn"]):
            document[section][name] = config.row.has[key]
    if document.get("norms_per_layer") == 1 and not document.get("parallel_residual"):
        del document["norms_per_layer"]
    return document


def _pattern(config: Config) -> Document:
    """One mixer a layer: by letters, or as transformers 5 names them."""
    names = config.words("layer_types", _LETTERS)
    if names is None or config.value("hybrid_override_pattern") is not None:
        pattern = config.text("hybrid_override_pattern")
    else:
        pattern = "".join(_LETTERS[name] for name in names)
    return {"pattern": pattern, "layers": len(pattern)}


def _kinds(config: Config, document: Document, others: Words) -> Words | None:
    """What each layer's mixer is called, if the file says so: full attention or one of `others`."""
    return config.words("layer_types", _FULL + others, document["layers"])


def _window(config: Config, document: Document) -> Document:
    """Sliding window in the layers that `layer_types` names, or else in those of the family."""
    if not config.flag("use_sliding_window", True):
        config.take("sliding_window", "layer_types", "max_window_layers")
        return {}
    kinds, tokens, layers = (
        _kinds(config, document, (_NEAR, _LOCAL)),
        config.optional("sliding_window"),
        range(document["layers"]),
    )
    where = config.row.rules.get("window")
    config.take("max_window_layers", "sliding_window_pattern")
    if tokens is None:
        return {}
    if kinds is not None:
        where = _named([layer for layer in layers if kinds[layer] in (_NEAR, _LOCAL)], len(layers))
    elif where == "after":
        where = _named(list(layers[config.number("max_window_layers", least=0) :]), len(layers))
    elif where == "pattern" or (where is None and config.value("sliding_window_pattern") is not None):
        every = config.value("sliding_window_pattern")
        every = len(every) if isinstance(every, str) and re.fullmatch("L+G", every) else config.number("sliding_window_pattern")
        where = f"{every - 1}:1" if every > 1 else []
    elif where is None:
        raise config.error("layer_types", "missing, expected which layers have the window of sliding_window")
    return {"window": {"tokens": tokens, "layers": where}} if where else {}


def _named(layers: list[int], count: int) -> str | list[int]:
    """`all`, `even` or `odd` instead of a list where it is the same."""
    named = {"all": range(count), "even": range(0, count, 2), "odd": range(1, count, 2)}
    return next((name for name, numbers in named.items() if list(numbers) == layers), layers)


def _chunks(config: Config, document: Document) -> Document:
    """Llama 4: chunks of attention in all but the layers without rotation."""
    tokens, count = config.optional("attention_chunk_size"), document["layers"]
    rotated, every = config.numbers("no_rope_layers"), config.number("no_rope_layer_interval")
    if rotated and len(rotated) != count:
        raise config.error("no_rope_layers", f"found {len(rotated)} layers, expected {count}")
    near = [layer for layer in range(count) if (rotated[layer] if rotated else (layer + 1) % every)]
    return {} if tokens is None else {"window": {"tokens": tokens, "layers": near, "chunked": True}}


def _experts(config: Config, document: Document) -> Document:
    """Routed and shared experts, and the layers that keep a dense MLP."""
    shared = document["hidden"] if config.row.rules.get("shared") else config.count("shared_expert_intermediate_size")
    if "E" not in document.get("pattern", "E"):
        config.take("num_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size")
        return {}
    if (count := config.number("num_experts", least=0)) == 0:  # all is in the shared MLP (Granite 4)
        config.take("num_experts_per_tok", "moe_intermediate_size")
        return {"ffn": shared} if shared else {}
    named = bool(config.row.parts) or config.value("moe_intermediate_size") is not None
    ffn = config.number("moe_intermediate_size" if named else "intermediate_size")
    experts: Document = {"count": count, "topk": config.number("num_experts_per_tok"), "ffn": ffn}
    experts["shared_ffn"] = shared or config.count("num_shared_experts") * ffn
    if latent := config.count("moe_latent_size"):
        experts["latent"] = latent
    groups, allowed = config.count("n_group") or 1, config.count("topk_group") or 1
    if config.reads("topk_method") and config.word(_ROUTING, "topk_method") and groups > 1:
        experts |= {"groups": groups, "topk_groups": allowed}
    dense = [] if "pattern" in document else _dense(config, document["layers"])
    if dense:
        experts["dense_layers"] = len(dense) if dense == list(range(len(dense))) else dense
    return {"experts": experts}


def _dense(config: Config, count: int) -> list[int]:
    """The layers without experts: by name, or the first ones, those between, some more."""
    types, listed = config.words("mlp_layer_types", ("dense", "sparse"), count), config.numbers("moe_layers")
    if types is not None:
        config.take("first_k_dense_replace", "moe_layer_freq")
        return [layer for layer in range(count) if types[layer] == "dense"]
    if (flags := config.flags("is_moe_layer", count)) is not None:
        config.take("first_k_dense_replace")
        return [layer for layer in range(count) if not flags[layer]]
    first, more = config.count("first_k_dense_replace"), set(config.numbers("mlp_only_layers") or ())
    every, step = config.count("moe_layer_freq") or 1, config.count("decoder_sparse_step") or 1
    last = count - 1 if config.value("moe_layer_end_index") in (None, -1) else config.number("moe_layer_end_index")
    if listed:
        return [layer for layer in range(count) if layer not in listed]
    return [x for x in range(count) if x < first or x > last or x % every or (x + 1) % step or x in more]


def _mla(config: Config, document: Document) -> Document:
    """Sizes of latent attention."""
    heads = {"nope_head_dim": "qk_nope_head_dim", "rope_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim"}
    return {"mla": {"q_rank": config.optional("q_lora_rank"), **config.sizes(kv_rank="kv_lora_rank", **heads)}}


def _indexer(config: Config, document: Document) -> Document:
    """DeepSeek-V3.2 and GLM-5: the lightning indexer, one in each layer."""
    _kinds(config, document, ())
    config.words("indexer_types", ("full",))
    return {"indexer": config.sizes(heads="index_n_heads", head_dim="index_head_dim", topk="index_topk")}


def _compressed(config: Config, document: Document) -> Document:
    """DeepSeek-V4: a window and compressed entries in each layer, hyper-connections."""
    document["residual_streams"] = config.number("hc_mult")
    sparse, heavy = config.number("compress_rate_csa"), config.number("compress_rate_hca")
    types, ratios = config.words("layer_types", (_NEAR, _SPARSE, _HEAVY)), config.numbers("compress_ratios")
    if types is not None:
        ratios = tuple({_NEAR: 0, _SPARSE: sparse, _HEAVY: heavy}[each] for each in types)
    if ratios is None:
        raise config.error("compress_ratios", "missing; they decide what each layer costs")
    document["head_dim"] = config.number("head_dim")
    compressed = config.sizes(q_rank="q_lora_rank", rope_head_dim="qk_rope_head_dim", out_rank="o_lora_rank")
    ratios = ratios[: document["layers"]]  # those of multi-token prediction come after
    sizes = config.sizes(out_groups="o_groups", window="sliding_window")
    indexer = config.sizes(heads="index_n_heads", head_dim="index_head_dim", topk="index_topk")
    return {"compressed": {**compressed, **sizes, "ratios": list(ratios), "chosen": sparse}, "indexer": indexer}


def _recurrent(config: Config, document: Document) -> Document:
    """Mixers with a state, and which layers attend instead."""
    kind, layers, pattern = config.row.rules["recurrent"], range(document["layers"]), document.get("pattern")
    fields = tables()["mixers"][kind]
    if pattern is not None and "M" not in pattern:
        config.take(*fields.values())
        return {}
    if config.value(fields["head_dim"]) in (None, "auto") and config.reads(fields["head_dim"]):
        inner = config.optional("mamba_d_ssm") or config.number("mamba_expand", default=2) * document["hidden"]
        size = inner // config.number(fields["heads"])
        sizes = config.sizes(**{ours: field for ours, field in fields.items() if ours != "head_dim"}) | {"head_dim": size}
    else:
        sizes = config.sizes(**fields)
    found: Document = {"recurrent": {"kind": kind, **sizes}}
    if config.row.rules.get("beside"):
        found["recurrent"] |= {"beside": True, "normed": config.flag("mamba_rms_norm")}
        config.take("mamba_d_ssm")
        return found
    if pattern is not None:
        return found
    kinds, indices, counted = (
        _kinds(config, document, _STATE),
        config.numbers("attn_layer_indices"),
        config.numbers("full_attn_layers"),
    )
    if kinds is not None:
        found["full_attention"] = [layer for layer in layers if kinds[layer] in _FULL]
        config.take("full_attention_interval", "attn_layer_indices")
    elif config.value("full_attention_interval") is not None:
        found["full_attention"] = config.number("full_attention_interval")
    elif counted is not None:  # from 1
        found["full_attention"] = [layer - 1 for layer in counted]
    elif indices is not None:
        found["full_attention"] = list(indices)
    else:
        raise config.error("layer_types", "missing, expected which layers attend")
    return found


def _falcon(config: Config, document: Document) -> Document:
    """Falcon: one norm or two before attention and MLP side by side; few keys and values in two ways."""
    newer, beside = config.flag("new_decoder_architecture"), config.flag("parallel_attn")
    norms = config.count("num_ln_in_parallel_attn") or 2 if newer else 1
    if not newer:
        document["kv_heads"] = 1 if config.flag("multi_query") else document["heads"]
    document["position"] = "alibi" if config.flag("alibi") else "rotary"
    config.take("multi_query", "num_ln_in_parallel_attn")
    return {"parallel_residual": newer or beside, "norms_per_layer": norms if newer or beside else 2}


PARTS: Mapping[str, Callable[[Config, Document], Document]] = {
    "window": _window, "chunks": _chunks, "mla": _mla, "indexer": _indexer, "compressed": _compressed, "experts": _experts,
    "recurrent": _recurrent, "falcon": _falcon, "pattern": lambda config, document: {},
    "mtp": lambda config, document: {"mtp_layers": config.number("num_nextn_predict_layers", default=0, least=0)},
    "softcap": lambda config, document: {"logit_softcap": config.value("final_logit_softcapping") is not None},
    "parallel": lambda config, document: {"parallel_residual": config.flag("use_parallel_residual")},
    "narrow_queries": lambda config, document: {"q_rank": config.number("share_q_dim")},
    "multi_query": lambda config, document: {"kv_heads": 1} if config.flag("multi_query") else {},
    "position": lambda config, document: {"position": config.word(_POSITIONS, "position_embedding_type")},
    "learned": lambda config, document: {
        "positions": config.number("max_position_embeddings") + config.row.rules.get("learned", 0)
    },
}  # fmt: skip
"""Reads a part: what it adds to the numbers so far, by the names in families.yaml."""
