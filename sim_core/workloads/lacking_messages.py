"""Messages that a recording of tp 1 or ep 1 lacks, from a model in numbers.

A SimAI text gets the messages that its generator would have written, so that it answers as the file of another plan does:
names, kinds and sizes are those of AICB (aliyun/aicb, workload_generator/AIOB_simAI_workload_generator.py), as its files show
them (docs/aicb.md), also where they are no training's: 0 bytes for the reduce-scatter of a column-parallel GEMM, no all-reduce
in the backward. Another recording gets the messages of the model.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.documents import Words
from sim_core.models.description import EMBEDDING as EMBEDDING_UNIT, LAYER, Unit
from sim_core.models.keys import shape_of
from sim_core.models.messages import ELEMENT, ETP, messages
from sim_core.models.weights import sequence_of
from sim_core.workloads import moving
from sim_core.workloads.simai.file import COUNT_BYTES, EXPERTS, RECORDS_OF_EXPERTS
from sim_core.workloads.workload import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EP,
    NO_COMM,
    REDUCE_SCATTER,
    TP,
    Arrays,
    BasePlan,
    Modelled,
    Pieces,
    Workload,
    no_work,
)

FP8_DISPATCH = (1 + 4 / 128) / 2
"""Bytes of a dispatch in fp8 with a scale of 4 bytes for each 128 elements, over those in bf16: DeepSeek's, forward only."""


class Sizes(NamedTuple):
    """Bytes under the recorded plan."""

    activation: float  # sequence x micro-batch x hidden
    routed: float  # the same of all copies of tokens that experts receive, of a tensor-parallel group
    counts: float  # numbers of tokens, for each expert and rank
    tp: int
    dispatch: float = 1.0  # bytes of a forward dispatch, over those of a combine


class Message(NamedTuple):
    """One collective and the rule that moves it."""

    kind: int
    group: int
    bytes: float
    rule: int


def messages_of_record(name: str, nth: int, sizes: Sizes) -> tuple[Message | None, Message | None]:
    """The messages of forward and input gradient; `nth`: records of this name that precede it in the layer."""
    size = sizes.routed if name == EXPERTS else sizes.activation
    gathered, scattered, reduced = (
        Message(kind, TP, size, moving.ACTIVATION) for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)
    )
    if name == EXPERTS and nth < RECORDS_OF_EXPERTS:
        combined = Message(ALL_TO_ALL, EP, size / sizes.tp, moving.SHARDED_ACTIVATION)
        dispatched = combined._replace(bytes=combined.bytes * sizes.dispatch)
        counts = Message(ALL_GATHER, TP, sizes.counts, moving.EXPERT_COUNTS)
        backward = (None, combined, scattered, gathered, combined)
        return (counts, dispatched, gathered, scattered, combined)[nth], backward[nth]
    if name in ("embedding_layer", "attention_layer", "mlp_layer"):
        return reduced, None
    if name.endswith("_column"):
        return gathered, scattered._replace(bytes=0.0)
    return (scattered, gathered) if name.endswith("_row") else (None, None)


SIMAI = "simai"
DERIVED = "of the model"
"""Name of a piece that holds one message of the model."""


def with_messages(recorded: Workload, modelled: Modelled, groups: list[int]) -> tuple[Arrays, Words, list[int]]:
    """Columns and names with the messages on some groups, and the groups on which they are in the form of the file."""
    arrays, formed = recorded.arrays, []
    if recorded.kind == SIMAI:
        found = replace(recorded, arrays=arrays._replace(pieces=_in_its_form(recorded, modelled, groups)))
        formed = [group for group in groups if (found.has_tp_messages if group == TP else found.has_ep_messages)]
        arrays = found.arrays if formed else arrays
    left = [group for group in groups if group not in formed]
    return *(_with_pieces(arrays, recorded.names, modelled, left) if left else (arrays, recorded.names)), formed


def sizes_of(modelled: Modelled, base: BasePlan) -> Sizes:
    """Sizes of the generator's messages."""
    model = modelled.model
    shape = shape_of(model, modelled.keys_at(base), sequence_of(model))
    whole, sent = (float(ELEMENT * tokens[0] * model.hidden) for tokens in (shape.tokens, shape.sent))
    counts = float(COUNT_BYTES) * (model.experts.count if model.experts else 0) * base.tp * base.ep
    return Sizes(whole, sent * base.tp, counts, base.tp, FP8_DISPATCH if model.mla else 1.0)


def _in_its_form(recorded: Workload, modelled: Modelled, groups: list[int]) -> Pieces:
    """The pieces of a SimAI text with the generator's messages where a record has none."""
    given, sizes = recorded.arrays.pieces, sizes_of(modelled, recorded.base)
    pieces = Pieces._make(column.copy() for column in given)
    before: Counter[tuple[int, str]] = Counter()
    for k, name in enumerate(recorded.names):
        at = int(pieces.unit[k]), name
        for phase, message in enumerate(messages_of_record(name, before[at], sizes)):
            if message is not None and message.group in groups and given.comm_kind[k, phase] == NO_COMM:
                _put(pieces, k, phase, message)
        before[at] += 1
    return pieces


def _put(pieces: Pieces, row: int, phase: int, sent: Message) -> None:
    """Fill in a message."""
    for name, value in zip(("comm_kind", "comm_group", "comm_bytes", "comm_rule"), sent, strict=True):
        getattr(pieces, name)[row, phase] = value


def _with_pieces(arrays: Arrays, names: Words, modelled: Modelled, groups: list[int]) -> tuple[Arrays, Words]:
    """Columns and names with a piece for each message of the model on some groups, sorted by unit."""
    ends, tables, given = [arrays.first_unit, arrays.last_unit], arrays.unit_layers, arrays.pieces
    for at, end in enumerate(ends):
        if TP in groups and end < 0:
            ends[at], tables = len(tables), np.concatenate([tables, np.zeros_like(tables[:1])])
    units = [
        (to, kind, part, groups)
        for to, of_kinds in enumerate(unit_shares(arrays, modelled).tolist())
        for kind, part in zip(modelled.model.layer_units, of_kinds, strict=True)
    ]
    units += [
        (ends[unit.kind != EMBEDDING_UNIT], unit, unit.number, [TP])
        for unit in modelled.model.units
        if unit.kind != LAYER and TP in groups
    ]
    added = [(to, *sent) for to, unit, part, on in units for sent in _of_unit(modelled, unit, part, arrays.base, on)]
    more = no_work(len(added))._replace(unit=np.array([unit for unit, _, _ in added], int))
    for k, (to, phase, message) in enumerate(added):
        _put(more, k, phase, message)
        more.rerun[k] = next(iter(given.rerun[given.unit == to]), 0.0)  # as often as the work beside it
    order = np.argsort(np.append(given.unit, more.unit), kind="stable")
    pieces = Pieces(*(np.concatenate(both)[order] for both in zip(given, more, strict=True)))
    told = (*names, *[DERIVED] * len(added))
    columns = arrays._replace(pieces=pieces, unit_layers=tables, first_unit=ends[0], last_unit=ends[1])
    return columns, tuple(told[k] for k in order.tolist())


def _of_unit(modelled: Modelled, unit: Unit, part: float, base: BasePlan, groups: list[int]) -> Iterator[tuple[int, Message]]:
    """The messages of a model's unit on some groups, by `part`, each with its phase."""
    for group in groups if part > 0 else ():
        # sizes on TP are those of any tp above 1, on EP of any ep above 1
        tp, ep = (max(base.tp, 2), base.ep) if group == TP else (base.tp, max(base.ep, 2))
        sent = messages(modelled.model, unit, modelled.keys_at(base._replace(tp=tp, ep=ep)), modelled.stack)
        for k, name in enumerate(sent.names):
            on_tp = sent.group[k] in (TP, ETP)
            size = float(sent.bytes[0, k]) * part
            if on_tp == (group == TP) and size > 0:
                rule = moving.ACTIVATION if on_tp else moving.SHARDED_ACTIVATION
                if name.startswith("routing"):
                    rule = moving.FIXED
                yield int(sent.phase[k]), Message(int(sent.kind[k]), group, size, rule)


def unit_shares(arrays: Arrays, modelled: Modelled) -> Floats:
    """Part of each of the model's kinds of layer in the layers of each recorded unit, [units, kinds]; 0 for ends."""
    of_layer = np.diff(arrays.unit_layers, axis=1).astype(float)  # [units, layers]
    one_hot = np.array(modelled.model.unit_of_layer)[:, None] == np.arange(len(modelled.model.layer_units))
    shares: Floats = of_layer @ one_hot / np.maximum(arrays.unit_layers[:, -1:], 1)
    return shares
