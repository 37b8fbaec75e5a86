"""What the records of a SimAI text tell about the model behind it: tokens, hidden size, parameters of the embedding.

Record names, sizes and defaults are those of the generator (aliyun/aicb, workload_generator/mocked_model/MockedMegatron.py
and SimAI_training_workload_generator.py), as its files show them; docs/moving.md lists them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sim_core.units import short
from sim_core.workloads.moving import PADDING, padded
from sim_core.workloads.readers.simai_header import Header
from sim_core.workloads.readers.simai_sections import EMBEDDING, Sections
from sim_core.workloads.readers.simai_text import Record, SimaiText
from sim_core.workloads.workload import FORWARD, WEIGHT_GRADIENT, Shares

VOCABULARY: Final = 50257
"""The generator's default vocabulary (GPT-2's); files of other models have it too."""
WORD_COPIES: Final = (4, 2)
"""The generator counts the word embedding this many times, newer and older release."""
HALF: Final = (0.45, 0.55)
"""Part of the optimizer's time that the first weight gradient of the embedding repeats, by the generator's mistake."""

_ATTENTION = re.compile("attention")


class Messages(NamedTuple):
    """Sizes that tell about the model, messages in bytes; 0: unknown."""

    activation: float  # sequence x micro-batch x hidden x 2
    sequence: float  # tokens of a sequence
    hidden: float
    vocabulary: float  # vocabulary x hidden x 2


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of the recorded rank, and how they divide; `known`: whether the embedding's part is known."""

    shares: Shares
    known: bool
    notes: tuple[str, ...] = ()


def messages_of(text: SimaiText, sections: Sections, sequence: int | None, micro_batch: int | None) -> Messages:
    """The sizes that tell about the model; `sequence` and `micro_batch` as the user gives them."""
    micro = [text.records[text.order[k]] for k in sections.repetitions[0]]
    tokens = float(sequence or 0) * (micro_batch or 1)
    for k in sections.after:
        record = text.records[text.order[k]]
        if record.name == "cross_entropy1" and not tokens:
            tokens = max(record.comm_bytes) / 4  # a number of 4 bytes for each token
    activation = _activation(micro)
    vocabulary = next((float(r.comm_bytes[FORWARD]) for r in micro if r.name == "embedding_norm"), 0.0)
    return Messages(
        activation=activation,
        sequence=tokens / (micro_batch or 1),
        hidden=activation / 2 / tokens if tokens else 0.0,
        vocabulary=vocabulary,
    )


def _activation(records: Sequence[Record]) -> float:
    """The forward message on TP of the embedding or of attention, which carry the activation once; else the most frequent one.

    A layer's largest message may be another: experts receive a token topk times.
    """

    def sent(record: Record) -> float:
        bare = record.collective[FORWARD] != "NONE" and not record.suffix[FORWARD]
        return float(record.comm_bytes[FORWARD]) if bare else 0.0

    for wanted in (lambda r: r.name == EMBEDDING, lambda r: _ATTENTION.search(r.name) is not None):
        found = max((sent(r) for r in records if wanted(r)), default=0.0)
        if found:
            return found
    counts = Counter(size for size in map(sent, records) if size)
    return max(counts, key=lambda size: (counts[size], size), default=0.0)


def parameters_of(text: SimaiText, sections: Sections, messages: Messages, layers: int, ffn: int | None) -> Parameters:
    """How the parameters of the recorded stage with `layers` layers divide among layers, embedding and experts."""
    before = [text.records[text.order[k]] for k in sections.before]
    dense, everything = (_sent(before, names) for names in (("grad_param_comm",), ("grad_norm",)))
    experts = _sent(before, ("moe_grad_norm2",))
    micro = [text.records[text.order[k]] for k in sections.repetitions[0]]
    has_experts = any(s == "_EP" for r in micro for s in r.suffix) or any("moe" in r.name for r in micro)
    of_experts = 0.0
    if everything:
        if has_experts and not experts:
            return _unknown("the file has no message of the experts' gradients (ep = dp)")
        of_experts = experts / everything
        dense = everything - experts
    if not dense or not (sections.head or sections.tail):
        return Parameters(shares=Shares(experts=of_experts), known=True)
    lacking = _lacking(messages)
    if lacking:
        return _unknown(lacking, of_experts)
    found = _embedding(text.header, micro, messages, dense / 4, layers, has_experts, ffn)
    if found is None and ffn:
        return _unknown(
            f"layers with workload.ffn {ffn} and hidden size {messages.hidden:.0f} leave nothing for it", of_experts
        )
    if found is None:
        why = "what the layers leave is no padded vocabulary" if has_experts else "set workload.ffn"
        return _unknown(why, of_experts)
    sharded, whole, vocabulary, why = found
    shares = Shares(ends=sharded / (dense / 4), whole=whole / (dense / 4), vocabulary=float(vocabulary), experts=of_experts)
    note = f"embedding and head: {short(sharded + whole, '')} of the file's parameters a rank ({why})"
    return Parameters(shares=shares, known=True, notes=(note,))


def _unknown(why: str, of_experts: float = 0.0) -> Parameters:
    """Parameters whose embedding is unknown, with a note that says why, or what to set."""
    note = f"the embedding's part of the parameters is unknown ({why}): plans with other pp or layers are infeasible"
    return Parameters(shares=Shares(experts=of_experts), known=False, notes=(note,))


def _lacking(messages: Messages) -> str:
    """Why the hidden size is unknown; empty if it is known."""
    if not messages.activation:
        return "no TP message tells the hidden size"
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

    A layer has four matrices of hidden x hidden and, without experts, two of hidden x ffn; the rest belongs to the ends. Where
    ffn is not given it must be one of Megatron-LM's defaults, and the rest a padded vocabulary to the last parameter.
    """
    hidden = messages.hidden
    head = counts_head(micro)
    norms = 2 * hidden if head else 0.0  # of a layer; the generator counts them with sequence parallelism only
    positions = messages.sequence * hidden
    candidates = (0.0,) if has_experts else (float(ffn),) if ffn else (4 * hidden, int(8 * hidden / 3 / 64) * 64.0)
    for width in candidates:
        layer = (4 * hidden**2 + 2 * hidden * width) / header.tp + norms
        rest = dense - layers * layer - positions
        if rest <= 0:
            continue
        for copies in WORD_COPIES:
            vocabulary = rest * header.tp / hidden / (copies + head)
            given = messages.vocabulary / 2 / hidden or VOCABULARY
            why = f"{copies} x vocabulary {vocabulary:.0f} as the generator counts it"
            if vocabulary == padded(given, header.tp):
                return rest, positions, given, why
            if has_experts and vocabulary % (PADDING * header.tp) == 0:
                return rest, positions, 0.0, why
        if ffn:
            return rest, positions, 0.0, f"what layers with ffn {ffn} leave"
    return None


def counts_head(micro: Sequence[Record]) -> bool:
    """Whether the parameters count the final projection: the generator does with sequence parallelism, in columns and rows.

    A final record that the user adds to another file (`workload.records`) brings no parameters.
    """
    return all(any(r.name.startswith(start) and r.name.endswith("column") for r in micro) for start in ("attention", "final_"))


def first_excess_ns(text: SimaiText, sections: Sections) -> tuple[float, float]:
    """Weight gradient of the embedding: what its first micro-batch has more than the others, and what they have, ns.

    The generator leaves the time of the record before it in this column: half of the optimizer's in the first micro-batch,
    the last layer's in the others. A file with one micro-batch shows the first only.
    """
    if not sections.head:
        return 0.0, 0.0
    times = [text.records[text.order[row[0]]].compute_ns[WEIGHT_GRADIENT] for row in sections.repetitions]
    if len(times) > 1:
        others = sum(times[1:]) / (len(times) - 1)
    else:
        before = (text.records[text.order[k]] for k in sections.before)
        optimizer = sum(sum(r.compute_ns) for r in before if r.name == "grad_param_compute")
        if not HALF[0] * optimizer <= times[0] <= HALF[1] * optimizer:
            return 0.0, 0.0
        others = float(text.records[text.order[sections.repetitions[0][-1]]].compute_ns[WEIGHT_GRADIENT])
    return max(times[0] - others, 0.0), others
