"""What a recording lacks, from a model in numbers: messages of tp 1 and ep 1, gradients that nobody exchanged, the embedding.

What the recording has stays.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sim_core.models.messages import pipeline_bytes
from sim_core.models.weights import REPLICATED, weights_of
from sim_core.workloads import moving
from sim_core.workloads.lacking_messages import SIMAI, Message, sizes_of, with_messages
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
    StepRow,
    Workload,
    step_pieces,
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
    shares, model = of_model.arrays.shares, of_model.modelled.model if of_model.modelled else None
    total = _reduced_parameters(of_model.arrays, moving.PARAMETERS)
    replicated = 0.0
    if model is not None and model.mla:  # of latent attention; norms and routers are too small to count
        weights = (w for unit in model.layer_units for w in weights_of(model, unit) * unit.number)
        replicated = float(sum(w.elements for w in weights if w.part == "attention" and w.sharding == REPLICATED)) / base.pp
    layers = total * (1 - shares.ends - shares.head - shares.whole) / (base.tp * base.pp) + replicated * (1 - 1 / base.tp)
    padding = moving.padded(shares.vocabulary, base.tp) / shares.vocabulary
    ends, head = (total * part / base.tp * padding for part in (shares.ends, shares.head))
    dense = layers + ends + head + total * shares.whole
    divided = base.pp * base.ep * (1 if shares.whole_experts else base.tp)
    of_rank = Shares(
        ends=ends / dense,
        head=head / dense,
        whole=total * shares.whole / dense,
        replicated=replicated / dense,
        vocabulary=shares.vocabulary,
        whole_experts=shares.whole_experts,
    )
    experts = _reduced_parameters(of_model.arrays, moving.EXPERT_PARAMETERS) / divided
    return Rank(dense=dense, experts=experts, shares=of_rank)


def _reduced_parameters(arrays: Arrays, rule: int) -> float:
    """Parameters whose gradients are in messages of this rule."""
    rows = (arrays.step.role == REDUCE_GRADIENTS) & (arrays.step.comm_rule == rule)
    return float(arrays.step.comm_bytes[rows].sum()) / arrays.gradient_width


def optimizer_of(of_model: Workload, base: BasePlan) -> Optimizer:
    """The model's optimizer on a rank of the recorded plan."""
    optimizer, rank, whole = of_model.arrays.optimizer, rank_of(of_model, base), rank_of(of_model, of_model.base)
    return optimizer._replace(
        dense_bytes=optimizer.dense_bytes * rank.dense / whole.dense,
        expert_bytes=optimizer.expert_bytes * rank.experts / whole.experts if whole.experts else 0.0,
    )


def completed(recorded: Workload, of_model: Workload, modelled: Modelled) -> tuple[Workload, tuple[str, ...]]:
    """The recording with what it lacks, and what that is, in words."""
    arrays, names = recorded.arrays, recorded.names
    lacking = {
        TP: "collectives on TP" if not recorded.has_tp_messages else "",
        EP: "all-to-alls of experts" if recorded.has_experts and not recorded.has_ep_messages else "",
    }
    told = [what for what in lacking.values() if what]
    if told:
        arrays, names, formed = with_messages(recorded, modelled, [group for group, what in lacking.items() if what])
        if TP in formed:
            gradient = Message(ALL_REDUCE, TP, sizes_of(modelled, arrays.base).activation, moving.FIXED)  # `embedding_grads`
            arrays = arrays._replace(step=_with_rows(arrays.step, [(AFTER_GRADIENTS, gradient)]))
    if not arrays.p2p_bytes > 0:
        told.append("pipeline sends")
        size = float(pipeline_bytes(modelled.model, modelled.keys_at(arrays.base))[0])
        rule = moving.SHARDED_ACTIVATION if modelled.sequence_parallel else moving.ACTIVATION
        arrays = arrays._replace(p2p_bytes=size, p2p_rule=rule)
    if recorded.kind == SIMAI and float(arrays.step.compute_s.sum()) < LEAST_OPTIMIZER_S:
        told.append("optimizer")
        arrays = arrays._replace(optimizer=optimizer_of(of_model, arrays.base))
    arrays = _with_gradients(replace(recorded, arrays=arrays), of_model, modelled, told)
    known = (recorded.gradients_known[0] or not arrays.layered_gradients, True)
    whole = replace(recorded, arrays=arrays, names=names, gradients_known=known, ends_known=True, replicated_known=True)
    return whole, tuple(told)


def _with_rows(step: StepPieces, sent: list[tuple[int, Message]]) -> StepPieces:
    """Step pieces with more messages, each with its role."""
    if not sent:
        return step
    rows = [
        StepRow(role, INPUT_GRADIENT if role == AFTER_GRADIENTS else WEIGHT_GRADIENT, 0.0, moving.FIXED, *message)
        for role, message in sent
    ]
    return StepPieces(*(np.concatenate(both) for both in zip(step, step_pieces(rows), strict=True)))


def _with_gradients(recorded: Workload, of_model: Workload, modelled: Modelled, told: list[str]) -> Arrays:
    """Columns with gradients that the recording lacks, and how its parameters divide where that is unknown, which is `told`."""
    arrays, (has_dense, has_experts) = recorded.arrays, recorded.gradients_known
    step, shares, width = arrays.step, arrays.shares, arrays.gradient_width
    if shares.ends and not shares.vocabulary:  # its padding depends on tp
        shares = shares._replace(vocabulary=of_model.arrays.shares.vocabulary)
    dense_known, experts_known = has_dense or arrays.layered_gradients, has_experts or not recorded.has_experts
    if dense_known and experts_known and recorded.ends_known:
        return arrays._replace(shares=shares)
    rank = rank_of(of_model, arrays.base)
    rows: list[tuple[int, Message]] = []
    sharded = bool((step.role == GATHER_PARAMETERS).any()) if has_dense else modelled.stack.sharding != "none"
    if not dense_known:
        told.append("gradients")
        rows += _reduced(DP, rank.dense, moving.PARAMETERS, width, sharded=sharded)
        shares = rank.shares
    elif not recorded.ends_known:
        told.append("the embedding's part of the parameters")
        shares = _shares(arrays, rank, recorded)
    if not experts_known:
        told.append("gradients of experts")
        experts = rank.experts / (1 - shares.shared)  # a SimAI text counts shared experts here, too
        rows += _reduced(DP_EP, experts, moving.EXPERT_PARAMETERS, width, sharded=sharded)
    return arrays._replace(step=_with_rows(step, rows), shares=shares)


def _reduced(group: int, count: float, rule: int, width: float, *, sharded: bool) -> list[tuple[int, Message]]:
    """Messages of some parameters: their gradients, and their values where an optimizer is sharded."""
    rows = [(REDUCE_GRADIENTS, Message(REDUCE_SCATTER if sharded else ALL_REDUCE, group, width * count, rule))]
    if sharded:
        rows.append((GATHER_PARAMETERS, Message(ALL_GATHER, group, PARAMETER_BYTES * count, rule)))
    return rows


def _shares(arrays: Arrays, rank: Rank, recorded: Workload) -> Shares:
    """How the recorded parameters divide: layers are the model's, what they leave is the embedding as the file counts it."""
    mixed = _reduced_parameters(arrays, moving.ALL_PARAMETERS)
    known = recorded.gradients_known[1]
    experts = arrays.shares.experts if known or not mixed else min(rank.experts / mixed, 1.0)
    dense = _reduced_parameters(arrays, moving.PARAMETERS) + mixed * (1 - experts)
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
