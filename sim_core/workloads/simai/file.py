"""A SimAI text in the parts of a step, with what its records tell about the model behind it: tokens, hidden size, experts.

Record names, sizes and defaults are those of the generator (aliyun/aicb, workload_generator/mocked_model/MockedMegatron.py
and SimAI_training_workload_generator.py), as its files show them; docs/moving.md lists them.
"""

import re
from collections import Counter
from itertools import pairwise, takewhile

import numpy as np

from sim_core.arrays import Ints
from sim_core.units import short
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.text import NO_RECORD, Record, SimaiText
from sim_core.workloads.workload import FORWARD, WEIGHT_GRADIENT, Shares

EMBEDDING = "embedding_layer"
EXPERTS = "mlp_moelayer"
RECORDS_OF_EXPERTS = 5
"""A layer's: counts of tokens, dispatch, gather of the ranks of an expert, their reduction, combine."""
COUNT_BYTES = 2
"""Of the number of tokens for one expert and rank."""
HALF = (0.45, 0.55)
"""Part of the optimizer's time that the first weight gradient of the embedding repeats, by the generator's mistake."""
EXPERT_MATRICES = 3
SHARED_MATRICES = 2
"""Of latent models: matrices of an expert, and those that the generator counts of a shared one and of a dense MLP."""
WORD_COPIES = (4, 2)
"""The generator counts the word embedding this many times, newer and older release."""
_BEFORE = re.compile(
    r"(grad_gather|grad_param_comm|grad_norm|grad_param_compute|layernorm|embedding_grads|moe_grad_norm[0-9]*)\Z"
)
_AFTER = re.compile(r"(cross_entropy|optimizer)[0-9]*\Z")
_LAST_STAGE = re.compile(r"final_|embedding_norm\Z")
_ONCE = re.compile(r"mlp_(column|row|layer)\Z|final_column\Z")
"""Records whose message carries the activation once, also where attention runs again."""

Runs = list[tuple[Record, float]]
"""Records, each with its runs in a step."""


class File:
    """A text in line ranges, and the numbers that its model follows from; 0: unknown. Parameters are those of one rank.

    Once-per-step records are `before` and `after` equal repetitions (micro-batches), lines `repetitions[k]`; of each, `head`
    records come before its layers (the embedding), `tail` after them. `micro` are the records of the first one, `places` the
    places in it of each layer. `warnings` are doubts about the text, to which readers add theirs. What the parameters allow,
    from `shares` on, is filled in later (simai/model.py). Raises FormatError.
    """

    def __init__(self, text: SimaiText, facts: Facts | None = None) -> None:
        self.text, self.facts, self.header = text, facts or Facts(), text.header
        self.warnings = list(text.warnings)
        self._divide()
        self._count()
        self.shares = Shares()
        self.ends: float | None = None  # embedding and final projection, as counted; None: unknown
        self.positions = 0.0  # of which every rank has all
        self.copies = WORD_COPIES[0] + self.final  # how often the parameters count the vocabulary
        self.width = 0.0  # of the MLP
        self.told = ""  # what the embedding's part of the parameters is ...
        self.why_unknown = ""  # ... or why it is unknown
        self.replicated_known = not self.latent  # whether the parameters of layers that tp does not divide are

    def warn(self, line: int, what: str) -> None:
        """Add a doubt about a layer line."""
        self.warnings.append(f"{self.text.path}:{self.text.line_of[line]}: {what}")

    def _divide(self) -> None:
        """Divide the lines into the parts of a step."""
        text, ga = self.text, self.header.ga
        names = [record.name for record in text.records]
        end = len(names) - len([*takewhile(_AFTER.match, reversed(names))])
        starts = [k for k, name in enumerate(names) if name == EMBEDDING]
        if not starts:
            starts = [len([*takewhile(_BEFORE.match, names)])]
            self.warn(0, f"no `{EMBEDDING}`: all layer lines are taken as one micro-batch")
        begin = starts[0]
        if begin >= end:
            raise text.fault(-1, "no layers", expected="layers after the step records")
        # such as SimAI's microAllReduce.txt
        benchmark = {*names[begin:end]} == {EMBEDDING} and ga == self.header.pp == 1
        if benchmark:
            starts = [begin]
            self.warn(begin, f"no record but `{EMBEDDING}`: a benchmark of collectives, each record is taken as a layer")
        self.repetitions = _repetitions(text, [*starts, end])
        if len(self.repetitions) > ga:
            has = f"the file has {len(self.repetitions)} micro-batches but its header has ga: {ga}"
            self.warn(0, f"{has}; their mean is used for each micro-batch")
        if any(kind == "NONE" and size for r in text.records for kind, size in zip(r.collective, r.comm_bytes, strict=True)):
            self.warn(0, "bytes with collective NONE are ignored")
        # a layer before the first micro-batch, or a once-per-step record inside one: its position decides
        early = len([*takewhile(_BEFORE.match, names[:begin])])
        if early < begin:
            self.warn(early, f"record {names[early]} before the first layers: taken once per step")
        self.before, self.after, self.micro = text.records[:begin], text.records[end:], text.at(self.repetitions[0])
        self.once = (*self.before, *self.after)
        first = [record.name for record in self.micro]
        inside = next((k for k, name in enumerate(first, begin) if _BEFORE.match(name) or _AFTER.match(name)), None)
        if inside is not None:
            self.warn(inside, f"record {names[inside]} among the layers: taken as part of a layer")
        self.head = int(first[0] == EMBEDDING and not benchmark)
        self.tail = len([*takewhile(_LAST_STAGE.match, reversed(first[self.head :]))])
        places = range(self.head, len(first) - self.tail)
        if not places:
            raise text.fault(begin, "no layers", expected=f"layers after `{EMBEDDING}`")
        self.places = _layers(first[places.start : places.stop], places)
        # layers without experts that come before those with experts; 0 if others come between or after them
        moe = [any(on_experts(self.micro[k]) for k in layer) for layer in self.places]
        self.dense_layers = moe.index(True) if any(moe) and all(moe[moe.index(True) :]) else 0

    def _count(self) -> None:
        """The numbers that records tell."""
        micro, text, header = self.micro, self.text, self.header
        self.layers = len(self.places)  # of this stage
        self.activation, self.note = self._activation()  # bytes of sequence x hidden x micro-batch; where messages disagree
        # of a micro-batch, by the loss
        self.tokens = next((max(r.comm_bytes) // 4 for r in self.after if r.name == "cross_entropy1"), 0)
        batch = self.facts.micro_batch or 1
        stated = (self.facts.sequence or 0) * batch or self.tokens
        self.sequence = stated / batch
        hidden = self.activation / 2 / stated if stated else 0.0
        self.hidden = int(hidden) if hidden == int(hidden) else 0
        # `mixed`: one record counts all parameters, without a profile
        self.experts, self.mixed, dense = (
            sum(r.comm_bytes[WEIGHT_GRADIENT] for r in self.before if r.name == name) / 4
            for name in ("moe_grad_norm2", "grad_norm", "grad_param_comm")
        )
        self.dense = dense or max(self.mixed - self.experts, 0.0)
        # the vocabulary as a message has it: x hidden x 2 bytes
        self.vocabulary = next((float(r.comm_bytes[FORWARD]) for r in micro if r.name == "embedding_norm"), 0.0)
        self.final = self.has_columns() and self.has_columns("final_")  # the final projection is counted
        self.moe = any(map(on_experts, micro))
        self.latent = any(r.name.endswith("_lora") for r in micro)  # attention is that of AICB's DeepSeek: down projections
        self.with_mlp = sum(r.name == "mlp_column" for r in micro)  # layers with a dense MLP (a shared expert is one, too)
        experts = [r for r in micro if r.name == EXPERTS]
        self.with_experts = len(experts) // RECORDS_OF_EXPERTS  # layers
        # ranks tell each other their numbers of tokens
        counts = [r.comm_bytes[0] for r in experts if r.collective[FORWARD] == "ALLGATHER" and r.comm_bytes[0]]
        self.number = self.facts.experts or 0  # experts of a layer
        if not self.number and counts and len(experts) % RECORDS_OF_EXPERTS == 0:
            self.number = min(counts) // (COUNT_BYTES * header.tp * header.ep)
        # routed bytes: by the all-to-alls on EP (of 1/tp), else by the reduce-scatters on TP
        routed = max((r.comm_bytes[0] * header.tp for r in micro if r.suffix[0] == "_EP"), default=0) or max(
            (r.comm_bytes[0] for r in micro if "moe" in r.name and r.collective[0] == "REDUCESCATTER"), default=0
        )
        self.top = routed / self.activation if self.activation else 0.0  # experts that a token goes to
        self.shared_matrices = SHARED_MATRICES * (self.with_mlp == self.layers)  # of a layer, if all with experts have one
        often = Counter(text.at(self.repetitions.ravel()))
        # the records of the micro-batches, each with how often a step runs it on a stage
        self.runs: Runs = [(record, n * (header.ga / len(self.repetitions))) for record, n in often.items()]

    def has_columns(self, start: str = "attention") -> bool:
        """Whether attention (or what begins so) stands in columns and rows: the generator's records with sequence parallelism.

        A final record that the user adds to another file (`workload.records`) brings no parameters.
        """
        return any(r.name.startswith(start) and r.name.endswith("column") for r in self.micro)

    def _activation(self) -> tuple[int, str]:
        """The forward message on TP that carries the activation once, and a note where others disagree.

        It is the embedding's or attention's; else the most frequent one, else a pipeline send. A layer's largest message may
        be another: experts receive a token topk times, and tell each other their numbers. Where attention runs again, the
        generator counts its message twice in a text without times: then those of MLP and final projection, and a pipeline
        send, are half.
        """
        on_tp = (r for r in self.micro if r.collective[FORWARD] != "NONE" and not r.suffix[FORWARD])
        sent = [(r.name, size) for r in on_tp if (size := r.comm_bytes[FORWARD])]
        piped = self.header.pp_comm * (self.header.tp if self.has_columns() else 1)
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

    def first_excess_ns(self) -> tuple[float, float]:
        """Weight gradient of the embedding: what its first micro-batch has more than the others, and what they have, ns.

        The generator leaves the time of the record before it in this column: half of the optimizer's in the first
        micro-batch, the last layer's in the others. A file with one micro-batch shows the first only.
        """
        first, *rest = (record.compute_ns[WEIGHT_GRADIENT] for record in self.text.at(self.repetitions[:, 0]))
        optimizer = sum(sum(r.compute_ns) for r in self.before if r.name == "grad_param_compute")
        if not self.head or not (rest or HALF[0] * optimizer <= first <= HALF[1] * optimizer):
            return 0.0, 0.0
        others = sum(rest) / len(rest) if rest else float(self.micro[-1].compute_ns[WEIGHT_GRADIENT])
        return max(first - others, 0.0), others

    def named(self, *starts: str) -> Runs:
        """The records of the micro-batches whose names begin so."""
        return [(record, n) for record, n in self.runs if record.name.startswith(starts)]

    def step(self, name: str) -> Record:
        """The once-per-step record of that name."""
        return next((record for record in self.once if record.name == name), NO_RECORD)


def on_experts(record: Record) -> bool:
    """Whether a record is of experts."""
    return "moe" in record.name or "_EP" in record.suffix


def _layers(names: list[str], places: range) -> list[range]:
    """Places of each layer: by the shortest period of their names, else from each occurrence of the first name on."""
    count = len(names)
    periods = (size for size in range(1, count // 2 + 1) if count % size == 0 and names[size:] == names[:-size])
    period = next(periods, 0)
    starts = range(0, count, period) if period else [k for k, name in enumerate(names) if name == names[0]]
    return [places[begin:end] for begin, end in pairwise([*starts, count])]


def _repetitions(text: SimaiText, bounds: list[int]) -> Ints:
    """Layer lines of each micro-batch; all must have the same records (times may differ)."""
    shapes = [record.shape for record in text.records]
    first = shapes[bounds[0] : bounds[1]]
    for number, (begin, end) in enumerate(pairwise(bounds), 1):
        if end - begin != len(first):
            what, expected = f"records of micro-batch {number}", f"{len(first)} as in the first"
            raise text.fault(end - 1, what, f"{end - begin}", expected)
        for k, both in enumerate(zip(shapes[begin:end], first, strict=True)):
            if both[0] != both[1]:
                here, there = (" ".join([name, *map("{}{} {}".format, *columns)]) for name, *columns in both)
                raise text.fault(begin + k, f"record {k + 1} of micro-batch {number}", here, f"{there} as in the first")
    return np.arange(bounds[0], bounds[-1]).reshape(-1, len(first))
