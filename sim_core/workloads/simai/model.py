"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

AICB (aliyun/aicb, `workload_generator/mocked_model/MockedMegatron.py`) counts, on every stage, vocabulary x hidden several
times: in the embedding, and with sequence parallelism in the final projection. Here the model has them once.
"""

from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.simai.file import File
from sim_core.workloads.simai.parameters import WORD_COPIES, gated_width


def model_of(file: File) -> ImpliedModel:
    """The model that a file implies."""
    header, micro_batch = file.header, file.facts.micro_batch or 1
    how, missing = [], []
    if file.facts.sequence:
        how.append(f"sequence {file.facts.sequence:,}: workload.sequence")
    elif file.sequence:
        loss = f"{4 * file.tokens:,} bytes of cross_entropy1"
        how.append(f"sequence {int(file.sequence):,}: {loss} / 4 / micro-batch {micro_batch}")
    else:
        missing.append("the sequence: workload.sequence")
    activation = f"{file.activation:,} bytes of an activation / 2"
    if file.hidden:
        how.append(f"hidden {file.hidden:,}: {activation} / sequence / micro-batch")
    elif file.activation:
        how.append(f"sequence x hidden {file.activation // 2 // micro_batch:,}: {activation} / micro-batch")
    else:
        missing.append("the hidden size: no message of an activation")
    words, copies = _words(file)
    if words:
        ends = short(file.ends or 0.0, "")
        how.append(f"vocabulary {words:,.0f}: {ends} of a rank's parameters are {copies} x it x hidden / tp")
    if not file.dense:
        missing.append("parameters: the file has no message of gradients")
    elif file.ends is None:
        missing.append("how often the embedding is counted: workload.sequence or workload.ffn")
    dense = _dense(file, words, copies, how) if file.dense else None
    routed, active = _experts(file, dense, how, missing)
    return ImpliedModel(
        layers=file.layers * header.pp,
        hidden=file.hidden or None,
        sequence=int(file.sequence) or None,
        vocabulary=round(words) or None,
        parameters=None if dense is None or routed is None else dense + routed,
        active=active,
        approximate=file.ends is None,
        how=tuple(how),
        missing=tuple(missing),
    )


def _words(file: File) -> tuple[float, int]:
    """The vocabulary (0: unknown; padded, if the file tells no other), and how often the parameters count it."""
    usual = WORD_COPIES[0] + file.final
    if not file.ends or not file.hidden:
        return 0.0, usual
    counted, words = file.ends * file.header.tp / file.hidden, file.shares.vocabulary
    return (words, round(counted / words)) if words else (round(counted / usual), usual)


def _dense(file: File, words: float, copies: int, how: list[str]) -> float:
    """Parameters but those of experts: as the file counts them, with the embedding once, and the third matrix of gated MLPs
    where the MLP has AICB's width for --swiglu."""
    tp, pp = file.header.tp, file.header.pp
    replicated = file.shares.replicated * file.dense
    divided = file.dense - (file.ends or 0.0) - file.positions - replicated
    counted = divided * (tp * pp) + replicated * pp + words * file.hidden
    kind = "dense parameters" if file.moe else "parameters"
    ranks = f"{short(file.dense, '')} of a rank x tp {tp}" + (f" x pp {pp}" if pp > 1 else "")
    stages = f" on each of {pp} stages" if pp > 1 else ""
    if file.ends is None:
        how.append(f"{kind} about {short(counted, '')}: {ranks}; they count the embedding several times{stages}")
        return counted
    total = f"{ranks} = {short(file.dense * tp * pp, '')}"
    how.append(f"{kind} {short(counted, '')}: {total}, which counts the embedding {copies} times{stages}; here once")
    gated = gated_width(file.hidden)
    # width of a dense MLP, by what a layer has beside norms and four squares of attention
    layer = ((file.dense - file.ends - file.positions) / file.layers - file.norms) * tp
    if file.moe or not abs((layer - 4 * file.hidden**2) / (2 * file.hidden) - gated) < 1:
        return counted
    third = float(file.layers * pp * file.hidden * gated)
    if third:
        how.append(
            f"+ {short(third, '')}: the MLP is as wide as AICB's for --swiglu, and AICB counts two of its three matrices"
        )
    return counted + third


def _experts(file: File, dense: float | None, how: list[str], missing: list[str]) -> tuple[float | None, float | None]:
    """Parameters of all experts, and those that a token meets in the whole model; None: unknown."""
    if not file.moe:
        return 0.0, dense
    if not file.experts:
        missing.append("the experts' parameters: AICB writes no gradients of experts where ep = dp")
        return None, None
    header, first, shared = file.header, file.sections.dense_layers, file.shares.shared
    of_stage = file.experts * (1 - shared) * header.tp * header.ep
    routed = of_stage * (file.layers * header.pp - first) / (file.layers - first)
    if routed:
        apart = ", without the shared ones, which are among the dense parameters too" if shared else ""
        ranks = header.tp * header.pp * header.ep
        how.append(f"experts {short(routed, '')}: {short(file.experts, '')} of a rank x {ranks} ranks{apart}")
    if not file.top:
        missing.append("active parameters: experts per token (no message of routed tokens)")
    elif not file.number:
        missing.append("active parameters: workload.experts, the experts of a layer")
    elif dense is not None:
        return routed, dense + routed * min(file.top / file.number, 1.0)
    return routed, None
