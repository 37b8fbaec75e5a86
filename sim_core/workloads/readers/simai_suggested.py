"""The model in numbers that a SimAI text suggests: what header, messages and parameters tell, the rest assumed and marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sim_core.errors import SpecError
from sim_core.models.description import Model
from sim_core.models.parsing import model_document, parse_model
from sim_core.models.reading import model_names, read_model
from sim_core.workloads.moving import padded
from sim_core.workloads.readers.simai_facts import VOCABULARY, WORD_COPIES, Given
from sim_core.workloads.readers.simai_latent import KEY_RANK, NOPE, QUERY_RANK, ROPE, VALUE
from sim_core.workloads.readers.simai_model import Sizes, sizes_of
from sim_core.workloads.readers.simai_sections import sections_of
from sim_core.workloads.readers.simai_text import SimaiText

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
    """Width of the dense MLP with the vocabulary that goes with it, and where they are from."""

    ffn: int
    vocabulary: int
    why: str


def suggested_model(text: SimaiText, given: Given) -> Suggestion:
    """The model of a text. Raises SpecError.

    Heads are not in a text: they are those of the nearest preset (same hidden size and MLP), or of a common size.
    """
    sections = sections_of(text, [])
    sizes = sizes_of(text, sections, given)
    if not sizes.hidden:
        sizes = _solved(text, given) or sizes
    if not sizes.hidden or not sizes.sequence:
        lacking = "set sequence" if sizes.activation else "it has no message of an activation: made at tp 1?"
        raise SpecError(f"{text.path}: suggests no model: the hidden size is unknown ({lacking})")
    layers, hidden = sizes.layers * text.header.pp, sizes.hidden
    numbers: dict[str, Any] = {"layers": layers, "hidden": hidden, "sequence": sizes.sequence}
    comments = {
        "layers": f"{sizes.layers} in the text x pp {text.header.pp}",
        "hidden": "bytes of an activation / 2 / tokens",
    }
    if given.micro_batch is None:
        comments["hidden" if given.sequence else "sequence"] = f"{ASSUMED}: micro-batch 1 (set micro_batch)"
    if sizes.moe:
        found, why = _experts_of(text, sizes)
        numbers |= {"experts": found, "vocabulary": round(sizes.words) or VOCABULARY}
        comments |= {"experts": why, "vocabulary": "" if sizes.words else f"{ASSUMED}: the generator's default"}
        mlps = [_Mlp(found["ffn"], numbers["vocabulary"], why)]
        if sizes.latent:
            return _latent(text, sizes, numbers, comments)
    else:
        mlps = list(_mlps(text, sizes, given.ffn))
    preset = _nearest(layers, hidden, mlps, moe=sizes.moe)
    mlp = next((each for each in mlps if preset and each.ffn == _width(preset)), mlps[0])
    if not sizes.moe:
        numbers |= {"ffn": mlp.ffn, "vocabulary": mlp.vocabulary}
        comments |= {"ffn": mlp.why}
    if preset:
        return _of_preset(text, preset, numbers, comments)
    return _assumed(text, sizes, numbers, comments, mlp.ffn)


def _solved(text: SimaiText, given: Given) -> Sizes | None:
    """The sizes with the only hidden size at which the parameters are the generator's to the last one, if there is one."""
    sections = sections_of(text, [])
    product = sizes_of(text, sections, given._replace(sequence=None)).activation // 2 // (given.micro_batch or 1)
    found = []
    for hidden in HIDDEN:
        if product and product % hidden == 0:
            sizes = sizes_of(text, sections, given._replace(sequence=product // hidden))
            if sizes.ends is not None and sizes.ends > 0:
                found.append(sizes._replace(sequence=product // hidden))
    return found[0] if len(found) == 1 else None


def _mlps(text: SimaiText, sizes: Sizes, ffn: int | None) -> Iterator[_Mlp]:
    """Widths of the MLP that the parameters allow, the likeliest first."""
    tp, hidden = text.header.tp, sizes.hidden
    norms = 2 * hidden if sizes.final else 0
    if sizes.ends is not None and sizes.dense:
        layer = (sizes.dense - sizes.ends - sizes.positions) / sizes.layers
        width = ((layer - norms) * tp - 4 * hidden**2) / (2 * hidden)
        words = round(sizes.words) or VOCABULARY
        yield _Mlp(round(width), words, "workload.ffn" if ffn else "what the parameters leave")
        return
    for copies in WORD_COPIES:
        ends = (copies + sizes.final) * padded(VOCABULARY, tp) * hidden / tp + sizes.sequence * hidden
        layer = (sizes.dense - ends) / sizes.layers
        width = ((layer - norms) * tp - 4 * hidden**2) / (2 * hidden)
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


def _latent(text: SimaiText, sizes: Sizes, numbers: dict[str, Any], comments: dict[str, str]) -> Suggestion:
    """A model of DeepSeek's kind. Raises SpecError where the text does not tell heads and widths."""
    if not sizes.heads or not sizes.width:
        lacking = "the width of experts (set ffn)" if not sizes.width else "heads (set heads)"
        raise SpecError(f"{text.path}: suggests no model: of latent attention it does not tell {lacking}")
    known = sizes.ends is not None
    experts = {**numbers["experts"], "shared_ffn": sizes.width if sizes.shared else 0, "dense_layers": sizes.dense_layers}
    document = {
        "name": "suggested",
        "source": text.path,
        **numbers,
        "heads": sizes.heads,
        "mla": {
            "q_rank": QUERY_RANK,
            "kv_rank": KEY_RANK,
            "nope_head_dim": NOPE,
            "rope_head_dim": ROPE,
            "v_head_dim": VALUE,
        },
        **({"ffn": sizes.width} if sizes.dense_layers else {}),
        "experts": experts,
        "gated": True,
        "activation": "silu",
        "norm": "rmsnorm",
        "qk_norm": True,
        "position": "rotary",
        "tied": False,
    }
    comments = {
        **comments,
        "heads": "what the parameters leave beside the vocabulary" if known else "workload.heads",
        "mla": "the generator's defaults, which the parameters fit to the last one" if known else f"{ASSUMED}: the generator's",
        "ffn": "of the first layers; the generator gives them the width of an expert",
        "gated": "experts of three matrices; the generator counts two of the shared one and of dense layers",
        **dict.fromkeys(("activation", "norm", "position", "tied"), f"{ASSUMED}: DeepSeek-V3's"),
    }
    return Suggestion(parse_model(document, text.path), comments)


def _width(model: Model) -> int:
    return model.experts.ffn if model.experts else model.ffn or 0


def _nearest(layers: int, hidden: int, mlps: list[_Mlp], *, moe: bool) -> Model | None:
    """The preset of that hidden size and one of these widths, whose number of layers is the nearest; None: there is none."""
    fitting = [
        model
        for model in map(read_model, model_names())
        if model.hidden == hidden and (model.experts is not None) == moe and _width(model) in [mlp.ffn for mlp in mlps]
        and 2 * abs(model.layers - layers) <= model.layers
    ]  # fmt: skip
    return min(fitting, key=lambda model: abs(model.layers - layers), default=None)


def _of_preset(text: SimaiText, preset: Model, numbers: dict[str, Any], comments: dict[str, str]) -> Suggestion:
    """The preset with the text's numbers."""
    document = {**model_document(preset), **numbers}
    if preset.experts and "experts" in numbers:
        document["experts"] = {**model_document(preset)["experts"], **numbers["experts"]}
    if preset.position == "learned":
        document["positions"] = max(numbers["sequence"], preset.positions or 0)
    why = f"preset {preset.name} is the nearest; what the text does not tell is its"
    for key in ("layers", "vocabulary"):
        theirs = getattr(preset, key)
        if theirs != numbers[key]:
            comments[key] = f"{comments.get(key, '') or 'of the text'}; the preset has {theirs}"
    named = {"name": f"{preset.name}-as-recorded", "source": f"{text.path}, {preset.source}"}
    return Suggestion(parse_model({**document, **named}, text.path), {**comments, "heads": f"{ASSUMED}: {why}"})


def _assumed(text: SimaiText, sizes: Sizes, numbers: dict[str, Any], comments: dict[str, str], width: int) -> Suggestion:
    """A model of common choices with the text's numbers."""
    hidden, tp = sizes.hidden, text.header.tp
    size = next((each for each in HEAD_SIZES if hidden % each == 0 and hidden // each % tp == 0), None)
    heads = hidden // size if size else tp
    gated = not sizes.moe and width == int(8 * hidden / 3 / 64) * 64
    document = {
        "name": "suggested",
        "source": text.path,
        **numbers,
        "heads": heads,
        "gated": gated,
        "activation": "silu" if gated else "gelu",
        "norm": "layernorm",
        "position": "learned",
        "positions": sizes.sequence,
        "tied": False,
    }
    comments = {
        **comments,
        "heads": f"{ASSUMED}: head size {hidden / heads:g}; heads are not in the text",
        "gated": "the width of the generator's --swiglu" if gated else f"{ASSUMED}",
        "activation": ASSUMED,
        "norm": ASSUMED,
        "position": "the parameters count a learned table",
        "tied": ASSUMED,
    }
    return Suggestion(parse_model(document, text.path), comments)
