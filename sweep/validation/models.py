"""The model of a measured run, from the sizes in its row; from a preset what the columns do not state."""

from __future__ import annotations

from typing import Any, Final

from sim_core import Model, SpecError, model_names, parameters, parse_model, read_model
from sweep.validation.reasons import NotSimulated
from sweep.validation.table import Row

SIZES: Final = ("layers", "hidden", "heads", "ffn", "vocab", "seq")
NAMES: Final = {"seq": "sequence", "vocab": "vocabulary"}
ENCODERS: Final = ("bert", "t5", "vit", "mimo")
BY_PRESET: Final = ("deepseek", "kimi", "gpt-oss", "gemma", "glm")
"""Families with parts that no column states: latent attention, windows, dense first layers, shared experts."""

GPT: Final[dict[str, object]] = {
    "gated": False, "activation": "gelu", "norm": "layernorm", "position": "learned", "tied": True,
    "qkv_bias": True, "projection_bias": True, "mlp_bias": True,
}  # fmt: skip
LLAMA: Final[dict[str, object]] = {"gated": True, "activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": False}
FAMILIES: Final[tuple[tuple[tuple[str, ...], dict[str, object]], ...]] = (
    (("gpt", "megatron", "mt-nlg", "turing"), GPT),
    (("bloom",), GPT | {"position": "alibi", "embedding_norm": True}),
    (("opt",), GPT | {"activation": "relu"}),
    (("mpt",), {"gated": False, "activation": "gelu", "norm": "layernorm", "position": "alibi", "tied": True}),
    (("nemotron",), {"gated": False, "activation": "squared_relu", "norm": "layernorm", "position": "rotary", "tied": False}),
    (("llama", "mixtral", "mistral", "qwen", "grok", "internlm", "baichuan", "yi"), LLAMA),
)
"""What the columns leave open, by the beginning of a model's name (the publications of these families)."""
OTHER: Final[dict[str, object]] = {
    "gated": False,
    "activation": "gelu",
    "norm": "layernorm",
    "position": "rotary",
    "tied": False,
}
DROPOUT: Final = 0.1
"""Of hidden states and attention in fp16 training of 2021 and 2022, the default of Megatron-LM; later models have none."""


def model_of(row: Row) -> Model:
    """The model that a row trains. Raises NotSimulated."""
    name = row.text("model").lower().partition(":")[2] or row.text("model").lower()
    if name.startswith(ENCODERS) or row.text("model").lower().startswith(ENCODERS):
        raise NotSimulated("not a decoder of text alone")
    sizes: dict[str, object] = {NAMES.get(key, key): row.count(key) for key in SIZES if row.text(key)}
    try:
        if name.startswith(BY_PRESET):
            return read_model(name, {key: sizes[key] for key in ("layers", "sequence", "vocabulary") if key in sizes})
        if missing := [key for key in SIZES if not row.text(key)]:
            if name in model_names() and "sequence" in sizes:
                return read_model(name, sizes)
            raise NotSimulated(f"not stated: {', '.join(missing)}")
        return parse_model(_document(row, name, sizes), row.where)
    except SpecError as error:
        raise NotSimulated(f"model: {str(error).removeprefix(row.where + ': ')[:90]}") from None


def _document(row: Row, name: str, sizes: dict[str, object]) -> dict[str, Any]:
    """A description from the row's numbers and what its family has beside them."""
    family = next((traits for starts, traits in FAMILIES if name.startswith(starts)), None)
    document: dict[str, Any] = {"name": name, "source": row.text("source") or row.where, **sizes}
    document |= {"kv_heads": row.count("kv_heads", row.count("heads"))}
    if row.text("experts"):
        document["experts"] = {
            "count": row.count("experts"),
            "topk": row.count("topk", 1),
            "ffn": row.count("moe_ffn", row.count("ffn")),
        }
    document |= family if family is not None else _nearest(row, document)
    if document["position"] == "learned":
        document["positions"] = row.count("seq")
    if not document["gated"] and row.text("dtype") == "fp16":
        document |= {"hidden_dropout": DROPOUT, "attention_dropout": DROPOUT}
    return document


def _nearest(row: Row, document: dict[str, Any]) -> dict[str, object]:
    """Of a model of no known family: the kind of MLP whose parameters come nearest to those that the row states.

    Without them: plain where the MLP is four times as wide as the model, else gated.
    """
    stated = row.number("params_b")
    if stated is None:
        return OTHER if row.count("ffn") == 4 * row.count("hidden") else LLAMA

    def off(traits: dict[str, object]) -> float:
        return abs(parameters(parse_model(document | traits, row.where)).total / 1e9 - stated)

    return OTHER if off(OTHER) < off(LLAMA) else LLAMA
