"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

AICB (aliyun/aicb, `workload_generator/mocked_model/MockedMegatron.py`) counts, on every stage, vocabulary x hidden several
times: in the embedding, and with sequence parallelism in the final projection. Here the model has them once.
"""

from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.parameters import WORD_COPIES, gated_width
from sim_core.workloads.simai.sizes import Sizes


def model_of(sizes: Sizes, facts: Facts) -> ImpliedModel:
    """The model that a file implies."""
    header, micro_batch = sizes.header, facts.micro_batch or 1
    how, missing = [], []
    if facts.sequence:
        how.append(f"sequence {facts.sequence:,}: workload.sequence")
    elif sizes.sequence:
        loss = f"{4 * sizes.tokens:,} bytes of cross_entropy1"
        how.append(f"sequence {int(sizes.sequence):,}: {loss} / 4 / micro-batch {micro_batch}")
    else:
        missing.append("the sequence: workload.sequence")
    activation = f"{sizes.activation:,} bytes of an activation / 2"
    if sizes.hidden:
        how.append(f"hidden {sizes.hidden:,}: {activation} / sequence / micro-batch")
    elif sizes.activation:
        how.append(f"sequence x hidden {sizes.activation // 2 // micro_batch:,}: {activation} / micro-batch")
    else:
        missing.append("the hidden size: no message of an activation")
    words, copies = _words(sizes)
    if words:
        ends = short(sizes.ends or 0.0, "")
        how.append(f"vocabulary {words:,.0f}: {ends} of a rank's parameters are {copies} x it x hidden / tp")
    ranks = header.tp * header.pp
    dense = None
    if not sizes.dense:
        missing.append("parameters: the file has no message of gradients")
    else:
        if sizes.ends is None:
            missing.append("how often the embedding is counted: workload.sequence or workload.ffn")
        divided = sizes.dense - (sizes.ends or 0.0) - sizes.positions - sizes.replicated
        counted = divided * ranks + sizes.replicated * header.pp + words * sizes.hidden
        third = _third_matrices(sizes)
        dense = counted + third
        how.append(_counted(sizes, counted, copies))
        if third:
            gated = "the MLP is as wide as AICB's for --swiglu, and AICB counts two of its three matrices"
            how.append(f"+ {short(third, '')}: {gated}")
    routed, active, lacking = _experts(sizes, dense)
    if routed:
        apart = ", without the shared ones, which are among the dense parameters too" if sizes.shares.shared else ""
        how.append(f"experts {short(routed, '')}: {short(sizes.experts, '')} of a rank x {ranks * header.ep} ranks{apart}")
    return ImpliedModel(
        layers=sizes.layers * header.pp,
        hidden=sizes.hidden or None,
        sequence=int(sizes.sequence) or None,
        vocabulary=round(words) or None,
        parameters=None if dense is None or routed is None else dense + routed,
        active=active,
        approximate=sizes.ends is None,
        how=tuple(how),
        missing=(*missing, *lacking),
    )


def _words(sizes: Sizes) -> tuple[float, int]:
    """The vocabulary (0: unknown; padded, if the file tells no other), and how often the parameters count it."""
    usual = WORD_COPIES[0] + sizes.final
    if not sizes.ends or not sizes.hidden:
        return 0.0, usual
    counted, words = sizes.ends * sizes.header.tp / sizes.hidden, sizes.shares.vocabulary
    return (words, round(counted / words)) if words else (round(counted / usual), usual)


def _counted(sizes: Sizes, dense: float, copies: int) -> str:
    header, kind = sizes.header, "dense parameters" if sizes.moe else "parameters"
    ranks = f"{short(sizes.dense, '')} of a rank x tp {header.tp}" + (f" x pp {header.pp}" if header.pp > 1 else "")
    stages = f" on each of {header.pp} stages" if header.pp > 1 else ""
    if sizes.ends is None:
        return f"{kind} about {short(dense, '')}: {ranks}; they count the embedding several times{stages}"
    total = short(sizes.dense * header.tp * header.pp, "")
    return f"{kind} {short(dense, '')}: {ranks} = {total}, which counts the embedding {copies} times{stages}; here once"


def _third_matrices(sizes: Sizes) -> float:
    """Parameters that gated MLPs have beyond those counted, if the MLP has AICB's width for --swiglu; else 0."""
    if sizes.moe or not sizes.hidden or sizes.ends is None:
        return 0.0
    gated = gated_width(sizes.hidden)
    fits = abs(sizes.mlp_width(sizes.ends + sizes.positions) - gated) < 1
    return float(sizes.layers * sizes.header.pp * sizes.hidden * gated) if fits else 0.0


def _experts(sizes: Sizes, dense: float | None) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Parameters of all experts, those that a token meets in the whole model, and what is missing."""
    if not sizes.moe:
        return 0.0, dense, ()
    if not sizes.experts:
        return None, None, ("the experts' parameters: AICB writes no gradients of experts where ep = dp",)
    header, first = sizes.header, sizes.dense_layers
    of_stage = sizes.experts * (1 - sizes.shares.shared) * header.tp * header.ep
    routed = of_stage * (sizes.layers * header.pp - first) / (sizes.layers - first)
    if not sizes.top:
        return routed, None, ("active parameters: experts per token (no message of routed tokens)",)
    if not sizes.number:
        return routed, None, ("active parameters: workload.experts, the experts of a layer",)
    return routed, None if dense is None else dense + routed * min(sizes.top / sizes.number, 1.0), ()
