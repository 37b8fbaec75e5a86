"""The model of a measured run: its sizes from the row, a preset for what no column states, and what we cannot train."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from benchmarks.importing import words_of
from benchmarks.importing.table import HF_TRAINER, Row
from sim_core import Model, SpecError, model_document, model_names, parameters, parse_model, read_model, shown
from sim_core.models.features import NO, split_features
from sweep.runs.logs import DROPOUT, DROPPING, FAMILIES, LLAMA
from sweep.runs.table import NotSimulated

SAID = words_of("models")
STARTS: Final = (
    (("gpt", "megatron", "mt-nlg", "turing", "mpt"), FAMILIES["gpt"]),  # MPT's benchmark has positions and biases
    (("bloom",), FAMILIES["bloom"]),
    (("opt",), FAMILIES["opt"]),
    (("nemotron",), FAMILIES["nemotron"]),
    (("llama-1b-mha", "llama-3b-mha"), LLAMA | {"tied": True}),
    (("llama", "mixtral", "mistral", "qwen", "grok", "internlm", "baichuan", "yi"), LLAMA),
)
"""The family by the beginning of a model's name."""


def model_of(row: Row) -> Model:
    """The model that a row trains. Raises NotSimulated."""
    model, features = _stated(row), split_features(row.text("features"))
    without = any(word in row.text("framework").lower() for word in SAID.without_mtp)
    stated = "0" if without else features.get("mtp", "")
    if model.mtp_layers and stated.isdigit() and int(stated) != model.mtp_layers:
        return parse_model(model_document(model) | {"mtp_layers": int(stated)}, row.where)
    return model


def _stated(row: Row) -> Model:
    name = row.text("model").lower().partition(":")[2] or row.text("model").lower()
    if name.startswith(tuple(SAID.encoders)) or row.text("model").lower().startswith(tuple(SAID.encoders)):
        raise NotSimulated("not a decoder of text alone")
    sizes: dict[str, object] = {SAID.names.get(key, key): row.count(key) for key in SAID.sizes if row.text(key)}
    sizes |= {"sequence": row.sequence} if "sequence" in sizes else {}
    adapted = _adapters(row)
    try:
        if name.startswith(tuple(SAID.by_preset)) or (name.startswith(tuple(SAID.wide_heads)) and name in model_names()):
            return read_model(name, {key: sizes[key] for key in ("layers", "sequence", "vocabulary") if key in sizes} | adapted)
        preset = preset_of_model(name)
        if any(need.models and _in_preset(need, preset) for need in NEEDS):  # its layers follow a pattern
            return read_model(preset, {key: sizes[key] for key in ("sequence", "vocabulary") if key in sizes} | adapted)
        if missing := [key for key in SAID.sizes if not row.text(key)]:
            if name in model_names() and "sequence" in sizes:
                return read_model(name, sizes | adapted)
            raise NotSimulated(f"not stated: {', '.join(missing)}")
        return parse_model(_document(row, name, sizes) | adapted, row.where)
    except SpecError as error:
        raise NotSimulated(f"model: {str(error).removeprefix(row.where + ': ')[:90]}") from None


def model_cell(model: Model) -> str | dict[str, Any]:
    """A model as a cell of a table of runs: its preset with the numbers that differ, else all of its numbers."""
    document = model_document(model)
    if model.name in model_names():
        usual = model_document(read_model(model.name))
        changed = {key: value for key, value in document.items() if usual.get(key) != value}
        if read_model(model.name, changed) == model:
            return {"preset": model.name, **changed} if changed else model.name
    return document


def _document(row: Row, name: str, sizes: dict[str, object]) -> dict[str, Any]:
    """A description from the row's numbers and what its family has beside them."""
    family = next((traits for starts, traits in STARTS if name.startswith(starts)), None)
    document: dict[str, Any] = {"name": name, "source": row.text("set"), **sizes}
    document |= {"kv_heads": row.count("kv_heads", row.count("heads"))}
    if row.text("experts"):
        ffn = row.count("moe_ffn", row.count("ffn"))
        document["experts"] = {"count": row.count("experts"), "topk": row.count("topk", 1), "ffn": ffn}
    document |= family if family is not None else _nearest(row, document)
    features = split_features(row.text("features"))
    tied = [value for name, value in (("tied", True), ("untied", False)) if features.get(name, "0") not in NO]
    document |= {"tied": tied[0]} if tied else {}
    document |= {"head_dim": int(features["head_dim"])} if features.get("head_dim", "").isdigit() else {}
    if document["position"] == "learned":
        document["positions"] = row.count("seq")
    if not document["gated"] and (row.text("dtype") == "fp16" or DROPPING in row.text("framework").lower()):
        document |= {"hidden_dropout": DROPOUT, "attention_dropout": DROPOUT}
    return document


def _adapters(row: Row) -> dict[str, object]:
    """`lora` of a run with adapters by its features; empty for a run without. Raises NotSimulated."""
    if not re.search(NEEDS[0].said, _said(row)):
        return {}
    features = SAID.adapters_taken | split_features(row.text("features"))
    targets = [name for word, name in SAID.adapted.items() if word in features["lora_targets"]]
    if not targets:
        raise NotSimulated(f"features: lora_targets: found {shown(features['lora_targets'])}, expected qkv, proj, fc1, fc2")
    try:
        usual = SAID.adapters_dropout.get(row.text("release").partition("-")[0], "0")
        numbers = {"rank": int(features["lora_rank"]), "dropout": float(features.get("lora_dropout", usual))}
        numbers |= {"apart": True} if HF_TRAINER in row.text("framework").lower() else {}
    except ValueError:
        raise NotSimulated("features: lora_rank, lora_dropout: expected numbers") from None
    return {"lora": numbers | {"targets": targets}}


def taken_adapters(row: Row) -> str:
    """What is taken of a run with adapters that does not state them; empty for others."""
    features = split_features(row.text("features"))
    missing = [f"{name} as {value}" for name, value in SAID.adapters_taken.items() if name not in features]
    return ", ".join(missing) if re.search(NEEDS[0].said, _said(row)) else ""


def _nearest(row: Row, document: dict[str, Any]) -> dict[str, object]:
    """Of a model of no known family: the kind of MLP whose parameters come nearest to those that the row states.

    Without them: plain where the MLP is four times as wide as the model, else gated.
    """
    stated = row.number("params_b")
    if stated is None:
        return SAID.other if row.count("ffn") == 4 * row.count("hidden") else LLAMA

    def off(traits: dict[str, object]) -> float:
        return abs(parameters(parse_model(document | traits, row.where)).total / 1e9 - stated)

    return SAID.other if off(SAID.other) < off(LLAMA) else LLAMA


class Need(NamedTuple):
    """Something that a run needs: how a row says so, and the field of `Model` that describes it, if we have it."""

    field: str
    what: str
    said: str  # in `kind`, `simulable` or `features`
    models: Sequence[str] = ()  # beginnings of models' names, letters and digits alone


NEEDS: Final = [Need(**row) for row in SAID.needs]
INCONSISTENT: Final = "inconsistent"
"""A cause of a failure that leaves nothing to ask of the plan."""


def check_needs(row: Row) -> dict[str, Any]:
    """No cells. Raises NotSimulated for a run that needs what we do not have: asked of our models, whatever the row says."""
    if row.other_cause == INCONSISTENT:
        raise NotSimulated(f"did not finish: {row.other_cause}")
    name = row.text("model").lower().rpartition(":")[2]
    kind, verdict, said, bare = row.text("kind").lower(), row.text("simulable").lower(), _said(row), _bare(name)
    needed = [need for need in NEEDS if (need.models and bare.startswith(tuple(need.models))) or re.search(need.said, said)]
    parts = [need for need in needed if need.models]  # a label may name several, of which the model has one
    had = any(_in_preset(need, preset_of_model(name)) for need in parts)
    for need in needed:
        if not had if need.models else need.field not in Model.model_fields:
            raise NotSimulated(f"not modelled: {need.what}")
    if not needed and kind not in SAID.whole:
        raise NotSimulated(f"not modelled: kind {row.text('kind')[:40]}")
    if not needed and verdict.startswith("none") and not re.search(SAID.otherwise, verdict):
        raise NotSimulated(f"not modelled: {row.text('simulable')[:60]}")
    return {}


def _said(row: Row) -> str:
    """What a row says of the kind of its run."""
    return f"{row.text('kind')} {row.text('simulable')} {row.text('features')}".lower()


def _in_preset(need: Need, preset: str) -> bool:
    """Whether the model's preset describes the part, which no column of a row does."""
    return bool(preset) and bool(getattr(read_model(preset), need.field, None))


@cache
def preset_of_model(name: str) -> str:
    """The preset of a model as rows write its name, with hyphens elsewhere or none; empty if there is none."""
    return next((preset for preset in model_names() if _bare(preset) == _bare(name)), "")


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
