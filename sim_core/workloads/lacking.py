"""What a recording lacks, from a model in numbers: messages of tp 1 and ep 1, gradients that nobody exchanged, the embedding.

What the recording has stays. A SimAI text gets the messages that its generator would have written, so that it answers as the
file of another plan does; another recording those of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sim_core.models.messages import pipeline_bytes
from sim_core.models.weights import REPLICATED, weights_of
from sim_core.workloads import moving
from sim_core.workloads.lacking_messages import SIMAI, sizes_of, with_messages
from sim_core.workloads.readers.simai_form import Message
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    ALL_REDUCE,
    DP,
    DP_EP,
    EP,
    GATHER_PARAMETERS,
    INPUT_GRADIENT,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
    BasePlan,
    Modelled,
    Optimizer,
    Shares,
    StepPieces,
    Workload,
)

PARAMETER_BYTES: Final = 2.0
LEAST_OPTIMIZER_S: Final = 1e-6
"""A SimAI text without times has 1 ns in each once-per-step record, and none of an optimizer."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Parameters of a rank under the recorded plan, by the model: dense ones with both ends, and those of experts."""

    dense: float
    experts: float
    shares: Shares


def rank_of(of_model: Workload, base: BasePlan) -> Rank:
    """What a rank of the recorded plan holds."""
    arrays, shares, width = of_model.arrays, of_model.arrays.shares, of_model.arrays.gradient_width
    reduced = arrays.step.role == REDUCE_GRADIENTS

    def counted(rule: int) -> float:
        return float(arrays.step.comm_bytes[reduced & (arrays.step.comm_rule == rule)].sum()) / width

    total = counted(moving.PARAMETERS)
    replicated = _of_latents(of_model) / base.pp
    layers = total * (1 - shares.ends - shares.head - shares.whole) / (base.tp * base.pp) + replicated * (1 - 1 / base.tp)
    padding = moving.padded(shares.vocabulary, base.tp) / shares.vocabulary
    ends, head = (total * part / base.tp * padding for part in (shares.ends, shares.head))
    dense = layers + ends + head + total * shares.whole
    experts = counted(moving.EXPERT_PARAMETERS) / (base.pp * base.ep * (1 if shares.whole_experts else base.tp))
    held = Shares(
        ends=ends / dense,
        head=head / dense,
        whole=total * shares.whole / dense,
        replicated=replicated / dense,
        vocabulary=shares.vocabulary,
        whole_experts=shares.whole_experts,
    )
    return Rank(dense=dense, experts=experts, shares=held)


def _of_latents(of_model: Workload) -> float:
    """Parameters of latent attention that tp does not divide, of all layers; norms and routers are too small to count."""
    model = of_model.modelled.model if of_model.modelled else None
    if model is None or not model.mla:
        return 0.0
    whole = (w.elements for unit in model.layer_units for w in weights_of(model, unit) * unit.number if w.part == "attention"
             and w.sharding == REPLICATED)  # fmt: skip
    return float(sum(whole))


def optimizer_of(of_model: Workload, base: BasePlan) -> Optimizer:
    """The model's optimizer on a rank of the recorded plan."""
    optimizer, rank, whole = of_model.arrays.optimizer, rank_of(of_model, base), rank_of(of_model, of_model.base)
    return optimizer._replace(
        dense_bytes=optimizer.dense_bytes * rank.dense / whole.dense,
        expert_bytes=optimizer.expert_bytes * rank.experts / whole.experts if whole.experts else 0.0,
    )


def completed(recorded: Workload, of_model: Workload, modelled: Modelled) -> tuple[Workload, tuple[str, ...]]:
    """The recording with what it lacks, and what that is, in words."""
    told: list[str] = []
    arrays, names = recorded.arrays, recorded.names
    groups = []
    if not recorded.has_tp_messages:
        groups.append(TP)
        told.append("collectives on TP")
    if recorded.has_experts and not recorded.has_ep_messages:
        groups.append(EP)
        told.append("all-to-alls of experts")
    if groups:
        arrays, names, formed = with_messages(recorded, modelled, groups)
        if TP in formed:
            arrays = arrays._replace(step=_with_rows(arrays.step, _embedding_gradient(modelled, arrays.base)))
    if not arrays.p2p_bytes > 0:
        told.append("pipeline sends")
        arrays = _with_sends(arrays, modelled)
    if recorded.kind == SIMAI and float(arrays.step.compute_s.sum()) < LEAST_OPTIMIZER_S:
        told.append("optimizer")
        arrays = arrays._replace(optimizer=optimizer_of(of_model, arrays.base))
    arrays, of_gradients = _with_gradients(replace(recorded, arrays=arrays), of_model, modelled)
    known = (recorded.gradients_known[0] or not arrays.layered_gradients, True)
    return (
        replace(recorded, arrays=arrays, names=names, gradients_known=known, ends_known=True, replicated_known=True),
        (*told, *of_gradients),
    )


def _with_sends(arrays: Arrays, modelled: Modelled) -> Arrays:
    keys = modelled.keys(*(np.array([size]) for size in (arrays.base.tp, arrays.base.ep, arrays.base.micro_batch)))
    rule = moving.SHARDED_ACTIVATION if modelled.sequence_parallel else moving.ACTIVATION
    return arrays._replace(p2p_bytes=float(pipeline_bytes(modelled.model, keys)[0]), p2p_rule=rule)


def _with_rows(step: StepPieces, rows: list[tuple[int, Message]]) -> StepPieces:
    """Step pieces with more messages, each with its role."""
    if not rows:
        return step
    n = len(rows)
    roles, sent = zip(*rows, strict=True)
    more = StepPieces(
        role=np.array(roles, np.int64),
        phase=np.array([INPUT_GRADIENT if role == AFTER_GRADIENTS else WEIGHT_GRADIENT for role in roles], np.int64),
        compute_s=np.zeros(n),
        compute_rule=np.zeros(n, np.int64),
        comm_kind=np.array([m.kind for m in sent], np.int64),
        comm_group=np.array([m.group for m in sent], np.int64),
        comm_bytes=np.array([m.bytes for m in sent], np.float64),
        comm_rule=np.array([m.rule for m in sent], np.int64),
        forward_on_ep=np.zeros(n, np.bool_),
    )
    return StepPieces(*(np.concatenate(both) for both in zip(step, more, strict=True)))


def _with_gradients(recorded: Workload, of_model: Workload, modelled: Modelled) -> tuple[Arrays, list[str]]:
    """Columns with gradients that the recording lacks, and how its parameters divide where that is unknown."""
    arrays, told = recorded.arrays, []
    has_dense, has_experts = recorded.gradients_known
    experts_known = not recorded.has_experts or has_experts
    step, shares = arrays.step, arrays.shares
    if shares.ends and not shares.vocabulary:  # its padding depends on tp
        shares = shares._replace(vocabulary=of_model.arrays.shares.vocabulary)
    if (has_dense or arrays.layered_gradients) and experts_known and recorded.ends_known:
        return arrays._replace(shares=shares), []
    rank = rank_of(of_model, arrays.base)
    rows: list[tuple[int, Message]] = []
    sharded = bool((step.role == GATHER_PARAMETERS).any()) if has_dense else modelled.stack.sharding != "none"
    if not has_dense and not arrays.layered_gradients:
        told.append("gradients")
        rows += _reduced(DP, rank.dense, moving.PARAMETERS, arrays.gradient_width, sharded=sharded)
        shares = rank.shares
    elif not recorded.ends_known:
        told.append("the embedding's part of the parameters")
        shares = _shares(arrays, rank, recorded)
    if not experts_known:
        told.append("gradients of experts")
        held = rank.experts / (1 - shares.shared)  # a SimAI text counts shared experts here, too
        rows += _reduced(DP_EP, held, moving.EXPERT_PARAMETERS, arrays.gradient_width, sharded=sharded)
    return arrays._replace(step=_with_rows(step, rows), shares=shares), told


def _reduced(group: int, count: float, rule: int, width: float, *, sharded: bool) -> list[tuple[int, Message]]:
    """Messages of some parameters: their gradients, and their values where an optimizer is sharded."""
    rows = [(REDUCE_GRADIENTS, Message(REDUCE_SCATTER if sharded else ALL_REDUCE, group, width * count, rule))]
    if sharded:
        rows.append((GATHER_PARAMETERS, Message(ALL_GATHER, group, PARAMETER_BYTES * count, rule)))
    return rows


def _shares(arrays: Arrays, rank: Rank, recorded: Workload) -> Shares:
    """How the recorded parameters divide: layers are the model's, what they leave is the embedding as the file counts it."""
    step = arrays.step
    reduced = step.role == REDUCE_GRADIENTS

    def counted(rule: int) -> float:
        return float(step.comm_bytes[reduced & (step.comm_rule == rule)].sum()) / arrays.gradient_width

    mixed = counted(moving.ALL_PARAMETERS)
    known = recorded.gradients_known[1]
    experts = arrays.shares.experts if known or not mixed else min(rank.experts / mixed, 1.0)
    dense = counted(moving.PARAMETERS) + mixed * (1 - experts)
    layers = rank.dense * (1 - rank.shares.ends - rank.shares.head - rank.shares.whole)
    whole = rank.dense * rank.shares.whole
    if dense <= layers + whole:  # it counts its layers otherwise
        return rank.shares._replace(experts=experts, shared=arrays.shares.shared)
    return arrays.shares._replace(
        ends=(dense - layers - whole) / dense,
        whole=whole / dense,
        vocabulary=rank.shares.vocabulary,
        experts=experts,
        replicated=rank.dense * rank.shares.replicated / dense,
    )


def _embedding_gradient(modelled: Modelled, base: BasePlan) -> list[tuple[int, Message]]:
    """The generator's all-reduce of an activation after the gradients, `embedding_grads`."""
    return [(AFTER_GRADIENTS, Message(ALL_REDUCE, TP, sizes_of(modelled, base).activation, moving.FIXED))]
