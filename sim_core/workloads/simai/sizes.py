"""What the records of a SimAI text tell about the model behind it: tokens, hidden size, experts, and its parameters.

Record names, sizes and defaults are those of the generator (aliyun/aicb, workload_generator/mocked_model/MockedMegatron.py
and SimAI_training_workload_generator.py), as its files show them; docs/moving.md lists them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.header import Header
from sim_core.workloads.simai.sections import COUNT_BYTES, EMBEDDING, EXPERTS, RECORDS_OF_EXPERTS, Sections
from sim_core.workloads.simai.text import Record
from sim_core.workloads.workload import FORWARD, WEIGHT_GRADIENT, Shares

HALF: Final = (0.45, 0.55)
"""Part of the optimizer's time that the first weight gradient of the embedding repeats, by the generator's mistake."""
EXPERT_MATRICES: Final = 3
SHARED_MATRICES: Final = 2
"""Of latent models: matrices of an expert, and those that the generator counts of a shared one and of a dense MLP."""
_ATTENTION = re.compile("attention")
_ONCE = re.compile(r"mlp_(column|row|layer)\Z|final_column\Z")
"""Records whose message carries the activation once, also where attention runs again."""


class Sizes(NamedTuple):
    """Numbers of a text that its model follows from; 0: unknown. Parameters are those of one rank.

    The last six are what the parameters allow (simai/parameters.py).
    """

    header: Header
    layers: int  # of this stage
    activation: int  # bytes of sequence x hidden x micro-batch in 2 bytes
    note: str  # where messages disagree about it
    tokens: int  # of a micro-batch, by cross_entropy1
    sequence: float
    hidden: int
    dense: float  # parameters that are not experts'
    experts: float
    mixed: float  # of both, where one message counts them
    vocabulary: float  # as a message has it: x hidden x 2 bytes
    has_ends: bool  # whether the text has records of the embedding or the final projection
    final: bool  # whether the final projection is counted: with sequence parallelism
    moe: bool
    top: float  # experts that a token goes to
    number: int  # experts of a layer
    with_experts: int  # layers
    with_mlp: int  # layers with a dense MLP (a shared expert is one, too)
    dense_layers: int  # before those with experts
    latent: bool  # whether attention is latent, as in AICB's DeepSeek
    heads: int = 0  # of latent attention
    width: int = 0  # of its experts, of a shared one and of the MLP of a dense layer
    shares: Shares = Shares()
    told: str = ""  # what the embedding's part of the parameters is ...
    why_unknown: str = ""  # ... or why it is unknown
    replicated_known: bool = True  # whether the parameters of layers that tp does not divide are

    @property
    def ends(self) -> float | None:
        """Parameters of the embedding and the final projection, as counted; None: unknown."""
        return None if self.why_unknown or not self.hidden else self.shares.ends * self.dense

    @property
    def positions(self) -> float:
        """Parameters of the positions, of which every rank has all."""
        return 0.0 if self.ends is None else self.shares.whole * self.dense

    @property
    def replicated(self) -> float:
        """Parameters of the stage's layers that tp does not divide."""
        return self.shares.replicated * self.dense

    @property
    def norms(self) -> float:
        """Parameters of a layer's norms, which every tensor-parallel rank holds; counted with sequence parallelism only."""
        return 2.0 * self.hidden if self.final else 0.0

    @property
    def shared_matrices(self) -> int:
        """Matrices of a layer's shared experts, if every layer with experts has one."""
        return SHARED_MATRICES * (self.with_mlp == self.layers)

    def mlp_width(self, ends: float) -> float:
        """Width of a dense MLP, by what a layer has beside four squares of attention, where `ends` are no layer's."""
        layer = (self.dense - ends) / self.layers
        return ((layer - self.norms) * self.header.tp - 4 * self.hidden**2) / (2 * self.hidden)


def sizes_of(sections: Sections, facts: Facts) -> Sizes:
    """What messages and names tell; simai/parameters.py adds what the parameters do."""
    header, micro = sections.text.header, sections.micro
    before = sections.text.at(sections.before)
    tokens = next((max(r.comm_bytes) // 4 for r in sections.text.at(sections.after) if r.name == "cross_entropy1"), 0)
    stated = (facts.sequence or 0) * (facts.micro_batch or 1) or tokens
    activation, note = _activation(header, micro)
    hidden = activation / 2 / stated if stated else 0.0
    experts, dense, mixed = (_sent(before, name) / 4 for name in ("moe_grad_norm2", "grad_param_comm", "grad_norm"))
    of_experts = sum(record.name == EXPERTS for record in micro)
    return Sizes(
        header=header,
        layers=len(sections.layers),
        activation=activation,
        note=note,
        tokens=tokens,
        sequence=stated / (facts.micro_batch or 1),
        hidden=int(hidden) if hidden == int(hidden) else 0,
        dense=dense or max(mixed - experts, 0.0),  # without a profile, one record counts all parameters
        experts=experts,
        mixed=mixed,
        vocabulary=next((float(r.comm_bytes[FORWARD]) for r in micro if r.name == "embedding_norm"), 0.0),
        has_ends=bool(sections.head or sections.tail),
        final=has_columns(micro) and has_columns(micro, "final_"),
        moe=any("moe" in record.name or "_EP" in record.suffix for record in micro),
        top=_experts_of_a_token(micro, header.tp) / activation if activation else 0.0,
        number=facts.experts or _number_of_experts(micro, header, of_experts),
        with_experts=of_experts // RECORDS_OF_EXPERTS,
        with_mlp=sum(record.name == "mlp_column" for record in micro),
        dense_layers=sections.dense_layers,
        latent=any(record.name.endswith("_lora") for record in micro),  # down projections
        heads=facts.heads or 0,
    )


def _sent(records: Sequence[Record], name: str) -> int:
    """Bytes of the weight gradient's messages of these records."""
    return sum(r.comm_bytes[WEIGHT_GRADIENT] for r in records if r.name == name)


def _number_of_experts(records: Sequence[Record], header: Header, counted: int) -> int:
    """Experts of a layer, by the numbers of tokens that its ranks tell each other; 0: the file does not tell."""
    sizes = [
        r.comm_bytes[FORWARD] for r in records if r.name == EXPERTS and r.collective[FORWARD] == "ALLGATHER" and r.comm_bytes[0]
    ]
    return min(sizes) // (COUNT_BYTES * header.tp * header.ep) if sizes and counted % RECORDS_OF_EXPERTS == 0 else 0


def _experts_of_a_token(records: Sequence[Record], tp: int) -> int:
    """Routed bytes: by the all-to-alls on EP (of 1/tp), else by the reduce-scatters on TP."""
    routed = max((r.comm_bytes[0] * tp for r in records if r.suffix[0] == "_EP"), default=0)
    scattered = (r.comm_bytes[0] for r in records if "moe" in r.name and r.collective[0] == "REDUCESCATTER")
    return routed or max(scattered, default=0)


def _activation(header: Header, records: Sequence[Record]) -> tuple[int, str]:
    """The forward message on TP that carries the activation once, and a note where others disagree.

    It is the embedding's or attention's; else the most frequent one, else a pipeline send. A layer's largest message may be
    another: experts receive a token topk times, and tell each other their numbers. Where attention runs again, the generator
    counts its message twice in a text without times: then those of MLP and final projection, and a pipeline send, are half.
    """
    sent = [
        (r.name, r.comm_bytes[FORWARD])
        for r in records
        if r.collective[FORWARD] != "NONE" and not r.suffix[FORWARD] and r.comm_bytes[FORWARD]
    ]
    piped = header.pp_comm * (header.tp if has_columns(records) else 1)
    of_embedding = max((size for name, size in sent if name == EMBEDDING), default=0)
    if of_embedding:
        return of_embedding, ""
    of_attention = max((size for name, size in sent if _ATTENTION.search(name)), default=0)
    if of_attention:
        others = {name: size for name, size in sent if _ONCE.match(name)}
        others |= {"pp_comm": piped} if 2 * piped == of_attention else {}
        name = min(others, key=lambda each: others[each], default="")
        if not name or others[name] >= of_attention:
            return of_attention, ""
        twice = f"attention sends {short(of_attention, 'B')}, {name} {short(others[name], 'B')}"
        return others[name], f"{twice}: the smaller is taken as the activation, the larger as holding a recompute's"
    counts = Counter(size for name, size in sent if name != EXPERTS)
    return max(counts, key=lambda size: (counts[size], size), default=piped), ""


def has_columns(records: Sequence[Record], start: str = "attention") -> bool:
    """Whether attention (or what begins so) stands in columns and rows: the generator's records with sequence parallelism.

    A final record that the user adds to another file (`workload.records`) brings no parameters.
    """
    return any(r.name.startswith(start) and r.name.endswith("column") for r in records)


def first_excess_ns(sections: Sections) -> tuple[float, float]:
    """Weight gradient of the embedding: what its first micro-batch has more than the others, and what they have, ns.

    The generator leaves the time of the record before it in this column: half of the optimizer's in the first micro-batch,
    the last layer's in the others. A file with one micro-batch shows the first only.
    """
    if not sections.head:
        return 0.0, 0.0
    times = [record.compute_ns[WEIGHT_GRADIENT] for record in sections.text.at(sections.repetitions[:, 0])]
    if len(times) > 1:
        others = sum(times[1:]) / (len(times) - 1)
    else:
        before = sections.text.at(sections.before)
        optimizer = sum(sum(r.compute_ns) for r in before if r.name == "grad_param_compute")
        if not HALF[0] * optimizer <= times[0] <= HALF[1] * optimizer:
            return 0.0, 0.0
        others = float(sections.micro[-1].compute_ns[WEIGHT_GRADIENT])
    return max(times[0] - others, 0.0), others
