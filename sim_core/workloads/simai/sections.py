"""Sections of a SimAI text: once-per-step records, micro-batches, layers."""

import itertools
import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from sim_core.arrays import Ints
from sim_core.errors import FormatError
from sim_core.workloads.simai.text import Record, SimaiText

EMBEDDING: Final = "embedding_layer"
EXPERTS: Final = "mlp_moelayer"
RECORDS_OF_EXPERTS: Final = 5
"""A layer's: counts of tokens, dispatch, gather of the ranks of an expert, their reduction, combine."""
COUNT_BYTES: Final = 2
"""Of the number of tokens for one expert and rank."""
_BEFORE = re.compile(
    r"(grad_gather|grad_param_comm|grad_norm|grad_param_compute|layernorm|embedding_grads|moe_grad_norm[0-9]*)\Z"
)
_AFTER = re.compile(r"(cross_entropy|optimizer)[0-9]*\Z")
_LAST_STAGE = re.compile(r"final_|embedding_norm\Z")


@dataclass(frozen=True, kw_only=True)
class Sections:
    """Line ranges of a file: once-per-step records, then equal repetitions (micro-batches), then once-per-step records."""

    before: range
    repetitions: Ints  # [repetitions, records per repetition] layer lines
    after: range
    head: int  # records of a repetition before its layers (the embedding)
    tail: int  # records of a repetition after its layers

    @property
    def once(self) -> tuple[int, ...]:
        """Layer lines of the once-per-step records."""
        return (*self.before, *self.after)


def sections_of(text: SimaiText, warnings: list[str]) -> Sections:
    """Divide the lines into the parts of a step."""
    names = [record.name for record in text.records]
    line_names = [names[k] for k in text.order]
    total = len(line_names)
    starts = [k for k, name in enumerate(line_names) if name == EMBEDDING]
    end = total
    while end > 0 and _AFTER.match(line_names[end - 1]):
        end -= 1
    if starts:
        begin = starts[0]
    else:
        begin = next((k for k, name in enumerate(line_names) if not _BEFORE.match(name)), total)
        starts = [begin]
        warnings.append(f"{text.path}:{text.line_of[0]}: no `{EMBEDDING}`: all layer lines are taken as one micro-batch")
    if begin >= end:
        raise FormatError(text.path, int(text.line_of[-1]), "no layers", expected="layers after the step records")
    only_embeddings = set(line_names[begin:end]) == {EMBEDDING}
    benchmark = only_embeddings and text.header.ga == text.header.pp == 1  # such as SimAI's microAllReduce.txt
    if benchmark:
        starts = [begin]
        warnings.append(
            f"{text.path}:{text.line_of[begin]}: no record but `{EMBEDDING}`: a benchmark of collectives, "
            "each record is taken as a layer"
        )
    repetitions = _repetitions(text, [*starts, end])
    if len(repetitions) > text.header.ga:
        warnings.append(
            f"{text.path}:{text.line_of[0]}: the file has {len(repetitions)} micro-batches but its header has "
            f"ga: {text.header.ga}; their mean is used for each micro-batch"
        )
    if any("NONE" in r.collective and any(b for c, b in zip(r.collective, r.comm_bytes, strict=True) if c == "NONE")
           for r in text.records):  # fmt: skip
        warnings.append(f"{text.path}:{text.line_of[0]}: bytes with collective NONE are ignored")
    _warn_of_records_in_odd_places(text, line_names, begin, repetitions[0], warnings)
    first = [line_names[k] for k in repetitions[0]]
    head = int(first[0] == EMBEDDING and not benchmark)
    tail = 0
    while tail < len(first) - head and _LAST_STAGE.match(first[-1 - tail]):
        tail += 1
    if head + tail >= len(first):
        raise FormatError(text.path, int(text.line_of[begin]), "no layers", expected=f"layers after `{EMBEDDING}`")
    return Sections(before=range(begin), repetitions=repetitions, after=range(end, total), head=head, tail=tail)


def _warn_of_records_in_odd_places(
    text: SimaiText, names: list[str], begin: int, repetition: Ints, warnings: list[str]
) -> None:
    """Warn about a layer before the first micro-batch, or a once-per-step record inside one: its position decides."""
    early = next((k for k in range(begin) if not _BEFORE.match(names[k])), None)
    inside = next((int(k) for k in repetition if _BEFORE.match(names[k]) or _AFTER.match(names[k])), None)
    if early is not None:
        warnings.append(
            f"{text.path}:{text.line_of[early]}: record {names[early]} before the first layers: taken once per step"
        )
    if inside is not None:
        warnings.append(
            f"{text.path}:{text.line_of[inside]}: record {names[inside]} among the layers: taken as part of a layer"
        )


def _repetitions(text: SimaiText, bounds: list[int]) -> Ints:
    """Layer lines of each micro-batch; all must have the same records (times may differ)."""
    shape_ids: dict[object, int] = {}
    shape_ids_of = np.array([shape_ids.setdefault(shape_of(record), len(shape_ids)) for record in text.records])
    shapes = shape_ids_of[text.order]
    size = bounds[1] - bounds[0]
    for number, (begin, end) in enumerate(itertools.pairwise(bounds), 1):
        if end - begin != size:
            where = int(text.line_of[end - 1])
            raise FormatError(
                text.path, where, f"records of micro-batch {number}", found=str(end - begin), expected=f"{size} as in the first"
            )
        differs = np.flatnonzero(shapes[begin:end] != shapes[bounds[0] : bounds[1]])
        if len(differs):
            k = int(differs[0])
            here, first = text.at((begin + k, bounds[0] + k))
            raise FormatError(
                text.path, int(text.line_of[begin + k]), f"record {k + 1} of micro-batch {number}",
                found=_told(here), expected=f"{_told(first)} as in the first",
            )  # fmt: skip
    return np.arange(bounds[0], bounds[-1], dtype=np.int64).reshape(-1, size)


def _told(record: Record) -> str:
    columns = zip(record.collective, record.suffix, record.comm_bytes, strict=True)
    return " ".join([record.name, *(f"{c}{s} {b}" for c, s, b in columns)])


def layer_starts(text: SimaiText, sections: Sections) -> list[int]:
    """Start of each layer in a repetition: by the shortest period of the names, else at each occurrence of the first name."""
    lines = sections.repetitions[0]
    stop = len(lines) - sections.tail
    names = [record.name for record in text.at(lines[sections.head : stop])]
    count = len(names)
    for period in range(1, count // 2 + 1):
        if count % period == 0 and names[period:] == names[:-period]:
            return list(range(sections.head, stop, period))
    return [sections.head + k for k, name in enumerate(names) if name == names[0]]


def dense_layers(text: SimaiText, sections: Sections, starts: list[int]) -> int:
    """Layers without experts that come before those with experts; 0 if others come between or after them."""
    stop = len(sections.repetitions[0]) - sections.tail
    line = text.at(sections.repetitions[0])
    moe = [any("moe" in r.name or "_EP" in r.suffix for r in line[a:b]) for a, b in itertools.pairwise([*starts, stop])]
    first = moe.index(True) if any(moe) else 0
    return first if all(moe[first:]) else 0


def shape_of(record: Record) -> tuple[object, ...]:
    """The fields that are equal in records that differ only in times."""
    return record.name, record.collective, record.suffix, record.comm_bytes
