"""Sections of a SimAI text: once-per-step records, micro-batches, layers."""

import itertools
import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim_core.arrays import Ints
from sim_core.workloads.simai.text import Record, SimaiText

EMBEDDING = "embedding_layer"
EXPERTS = "mlp_moelayer"
RECORDS_OF_EXPERTS = 5
"""A layer's: counts of tokens, dispatch, gather of the ranks of an expert, their reduction, combine."""
COUNT_BYTES = 2
"""Of the number of tokens for one expert and rank."""
_BEFORE = re.compile(
    r"(grad_gather|grad_param_comm|grad_norm|grad_param_compute|layernorm|embedding_grads|moe_grad_norm[0-9]*)\Z"
)
_AFTER = re.compile(r"(cross_entropy|optimizer)[0-9]*\Z")
_LAST_STAGE = re.compile(r"final_|embedding_norm\Z")


@dataclass(frozen=True)
class Sections:
    """Line ranges of a text: once-per-step records, then equal repetitions (micro-batches), then once-per-step records."""

    text: SimaiText
    before: range
    repetitions: Ints  # [repetitions, records per repetition] layer lines
    after: range
    head: int  # records of a repetition before its layers (the embedding)
    tail: int  # records of a repetition after its layers

    @cached_property
    def micro(self) -> list[Record]:
        """Records of the first micro-batch."""
        return self.text.at(self.repetitions[0])

    def has_columns(self, start: str = "attention") -> bool:
        """Whether attention (or what begins so) stands in columns and rows: the generator's records with sequence parallelism.

        A final record that the user adds to another file (`workload.records`) brings no parameters.
        """
        return any(r.name.startswith(start) and r.name.endswith("column") for r in self.micro)

    @cached_property
    def once(self) -> list[Record]:
        """The once-per-step records."""
        return self.text.at((*self.before, *self.after))

    @cached_property
    def layers(self) -> list[range]:
        """Places of each layer's records in a micro-batch: by the shortest period of the names, else from each occurrence of
        the first name on."""
        names = [record.name for record in self.micro[self.head : len(self.micro) - self.tail]]
        count = len(names)
        periods = (period for period in range(1, count // 2 + 1) if count % period == 0 and names[period:] == names[:-period])
        period = next(periods, 0)
        starts = range(0, count, period) if period else [k for k, name in enumerate(names) if name == names[0]]
        return [range(self.head + begin, self.head + end) for begin, end in itertools.pairwise([*starts, count])]

    @cached_property
    def dense_layers(self) -> int:
        """Layers without experts that come before those with experts; 0 if others come between or after them."""
        moe = [any("moe" in self.micro[k].name or "_EP" in self.micro[k].suffix for k in layer) for layer in self.layers]
        first = moe.index(True) if any(moe) else 0
        return first if all(moe[first:]) else 0


def sections_of(text: SimaiText, warnings: list[str]) -> Sections:
    """Divide the lines into the parts of a step. Raises FormatError; `warnings` takes doubts."""

    def warn(line: int, what: str) -> None:
        warnings.append(f"{text.path}:{text.line_of[line]}: {what}")

    line_names = [record.name for record in text.records]
    total = end = len(line_names)
    starts = [k for k, name in enumerate(line_names) if name == EMBEDDING]
    while end > 0 and _AFTER.match(line_names[end - 1]):
        end -= 1
    if not starts:
        starts = [next((k for k, name in enumerate(line_names) if not _BEFORE.match(name)), total)]
        warn(0, f"no `{EMBEDDING}`: all layer lines are taken as one micro-batch")
    begin = starts[0]
    if begin >= end:
        raise text.fault(-1, "no layers", expected="layers after the step records")
    only_embeddings = set(line_names[begin:end]) == {EMBEDDING}
    benchmark = only_embeddings and text.header.ga == text.header.pp == 1  # such as SimAI's microAllReduce.txt
    if benchmark:
        starts = [begin]
        warn(begin, f"no record but `{EMBEDDING}`: a benchmark of collectives, each record is taken as a layer")
    repetitions = _repetitions(text, [*starts, end])
    if len(repetitions) > text.header.ga:
        has = f"the file has {len(repetitions)} micro-batches but its header has ga: {text.header.ga}"
        warn(0, f"{has}; their mean is used for each micro-batch")
    if any(kind == "NONE" and size for r in text.records for kind, size in zip(r.collective, r.comm_bytes, strict=True)):
        warn(0, "bytes with collective NONE are ignored")
    # a layer before the first micro-batch, or a once-per-step record inside one: its position decides
    if (early := next((k for k in range(begin) if not _BEFORE.match(line_names[k])), None)) is not None:
        warn(early, f"record {line_names[early]} before the first layers: taken once per step")
    first = [line_names[k] for k in repetitions[0]]
    if (inside := next((k for k, name in enumerate(first) if _BEFORE.match(name) or _AFTER.match(name)), None)) is not None:
        warn(begin + inside, f"record {first[inside]} among the layers: taken as part of a layer")
    head = int(first[0] == EMBEDDING and not benchmark)
    tail = 0
    while tail < len(first) - head and _LAST_STAGE.match(first[-1 - tail]):
        tail += 1
    if head + tail >= len(first):
        raise text.fault(begin, "no layers", expected=f"layers after `{EMBEDDING}`")
    return Sections(text, range(begin), repetitions, range(end, total), head, tail)


def _repetitions(text: SimaiText, bounds: list[int]) -> Ints:
    """Layer lines of each micro-batch; all must have the same records (times may differ)."""
    shape_ids: dict[object, int] = {}
    shapes = np.array([shape_ids.setdefault(shape_of(record), len(shape_ids)) for record in text.records])
    size = bounds[1] - bounds[0]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds), 1):
        if end - begin != size:
            what, expected = f"records of micro-batch {number}", f"{size} as in the first"
            raise text.fault(end - 1, what, str(end - begin), expected)
        differs = np.flatnonzero(shapes[begin:end] != shapes[bounds[0] : bounds[1]])
        if len(differs):
            k = int(differs[0])
            here, first = (
                " ".join([record.name, *map("{}{} {}".format, record.collective, record.suffix, record.comm_bytes)])
                for record in text.at((begin + k, bounds[0] + k))
            )
            what, expected = f"record {k + 1} of micro-batch {number}", f"{first} as in the first"
            raise text.fault(begin + k, what, here, expected)
    return np.arange(bounds[0], bounds[-1]).reshape(-1, size)


def shape_of(record: Record) -> tuple[object, ...]:
    """The fields that are equal in records that differ only in times."""
    return record.name, record.collective, record.suffix, record.comm_bytes
