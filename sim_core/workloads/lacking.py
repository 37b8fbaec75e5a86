"""What a recording lacks, from a model in numbers: messages of tp 1 and ep 1, gradients that nobody exchanged, the embedding.

What the recording has stays. A SimAI text gets the messages that its generator would have written, so that it answers as the
file of another plan does: names, kinds and sizes are those of AICB (aliyun/aicb,
workload_generator/AIOB_simAI_workload_generator.py), as its files show them (docs/aicb.md), also where they are no training's:
0 bytes for the reduce-scatter of a column-parallel GEMM, no all-reduce in the backward. Another recording gets the messages of
the model.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.documents import Words
from sim_core.models.description import EMBEDDING as EMBEDDING_UNIT, LAYER, Unit
from sim_core.models.keys import shape_of
from sim_core.models.messages import ELEMENT, ETP, messages, pipeline_bytes
from sim_core.models.weights import REPLICATED, sequence_of, weights_of
from sim_core.terms import kinds_by
from sim_core.workloads import moving
from sim_core.workloads.modelled import gradient_rows
from sim_core.workloads.simai.file import COUNT_BYTES, EXPERTS
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_REDUCE,
    DP,
    DP_EP,
    EP,
    GATHER_PARAMETERS,
    INPUT_GRADIENT,
    NO_COMM,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
    BasePlan,
    Modelled,
    Optimizer,
    Pieces,
    Shares,
    StepPieces,
    StepRow,
    Workload,
    no_work,
    step_pieces,
)

SIMAI = "simai"
DERIVED = "of the model"
"""Name of a piece that holds one message of the model."""
LEAST_OPTIMIZER_S = 1e-6
"""A SimAI text without times has 1 ns in each once-per-step record, and none of an optimizer."""
_KIND = kinds_by("simai")
FP8_DISPATCH = (1 + 4 / 128) / 2
"""Bytes of a dispatch in fp8 with a scale of 4 bytes for each 128 elements, over those in bf16: DeepSeek's, forward only."""


class Rank(NamedTuple):
    """Parameters of a rank under the recorded plan, by the model: dense ones with both ends, and those of experts."""

    dense: float
    experts: float
    shares: Shares


class Message(NamedTuple):
    """One collective and the rule that moves it: four columns of `Pieces`."""

    kind: int
    group: int
    bytes: float
    rule: int


def rank_of(of_model: Workload, base: BasePlan) -> Rank:
    """What a rank of the recorded plan holds."""
    whole, model = of_model.arrays, of_model.modelled.model if of_model.modelled else None
    shares, total, replicated = whole.shares, whole.dense_parameters, 0.0
    if model is not None and model.mla:  # of latent attention; norms and routers are too small to count
        weights = (w for unit in model.layer_units for w in weights_of(model, unit) * unit.number)
        replicated = float(sum(w.elements for w in weights if w.part == "attention" and w.sharding == REPLICATED)) / base.pp
    layers = total * (1 - shares.ends - shares.head - shares.whole) / (base.tp * base.pp) + replicated * (1 - 1 / base.tp)
    padding = moving.padded(shares.vocabulary, base.tp) / shares.vocabulary
    ends, head = (total * part / base.tp * padding for part in (shares.ends, shares.head))
    dense = layers + ends + head + total * shares.whole
    of_rank = shares._replace(
        ends=ends / dense, head=head / dense, whole=total * shares.whole / dense, replicated=replicated / dense
    )
    divided = base.pp * base.ep * (1 if shares.whole_experts else base.tp)
    return Rank(dense, whole.expert_parameters / divided, of_rank)


def optimizer_of(of_model: Workload, base: BasePlan) -> Optimizer:
    """The model's optimizer on a rank of the recorded plan."""
    optimizer, rank, whole = of_model.arrays.optimizer, rank_of(of_model, base), rank_of(of_model, of_model.base)
    return optimizer._replace(
        dense_bytes=optimizer.dense_bytes * rank.dense / whole.dense,
        expert_bytes=optimizer.expert_bytes * rank.experts / (whole.experts or 1.0),
    )


def completed(recorded: Workload, of_model: Workload, modelled: Modelled) -> tuple[Workload, Words]:
    """The recording with what it lacks, and what that is, in words."""
    base, told, rows = recorded.base, [], []
    lacks_tp, lacks_ep = not recorded.has_tp_messages, recorded.has_experts and not recorded.has_ep_messages
    told += ["collectives on TP"] * lacks_tp + ["all-to-alls of experts"] * lacks_ep
    groups = [TP] * lacks_tp + [EP] * lacks_ep
    if groups and recorded.kind == SIMAI:
        activation, pieces = _in_its_form(recorded, modelled, groups)
        found = replace(recorded, arrays=recorded.arrays._replace(pieces=pieces))
        left = [group for group in groups if not (found.has_tp_messages if group == TP else found.has_ep_messages)]
        if left != groups:
            recorded = found
        if TP in groups and TP not in left:  # `embedding_grads`
            rows = [StepRow(AFTER_GRADIENTS, INPUT_GRADIENT, comm_kind=ALL_REDUCE, comm_group=TP, comm_bytes=activation)]
        groups = left
    if groups:
        recorded = _with_pieces(recorded, modelled, groups)
    arrays = recorded.arrays
    if not arrays.p2p_bytes > 0:
        told.append("pipeline sends")
        arrays = arrays._replace(
            p2p_bytes=float(pipeline_bytes(modelled.model, modelled.keys_at(base))[0]),
            p2p_rule=moving.SHARDED_ACTIVATION if modelled.sequence_parallel else moving.ACTIVATION,
        )
    if recorded.kind == SIMAI and float(arrays.step.compute_s.sum()) < LEAST_OPTIMIZER_S:
        told.append("optimizer")
        arrays = arrays._replace(optimizer=optimizer_of(of_model, base))
    gradients, shares = _gradients(replace(recorded, arrays=arrays), of_model, modelled, told)
    step = StepPieces(*(np.concatenate(both) for both in zip(arrays.step, step_pieces(rows + gradients), strict=True)))
    whole = replace(
        recorded,
        arrays=arrays._replace(step=step, shares=shares),
        gradients_known=(recorded.gradients_known[0] or not arrays.layered_gradients, True),
        ends_known=True,
        replicated_known=True,
    )
    return whole, tuple(told)


_FORM: Mapping[str, Words] = {
    **dict.fromkeys(("embedding_layer", "attention_layer", "mlp_layer"), ("ALLREDUCE activation",)),
    "_column": ("ALLGATHER activation", "REDUCESCATTER nothing"),
    "_row": ("REDUCESCATTER activation", "ALLGATHER activation"),
    f"{EXPERTS} 0": ("ALLGATHER counts",),
    f"{EXPERTS} 1": ("ALLTOALL dispatched", "ALLTOALL sent"),
    f"{EXPERTS} 2": ("ALLGATHER routed", "REDUCESCATTER routed"),
    f"{EXPERTS} 3": ("REDUCESCATTER routed", "ALLGATHER routed"),
    f"{EXPERTS} 4": ("ALLTOALL sent", "ALLTOALL sent"),
}
"""The generator's messages of forward and input gradient, by the name of a record, or its end; of those of experts by how many
precede it in the layer."""


def _in_its_form(recorded: Workload, modelled: Modelled, groups: list[int]) -> tuple[float, Pieces]:
    """Bytes of an activation, and the pieces of a SimAI text with the generator's messages where a record has none."""
    base, model, given = recorded.base, modelled.model, recorded.arrays.pieces
    shape = shape_of(model, modelled.keys_at(base), sequence_of(model))
    # sequence x micro-batch x hidden; the same of all copies of tokens that experts receive, of a rank
    activation, sent = (float(ELEMENT * tokens[0] * model.hidden) for tokens in (shape.tokens, shape.sent))
    routed = sent * base.tp
    counts = float(COUNT_BYTES) * (model.experts.count if model.experts else 0) * base.tp * base.ep
    sizes = {
        "activation": (TP, activation, moving.ACTIVATION),
        "nothing": (TP, 0.0, moving.ACTIVATION),
        "routed": (TP, routed, moving.ACTIVATION),
        "counts": (TP, counts, moving.EXPERT_COUNTS),  # numbers of tokens, for each expert and rank
        "sent": (EP, routed / base.tp, moving.SHARDED_ACTIVATION),
        "dispatched": (EP, routed / base.tp * (FP8_DISPATCH if model.mla else 1.0), moving.SHARDED_ACTIVATION),
    }
    pieces, before = Pieces._make(column.copy() for column in given), Counter[tuple[int, str]]()
    for k, name in enumerate(recorded.names):
        at = int(pieces.unit[k]), name
        form = _FORM.get(f"{name} {before[at]}") or _FORM.get(name) or _FORM.get(f"_{name.rpartition('_')[2]}", ())
        for phase, (kind, size) in enumerate(map(str.split, form)):
            if sizes[size][0] in groups and given.comm_kind[k, phase] == NO_COMM:
                _put(pieces, k, phase, Message(_KIND[kind], *sizes[size]))
        before[at] += 1
    return activation, pieces


def _put(pieces: Pieces, row: int, phase: int, sent: Message) -> None:
    """Fill in a message."""
    for column, value in zip(pieces[2:6], sent, strict=True):
        column[row, phase] = value


def _with_pieces(recorded: Workload, modelled: Modelled, groups: list[int]) -> Workload:
    """The recording with a piece for each message of the model on some groups, sorted by unit."""
    arrays, units = recorded.arrays, []
    ends, tables, given = [arrays.first_unit, arrays.last_unit], arrays.unit_layers, arrays.pieces
    for at, end in enumerate(ends):
        if TP in groups and end < 0:
            ends[at], tables = len(tables), np.concatenate([tables, np.zeros_like(tables[:1])])
    for to, of_kinds in enumerate(unit_shares(arrays, modelled).tolist()):
        units += [(to, kind, part, groups) for kind, part in zip(modelled.model.layer_units, of_kinds, strict=True)]
    if TP in groups:
        others = (unit for unit in modelled.model.units if unit.kind != LAYER)
        units += [(ends[unit.kind != EMBEDDING_UNIT], unit, unit.number, [TP]) for unit in others]
    added = [(to, *sent) for to, unit, part, on in units for sent in _of_unit(modelled, unit, part, arrays.base, on)]
    more = no_work(len(added))._replace(unit=np.array([unit for unit, _, _ in added], int))
    for k, (to, phase, message) in enumerate(added):
        _put(more, k, phase, message)
        more.rerun[k] = next(iter(given.rerun[given.unit == to]), 0.0)  # as often as the work beside it
    order = np.argsort(np.append(given.unit, more.unit), kind="stable")
    pieces = Pieces(*(np.concatenate(both)[order] for both in zip(given, more, strict=True)))
    names = (*recorded.names, *[DERIVED] * len(added))
    arrays = arrays._replace(pieces=pieces, unit_layers=tables, first_unit=ends[0], last_unit=ends[1])
    return replace(recorded, arrays=arrays, names=tuple(names[k] for k in order.tolist()))


def _of_unit(modelled: Modelled, unit: Unit, part: float, base: BasePlan, groups: list[int]) -> Iterator[tuple[int, Message]]:
    """The messages of a model's unit on some groups, by `part`, each with its phase."""
    for group in groups:
        # sizes on TP are those of any tp above 1, on EP of any ep above 1
        at = base._replace(tp=max(base.tp, 2)) if group == TP else base._replace(ep=max(base.ep, 2))
        sent = messages(modelled.model, unit, modelled.keys_at(at), modelled.stack)
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


def _gradients(recorded: Workload, of_model: Workload, modelled: Modelled, told: list[str]) -> tuple[list[StepRow], Shares]:
    """Messages of gradients that the recording lacks, and how its parameters divide where that is unknown; `told` takes it."""
    arrays, (has_dense, has_experts) = recorded.arrays, recorded.gradients_known
    shares, missing = arrays.shares, []
    if shares.ends and not shares.vocabulary:  # its padding depends on tp
        shares = shares._replace(vocabulary=of_model.arrays.shares.vocabulary)
    dense_known, experts_known = has_dense or arrays.layered_gradients, has_experts or not recorded.has_experts
    if dense_known and experts_known and recorded.ends_known:
        return [], shares
    rank = rank_of(of_model, arrays.base)
    if not dense_known:
        told.append("gradients")
        missing.append((DP, rank.dense, moving.PARAMETERS))
        shares = rank.shares
    elif not recorded.ends_known:
        told.append("the embedding's part of the parameters")
        shares = _shares(arrays, rank, has_experts)
    if not experts_known:
        told.append("gradients of experts")
        # a SimAI text counts shared experts here, too
        missing.append((DP_EP, rank.experts / (1 - shares.shared), moving.EXPERT_PARAMETERS))
    sharded = bool((arrays.step.role == GATHER_PARAMETERS).any()) if has_dense else modelled.stack.sharding != "none"
    how = REDUCE_SCATTER if sharded else ALL_REDUCE, arrays.gradient_width
    rows = (row for each in missing for row in gradient_rows(*each, *how)[: 1 + sharded])
    return [row._replace(phase=WEIGHT_GRADIENT) for row in rows], shares


def _shares(arrays: Arrays, rank: Rank, known: bool) -> Shares:
    """How the recorded parameters divide: layers are the model's, what they leave is the embedding as the file counts it.
    `known`: whether messages of experts' gradients are."""
    step, of_rank = arrays.step, rank.shares
    mixed, dense = (
        float(step.comm_bytes[(step.role == REDUCE_GRADIENTS) & (step.comm_rule == rule)].sum()) / arrays.gradient_width
        for rule in (moving.ALL_PARAMETERS, moving.PARAMETERS)
    )
    experts = arrays.shares.experts if known or not mixed else min(rank.experts / mixed, 1.0)
    dense += mixed * (1 - experts)
    layers = rank.dense * (1 - of_rank.ends - of_rank.head - of_rank.whole)
    whole = rank.dense * of_rank.whole
    if dense <= layers + whole:  # it counts its layers otherwise
        return of_rank._replace(experts=experts, shared=arrays.shares.shared)
    return arrays.shares._replace(
        ends=(dense - layers - whole) / dense,
        whole=whole / dense,
        vocabulary=of_rank.vocabulary,
        experts=experts,
        replicated=rank.dense * of_rank.replicated / dense,
    )
