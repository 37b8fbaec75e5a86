"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

AICB (aliyun/aicb, `workload_generator/mocked_model/MockedMegatron.py`) counts, on every stage, vocabulary x hidden several
times: in the embedding, and with sequence parallelism in the final projection. Here the model has them once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.readers.simai_facts import WORD_COPIES, Given, counts_head, messages_of, parameters_of
from sim_core.workloads.readers.simai_header import Header
from sim_core.workloads.readers.simai_latent import is_latent, number_of_experts
from sim_core.workloads.readers.simai_sections import Sections, dense_layers, layer_starts
from sim_core.workloads.readers.simai_text import Record, SimaiText

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


def sizes_of(text: SimaiText, sections: Sections, given: Given) -> Sizes:
    """The numbers of a file that its model follows from."""
    layer = [text.records[text.order[k]] for k in sections.repetitions[0]]
    step = [text.records[text.order[k]] for k in (*sections.before, *sections.after)]
    layers = len(layer_starts(text, sections))
    messages = messages_of(text, sections, given)
    parameters = parameters_of(text, sections, messages, layers, given)
    experts = _bytes(step, "moe_grad_norm2") / 4
    dense = _bytes(step, "grad_param_comm") / 4
    if not dense:  # without a profile, one record counts all parameters
        dense = max(_last_bytes(step, "grad_norm") / 4 - experts, 0.0)
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
        number=given.experts or number_of_experts(layer, text.header),
        dense_layers=dense_layers(text, sections, layer_starts(text, sections)),
        latent=is_latent(layer),
        heads=given.heads or parameters.heads,
        width=int(parameters.width),
        shared=shares.shared,
        replicated=shares.replicated * dense,
    )


def _bytes(records: list[Record], name: str) -> int:
    """Bytes of the first message of a record, in any phase; 0: none."""
    return next((size for r in records if r.name == name for size in r.comm_bytes if size), 0)


def _last_bytes(records: list[Record], name: str) -> int:
    return next((size for r in records if r.name == name for size in reversed(r.comm_bytes) if size), 0)


def _experts_of_a_token(records: list[Record], tp: int, activation: float) -> float:
    """Routed bytes over those of the activation: by the all-to-alls on EP (of 1/tp), else by the reduce-scatters on TP."""
    routed = max((r.comm_bytes[0] * tp for r in records if r.suffix[0] == "_EP"), default=0)
    if not routed:
        routed = max((r.comm_bytes[0] for r in records if "moe" in r.name and r.collective[0] == "REDUCESCATTER"), default=0)
    return routed / activation if activation else 0.0


def model_of(sizes: Sizes, header: Header, given: Given) -> ImpliedModel:
    """The model that a file implies."""
    how, missing = _widths(sizes, given.sequence, given.micro_batch or 1)
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
