"""How the parameters of a SimAI text divide among layers, embedding and experts: what candidates leave must be a vocabulary.

A layer has four matrices of hidden x hidden and, without experts, two of hidden x ffn; latent attention has those of its heads.
What layers leave belongs to embedding and head, and must be a padded vocabulary to the last parameter. Which widths, or numbers
of heads, are tried: those that the user gives, else the generator's defaults.
"""

from collections.abc import Callable, Sequence
from typing import Final

from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import PADDING, padded
from sim_core.workloads.simai.sections import Sections
from sim_core.workloads.simai.sizes import EXPERT_MATRICES, SHARED_MATRICES, Sizes, sizes_of

QUERY_RANK: Final = 1536
KEY_RANK: Final = 512
NOPE, ROPE, VALUE = 128, 64, 128
"""The generator's defaults, DeepSeek-V3's: ranks of the latents, and sizes of a head."""
MOST_HEADS: Final = 1024
VOCABULARIES: Final = (1_000, 1_000_000)
KNOWN_VOCABULARIES: Final = (50257, 32000, 102400, 128256, 129280, 151552, 152064, 151936, 163840)
"""GPT-2 (the generator's default), Llama 2, DeepSeek-V2, Llama 3, DeepSeek-V3, GLM-4.5, Qwen2.5-72B, Qwen3, Kimi K2: the
`vocab_size` of their config.json. Heads and vocabulary are one sum in a text; many pairs fit, few with one of these."""
VOCABULARY: Final = 50257
"""The generator's default vocabulary (GPT-2's); files of other models have it too."""
WORD_COPIES: Final = (4, 2)
"""The generator counts the word embedding this many times, newer and older release."""
_OTHER_LATENTS: Final = "ranks of latent attention that are not the generator's defaults; set workload.model"


def gated_width(hidden: float) -> int:
    """Width of an MLP that the generator takes for --swiglu."""
    return int(8 * hidden / 3 / 64) * 64


def read_sizes(sections: Sections, facts: Facts) -> Sizes:
    """The numbers of a text with what its parameters allow: shares, heads and width, or why the embedding's part is unknown."""
    sizes = sizes_of(sections, facts)
    parts = sizes.shares
    if sizes.latent and sizes.with_experts and sizes.number:
        shared = sizes.shared_matrices
        parts = parts._replace(shared=shared / (EXPERT_MATRICES * sizes.number / sizes.header.ep + shared))
    sizes = sizes._replace(shares=parts, replicated_known=not sizes.latent)
    if sizes.mixed and sizes.moe and not sizes.experts:
        return sizes._replace(why_unknown="the file has no message of the experts' gradients (ep = dp)")
    if sizes.mixed:
        sizes = sizes._replace(shares=parts._replace(experts=sizes.experts / sizes.mixed))
    if not sizes.dense or not sizes.has_ends:
        return sizes
    if lacking := _lacking(sizes):
        return sizes._replace(why_unknown=lacking)
    return _with_latents(sizes, facts) if sizes.latent else _with_widths(sizes, facts.ffn)


def _lacking(sizes: Sizes) -> str:
    """Why the hidden size is unknown; empty if it is known."""
    if not sizes.activation:
        return "no message on TP or between stages tells the hidden size"
    if not sizes.sequence:
        return "set workload.sequence"
    if not sizes.hidden:
        size = short(sizes.activation, "B")
        return f"sequences of {sizes.sequence:g} tokens do not divide the TP message of {size}: see workload.sequence"
    return ""


def _left(sizes: Sizes, of_layers: float, replicated: float) -> float:
    """Parameters of embedding and head on all tensor-parallel ranks, where layers have `of_layers` on all of them, and each
    rank has `replicated` besides."""
    return (sizes.dense - replicated - sizes.sequence * sizes.hidden) * sizes.header.tp - of_layers


def _explained(sizes: Sizes, left: float, replicated: float, *, copies: int, counted: float, vocabulary: float) -> Sizes:
    """The sizes where embedding and head have what layers leave: so many `copies` of the `counted` rows."""
    ends, positions = left / sizes.header.tp, sizes.sequence * sizes.hidden
    told = f"embedding and head: {short(ends + positions, '')} of the file's parameters a rank"
    parts = sizes.shares._replace(
        ends=ends / sizes.dense,
        whole=positions / sizes.dense,
        vocabulary=float(vocabulary),
        replicated=replicated / sizes.dense,
    )
    return sizes._replace(
        shares=parts, told=f"{told} ({copies} x vocabulary {counted:.0f} as the generator counts it)", replicated_known=True
    )


def _with_widths(sizes: Sizes, ffn: int | None) -> Sizes:
    """A stage whose attention has four squares: by the width of its MLP, 0 with experts, which are counted apart.

    The vocabulary is that of the file or the generator's, or, where the width is known, any. As counted by the older release
    it must be a known one, and no default width may leave the generator's: a wrong width would often fit otherwise.
    """
    hidden, tp, moe = sizes.hidden, sizes.header.tp, sizes.moe
    stated = sizes.vocabulary / 2 / hidden or float(VOCABULARY)

    def fitting(widths: Sequence[float], allowed: Callable[[float, int], float | None]) -> Sizes | None:
        for width in widths:
            left = _left(sizes, sizes.layers * (4 * hidden**2 + 2 * hidden * width), sizes.layers * sizes.norms)
            for copies in WORD_COPIES if left > 0 else ():
                counted = left / hidden / (copies + sizes.final)
                words = allowed(counted, copies)
                if words is not None:
                    replicated = sizes.layers * sizes.norms
                    return _explained(sizes, left, replicated, copies=copies, counted=counted, vocabulary=words)
        return None

    def exact(counted: float, _: int) -> float | None:
        return stated if counted == padded(stated, tp) else None

    def any_padded(counted: float, copies: int) -> float | None:
        known = next((float(each) for each in KNOWN_VOCABULARIES if counted == padded(each, tp)), 0.0)
        fits = not sizes.vocabulary and counted % (PADDING * tp) == 0 and (known or moe or copies == WORD_COPIES[0])
        return (known or counted) if fits else None

    usual = (4.0 * hidden, float(gated_width(hidden)))
    told = (0.0,) if moe else (float(ffn),) if ffn else usual
    found = fitting(told, exact)
    if found is None and (moe or (ffn and not fitting(usual, exact))):
        found = fitting(told, any_padded)
    if found:
        return found
    why = f"layers with workload.ffn {ffn} and hidden size {hidden} leave no padded vocabulary" if ffn else "set workload.ffn"
    return sizes._replace(why_unknown="what the layers leave is no padded vocabulary" if moe else why)


def _with_latents(sizes: Sizes, facts: Facts) -> Sizes:
    """A stage with latent attention: by the number of its heads; its ranks and sizes of a head are the generator's."""
    hidden, tp, layers = sizes.hidden, sizes.header.tp, sizes.layers
    latents, copies = QUERY_RANK + KEY_RANK, WORD_COPIES[0] + 1  # and once in the final projection
    # down projections, norms of latents and of the layer
    replicated = layers * (hidden * (latents + ROPE) + 2 * latents + 2 * hidden)
    of_a_head = QUERY_RANK * (NOPE + ROPE) + KEY_RANK * (NOPE + VALUE) + VALUE * hidden
    if not replicated < sizes.dense:
        return sizes._replace(why_unknown=_OTHER_LATENTS)
    width, why = _width_of_experts(sizes, facts.ffn)
    if why:
        return sizes._replace(why_unknown=why)
    pairs = []
    for heads in range(tp, MOST_HEADS + 1, tp):
        of_mlps = sizes.with_mlp * SHARED_MATRICES * hidden * width
        words = _left(sizes, of_mlps + layers * heads * of_a_head, replicated) / hidden / copies
        if VOCABULARIES[0] <= words <= VOCABULARIES[1] and words % (PADDING * tp) == 0:
            pairs.append((heads, int(words)))
    if not pairs:
        return sizes._replace(why_unknown=_OTHER_LATENTS)
    sizes = sizes._replace(shares=sizes.shares._replace(replicated=replicated / sizes.dense), replicated_known=True)
    if sizes.with_mlp not in (0, layers):
        return sizes._replace(why_unknown="some layers have a dense MLP, others have experts alone; set workload.model")
    sizes = sizes._replace(width=int(width))
    words_told = [sizes.vocabulary / 2 / hidden] if sizes.vocabulary else KNOWN_VOCABULARIES
    usual = {padded(each, tp): each for each in words_told}
    likely = [each for each in pairs if each[0] == facts.heads or (not facts.heads and each[1] in usual)]
    if len(likely) != 1:
        choices = " or ".join(f"{heads} with a vocabulary of {rows}" for heads, rows in pairs)
        return sizes._replace(why_unknown=f"set workload.heads: by the parameters {choices}")
    ((heads, rows),) = likely
    left = float(copies * rows * hidden)
    found = _explained(sizes, left, replicated, copies=copies, counted=rows, vocabulary=usual.get(rows, rows))
    return found._replace(heads=heads, told=f"latent attention of {heads} heads, experts {width:.0f} wide; {found.told}")


def _width_of_experts(sizes: Sizes, ffn: int | None) -> tuple[float, str]:
    """Width of an expert and of a dense MLP, and why it is unknown. `ffn`: as the user gives it."""
    if not sizes.with_experts or not sizes.experts or not sizes.number:
        lacking = "workload.experts or workload.ffn" if sizes.experts else "workload.ffn"
        return float(ffn or 0), "" if ffn else f"set {lacking}"
    matrices = sizes.with_experts * (EXPERT_MATRICES * sizes.number / sizes.header.ep + sizes.shared_matrices)
    width = sizes.experts * sizes.header.tp / (matrices * sizes.hidden)
    if width != int(width):
        return 0.0, f"the parameters of experts are not those of {sizes.number} with {EXPERT_MATRICES} matrices each"
    return width, f"workload.ffn is {ffn}, but experts are {width:.0f} wide" if ffn and ffn != width else ""
