"""Sections of a SimAI text: once-per-step records, micro-batches, layers."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np

from sim_core.arrays import Ints
from sim_core.documents import Words
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
    """Line ranges of a text: once-per-step records, then equal repetitions (micro-batches), then once-per-step records.

    `warnings`: doubts about the text, to which its readers add theirs.
    """

    text: SimaiText
    warnings: list[str]
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
        places = range(self.head, len(self.micro) - self.tail)
        names, count = [self.micro[k].name for k in places], len(places)
        periods = (period for period in range(1, count // 2 + 1) if count % period == 0 and names[period:] == names[:-period])
        period = next(periods, 0)
        starts = range(0, count, period) if period else [k for k, name in enumerate(names) if name == names[0]]
        return [places[begin:end] for begin, end in pairwise([*starts, count])]

    @cached_property
    def dense_layers(self) -> int:
        """Layers without experts that come before those with experts; 0 if others come between or after them."""
        moe = [any("moe" in self.micro[k].name or "_EP" in self.micro[k].suffix for k in layer) for layer in self.layers]
        first = moe.index(True) if any(moe) else 0
        return first if all(moe[first:]) else 0


def sections_of(text: SimaiText) -> Sections:
    """Divide the lines into the parts of a step. Raises FormatError."""
    warnings = list(text.warnings)

    def warn(line: int, what: str) -> None:
        warnings.append(f"{text.path}:{text.line_of[line]}: {what}")

    names = [record.name for record in text.records]
    end = len(names) - _number(takewhile(_AFTER.match, reversed(names)))
    starts = [k for k, name in enumerate(names) if name == EMBEDDING]
    if not starts:
        starts = [_number(takewhile(_BEFORE.match, names))]
        warn(0, f"no `{EMBEDDING}`: all layer lines are taken as one micro-batch")
    begin = starts[0]
    if begin >= end:
        raise text.fault(-1, "no layers", expected="layers after the step records")
    benchmark = {*names[begin:end]} == {
        EMBEDDING
    } and text.header.ga == text.header.pp == 1  # such as SimAI's microAllReduce.txt
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
    early = _number(takewhile(_BEFORE.match, names[:begin]))
    if early < begin:
        warn(early, f"record {names[early]} before the first layers: taken once per step")
    first = [names[k] for k in repetitions[0]]
    inside = next((k for k, name in enumerate(first, begin) if _BEFORE.match(name) or _AFTER.match(name)), None)
    if inside is not None:
        warn(inside, f"record {names[inside]} among the layers: taken as part of a layer")
    head = int(first[0] == EMBEDDING and not benchmark)
    tail = _number(takewhile(_LAST_STAGE.match, reversed(first[head:])))
    if head + tail >= len(first):
        raise text.fault(begin, "no layers", expected=f"layers after `{EMBEDDING}`")
    return Sections(text, warnings, range(begin), repetitions, range(end, len(names)), head, tail)


def _number(names: Iterable[str]) -> int:
    return sum(1 for _ in names)


def _repetitions(text: SimaiText, bounds: list[int]) -> Ints:
    """Layer lines of each micro-batch; all must have the same records (times may differ)."""
    shapes = [shape_of(record) for record in text.records]
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


def shape_of(record: Record) -> tuple[str, Words, Words, tuple[int, ...]]:
    """The fields that are equal in records that differ only in times."""
    return record.name, record.collective, record.suffix, record.comm_bytes
