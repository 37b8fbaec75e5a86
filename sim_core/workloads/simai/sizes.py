"""What the records of a SimAI text tell about the model behind it: tokens, hidden size, parameters of the embedding.

Record names, sizes and defaults are those of the generator (aliyun/aicb, workload_generator/mocked_model/MockedMegatron.py
and SimAI_training_workload_generator.py), as its files show them; docs/moving.md lists them.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.moving import PADDING, padded
from sim_core.workloads.simai.sections import COUNT_BYTES, EMBEDDING, EXPERTS, RECORDS_OF_EXPERTS, Sections
from sim_core.workloads.simai.text import Header, Record, SimaiText
from sim_core.workloads.workload import FORWARD, WEIGHT_GRADIENT, Shares

QUERY_RANK: Final = 1536
KEY_RANK: Final = 512
NOPE, ROPE, VALUE = 128, 64, 128
"""The generator's defaults, DeepSeek-V3's: ranks of the latents, and sizes of a head."""
EXPERT_MATRICES: Final = 3
SHARED_MATRICES: Final = 2
MOST_HEADS: Final = 1024
VOCABULARIES: Final = (1_000, 1_000_000)
KNOWN_VOCABULARIES: Final = (50257, 32000, 102400, 128256, 129280, 151552, 152064, 151936, 163840)
"""GPT-2 (the generator's default), Llama 2, DeepSeek-V2, Llama 3, DeepSeek-V3, GLM-4.5, Qwen2.5-72B, Qwen3, Kimi K2: the
`vocab_size` of their config.json. Heads and vocabulary are one sum in a text; many pairs fit, few with one of these."""
_LATENT: Final = "_lora"
_DENSE: Final = "mlp_column"


def is_latent(records: Sequence[Record]) -> bool:
    """Whether attention is latent: records of its down projections."""
    return any(record.name.endswith(_LATENT) for record in records)


def number_of_experts(records: Sequence[Record], header: Header) -> int:
    """Experts of a layer, by the numbers of tokens that its ranks tell each other; 0: the file does not tell."""
    counted = sum(record.name == EXPERTS for record in records)
    sizes = [
        r.comm_bytes[FORWARD] for r in records if r.name == EXPERTS and r.collective[FORWARD] == "ALLGATHER" and r.comm_bytes[0]
    ]
    return min(sizes) // (COUNT_BYTES * header.tp * header.ep) if sizes and counted % RECORDS_OF_EXPERTS == 0 else 0


class Stage(NamedTuple):
    """Layers of the recorded stage: all, those with experts, and those with a dense MLP (a shared expert is one, too)."""

    layers: int
    with_experts: int
    with_mlp: int

    @property
    def has_shared(self) -> bool:
        """Whether every layer with experts has a shared one."""
        return self.with_mlp == self.layers


def stage_of(records: Sequence[Record], layers: int) -> Stage:
    """The layers of a micro-batch with these records."""
    moe = sum(record.name == EXPERTS for record in records) // RECORDS_OF_EXPERTS
    return Stage(layers, moe, sum(record.name == _DENSE for record in records))


def replicated(hidden: float) -> float:
    """Parameters of a layer that every tensor-parallel rank holds: down projections, norms of latents and of the layer."""
    latents = QUERY_RANK + KEY_RANK
    return hidden * (latents + ROPE) + 2 * latents + 2 * hidden


def of_a_head(hidden: float) -> float:
    """Parameters of a layer for each head."""
    return QUERY_RANK * (NOPE + ROPE) + KEY_RANK * (NOPE + VALUE) + VALUE * hidden


def shared_part(stage: Stage, experts: int, ep: int) -> float:
    """Part of a rank's experts' parameters that shared experts are."""
    shared = SHARED_MATRICES * stage.has_shared
    return shared / (EXPERT_MATRICES * experts / ep + shared)


class Latent(NamedTuple):
    """A stage whose attention is latent: parameters of a rank, dense ones and experts' (0: unknown); experts of a layer."""

    header: Header
    stage: Stage
    hidden: float
    dense: float
    experts: float
    number: int

    def width(self, ffn: int | None) -> tuple[float, str]:
        """Width of an expert and of a dense MLP, and why it is unknown. `ffn`: as the user gives it."""
        if not self.stage.with_experts or not self.experts or not self.number:
            lacking = "workload.experts or workload.ffn" if self.experts else "workload.ffn"
            return float(ffn or 0), "" if ffn else f"set {lacking}"
        shared = SHARED_MATRICES * self.stage.has_shared
        matrices = self.stage.with_experts * (EXPERT_MATRICES * self.number / self.header.ep + shared)
        width = self.experts * self.header.tp / (matrices * self.hidden)
        if width != int(width):
            return 0.0, f"the parameters of experts are not those of {self.number} with {EXPERT_MATRICES} matrices each"
        wrong = f"workload.ffn is {ffn}, but experts are {width:.0f} wide" if ffn and ffn != width else ""
        return width, wrong

    def heads_and_vocabularies(self, width: float, positions: float, copies: int) -> list[tuple[int, int]]:
        """All numbers of heads and padded vocabularies that together leave no parameter over.

        `width` is that of an MLP; a rank has `positions` parameters of positions and `copies` vocabularies.
        """
        tp, layers = self.header.tp, self.stage.layers
        rest = (self.dense - layers * replicated(self.hidden) - positions) * tp
        rest -= self.stage.with_mlp * SHARED_MATRICES * self.hidden * width
        pairs = []
        for heads in range(tp, MOST_HEADS + 1, tp):
            words = (rest - layers * heads * of_a_head(self.hidden)) / (copies * self.hidden)
            if VOCABULARIES[0] <= words <= VOCABULARIES[1] and words % (PADDING * tp) == 0:
                pairs.append((heads, int(words)))
        return pairs


VOCABULARY: Final = 50257
"""The generator's default vocabulary (GPT-2's); files of other models have it too."""
WORD_COPIES: Final = (4, 2)
"""The generator counts the word embedding this many times, newer and older release."""
HALF: Final = (0.45, 0.55)
"""Part of the optimizer's time that the first weight gradient of the embedding repeats, by the generator's mistake."""

_ATTENTION = re.compile("attention")
_ONCE = re.compile(r"mlp_(column|row|layer)\Z|final_column\Z")
"""Records whose message carries the activation once, also where attention runs again."""
_OTHER_LATENTS: Final = "ranks of latent attention that are not the generator's defaults; set workload.model"


class Messages(NamedTuple):
    """Sizes that tell about the model, messages in bytes; 0: unknown."""

    activation: float  # sequence x micro-batch x hidden x 2
    sequence: float  # tokens of a sequence
    hidden: float
    vocabulary: float  # vocabulary x hidden x 2
    note: str = ""  # where messages disagree


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of the recorded rank, and how they divide.

    `known`: whether the embedding's part is known; `replicated_known`: whether that of layers which tp does not divide is.
    """

    shares: Shares
    known: bool
    replicated_known: bool = True
    heads: int = 0  # of latent attention, as far as known; else 0
    width: float = 0.0  # of its experts, likewise
    notes: tuple[str, ...] = ()


def messages_of(text: SimaiText, sections: Sections, facts: Facts) -> Messages:
    """The sizes that tell about the model."""
    micro = text.at(sections.repetitions[0])
    tokens = float(facts.sequence or 0) * (facts.micro_batch or 1)
    for record in text.at(sections.after):
        if record.name == "cross_entropy1" and not tokens:
            tokens = max(record.comm_bytes) / 4  # a number of 4 bytes for each token
    activation, note = _activation(text.header, micro)
    vocabulary = next((float(r.comm_bytes[FORWARD]) for r in micro if r.name == "embedding_norm"), 0.0)
    return Messages(
        activation=activation,
        sequence=tokens / (facts.micro_batch or 1),
        hidden=activation / 2 / tokens if tokens else 0.0,
        vocabulary=vocabulary,
        note=note,
    )


def _activation(header: Header, records: Sequence[Record]) -> tuple[float, str]:
    """The forward message on TP that carries the activation once, and a note where others disagree.

    It is the embedding's or attention's; else the most frequent one, else a pipeline send. A layer's largest message may be
    another: experts receive a token topk times, and tell each other their numbers. Where attention runs again, the generator
    counts its message twice in a text without times: then those of MLP and final projection, and a pipeline send, are half.
    """

    def sent(record: Record) -> float:
        bare = record.collective[FORWARD] != "NONE" and not record.suffix[FORWARD]
        return float(record.comm_bytes[FORWARD]) if bare else 0.0

    piped = float(header.pp_comm) * (header.tp if has_columns(records) else 1)
    of_embedding = max((sent(r) for r in records if r.name == EMBEDDING), default=0.0)
    if of_embedding:
        return of_embedding, ""
    of_attention = max((sent(r) for r in records if _ATTENTION.search(r.name)), default=0.0)
    if of_attention:
        others = {r.name: sent(r) for r in records if sent(r) and _ONCE.match(r.name)}
        others |= {"pp_comm": piped} if 2 * piped == of_attention else {}
        name = min(others, key=lambda each: others[each], default="")
        if not name or others[name] >= of_attention:
            return of_attention, ""
        twice = f"attention sends {short(of_attention, 'B')}, {name} {short(others[name], 'B')}"
        return others[name], f"{twice}: the smaller is taken as the activation, the larger as holding a recompute's"
    counts = Counter(sent(r) for r in records if sent(r) and r.name != EXPERTS)
    return max(counts, key=lambda size: (counts[size], size), default=piped), ""


def has_columns(records: Sequence[Record]) -> bool:
    """Whether attention stands in columns and rows: the generator's records with sequence parallelism."""
    return any(r.name.startswith("attention") and r.name.endswith("_column") for r in records)


def parameters_of(text: SimaiText, sections: Sections, messages: Messages, layers: int, facts: Facts) -> Parameters:
    """How the parameters of the recorded stage with `layers` layers divide among layers, embedding and experts."""
    before = text.at(sections.before)
    dense, everything = (_sent(before, names) for names in (("grad_param_comm",), ("grad_norm",)))
    experts = _sent(before, ("moe_grad_norm2",))
    micro = text.at(sections.repetitions[0])
    has_experts = any(s == "_EP" for r in micro for s in r.suffix) or any("moe" in r.name for r in micro)
    count = facts.experts or number_of_experts(micro, text.header)
    stage = stage_of(micro, layers) if is_latent(micro) else None
    shares = Shares(shared=shared_part(stage, count, text.header.ep) if stage and stage.with_experts and count else 0.0)
    if everything:
        if has_experts and not experts:
            return _unknown(
                "the file has no message of the experts' gradients (ep = dp)", shares, replicated_known=stage is None
            )
        shares = shares._replace(experts=experts / everything)
        dense = everything - experts
    if not dense or not (sections.head or sections.tail):
        return Parameters(shares=shares, known=True, replicated_known=stage is None)
    lacking = _lacking(messages)
    if lacking:
        return _unknown(lacking, shares, replicated_known=stage is None)
    if stage is not None:
        if not replicated(messages.hidden) * layers < dense / 4:
            return _unknown(_OTHER_LATENTS, shares, replicated_known=False)
        file = Latent(text.header, stage, messages.hidden, dense / 4, experts / 4, count)
        return _latent_parameters(file, messages, facts, shares)
    embedding = _embedding(text.header, micro, messages, dense / 4, layers, has_experts, facts.ffn)
    if embedding is None:
        return _unknown(_why_no_embedding(facts.ffn, messages.hidden, has_experts), shares)
    sharded, whole, vocabulary, why = embedding
    shares = shares._replace(ends=sharded / (dense / 4), whole=whole / (dense / 4), vocabulary=float(vocabulary))
    shares = shares._replace(replicated=layers * norms_of_a_layer(micro, messages.hidden) / (dense / 4))
    note = f"embedding and head: {short(sharded + whole, '')} of the file's parameters a rank ({why})"
    return Parameters(shares=shares, known=True, notes=(note,))


def _why_no_embedding(ffn: int | None, hidden: float, has_experts: bool) -> str:
    if has_experts:
        return "what the layers leave is no padded vocabulary"
    if ffn:
        return f"layers with workload.ffn {ffn} and hidden size {hidden:.0f} leave no padded vocabulary"
    return "set workload.ffn"


def _latent_parameters(file: Latent, messages: Messages, facts: Facts, shares: Shares) -> Parameters:
    """How the parameters of a stage with latent attention divide; its layers have the generator's ranks and sizes of a head."""
    hidden, tp, positions = file.hidden, file.header.tp, messages.sequence * file.hidden
    copies = WORD_COPIES[0] + 1  # and once in the final projection
    width, why = file.width(facts.ffn)
    if why:
        return _unknown(why, shares, replicated_known=False)
    pairs = file.heads_and_vocabularies(width, positions, copies)
    if not pairs:
        return _unknown(_OTHER_LATENTS, shares, replicated_known=False)
    shares = shares._replace(replicated=file.stage.layers * replicated(hidden) / file.dense)
    if file.stage.with_mlp not in (0, file.stage.layers):
        return _unknown("some layers have a dense MLP, others have experts alone; set workload.model", shares)
    words_told = {padded(messages.vocabulary / 2 / hidden, tp): messages.vocabulary / 2 / hidden} if messages.vocabulary else {}
    usual = words_told or {padded(each, tp): each for each in KNOWN_VOCABULARIES}
    likely = [each for each in pairs if each[0] == facts.heads or (not facts.heads and each[1] in usual)]
    if len(likely) != 1:
        choices = " or ".join(f"{heads} with a vocabulary of {words}" for heads, words in pairs)
        return replace(_unknown(f"set workload.heads: by the parameters {choices}", shares), width=width)
    heads, words = likely[0]
    ends = copies * words / tp * hidden
    vocabulary = usual.get(words, words)
    note = (
        f"latent attention of {heads} heads, experts {width:.0f} wide; embedding and head: {short(ends + positions, '')} "
        f"of the file's parameters a rank ({copies} x vocabulary {words} as the generator counts it)"
    )
    shares = shares._replace(ends=ends / file.dense, whole=positions / file.dense, vocabulary=float(vocabulary))
    return Parameters(shares=shares, known=True, heads=heads, width=width, notes=(note,))


def _unknown(why: str, shares: Shares, *, replicated_known: bool = True) -> Parameters:
    """Parameters whose embedding is unknown, with a note that says why, or what to set."""
    axes = "pp or layers" if replicated_known else "tp, pp or layers"
    note = f"the embedding's part of the parameters is unknown ({why}): plans with other {axes} are infeasible"
    return Parameters(shares=shares, known=False, replicated_known=replicated_known, notes=(note,))


def _lacking(messages: Messages) -> str:
    """Why the hidden size is unknown; empty if it is known."""
    if not messages.activation:
        return "no message on TP or between stages tells the hidden size"
    if not messages.sequence:
        return "set workload.sequence"
    if messages.hidden != int(messages.hidden):
        size = short(messages.activation, "B")
        return f"sequences of {messages.sequence:g} tokens do not divide the TP message of {size}: see workload.sequence"
    return ""


def _sent(records: Sequence[Record], names: tuple[str, ...]) -> float:
    """Bytes of the weight gradient's messages of these records."""
    return float(sum(r.comm_bytes[WEIGHT_GRADIENT] for r in records if r.name in names))


def _embedding(
    header: Header, micro: Sequence[Record], messages: Messages, dense: float, layers: int, has_experts: bool, ffn: int | None
) -> tuple[float, float, float, str] | None:
    """Parameters of embedding and head on a rank, those of positions, the vocabulary (0: unknown), and the evidence.

    None if they are unknown.

    A layer has four matrices of hidden x hidden and, without experts, two of hidden x ffn; the rest belongs to the ends and
    must be a padded vocabulary to the last parameter: that of the file or the generator's, or, where the width is known, any.
    As counted by the older release it must be a known one, and no default width may leave the generator's: a wrong width would
    often fit otherwise.
    """
    hidden, tp = messages.hidden, header.tp
    head, norms = counts_head(micro), norms_of_a_layer(micro, messages.hidden)
    positions = messages.sequence * hidden
    stated = messages.vocabulary / 2 / hidden or float(VOCABULARY)

    def ends(width: float, allowed: Callable[[float, int], float | None]) -> tuple[float, float, float, str] | None:
        rest = dense - layers * ((4 * hidden**2 + 2 * hidden * width) / tp + norms) - positions
        for copies in WORD_COPIES if rest > 0 else ():
            counted = rest * tp / hidden / (copies + head)
            vocabulary = allowed(counted, copies)
            if vocabulary is not None:
                return rest, positions, vocabulary, f"{copies} x vocabulary {counted:.0f} as the generator counts it"
        return None

    def exact(counted: float, _: int) -> float | None:
        return stated if counted == padded(stated, tp) else None

    def any_padded(counted: float, copies: int) -> float | None:
        known = next((float(each) for each in KNOWN_VOCABULARIES if counted == padded(each, tp)), 0.0)
        usual = has_experts or copies == WORD_COPIES[0]
        fits = not messages.vocabulary and counted % (PADDING * tp) == 0 and (known or usual)
        return (known or counted) if fits else None

    defaults = (4 * hidden, int(8 * hidden / 3 / 64) * 64.0)
    told = (0.0,) if has_experts else (float(ffn),) if ffn else defaults
    embedding = next((each for width in told if (each := ends(width, exact))), None)
    if embedding or not (has_experts or ffn):
        return embedding
    if not has_experts and any(ends(width, exact) for width in defaults):
        return None
    return ends(told[0], any_padded)


def counts_head(micro: Sequence[Record]) -> bool:
    """Whether the parameters count the final projection: the generator does with sequence parallelism, in columns and rows.

    A final record that the user adds to another file (`workload.records`) brings no parameters.
    """
    return all(any(r.name.startswith(start) and r.name.endswith("column") for r in micro) for start in ("attention", "final_"))


def norms_of_a_layer(micro: Sequence[Record], hidden: float) -> float:
    """Parameters of a layer's norms, which every tensor-parallel rank holds; counted with sequence parallelism only."""
    return 2 * hidden if counts_head(micro) else 0.0


def first_excess_ns(text: SimaiText, sections: Sections) -> tuple[float, float]:
    """Weight gradient of the embedding: what its first micro-batch has more than the others, and what they have, ns.

    The generator leaves the time of the record before it in this column: half of the optimizer's in the first micro-batch,
    the last layer's in the others. A file with one micro-batch shows the first only.
    """
    if not sections.head:
        return 0.0, 0.0
    times = [record.compute_ns[WEIGHT_GRADIENT] for record in text.at(sections.repetitions[:, 0])]
    if len(times) > 1:
        others = sum(times[1:]) / (len(times) - 1)
    else:
        optimizer = sum(sum(r.compute_ns) for r in text.at(sections.before) if r.name == "grad_param_compute")
        if not HALF[0] * optimizer <= times[0] <= HALF[1] * optimizer:
            return 0.0, 0.0
        others = float(text.at(sections.repetitions[0])[-1].compute_ns[WEIGHT_GRADIENT])
    return max(times[0] - others, 0.0), others
