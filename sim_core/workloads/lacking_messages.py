"""Messages inside layers that a recording lacks, at tp 1 or ep 1: in the form of a SimAI text's generator, or the model's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from sim_core.models.description import EMBEDDING as EMBEDDING_UNIT
from sim_core.models.description import LAYER, Unit
from sim_core.models.flops import sequence_of
from sim_core.models.keys import shape_of
from sim_core.models.messages import ELEMENT, ETP, messages
from sim_core.workloads import moving
from sim_core.workloads.readers.simai_form import COUNT_BYTES, FP8_DISPATCH, Message, Sizes, messages_of_record
from sim_core.workloads.workload import (
    FORWARD,
    INPUT_GRADIENT,
    NO_COMM,
    TP,
    Arrays,
    BasePlan,
    Floats,
    Modelled,
    Pieces,
    Workload,
)

SIMAI: Final = "simai"
DERIVED: Final = "of the model"
"""Name of a piece that holds one message of the model."""


def with_messages(recorded: Workload, modelled: Modelled, groups: list[int]) -> tuple[Arrays, tuple[str, ...], list[int]]:
    """Columns and names with the messages on some groups, and the groups on which they are in the form of the file."""
    arrays, left = recorded.arrays, list(groups)
    if recorded.kind == SIMAI:
        found = replace(recorded, arrays=arrays._replace(pieces=_in_its_form(recorded, modelled, groups)))
        left = [group for group in groups if not (found.has_tp_messages if group == TP else found.has_ep_messages)]
        arrays = found.arrays if len(left) < len(groups) else arrays
    formed = [group for group in groups if group not in left]
    if not left:
        return arrays, recorded.names, formed
    return *_with_pieces(arrays, recorded.names, modelled, left), formed


def sizes_of(modelled: Modelled, base: BasePlan) -> Sizes:
    """Sizes of the generator's messages."""
    model = modelled.model
    keys = modelled.keys(*(np.array([size]) for size in (base.tp, base.ep, base.micro_batch)))
    shape = shape_of(model, keys, sequence_of(model))
    whole = float(ELEMENT * shape.tokens[0] * model.hidden)
    sent = float(ELEMENT * shape.sent[0] * model.hidden) * base.tp
    count = model.experts.count if model.experts else 0
    return Sizes(activation=whole, routed=sent, counts=float(COUNT_BYTES) * count * base.tp * base.ep, tp=base.tp)


def _in_its_form(recorded: Workload, modelled: Modelled, groups: list[int]) -> Pieces:
    """The pieces of a SimAI text with the generator's messages where a record has none."""
    pieces, sizes = recorded.arrays.pieces, sizes_of(modelled, recorded.base)
    if modelled.model.mla:
        sizes = sizes._replace(dispatch=FP8_DISPATCH)
    kind, group, rule = (column.copy() for column in (pieces.comm_kind, pieces.comm_group, pieces.comm_rule))
    size = pieces.comm_bytes.copy()
    before: dict[tuple[int, str], int] = {}
    for k, name in enumerate(recorded.names):
        at = (int(pieces.unit[k]), name)
        nth = before[at] = before.get(at, -1) + 1
        for phase, message in zip((FORWARD, INPUT_GRADIENT), messages_of_record(name, nth, sizes), strict=True):
            if message is not None and message.group in groups and kind[k, phase] == NO_COMM:
                kind[k, phase], group[k, phase], size[k, phase], rule[k, phase] = message
    return pieces._replace(comm_kind=kind, comm_group=group, comm_bytes=size, comm_rule=rule)


def _with_pieces(
    arrays: Arrays, names: tuple[str, ...], modelled: Modelled, groups: list[int]
) -> tuple[Arrays, tuple[str, ...]]:
    """Columns and names with a piece for each message of the model on some groups."""
    first, last, tables = arrays.first_unit, arrays.last_unit, arrays.unit_layers
    if TP in groups and first < 0:
        first, tables = len(tables), np.concatenate([tables, np.zeros_like(tables[:1])])
    if TP in groups and last < 0:
        last, tables = len(tables), np.concatenate([tables, np.zeros_like(tables[:1])])
    rows = _Rows(arrays.pieces)
    kinds = modelled.model.layer_units
    for to, share in enumerate(unit_shares(arrays, modelled)):
        for kind, part in zip(kinds, share, strict=True):
            if part > 0:
                rows.add(to, float(part), modelled, kind, arrays.base, groups)
    for unit in modelled.model.units:
        if unit.kind != LAYER and TP in groups:
            rows.add(first if unit.kind == EMBEDDING_UNIT else last, unit.number, modelled, unit, arrays.base, [TP])
    pieces, order = rows.sorted()
    told = (*names, *[DERIVED] * (len(order) - len(names)))
    return (
        arrays._replace(pieces=pieces, unit_layers=tables, first_unit=first, last_unit=last),
        tuple(told[k] for k in order),
    )


def unit_shares(arrays: Arrays, modelled: Modelled) -> Floats:
    """Part of each of the model's kinds of layer in the layers of each recorded unit, [units, kinds]; 0 for ends."""
    of_layer = np.diff(arrays.unit_layers, axis=1).astype(np.float64)  # [units, layers]
    kinds = np.array(modelled.model.unit_of_layer)
    one_hot = kinds[:, None] == np.arange(len(modelled.model.layer_units))
    total = of_layer.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(of_layer @ one_hot, total, out=np.zeros((len(of_layer), one_hot.shape[1])), where=total > 0)
    return shares


@dataclass
class _Rows:
    """Pieces that are added to others."""

    pieces: Pieces
    added: list[tuple[int, int, Message]] = field(default_factory=list)

    def add(self, to: int, part: float, modelled: Modelled, unit: Unit, base: BasePlan, groups: list[int]) -> None:
        """The messages of a model's unit, by `part`, in the recorded unit `to`."""
        for group in groups:
            # sizes on TP are those of any tp above 1, on EP of any ep above 1
            tp, ep = (max(base.tp, 2), base.ep) if group == TP else (base.tp, max(base.ep, 2))
            keys = modelled.keys(np.array([tp]), np.array([ep]), np.array([base.micro_batch]))
            found = messages(modelled.model, unit, keys, modelled.stack.kernels)
            for k, name in enumerate(found.names):
                on_tp = found.group[k] in (TP, ETP)
                size = float(found.bytes[0, k]) * part
                if on_tp != (group == TP) or size <= 0:
                    continue
                rule = moving.ACTIVATION if on_tp else moving.SHARDED_ACTIVATION
                if name.startswith("routing"):
                    rule = moving.FIXED
                self.added.append((to, int(found.phase[k]), Message(int(found.kind[k]), group, size, rule)))

    def sorted(self) -> tuple[Pieces, list[int]]:
        """All pieces by unit, and the place of each among those given and those added."""
        n, given = len(self.added), self.pieces
        kind, group, rule = (np.zeros((n, 3), np.int64) for _ in range(3))
        size = np.zeros((n, 3))
        again = np.zeros(n)
        for k, (unit, phase, message) in enumerate(self.added):
            kind[k, phase], group[k, phase], size[k, phase], rule[k, phase] = message
            beside = np.flatnonzero(given.unit == unit)
            again[k] = given.rerun[beside[0]] if len(beside) else 0.0
        more = Pieces(
            unit=np.array([unit for unit, _, _ in self.added], np.int64),
            compute_s=np.zeros((n, 3)),
            comm_kind=kind,
            comm_group=group,
            comm_bytes=size,
            comm_rule=rule,
            rerun=again,
            rerun_s=np.zeros(n),
            attention_core=np.zeros(n, np.bool_),
            gradient_bytes=np.zeros(n),
        )
        both = [np.concatenate(columns) for columns in zip(given, more, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return Pieces(*(np.ascontiguousarray(column[order]) for column in both)), order.tolist()
