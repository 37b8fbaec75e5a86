"""How the parameters of a SimAI text divide among layers, embedding and experts: what candidates leave must be a vocabulary.

A layer has four matrices of hidden x hidden and, without experts, two of hidden x ffn; latent attention has those of its heads.
What layers leave belongs to embedding and head, and must be a padded vocabulary to the last parameter. Which widths, or numbers
of heads, are tried: those that the user gives, else the generator's defaults.
"""

from collections.abc import Iterator, Sequence

from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import PADDING, padded
from sim_core.workloads.simai.file import EXPERT_MATRICES, SHARED_MATRICES, File
from sim_core.workloads.simai.sections import sections_of
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
WORD_COPIES = (4, 2)
"""The generator counts the word embedding this many times, newer and older release."""
_OTHER_LATENTS = "ranks of latent attention that are not the generator's defaults; set workload.model"


def gated_width(hidden: float) -> int:
    """Width of an MLP that the generator takes for --swiglu."""
    return int(8 * hidden / 3 / 64) * 64


def read_file(text: SimaiText, facts: Facts) -> File:
    """What a text tells, with what its parameters allow: shares, or why the embedding's part is unknown. Raises FormatError."""
    file = File(sections_of(text), facts)
    if file.latent and file.with_experts and file.number:
        shared = file.shared_matrices
        file.shares = file.shares._replace(shared=shared / (EXPERT_MATRICES * file.number / file.header.ep + shared))
    file.why_unknown = _divided(file)
    return file


def _divided(file: File) -> str:
    """Fill in how the parameters divide; returns why that is unknown, '' where it is known or there is nothing to divide."""
    if file.mixed:
        if file.moe and not file.experts:
            return "the file has no message of the experts' gradients (ep = dp)"
        file.shares = file.shares._replace(experts=file.experts / file.mixed)
    sections = file.sections
    if not file.dense or not (sections.head or sections.tail):
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


def _explain(file: File, left: float, replicated: float, *, copies: int, counted: float, vocabulary: float) -> None:
    """Embedding and head have what layers leave: so many `copies` of the `counted` rows."""
    ends, positions = left / file.header.tp, file.sequence * file.hidden
    file.shares = file.shares._replace(
        ends=ends / file.dense, whole=positions / file.dense, vocabulary=float(vocabulary), replicated=replicated / file.dense
    )
    told = f"embedding and head: {short(ends + positions, '')} of the file's parameters a rank"
    file.told = f"{told} ({copies} x vocabulary {counted:.0f} as the generator counts it)"


def _with_widths(file: File) -> str:
    """A stage whose attention has four squares: by the width of its MLP, 0 with experts, which are counted apart.

    The vocabulary is that of the file or the generator's, or, where the width is known, any. As counted by the older release
    it must be a known one, and no default width may leave the generator's: a wrong width would often fit otherwise.
    """
    hidden, tp, moe, ffn = file.hidden, file.header.tp, file.moe, file.facts.ffn
    stated, replicated = file.vocabulary / 2 / hidden or float(VOCABULARY), file.layers * file.norms

    def fitting(widths: Sequence[float], *, exact: bool = True) -> Iterator[tuple[float, int, float, float]]:
        """What is left, its copies, and the rows of each as counted and as they are."""
        for width in widths:
            left = _left(file, file.layers * (4 * hidden**2 + 2 * hidden * width), replicated)
            for copies in WORD_COPIES if left > 0 else ():
                counted = left / hidden / (copies + file.final)
                words = [stated] if exact else KNOWN_VOCABULARIES
                known = next((float(each) for each in words if counted == padded(each, tp)), 0.0)
                if known or (not exact and counted % (PADDING * tp) == 0 and (moe or copies == WORD_COPIES[0])):
                    yield left, copies, counted, known or counted

    usual = (4.0 * hidden, float(gated_width(hidden)))
    told = (0.0,) if moe else (float(ffn),) if ffn else usual
    found = next(fitting(told), None)
    if found is None and not file.vocabulary and (moe or (ffn and not any(fitting(usual)))):
        found = next(fitting(told, exact=False), None)
    if found:
        left, copies, counted, words = found
        _explain(file, left, replicated, copies=copies, counted=counted, vocabulary=words)
        return ""
    if moe:
        return "what the layers leave is no padded vocabulary"
    return f"layers with workload.ffn {ffn} and hidden size {hidden} leave no padded vocabulary" if ffn else "set workload.ffn"


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
    _explain(file, float(copies * rows * hidden), replicated, copies=copies, counted=rows, vocabulary=usual.get(rows, rows))
    file.told = f"latent attention of {heads} heads, experts {width:.0f} wide; {file.told}"
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
