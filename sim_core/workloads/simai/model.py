"""The model behind a SimAI text of AICB: hidden size, sequence, vocabulary, parameters, with how each is derived.

A layer has four matrices of hidden x hidden and, without experts, two of hidden x ffn; latent attention has those of its heads.
What layers leave belongs to embedding and head, and must be a padded vocabulary to the last parameter. Which widths, or numbers
of heads, are tried: those that the user gives, else the generator's defaults. AICB (aliyun/aicb,
`workload_generator/mocked_model/MockedMegatron.py`) counts, on every stage, vocabulary x hidden several times: in the
embedding, and with sequence parallelism in the final projection. Here the model has them once.
"""

from collections.abc import Sequence

from sim_core.units import short
from sim_core.workloads.check import ImpliedModel
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import PADDING, padded
from sim_core.workloads.simai.file import EXPERT_MATRICES, SHARED_MATRICES, WORD_COPIES, File
from sim_core.workloads.simai.text import SimaiText

QUERY_RANK = 1536
KEY_RANK = 512
NOPE, ROPE, VALUE = 128, 64, 128
"""The generator's defaults, DeepSeek-V3's: ranks of the latents, and sizes of a head."""
MOST_HEADS = 1024
VOCABULARIES = (1_000, 1_000_000)
KNOWN_VOCABULARIES = (50257, 32000, 102400, 128256, 129280, 151552, 152064, 151936, 163840)
"""GPT-2 (the generator's default), Llama 2, DeepSeek-V2, Llama 3, DeepSeek-V3, GLM-4.5, Qwen2.5-72B, Qwen3, Kimi K2: the
`vocab_size` of their config.json. Heads and vocabulary are one sum in a text; many pairs fit, few with one of these."""
VOCABULARY = 50257
"""The generator's default vocabulary (GPT-2's); files of other models have it too."""
_OTHER_LATENTS = "ranks of latent attention that are not the generator's defaults; set workload.model"


def read_file(text: SimaiText, facts: Facts) -> File:
    """What a text tells, with what its parameters allow: shares, or why the embedding's part is unknown. Raises FormatError."""
    file = File(text, facts)
    if file.latent and file.with_experts and file.number:
        shared = file.shared_matrices
        file.shares = file.shares._replace(shared=shared / (EXPERT_MATRICES * file.number / file.header.ep + shared))
    file.why_unknown = _divided(file)
    if file.hidden and not file.why_unknown:
        file.ends, file.positions = file.shares.ends * file.dense, file.shares.whole * file.dense
    return file


def _divided(file: File) -> str:
    """Fill in how the parameters divide; returns why that is unknown, '' where it is known or there is nothing to divide."""
    if file.mixed:
        if file.moe and not file.experts:
            return "the file has no message of the experts' gradients (ep = dp)"
        file.shares = file.shares._replace(experts=file.experts / file.mixed)
    if not file.dense or not (file.head or file.tail):
        return ""
    if not file.activation:
        return "no message on TP or between stages tells the hidden size"
    if not file.sequence:
        return "set workload.sequence"
    if not file.hidden:
        message = f"the TP message of {short(file.activation, 'B')}"
        return f"sequences of {file.sequence:g} tokens do not divide {message}: see workload.sequence"
    return _with_latents(file) if file.latent else _with_widths(file)


def _left(file: File, of_layers: float, replicated: float) -> float:
    """Parameters of embedding and head on all tensor-parallel ranks, where layers have `of_layers` on all of them, and each
    rank has `replicated` besides."""
    return (file.dense - replicated - file.sequence * file.hidden) * file.header.tp - of_layers


def _explain(
    file: File, replicated: float, left: float, copies: int, counted: float, vocabulary: float, width: float = 0.0
) -> None:
    """Embedding and head have what layers leave: so many `copies` of the `counted` rows."""
    ends, positions = left / file.header.tp, file.sequence * file.hidden
    file.copies, file.width = round(left / file.hidden / counted), width
    file.shares = file.shares._replace(
        ends=ends / file.dense, whole=positions / file.dense, vocabulary=float(vocabulary), replicated=replicated / file.dense
    )
    told = f"embedding and head: {short(ends + positions, '')} of the file's parameters a rank"
    file.told += f"{told} ({copies} x vocabulary {counted:.0f} as the generator counts it)"


def _with_widths(file: File) -> str:
    """A stage whose attention has four squares: by the width of its MLP, 0 with experts, which are counted apart.

    The vocabulary is that of the file or the generator's, or, where the width is known, any. As counted by the older release
    it must be a known one, and no default width may leave the generator's: a wrong width would often fit otherwise.
    """
    hidden, tp, moe, ffn = file.hidden, file.header.tp, file.moe, file.facts.ffn
    # norms, which every tensor-parallel rank holds, are counted with sequence parallelism only
    stated, replicated = file.vocabulary / 2 / hidden or float(VOCABULARY), 2.0 * hidden * file.layers * file.final

    def fitting(widths: Sequence[float], words: Sequence[float]) -> tuple[float, int, float, float, float] | None:
        """What is left, its copies, and the rows of each as counted and as they are."""
        for width in widths:
            left = _left(file, file.layers * (4 * hidden**2 + 2 * hidden * width), replicated)
            for copies in WORD_COPIES if left > 0 else ():
                counted = left / hidden / (copies + file.final)
                known = next((float(each) for each in words if counted == padded(each, tp)), 0.0)
                any_other = len(words) > 1 and (moe or copies == WORD_COPIES[0])
                if known or (any_other and counted % (PADDING * tp) == 0):
                    return left, copies, counted, known or counted, width
        return None

    usual = (4.0 * hidden, float(gated_width(hidden)))
    told = (0.0,) if moe else (float(ffn),) if ffn else usual
    found = fitting(told, (stated,))
    if not found and not file.vocabulary and (moe or (ffn and not fitting(usual, (stated,)))):
        found = fitting(told, KNOWN_VOCABULARIES)
    if found:
        _explain(file, replicated, *found)
        return ""
    if moe:
        return "what the layers leave is no padded vocabulary"
    return f"layers with workload.ffn {ffn} and hidden size {hidden} leave no padded vocabulary" if ffn else "set workload.ffn"


def gated_width(hidden: float) -> int:
    """Width of an MLP that the generator takes for --swiglu."""
    return int(8 * hidden / 3 / 64) * 64


def _with_latents(file: File) -> str:
    """A stage with latent attention: by the number of its heads; its ranks and sizes of a head are the generator's."""
    hidden, tp, layers, given = file.hidden, file.header.tp, file.layers, file.facts.heads
    latents, copies = QUERY_RANK + KEY_RANK, WORD_COPIES[0] + 1  # and once in the final projection
    # down projections, norms of latents and of the layer
    replicated = layers * (hidden * (latents + ROPE) + 2 * latents + 2 * hidden)
    of_a_head = QUERY_RANK * (NOPE + ROPE) + KEY_RANK * (NOPE + VALUE) + VALUE * hidden
    if not replicated < file.dense:
        return _OTHER_LATENTS
    width, why = _width_of_experts(file)
    if why:
        return why
    pairs = []
    for heads in range(tp, MOST_HEADS + 1, tp):
        of_mlps = file.with_mlp * SHARED_MATRICES * hidden * width
        words = _left(file, of_mlps + layers * heads * of_a_head, replicated) / hidden / copies
        if VOCABULARIES[0] <= words <= VOCABULARIES[1] and words % (PADDING * tp) == 0:
            pairs.append((heads, int(words)))
    if not pairs:
        return _OTHER_LATENTS
    file.shares, file.replicated_known = file.shares._replace(replicated=replicated / file.dense), True
    if file.with_mlp not in (0, layers):
        return "some layers have a dense MLP, others have experts alone; set workload.model"
    usual = {padded(each, tp): each for each in ([file.vocabulary / 2 / hidden] if file.vocabulary else KNOWN_VOCABULARIES)}
    likely = [each for each in pairs if each[0] == given or (not given and each[1] in usual)]
    if len(likely) != 1:
        choices = " or ".join(f"{heads} with a vocabulary of {rows}" for heads, rows in pairs)
        return f"set workload.heads: by the parameters {choices}"
    ((heads, rows),) = likely
    file.told = f"latent attention of {heads} heads, experts {width:.0f} wide; "
    _explain(file, replicated, float(copies * rows * hidden), copies, rows, usual.get(rows, rows))
    return ""


def _width_of_experts(file: File) -> tuple[float, str]:
    """Width of an expert and of a dense MLP, and why it is unknown."""
    ffn = file.facts.ffn
    if not file.with_experts or not file.experts or not file.number:
        lacking = "workload.experts or workload.ffn" if file.experts else "workload.ffn"
        return float(ffn or 0), "" if ffn else f"set {lacking}"
    matrices = file.with_experts * (EXPERT_MATRICES * file.number / file.header.ep + file.shared_matrices)
    width = file.experts * file.header.tp / (matrices * file.hidden)
    if width != int(width):
        return 0.0, f"the parameters of experts are not those of {file.number} with {EXPERT_MATRICES} matrices each"
    return width, f"workload.ffn is {ffn}, but experts are {width:.0f} wide" if ffn and ffn != width else ""


def model_of(file: File) -> ImpliedModel:
    """The model that a file implies."""
    header, micro_batch, words = file.header, file.facts.micro_batch or 1, file.shares.vocabulary
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
    if words:
        ends = short(file.ends or 0.0, "")
        how.append(f"vocabulary {words:,.0f}: {ends} of a rank's parameters are {file.copies} x it x hidden / tp")
    if not file.dense:
        missing.append("parameters: the file has no message of gradients")
    elif file.ends is None:
        missing.append("how often the embedding is counted: workload.sequence or workload.ffn")
    dense = _dense(file, how) if file.dense else None
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


def _dense(file: File, how: list[str]) -> float:
    """Parameters but those of experts: as the file counts them, with the embedding once, and the third matrix of gated MLPs
    where the MLP has AICB's width for --swiglu."""
    tp, pp = file.header.tp, file.header.pp
    replicated = file.shares.replicated * file.dense
    divided = file.dense - (file.ends or 0.0) - file.positions - replicated
    counted = divided * (tp * pp) + replicated * pp + file.shares.vocabulary * file.hidden
    kind = "dense parameters" if file.moe else "parameters"
    ranks = f"{short(file.dense, '')} of a rank x tp {tp}" + (f" x pp {pp}" if pp > 1 else "")
    stages = f" on each of {pp} stages" if pp > 1 else ""
    if file.ends is None:
        how.append(f"{kind} about {short(counted, '')}: {ranks}; they count the embedding several times{stages}")
        return counted
    total = f"{ranks} = {short(file.dense * tp * pp, '')}"
    how.append(f"{kind} {short(counted, '')}: {total}, which counts the embedding {file.copies} times{stages}; here once")
    third = float(file.layers * pp * file.hidden * file.width) if file.width == gated_width(file.hidden) else 0.0
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
    header, first, shared = file.header, file.dense_layers, file.shares.shared
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
