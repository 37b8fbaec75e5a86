"""The model in numbers that a SimAI text suggests: what it tells, and for the rest the nearest preset or common choices."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sim_core.errors import SpecError
from sim_core.models.description import Model, model_document, parse_model
from sim_core.models.reading import model_names, read_model
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import padded
from sim_core.workloads.simai.parameters import (
    KEY_RANK,
    NOPE,
    QUERY_RANK,
    ROPE,
    VALUE,
    VOCABULARY,
    WORD_COPIES,
    gated_width,
    read_sizes,
)
from sim_core.workloads.simai.sections import Sections, sections_of
from sim_core.workloads.simai.sizes import Sizes
from sim_core.workloads.simai.text import SimaiText

HEAD_SIZES: Final = (128, 64, 96, 80, 256)
"""Sizes of a head in the order in which they are assumed: 128 in most models of billions."""
HIDDEN: Final = range(256, 65_537, 64)
WIDTH_STEP: Final = 64
ASSUMED: Final = "assumed"


class Suggestion(NamedTuple):
    """A model, and for some of its keys where the number is from; those that the text does not tell begin with ASSUMED."""

    model: Model
    comments: dict[str, str]


class _Mlp(NamedTuple):
    """Width of the MLP, or of an expert, with the vocabulary that goes with it, and where it is from."""

    ffn: int
    vocabulary: int
    why: str


Told = dict[str, tuple[Any, str]]
"""Keys of a model, each with its value and where that is from."""


def suggested_model(text: SimaiText, facts: Facts) -> Suggestion:
    """The model of a text. Raises SpecError.

    Heads are not in a text: they are those of the nearest preset (same hidden size and MLP), or of a common size.
    """
    sections = sections_of(text, [])
    sizes = read_sizes(sections, facts)
    if not sizes.hidden:
        sizes = _solved(sections, sizes, facts) or sizes
    if not sizes.hidden or not sizes.sequence:
        lacking = "set sequence" if sizes.activation else "it has no message of an activation: made at tp 1?"
        raise SpecError(f"{text.path}: suggests no model: the hidden size is unknown ({lacking})")
    pp = text.header.pp
    once = "" if facts.micro_batch else f"{ASSUMED}: micro-batch 1 (set micro_batch)"
    told: Told = {
        "layers": (sizes.layers * pp, f"{sizes.layers} in the text x pp {pp}"),
        "hidden": (sizes.hidden, (facts.sequence and once) or "bytes of an activation / 2 / tokens"),
        "sequence": (int(sizes.sequence), "" if facts.sequence else once),
    }
    if sizes.moe:
        experts, why = _experts_of(text, sizes)
        known = round(sizes.shares.vocabulary)
        told |= {
            "experts": (experts, why),
            "vocabulary": (known or VOCABULARY, "" if known else f"{ASSUMED}: the generator's default"),
        }
        mlps = [_Mlp(experts["ffn"], 0, "")]
    else:
        mlps = list(_mlps(sizes, facts.ffn))
    if sizes.moe and sizes.latent:
        told |= _latent(text, sizes, experts)
        return _suggested(text, told)
    preset = _nearest(sizes.layers * pp, sizes.hidden, [mlp.ffn for mlp in mlps], moe=sizes.moe)
    mlp = next((each for each in mlps if preset and each.ffn == _width(preset)), mlps[0])
    if not sizes.moe:
        told |= {"ffn": (mlp.ffn, mlp.why), "vocabulary": (mlp.vocabulary, "")}
    if preset is None:
        return _suggested(text, told | _assumed(sizes, mlp.ffn))
    for key in ("layers", "vocabulary"):
        value, why = told[key]
        if (theirs := getattr(preset, key)) != value:
            told[key] = value, f"{why or 'of the text'}; the preset has {theirs}"
    return _suggested(text, told, preset)


def _suggested(text: SimaiText, told: Told, preset: Model | None = None) -> Suggestion:
    """What is told, on top of a preset."""
    document: dict[str, Any] = model_document(preset) if preset else {}
    comments = {key: why for key, (_, why) in told.items() if why}
    values: dict[str, Any] = {key: value for key, (value, _) in told.items()}
    named = {"name": "suggested", "source": text.path}
    if preset:
        named = {"name": f"{preset.name}-as-recorded", "source": f"{text.path}, {preset.source}"}
        comments["heads"] = f"{ASSUMED}: preset {preset.name} is the nearest; what the text does not tell is its"
        if "experts" in values and preset.experts:
            values["experts"] = {**document["experts"], **values["experts"]}
        if preset.position == "learned":
            values["positions"] = max(values["sequence"], preset.positions or 0)
    return Suggestion(parse_model({**document, **values, **named}, text.path), comments)


def _solved(sections: Sections, sizes: Sizes, facts: Facts) -> Sizes | None:
    """The sizes with the only hidden size at which the parameters are the generator's to the last one, if there is one."""
    product = sizes.activation // 2 // (facts.micro_batch or 1)
    sequences = (product // hidden for hidden in HIDDEN if product and product % hidden == 0)
    tried = (read_sizes(sections, replace(facts, sequence=sequence)) for sequence in sequences)
    solutions = [each for each in tried if each.ends]
    return solutions[0] if len(solutions) == 1 else None


def _mlps(sizes: Sizes, ffn: int | None) -> Iterator[_Mlp]:
    """Widths of the MLP that the parameters allow, the likeliest first."""
    tp, hidden = sizes.header.tp, sizes.hidden
    if sizes.ends is not None and sizes.dense:
        words = round(sizes.shares.vocabulary) or VOCABULARY
        width = sizes.mlp_width(sizes.ends + sizes.positions)
        yield _Mlp(round(width), words, "workload.ffn" if ffn else "what the parameters leave")
        return
    for copies in WORD_COPIES:
        width = sizes.mlp_width((copies + sizes.final) * padded(VOCABULARY, tp) * hidden / tp + sizes.sequence * hidden)
        if width > 0 and width % WIDTH_STEP == 0:
            why = f"what the parameters leave, with {ASSUMED} vocabulary {VOCABULARY} counted {copies} times"
            yield _Mlp(int(width), VOCABULARY, why)
    yield _Mlp(4 * hidden, VOCABULARY, f"{ASSUMED}: 4 x hidden")


def _experts_of(text: SimaiText, sizes: Sizes) -> tuple[dict[str, int], str]:
    """Experts of a layer, those of a token, and their width."""
    header, count = text.header, sizes.number
    if not count or not sizes.top or not sizes.experts:
        lacking = "their number (set experts)" if not count else "experts of a token" if not sizes.top else "their parameters"
        raise SpecError(f"{text.path}: suggests no model: of the experts it does not tell {lacking}")
    width = sizes.width or sizes.experts * header.tp * header.ep / (sizes.layers * count * 2 * sizes.hidden)
    matrices = "three matrices of each expert, two of a shared one" if sizes.latent else "two matrices of each expert"
    why = f"count: messages of token counts; topk: routed bytes / an activation; ffn: {matrices}"
    return {"count": count, "topk": round(sizes.top), "ffn": round(width)}, why


def _latent(text: SimaiText, sizes: Sizes, experts: dict[str, int]) -> Told:
    """What is told of a model of DeepSeek's kind. Raises SpecError where the text does not tell heads and widths."""
    if not sizes.heads or not sizes.width:
        lacking = "the width of experts (set ffn)" if not sizes.width else "heads (set heads)"
        raise SpecError(f"{text.path}: suggests no model: of latent attention it does not tell {lacking}")
    known, first = sizes.ends is not None, sizes.dense_layers
    latents = {"q_rank": QUERY_RANK, "kv_rank": KEY_RANK, "nope_head_dim": NOPE, "rope_head_dim": ROPE, "v_head_dim": VALUE}
    fitted = "the generator's defaults, which the parameters fit to the last one"
    whole = {**experts, "shared_ffn": sizes.width if sizes.shares.shared else 0, "dense_layers": first}
    usual = {"activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": False}
    return {
        "heads": (sizes.heads, "what the parameters leave beside the vocabulary" if known else "workload.heads"),
        "mla": (latents, fitted if known else f"{ASSUMED}: the generator's"),
        "ffn": (sizes.width if first else None, "of the first layers; the generator gives them the width of an expert"),
        "experts": (whole, _experts_of(text, sizes)[1]),
        "gated": (True, "experts of three matrices; the generator counts two of the shared one and of dense layers"),
        "qk_norm": (True, ""),
        **{key: (value, f"{ASSUMED}: DeepSeek-V3's") for key, value in usual.items()},
    }


def _width(model: Model) -> int:
    return model.experts.ffn if model.experts else model.ffn or 0


def _nearest(layers: int, hidden: int, widths: list[int], *, moe: bool) -> Model | None:
    """The preset of that hidden size and one of these widths, whose number of layers is the nearest; None: there is none."""
    fitting = [
        model
        for model in map(read_model, model_names())
        if model.hidden == hidden and (model.experts is not None) == moe and _width(model) in widths
        and 2 * abs(model.layers - layers) <= model.layers
    ]  # fmt: skip
    return min(fitting, key=lambda model: abs(model.layers - layers), default=None)


def _assumed(sizes: Sizes, width: int) -> Told:
    """Common choices of what the text does not tell."""
    hidden, tp = sizes.hidden, sizes.header.tp
    size = next((each for each in HEAD_SIZES if hidden % each == 0 and hidden // each % tp == 0), None)
    heads = hidden // size if size else tp
    gated = not sizes.moe and width == gated_width(hidden)
    return {
        "heads": (heads, f"{ASSUMED}: head size {hidden / heads:g}; heads are not in the text"),
        "gated": (gated, "the width of the generator's --swiglu" if gated else ASSUMED),
        "activation": ("silu" if gated else "gelu", ASSUMED),
        "norm": ("layernorm", ASSUMED),
        "position": ("learned", "the parameters count a learned table"),
        "positions": (int(sizes.sequence), ""),
        "tied": (False, ASSUMED),
    }
