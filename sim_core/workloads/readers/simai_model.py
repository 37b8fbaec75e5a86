"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

AICB (aliyun/aicb, `workload_generator/mocked_model/MockedMegatron.py`) counts parameters of a rank as
4 V h / tp (embedding, four times) + s h (positions) + layers x (4 h^2 + 2 h f) / tp, and with sequence parallelism
+ V h / tp (final) + 2 h per layer (norm); V: padded to a multiple of 128 tp, f: width of the MLP. Each stage's file counts
the embedding. Experts are in messages of their own, if ep < dp.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sim_core.units import short
from sim_core.workloads.check import Model
from sim_core.workloads.readers.simai_sections import Sections, layer_starts
from sim_core.workloads.readers.simai_text import Record, SimaiText

EMBEDDING_COPIES: Final = 4
_PADDING: Final = 128  # Megatron's --make-vocab-size-divisible-by
_MOST_WORDS: Final = 1_000_000


class Given(NamedTuple):
    """What the user adds; None: unknown."""

    micro_batch: int | None
    sequence: int | None
    vocabulary: int | None
    experts: int | None


class Sizes(NamedTuple):
    """Numbers of a file that its model follows from; 0: unknown. Bytes of messages; parameters of one rank."""

    layers: int  # of this stage
    activation: int  # bytes of sequence x hidden x micro-batch in 2 bytes
    tokens: int  # of a micro-batch
    dense: float
    experts: float
    sequence_parallel: bool
    moe: bool
    top: float  # experts that a token goes to


def sizes_of(text: SimaiText, sections: Sections) -> Sizes:
    """The numbers of a file that its model follows from."""
    inside = {int(k) for k in np.unique(text.order[sections.repetitions[0]])}
    layer = [text.records[k] for k in inside]
    step = [text.records[text.order[k]] for k in (*sections.before, *sections.after)]
    experts = _bytes(step, "moe_grad_norm1") / 2
    dense = _bytes(step, "grad_gather") / 2
    if not dense:  # without a profile, one record counts all parameters
        dense = max(_bytes(step, "grad_norm") / 2 - experts, 0.0)
    sharded = any(r.collective[p] in ("ALLGATHER", "REDUCESCATTER") and not r.suffix[p] for r in layer for p in (0, 1))
    tp = text.header.tp
    activation = _activation(text, layer, sharded)
    routed = max((r.comm_bytes[0] * tp for r in layer if r.suffix[0] == "_EP"), default=0)
    routed = routed or max(
        (r.comm_bytes[0] for r in layer if "moe" in r.name and r.collective[0] == "REDUCESCATTER"), default=0
    )
    return Sizes(
        layers=len(layer_starts(text, sections)),
        activation=activation,
        tokens=_bytes(step, "cross_entropy1") // 4,
        dense=dense,
        experts=experts,
        sequence_parallel=sharded or any(r.name == "attention_column" for r in layer),  # at tp 1 without messages
        moe=any("moe" in r.name for r in layer),
        top=routed / activation if activation else 0.0,
    )


def _bytes(records: list[Record], name: str) -> int:
    """Bytes of the first message of a record, in any phase; 0: none."""
    return next((size for r in records if r.name == name for size in r.comm_bytes if size), 0)


def _activation(text: SimaiText, layer: list[Record], sharded: bool) -> int:
    """Bytes of the activation of a micro-batch: what the embedding, attention or a pipeline send carries."""
    for start in ("embedding_layer", "attention"):
        size = max((max(r.comm_bytes[:2]) for r in layer if r.name.startswith(start)), default=0)
        if size:
            return size
    return text.header.pp_comm * (text.header.tp if sharded else 1)


def model_of(text: SimaiText, sizes: Sizes, given: Given) -> Model:
    """The model that a file implies."""
    tp, pp, ep = text.header.tp, text.header.pp, text.header.ep
    micro_batch = given.micro_batch or 1
    how, missing = [], []
    sequence = given.sequence or sizes.tokens // micro_batch or None
    if given.sequence:
        how.append(f"sequence {sequence:,}: workload.sequence")
    elif sequence:
        how.append(f"sequence {sequence:,}: {4 * sizes.tokens:,} bytes of cross_entropy1 / 4 / micro-batch {micro_batch}")
    else:
        missing.append("the sequence: workload.sequence")
    hidden = _exact(sizes.activation / 2, (sequence or 0) * micro_batch)
    if hidden:
        how.append(f"hidden {hidden:,}: {sizes.activation:,} bytes of an activation / 2 / sequence / micro-batch")
    elif sizes.activation and not sequence:
        how.append(f"sequence x hidden {sizes.activation // 2 // micro_batch:,}: of an activation's {sizes.activation:,} bytes")
    words, why = _vocabulary(text, sizes, given, hidden, sequence)
    if words:
        how.append(f"vocabulary {words:,}: {why}")
    else:
        missing.append("the vocabulary: workload.vocabulary")
    if not sizes.dense:
        missing.append("parameters: the file has no gradient message")
        return Model(
            layers=sizes.layers * pp,
            hidden=hidden,
            sequence=sequence,
            vocabulary=words,
            how=tuple(how),
            missing=tuple(missing),
        )
    known = hidden if words else None
    mine = _layers_of_rank(sizes, tp, hidden, sequence, words)
    dense = mine * tp * pp + (words or 0) * (hidden or 0)
    how.append(_counted(sizes, tp, pp, dense, known=bool(known)))
    third = _third_matrix(sizes, tp, mine, known) * pp
    if third:
        how.append(
            f"+ {short(third, '')}: the MLP is as wide as AICB's for --swiglu, and AICB counts two of its three matrices"
        )
    dense += third
    experts, active, lacking = _experts(sizes, tp * pp * ep, dense, given)
    if experts:
        how.append(f"experts {short(experts, '')}: {short(sizes.experts, '')} of a rank x tp {tp} x pp {pp} x ep {ep}")
    return Model(
        layers=sizes.layers * pp,
        hidden=hidden,
        sequence=sequence,
        vocabulary=words,
        parameters=None if experts is None else dense + experts,
        active=active,
        approximate=not known,
        how=tuple(how),
        missing=(*missing, *lacking),
    )


def _layers_of_rank(sizes: Sizes, tp: int, hidden: int | None, sequence: int | None, words: int | None) -> float:
    """Parameters of a rank without positions and embedding; with them, where the vocabulary is unknown."""
    positions = (sequence or 0) * (hidden or 0)
    return sizes.dense - positions - _padded(words, tp) * (hidden or 0) * _copies(sizes) / tp


def _counted(sizes: Sizes, tp: int, pp: int, dense: float, *, known: bool) -> str:
    kind = "dense parameters" if sizes.moe else "parameters"
    ranks = f"{short(sizes.dense, '')} of a rank x tp {tp}" + (f" x pp {pp}" if pp > 1 else "")
    twice = f"counts the embedding {_copies(sizes)} times" + (f" on each of {pp} stages" if pp > 1 else "")
    if known:
        return f"{kind} {short(dense, '')}: {ranks} = {short(sizes.dense * tp * pp, '')}, which {twice}; here once"
    return f"{kind} about {short(dense, '')}: {ranks}; it {twice}, and two matrices of an MLP that may have three"


def _copies(sizes: Sizes) -> int:
    """How often a stage's parameters count vocabulary x hidden."""
    return EMBEDDING_COPIES + sizes.sequence_parallel


def _exact(total: float, parts: int) -> int | None:
    return round(total / parts) if parts and total and total % parts == 0 else None


def _padded(words: int | None, tp: int) -> int:
    unit = _PADDING * tp
    return -(-(words or 0) // unit) * unit


def _vocabulary(
    text: SimaiText, sizes: Sizes, given: Given, hidden: int | None, sequence: int | None
) -> tuple[int | None, str]:
    """The vocabulary and where it comes from."""
    if given.vocabulary:
        return given.vocabulary, "workload.vocabulary"
    named = next((max(r.comm_bytes) for r in text.records if r.name == "embedding_norm"), 0)
    if hidden and (words := _exact(named / 2, hidden)):
        return words, f"{named:,} bytes of embedding_norm / 2 / hidden"
    if hidden and sequence and sizes.moe and sizes.sequence_parallel and sizes.dense:
        # with experts apart, a layer has 4 h^2 / tp of attention and a norm: the rest is the embedding
        tp = text.header.tp
        rest = sizes.dense - sequence * hidden - sizes.layers * (2 * hidden + 4 * hidden * hidden / tp)
        found = _exact(rest * tp, hidden * _copies(sizes))
        if found and 0 < found <= _MOST_WORDS and found % (_PADDING * tp) == 0:
            return (
                found,
                f"padded; what attention's layers leave of the dense parameters, counted {_copies(sizes)} times",
            )
    return None, ""


def _third_matrix(sizes: Sizes, tp: int, mine: float, hidden: int | None) -> float:
    """Parameters that gated MLPs have on a stage beyond those counted, if the MLP has AICB's width for --swiglu; else 0."""
    if sizes.moe or not hidden:
        return 0.0
    layer = (mine / sizes.layers - 2 * hidden * sizes.sequence_parallel) * tp
    width = (layer - 4 * hidden * hidden) / (2 * hidden)
    gated = int(4 * hidden * 2 / 3 / 64) * 64
    return float(sizes.layers * hidden * gated) if abs(width - gated) < 1 else 0.0


def _experts(sizes: Sizes, ranks: int, dense: float, given: Given) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Parameters of all experts, those that a token meets in the whole model, and what is missing."""
    if not sizes.moe:
        return 0.0, dense, ()
    if not sizes.experts:
        return None, None, ("the experts' parameters: AICB writes no gradients of experts where ep = dp",)
    experts = sizes.experts * ranks
    lacking = []
    if not given.experts:
        lacking.append("active parameters: workload.experts, the experts of a layer")
    if not sizes.top:
        lacking.append("active parameters: experts per token (no message of routed tokens)")
    if lacking or not given.experts:
        return experts, None, tuple(lacking)
    return experts, dense + experts * min(sizes.top / given.experts, 1.0), ()
