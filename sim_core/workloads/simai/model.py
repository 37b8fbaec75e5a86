"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

AICB (aliyun/aicb, `workload_generator/mocked_model/MockedMegatron.py`) counts, on every stage, vocabulary x hidden several
times: in the embedding, and with sequence parallelism in the final projection. Here the model has them once.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sim_core.errors import SpecError
from sim_core.models.description import Model, model_document, parse_model
from sim_core.models.reading import model_names, read_model
from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import padded
from sim_core.workloads.simai.sections import Sections, dense_layers, layer_starts, sections_of
from sim_core.workloads.simai.sizes import (
    KEY_RANK,
    NOPE,
    QUERY_RANK,
    ROPE,
    VALUE,
    VOCABULARY,
    WORD_COPIES,
    counts_head,
    is_latent,
    messages_of,
    number_of_experts,
    parameters_of,
)
from sim_core.workloads.simai.text import Header, Record, SimaiText

_GATED: Final = "the MLP is as wide as AICB's for --swiglu, and AICB counts two of its three matrices"


class Sizes(NamedTuple):
    """Numbers of a file that its model follows from; 0: unknown. Parameters are those of one rank."""

    layers: int  # of this stage
    activation: int  # bytes of sequence x hidden x micro-batch in 2 bytes
    tokens: int  # of a micro-batch, by cross_entropy1
    sequence: int
    hidden: int
    dense: float  # all that are not experts'
    ends: float | None  # of the embedding and the final projection, as counted; None: unknown
    positions: float
    experts: float
    words: float  # the vocabulary without padding
    final: bool  # whether the final projection is counted: with sequence parallelism
    moe: bool
    top: float  # experts that a token goes to
    number: int  # experts of a layer, as the file tells
    dense_layers: int  # before those with experts
    latent: bool  # whether attention is latent, as in AICB's DeepSeek; of these only:
    heads: int
    width: int  # of an expert, of a shared one and of the MLP of a dense layer
    shared: float  # part of the experts' parameters that shared ones are
    replicated: float  # parameters of the stage's layers that tp does not divide


def sizes_of(text: SimaiText, sections: Sections, facts: Facts) -> Sizes:
    """The numbers of a file that its model follows from."""
    layer = text.at(sections.repetitions[0])
    step = text.at(sections.once)
    layers = len(layer_starts(text, sections))
    messages = messages_of(text, sections, facts)
    parameters = parameters_of(text, sections, messages, layers, facts)
    experts = _bytes(step, "moe_grad_norm2") / 4
    dense = _bytes(step, "grad_param_comm") / 4
    if not dense:  # without a profile, one record counts all parameters
        dense = max(_bytes(step, "grad_norm", last=True) / 4 - experts, 0.0)
    shares = parameters.shares
    known = parameters.known and messages.hidden == int(messages.hidden) and messages.hidden > 0
    return Sizes(
        layers=layers,
        activation=int(messages.activation),
        tokens=_bytes(step, "cross_entropy1") // 4,
        sequence=int(messages.sequence),
        hidden=int(messages.hidden) if messages.hidden == int(messages.hidden) else 0,
        dense=dense,
        ends=shares.ends * dense if known else None,
        positions=shares.whole * dense if known else 0.0,
        experts=experts,
        words=shares.vocabulary,
        final=counts_head(layer),
        moe=any("moe" in r.name for r in layer),
        top=_experts_of_a_token(layer, text.header.tp, messages.activation),
        number=facts.experts or number_of_experts(layer, text.header),
        dense_layers=dense_layers(text, sections, layer_starts(text, sections)),
        latent=is_latent(layer),
        heads=facts.heads or parameters.heads,
        width=int(parameters.width),
        shared=shares.shared,
        replicated=shares.replicated * dense,
    )


def _bytes(records: list[Record], name: str, *, last: bool = False) -> int:
    """Bytes of the first (or last) message of a record, in any phase; 0: none."""
    return next((size for r in records if r.name == name for size in r.comm_bytes[:: -1 if last else 1] if size), 0)


def _experts_of_a_token(records: list[Record], tp: int, activation: float) -> float:
    """Routed bytes over those of the activation: by the all-to-alls on EP (of 1/tp), else by the reduce-scatters on TP."""
    routed = max((r.comm_bytes[0] * tp for r in records if r.suffix[0] == "_EP"), default=0)
    if not routed:
        routed = max((r.comm_bytes[0] for r in records if "moe" in r.name and r.collective[0] == "REDUCESCATTER"), default=0)
    return routed / activation if activation else 0.0


def model_of(sizes: Sizes, header: Header, facts: Facts) -> ImpliedModel:
    """The model that a file implies."""
    how, missing = _widths(sizes, facts.sequence, facts.micro_batch or 1)
    words, copies = _words(sizes, header.tp)
    if words:
        how.append(
            f"vocabulary {words:,.0f}: {short(sizes.ends or 0.0, '')} of a rank's parameters are {copies} x it x hidden / tp"
        )
    ranks = header.tp * header.pp
    dense = None
    if not sizes.dense:
        missing.append("parameters: the file has no message of gradients")
    else:
        if sizes.ends is None:
            missing.append("how often the embedding is counted: workload.sequence or workload.ffn")
        divided = sizes.dense - (sizes.ends or 0.0) - sizes.positions - sizes.replicated
        layers = divided * ranks + sizes.replicated * header.pp
        once = words * sizes.hidden
        third = _third_matrices(sizes, header, layers)
        dense = layers + once + third
        how.append(_counted(sizes, header, layers + once, copies))
        if third:
            how.append(f"+ {short(third, '')}: {_GATED}")
    routed, active, lacking = _experts(sizes, header, dense)
    if routed:
        apart = ", without the shared ones, which are among the dense parameters too" if sizes.shared else ""
        how.append(f"experts {short(routed, '')}: {short(sizes.experts, '')} of a rank x {ranks * header.ep} ranks{apart}")
    return ImpliedModel(
        layers=sizes.layers * header.pp,
        hidden=sizes.hidden or None,
        sequence=sizes.sequence or None,
        vocabulary=round(words) or None,
        parameters=None if dense is None or routed is None else dense + routed,
        active=active,
        approximate=sizes.ends is None,
        how=tuple(how),
        missing=(*missing, *lacking),
    )


def _widths(sizes: Sizes, sequence: int | None, micro_batch: int) -> tuple[list[str], list[str]]:
    """How sequence and hidden size are known, and what they miss."""
    how, missing = [], []
    if sequence:
        how.append(f"sequence {sequence:,}: workload.sequence")
    elif sizes.sequence:
        how.append(f"sequence {sizes.sequence:,}: {4 * sizes.tokens:,} bytes of cross_entropy1 / 4 / micro-batch {micro_batch}")
    else:
        missing.append("the sequence: workload.sequence")
    if sizes.hidden:
        how.append(f"hidden {sizes.hidden:,}: {sizes.activation:,} bytes of an activation / 2 / sequence / micro-batch")
    elif sizes.activation:
        product = sizes.activation // 2 // micro_batch
        how.append(f"sequence x hidden {product:,}: {sizes.activation:,} bytes of an activation / 2 / micro-batch")
    else:
        missing.append("the hidden size: no message of an activation")
    return how, missing


def _words(sizes: Sizes, tp: int) -> tuple[float, int]:
    """The vocabulary (0: unknown; padded, if the file tells no other), and how often the parameters count it."""
    if not sizes.ends or not sizes.hidden:
        return 0.0, WORD_COPIES[0] + sizes.final
    counted = sizes.ends * tp / sizes.hidden
    if sizes.words:
        return sizes.words, round(counted / sizes.words)
    return round(counted / (WORD_COPIES[0] + sizes.final)), WORD_COPIES[0] + sizes.final


def _counted(sizes: Sizes, header: Header, dense: float, copies: int) -> str:
    kind = "dense parameters" if sizes.moe else "parameters"
    ranks = f"{short(sizes.dense, '')} of a rank x tp {header.tp}" + (f" x pp {header.pp}" if header.pp > 1 else "")
    stages = f" on each of {header.pp} stages" if header.pp > 1 else ""
    if sizes.ends is None:
        return f"{kind} about {short(dense, '')}: {ranks}; they count the embedding several times{stages}"
    total = short(sizes.dense * header.tp * header.pp, "")
    return f"{kind} {short(dense, '')}: {ranks} = {total}, which counts the embedding {copies} times{stages}; here once"


def _third_matrices(sizes: Sizes, header: Header, layers: float) -> float:
    """Parameters that gated MLPs have beyond those counted, if the MLP has AICB's width for --swiglu; else 0."""
    if sizes.moe or not sizes.hidden or sizes.ends is None:
        return 0.0
    hidden, count = sizes.hidden, sizes.layers * header.pp
    norms = 2 * hidden * sizes.final
    width = (layers / count - norms - 4 * hidden * hidden) / (2 * hidden)
    gated = int(8 * hidden / 3 / 64) * 64
    return float(count * hidden * gated) if abs(width - gated) < 1 else 0.0


def _experts(sizes: Sizes, header: Header, dense: float | None) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Parameters of all experts, those that a token meets in the whole model, and what is missing."""
    if not sizes.moe:
        return 0.0, dense, ()
    if not sizes.experts:
        return None, None, ("the experts' parameters: AICB writes no gradients of experts where ep = dp",)
    all_layers = sizes.layers * header.pp - sizes.dense_layers
    routed = sizes.experts * (1 - sizes.shared) * header.tp * header.ep * all_layers / (sizes.layers - sizes.dense_layers)
    if not sizes.top:
        return routed, None, ("active parameters: experts per token (no message of routed tokens)",)
    if not sizes.number:
        return routed, None, ("active parameters: workload.experts, the experts of a layer",)
    return routed, None if dense is None else dense + routed * min(sizes.top / sizes.number, 1.0), ()


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


def suggested_model(text: SimaiText, facts: Facts) -> Suggestion:
    """The model of a text. Raises SpecError.

    Heads are not in a text: they are those of the nearest preset (same hidden size and MLP), or of a common size.
    """
    sections = sections_of(text, [])
    sizes = sizes_of(text, sections, facts)
    if not sizes.hidden:
        sizes = _solved(text, facts) or sizes
    if not sizes.hidden or not sizes.sequence:
        lacking = "set sequence" if sizes.activation else "it has no message of an activation: made at tp 1?"
        raise SpecError(f"{text.path}: suggests no model: the hidden size is unknown ({lacking})")
    layers, hidden = sizes.layers * text.header.pp, sizes.hidden
    numbers: dict[str, Any] = {"layers": layers, "hidden": hidden, "sequence": sizes.sequence}
    comments = {"layers": f"{sizes.layers} in the text x pp {text.header.pp}", "hidden": "bytes of an activation / 2 / tokens"}
    if facts.micro_batch is None:
        comments["hidden" if facts.sequence else "sequence"] = f"{ASSUMED}: micro-batch 1 (set micro_batch)"
    if sizes.moe:
        experts, why = _experts_of(text, sizes)
        numbers |= {"experts": experts, "vocabulary": round(sizes.words) or VOCABULARY}
        comments |= {"experts": why, "vocabulary": "" if sizes.words else f"{ASSUMED}: the generator's default"}
        mlps = [_Mlp(experts["ffn"], numbers["vocabulary"], why)]
        if sizes.latent:
            return _latent(text, sizes, numbers, comments)
    else:
        mlps = list(_mlps(text, sizes, facts.ffn))
    preset = _nearest(layers, hidden, mlps, moe=sizes.moe)
    mlp = next((each for each in mlps if preset and each.ffn == _width(preset)), mlps[0])
    if not sizes.moe:
        numbers |= {"ffn": mlp.ffn, "vocabulary": mlp.vocabulary}
        comments |= {"ffn": mlp.why}
    if preset:
        return _of_preset(text, preset, numbers, comments)
    return _assumed(text, sizes, numbers, comments, mlp.ffn)


def _solved(text: SimaiText, facts: Facts) -> Sizes | None:
    """The sizes with the only hidden size at which the parameters are the generator's to the last one, if there is one."""
    sections = sections_of(text, [])
    product = sizes_of(text, sections, replace(facts, sequence=None)).activation // 2 // (facts.micro_batch or 1)
    solutions = []
    for hidden in HIDDEN:
        if product and product % hidden == 0:
            sizes = sizes_of(text, sections, replace(facts, sequence=product // hidden))
            if sizes.ends is not None and sizes.ends > 0:
                solutions.append(sizes._replace(sequence=product // hidden))
    return solutions[0] if len(solutions) == 1 else None


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
        "mla": {"q_rank": QUERY_RANK, "kv_rank": KEY_RANK, "nope_head_dim": NOPE, "rope_head_dim": ROPE, "v_head_dim": VALUE},
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
