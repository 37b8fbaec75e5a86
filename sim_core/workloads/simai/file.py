"""A SimAI text with what its records tell about the model behind it: tokens, hidden size, experts, and its parameters.

Record names, sizes and defaults are those of the generator (aliyun/aicb, workload_generator/mocked_model/MockedMegatron.py
and SimAI_training_workload_generator.py), as its files show them; docs/moving.md lists them.
"""

import re
from collections import Counter
from functools import cached_property

from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.sections import COUNT_BYTES, EMBEDDING, EXPERTS, RECORDS_OF_EXPERTS, Sections
from sim_core.workloads.simai.text import Record
from sim_core.workloads.workload import FORWARD, WEIGHT_GRADIENT, Shares

HALF = (0.45, 0.55)
"""Part of the optimizer's time that the first weight gradient of the embedding repeats, by the generator's mistake."""
EXPERT_MATRICES = 3
SHARED_MATRICES = 2
"""Of latent models: matrices of an expert, and those that the generator counts of a shared one and of a dense MLP."""
_ONCE = re.compile(r"mlp_(column|row|layer)\Z|final_column\Z")
"""Records whose message carries the activation once, also where attention runs again."""

Runs = list[tuple[Record, float]]
"""Records, each with its runs in a step."""


class File:
    """A text in sections, and the numbers that its model follows from; 0: unknown. Parameters are those of one rank.

    What begins with `shares` is what the parameters allow (simai/parameters.py).
    """

    def __init__(self, sections: Sections, facts: Facts) -> None:
        micro, text = sections.micro, sections.text
        self.sections, self.facts, self.header = sections, facts, text.header
        self.layers = len(sections.layers)  # of this stage
        self.activation, self.note = self._activation()  # bytes of sequence x hidden x micro-batch; where messages disagree
        # of a micro-batch, by the loss
        self.tokens = next((max(r.comm_bytes) // 4 for r in text.at(sections.after) if r.name == "cross_entropy1"), 0)
        batch = facts.micro_batch or 1
        stated = (facts.sequence or 0) * batch or self.tokens
        self.sequence = stated / batch
        hidden = self.activation / 2 / stated if stated else 0.0
        self.hidden = int(hidden) if hidden == int(hidden) else 0
        # `mixed`: one record counts all parameters, without a profile
        self.experts, self.mixed, dense = (
            sum(r.comm_bytes[WEIGHT_GRADIENT] for r in text.at(sections.before) if r.name == name) / 4
            for name in ("moe_grad_norm2", "grad_norm", "grad_param_comm")
        )
        self.dense = dense or max(self.mixed - self.experts, 0.0)
        # the vocabulary as a message has it: x hidden x 2 bytes
        self.vocabulary = next((float(r.comm_bytes[FORWARD]) for r in micro if r.name == "embedding_norm"), 0.0)
        self.final = sections.has_columns() and sections.has_columns("final_")  # the final projection is counted
        self.moe = any("moe" in r.name or "_EP" in r.suffix for r in micro)
        self.latent = any(r.name.endswith("_lora") for r in micro)  # attention is that of AICB's DeepSeek: down projections
        self.with_mlp = sum(r.name == "mlp_column" for r in micro)  # layers with a dense MLP (a shared expert is one, too)
        experts = [r for r in micro if r.name == EXPERTS]
        self.with_experts = len(experts) // RECORDS_OF_EXPERTS  # layers
        # ranks tell each other their numbers of tokens
        counts = [r.comm_bytes[0] for r in experts if r.collective[FORWARD] == "ALLGATHER" and r.comm_bytes[0]]
        self.number = facts.experts or 0  # experts of a layer
        if not self.number and counts and len(experts) % RECORDS_OF_EXPERTS == 0:
            self.number = min(counts) // (COUNT_BYTES * self.header.tp * self.header.ep)
        # routed bytes: by the all-to-alls on EP (of 1/tp), else by the reduce-scatters on TP
        routed = max((r.comm_bytes[0] * self.header.tp for r in micro if r.suffix[0] == "_EP"), default=0) or max(
            (r.comm_bytes[0] for r in micro if "moe" in r.name and r.collective[0] == "REDUCESCATTER"), default=0
        )
        self.top = routed / self.activation if self.activation else 0.0  # experts that a token goes to
        self.shares = Shares()
        self.told = ""  # what the embedding's part of the parameters is ...
        self.why_unknown = ""  # ... or why it is unknown
        self.replicated_known = not self.latent  # whether the parameters of layers that tp does not divide are

    def _activation(self) -> tuple[int, str]:
        """The forward message on TP that carries the activation once, and a note where others disagree.

        It is the embedding's or attention's; else the most frequent one, else a pipeline send. A layer's largest message may
        be another: experts receive a token topk times, and tell each other their numbers. Where attention runs again, the
        generator counts its message twice in a text without times: then those of MLP and final projection, and a pipeline
        send, are half.
        """
        on_tp = (r for r in self.sections.micro if r.collective[FORWARD] != "NONE" and not r.suffix[FORWARD])
        sent = [(r.name, size) for r in on_tp if (size := r.comm_bytes[FORWARD])]
        piped = self.header.pp_comm * (self.header.tp if self.sections.has_columns() else 1)
        if of_embedding := max((size for name, size in sent if name == EMBEDDING), default=0):
            return of_embedding, ""
        if of_attention := max((size for name, size in sent if "attention" in name), default=0):
            others = {name: size for name, size in sent if _ONCE.match(name)}
            others |= {"pp_comm": piped} if 2 * piped == of_attention else {}
            name, least = min(others.items(), key=lambda each: each[1], default=("", of_attention))
            if least >= of_attention:
                return of_attention, ""
            twice = f"attention sends {short(of_attention, 'B')}, {name} {short(least, 'B')}"
            return least, f"{twice}: the smaller is taken as the activation, the larger as holding a recompute's"
        counts = Counter(size for name, size in sent if name != EXPERTS)
        return max(counts, key=lambda size: (counts[size], size), default=piped), ""

    @property
    def ends(self) -> float | None:
        """Parameters of the embedding and the final projection, as counted; None: unknown."""
        return None if self.why_unknown or not self.hidden else self.shares.ends * self.dense

    @property
    def positions(self) -> float:
        """Parameters of the positions, of which every rank has all."""
        return 0.0 if self.ends is None else self.shares.whole * self.dense

    @property
    def norms(self) -> float:
        """Parameters of a layer's norms, which every tensor-parallel rank holds; counted with sequence parallelism only."""
        return 2.0 * self.hidden if self.final else 0.0

    @property
    def shared_matrices(self) -> int:
        """Matrices of a layer's shared experts, if every layer with experts has one."""
        return SHARED_MATRICES * (self.with_mlp == self.layers)

    @cached_property
    def runs(self) -> Runs:
        """The records of the micro-batches, each with how often a step runs it on a stage."""
        repetitions = self.sections.repetitions
        counts = Counter(self.sections.text.at(repetitions.ravel()))
        return [(record, n * (self.header.ga / len(repetitions))) for record, n in counts.items()]

    def named(self, *starts: str) -> Runs:
        """The records of the micro-batches whose names begin so."""
        return [(record, n) for record, n in self.runs if record.name.startswith(starts)]

    def step(self, name: str) -> Record | None:
        """The once-per-step record of that name."""
        return next((record for record in self.sections.once if record.name == name), None)


def first_excess_ns(sections: Sections) -> tuple[float, float]:
    """Weight gradient of the embedding: what its first micro-batch has more than the others, and what they have, ns.

    The generator leaves the time of the record before it in this column: half of the optimizer's in the first micro-batch,
    the last layer's in the others. A file with one micro-batch shows the first only.
    """
    if not sections.head:
        return 0.0, 0.0
    first, *rest = (record.compute_ns[WEIGHT_GRADIENT] for record in sections.text.at(sections.repetitions[:, 0]))
    if rest:
        others = sum(rest) / len(rest)
    else:
        before = sections.text.at(sections.before)
        optimizer = sum(sum(r.compute_ns) for r in before if r.name == "grad_param_compute")
        if not HALF[0] * optimizer <= first <= HALF[1] * optimizer:
            return 0.0, 0.0
        others = float(sections.micro[-1].compute_ns[WEIGHT_GRADIENT])
    return max(first - others, 0.0), others
