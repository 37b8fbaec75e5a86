"""The model in numbers that a SimAI text suggests: what it tells, and for the rest the nearest preset or common choices."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sim_core.errors import SpecError
from sim_core.models.description import Model, model_document, parse_model
from sim_core.models.reading import model_names, read_model
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import padded
from sim_core.workloads.simai.file import File
from sim_core.workloads.simai.parameters import (
    KEY_RANK,
    NOPE,
    QUERY_RANK,
    ROPE,
    VALUE,
    VOCABULARY,
    WORD_COPIES,
    gated_width,
    read_file,
)
from sim_core.workloads.simai.sections import sections_of
from sim_core.workloads.simai.text import SimaiText

HEAD_SIZES = (128, 64, 96, 80, 256)
"""Sizes of a head in the order in which they are assumed: 128 in most models of billions."""
HIDDEN = range(256, 65_537, 64)
WIDTH_STEP = 64
ASSUMED = "assumed"
_DEFAULT_WORDS = f"{ASSUMED}: the generator's default"


class Suggestion(NamedTuple):
    """A model, and for some of its keys where the number is from; those that the text does not tell begin with ASSUMED."""

    model: Model
    comments: dict[str, str]


Told = dict[str, tuple[Any, str]]
"""Keys of a model, each with its value and where that is from."""


def suggested_model(text: SimaiText, facts: Facts) -> Suggestion:
    """The model of a text. Raises SpecError.

    Heads are not in a text: they are those of the nearest preset (same hidden size and MLP), or of a common size.
    """
    file = read_file(sections_of(text, []), facts)
    if not file.hidden:
        file = _solved(file) or file
    if not file.hidden or not file.sequence:
        lacking = "set sequence" if file.activation else "it has no message of an activation: made at tp 1?"
        raise SpecError(f"{text.path}: suggests no model: the hidden size is unknown ({lacking})")
    layers = file.layers * text.header.pp
    once = "" if facts.micro_batch else f"{ASSUMED}: micro-batch 1 (set micro_batch)"
    told: Told = {
        "layers": (layers, f"{file.layers} in the text x pp {text.header.pp}"),
        "hidden": (file.hidden, (facts.sequence and once) or "bytes of an activation / 2 / tokens"),
        "sequence": (int(file.sequence), "" if facts.sequence else once),
    }
    known = round(file.shares.vocabulary)
    if file.moe:
        experts, why = _experts_of(file)
        widths: list[tuple[int, int, str]] = [(experts["ffn"], known or VOCABULARY, "")]
        told["experts"] = experts, why
        if file.latent:
            told["vocabulary"] = known or VOCABULARY, "" if known else _DEFAULT_WORDS
            return _suggested(text, told | _latent(file, experts, why))
    else:
        widths = list(_widths(file))
    fitting = [
        model
        for model in map(read_model, model_names())
        if model.hidden == file.hidden and (model.experts is not None) == file.moe
        and _width(model) in [width for width, *_ in widths] and 2 * abs(model.layers - layers) <= model.layers
    ]  # fmt: skip
    preset = min(fitting, key=lambda model: abs(model.layers - layers), default=None)
    width, words, why = next((each for each in widths if preset and each[0] == _width(preset)), widths[0])
    if not file.moe:
        told["ffn"] = width, why
    told["vocabulary"] = words, _DEFAULT_WORDS if file.moe and not known else ""
    if preset is None:
        return _suggested(text, told | _assumed(file, width))
    for key in ("layers", "vocabulary"):
        value, why = told[key]
        if (theirs := getattr(preset, key)) != value:
            told[key] = value, f"{why or 'of the text'}; the preset has {theirs}"
    return _suggested(text, told, preset)


def _suggested(text: SimaiText, told: Told, preset: Model | None = None) -> Suggestion:
    """What is told, on top of a preset."""
    document = model_document(preset) if preset else {}
    comments = {key: why for key, (_, why) in told.items() if why}
    values = {key: value for key, (value, _) in told.items()}
    named = {"name": "suggested", "source": text.path}
    if preset:
        named = {"name": f"{preset.name}-as-recorded", "source": f"{text.path}, {preset.source}"}
        comments["heads"] = f"{ASSUMED}: preset {preset.name} is the nearest; what the text does not tell is its"
        if "experts" in values and preset.experts:
            values["experts"] = document["experts"] | values["experts"]
        if preset.position == "learned":
            values["positions"] = max(values["sequence"], preset.positions or 0)
    return Suggestion(parse_model(document | values | named, text.path), comments)


def _solved(file: File) -> File | None:
    """The text with the only hidden size at which the parameters are the generator's to the last one, if there is one."""
    product = file.activation // 2 // (file.facts.micro_batch or 1)
    sequences = (product // hidden for hidden in HIDDEN if product and product % hidden == 0)
    tried = (read_file(file.sections, replace(file.facts, sequence=sequence)) for sequence in sequences)
    solutions = [each for each in tried if each.ends]
    return solutions[0] if len(solutions) == 1 else None


def _widths(file: File) -> Iterator[tuple[int, int, str]]:
    """Widths of the MLP that the parameters allow, the likeliest first: each with its vocabulary, and where it is from."""
    tp, hidden = file.header.tp, file.hidden
    if file.ends is not None and file.dense:
        width = round(file.mlp_width(file.ends + file.positions))
        why = "workload.ffn" if file.facts.ffn else "what the parameters leave"
        yield width, round(file.shares.vocabulary) or VOCABULARY, why
        return
    for copies in WORD_COPIES:
        left = file.mlp_width((copies + file.final) * padded(VOCABULARY, tp) * hidden / tp + file.sequence * hidden)
        if left > 0 and left % WIDTH_STEP == 0:
            why = f"what the parameters leave, with {ASSUMED} vocabulary {VOCABULARY} counted {copies} times"
            yield int(left), VOCABULARY, why
    yield 4 * hidden, VOCABULARY, f"{ASSUMED}: 4 x hidden"


def _experts_of(file: File) -> tuple[dict[str, int], str]:
    """Experts of a layer, those of a token, and their width; and where these are from."""
    header, count = file.header, file.number
    if not count or not file.top or not file.experts:
        lacking = "their number (set experts)" if not count else "experts of a token" if not file.top else "their parameters"
        raise SpecError(f"{file.sections.text.path}: suggests no model: of the experts it does not tell {lacking}")
    width = file.width or file.experts * header.tp * header.ep / (file.layers * count * 2 * file.hidden)
    matrices = "three matrices of each expert, two of a shared one" if file.latent else "two matrices of each expert"
    why = f"count: messages of token counts; topk: routed bytes / an activation; ffn: {matrices}"
    return {"count": count, "topk": round(file.top), "ffn": round(width)}, why


def _latent(file: File, experts: dict[str, int], why: str) -> Told:
    """What is told of a model of DeepSeek's kind. Raises SpecError where the text does not tell heads and widths."""
    if not file.heads or not file.width:
        lacking = "the width of experts (set ffn)" if not file.width else "heads (set heads)"
        raise SpecError(f"{file.sections.text.path}: suggests no model: of latent attention it does not tell {lacking}")
    known, first = file.ends is not None, file.sections.dense_layers
    latents = {"q_rank": QUERY_RANK, "kv_rank": KEY_RANK, "nope_head_dim": NOPE, "rope_head_dim": ROPE, "v_head_dim": VALUE}
    fitted = "the generator's defaults, which the parameters fit to the last one"
    whole = {**experts, "shared_ffn": file.width if file.shares.shared else 0, "dense_layers": first}
    usual = {"activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": False}
    return {
        "heads": (file.heads, "what the parameters leave beside the vocabulary" if known else "workload.heads"),
        "mla": (latents, fitted if known else f"{ASSUMED}: the generator's"),
        "ffn": (file.width if first else None, "of the first layers; the generator gives them the width of an expert"),
        "experts": (whole, why),
        "gated": (True, "experts of three matrices; the generator counts two of the shared one and of dense layers"),
        "qk_norm": (True, ""),
        **{key: (value, f"{ASSUMED}: DeepSeek-V3's") for key, value in usual.items()},
    }


def _width(model: Model) -> int:
    return model.experts.ffn if model.experts else model.ffn or 0


def _assumed(file: File, width: int) -> Told:
    """Common choices of what the text does not tell."""
    hidden, tp = file.hidden, file.header.tp
    size = next((each for each in HEAD_SIZES if hidden % each == 0 and hidden // each % tp == 0), None)
    heads = hidden // size if size else tp
    gated = not file.moe and width == gated_width(hidden)
    return {
        "heads": (heads, f"{ASSUMED}: head size {hidden / heads:g}; heads are not in the text"),
        "gated": (gated, "the width of the generator's --swiglu" if gated else ASSUMED),
        "activation": ("silu" if gated else "gelu", ASSUMED),
        "norm": ("layernorm", ASSUMED),
        "position": ("learned", "the parameters count a learned table"),
        "positions": (int(file.sequence), ""),
        "tied": (False, ASSUMED),
    }
