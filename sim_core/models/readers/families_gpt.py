"""`config.json` of the GPT families: LayerNorm, biases, an MLP without gate."""

from __future__ import annotations

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
