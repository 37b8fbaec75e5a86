"""What a recording lacks, from a model in numbers: messages of tp 1 and ep 1, gradients that nobody exchanged, the embedding.

What the recording has stays.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim_core.models.messages import pipeline_bytes
from sim_core.models.weights import REPLICATED, weights_of
from sim_core.workloads import moving
from sim_core.workloads.lacking_messages import SIMAI, sizes_of, with_messages
from sim_core.workloads.modelled import gradient_rows
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
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

LEAST_OPTIMIZER_S = 1e-6
"""A SimAI text without times has 1 ns in each once-per-step record, and none of an optimizer."""


class Rank(NamedTuple):
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
    of_rank = shares._replace(
        ends=ends / dense, head=head / dense, whole=total * shares.whole / dense, replicated=replicated / dense
    )
    divided = base.pp * base.ep * (1 if shares.whole_experts else base.tp)
    return Rank(dense, _reduced_parameters(of_model.arrays, moving.EXPERT_PARAMETERS) / divided, of_rank)


def _reduced_parameters(arrays: Arrays, rule: int) -> float:
    """Parameters whose gradients are in messages of this rule."""
    rows = (arrays.step.role == REDUCE_GRADIENTS) & (arrays.step.comm_rule == rule)
    return float(arrays.step.comm_bytes[rows].sum()) / arrays.gradient_width


def optimizer_of(of_model: Workload, base: BasePlan) -> Optimizer:
    """The model's optimizer on a rank of the recorded plan."""
    optimizer, rank, whole = of_model.arrays.optimizer, rank_of(of_model, base), rank_of(of_model, of_model.base)
    return optimizer._replace(
        dense_bytes=optimizer.dense_bytes * rank.dense / whole.dense,
        expert_bytes=optimizer.expert_bytes * rank.experts / (whole.experts or 1.0),
    )


def completed(recorded: Workload, of_model: Workload, modelled: Modelled) -> tuple[Workload, tuple[str, ...]]:
    """The recording with what it lacks, and what that is, in words."""
    arrays, names, told = recorded.arrays, recorded.names, []
    groups, rows = [], []
    if not recorded.has_tp_messages:
        groups.append(TP)
        told.append("collectives on TP")
    if recorded.has_experts and not recorded.has_ep_messages:
        groups.append(EP)
        told.append("all-to-alls of experts")
    if groups:
        arrays, names, formed = with_messages(recorded, modelled, groups)
        if TP in formed:  # `embedding_grads`
            size = sizes_of(modelled, arrays.base).activation
            rows = [StepRow(AFTER_GRADIENTS, INPUT_GRADIENT, comm_kind=ALL_REDUCE, comm_group=TP, comm_bytes=size)]
    if not arrays.p2p_bytes > 0:
        told.append("pipeline sends")
        arrays = arrays._replace(
            p2p_bytes=float(pipeline_bytes(modelled.model, modelled.keys_at(arrays.base))[0]),
            p2p_rule=moving.SHARDED_ACTIVATION if modelled.sequence_parallel else moving.ACTIVATION,
        )
    if recorded.kind == SIMAI and float(arrays.step.compute_s.sum()) < LEAST_OPTIMIZER_S:
        told.append("optimizer")
        arrays = arrays._replace(optimizer=optimizer_of(of_model, arrays.base))
    gradients, shares = _gradients(replace(recorded, arrays=arrays), of_model, modelled, told)
    step = StepPieces(*(np.concatenate(both) for both in zip(arrays.step, step_pieces(rows + gradients), strict=True)))
    whole = replace(
        recorded,
        arrays=arrays._replace(step=step, shares=shares),
        names=names,
        gradients_known=(recorded.gradients_known[0] or not arrays.layered_gradients, True),
        ends_known=True,
        replicated_known=True,
    )
    return whole, tuple(told)


def _gradients(recorded: Workload, of_model: Workload, modelled: Modelled, told: list[str]) -> tuple[list[StepRow], Shares]:
    """Messages of gradients that the recording lacks, and how its parameters divide where that is unknown; `told` takes it."""
    arrays, (has_dense, has_experts) = recorded.arrays, recorded.gradients_known
    step, shares, width = arrays.step, arrays.shares, arrays.gradient_width
    if shares.ends and not shares.vocabulary:  # its padding depends on tp
        shares = shares._replace(vocabulary=of_model.arrays.shares.vocabulary)
    dense_known, experts_known = has_dense or arrays.layered_gradients, has_experts or not recorded.has_experts
    if dense_known and experts_known and recorded.ends_known:
        return [], shares
    rank, rows = rank_of(of_model, arrays.base), []
    sharded = bool((step.role == GATHER_PARAMETERS).any()) if has_dense else modelled.stack.sharding != "none"
    kind = REDUCE_SCATTER if sharded else ALL_REDUCE
    if not dense_known:
        told.append("gradients")
        rows += gradient_rows(DP, rank.dense, moving.PARAMETERS, kind, width)[: 1 + sharded]
        shares = rank.shares
    elif not recorded.ends_known:
        told.append("the embedding's part of the parameters")
        shares = _shares(arrays, rank, has_experts)
    if not experts_known:
        told.append("gradients of experts")
        experts = rank.experts / (1 - shares.shared)  # a SimAI text counts shared experts here, too
        rows += gradient_rows(DP_EP, experts, moving.EXPERT_PARAMETERS, kind, width)[: 1 + sharded]
    return [row._replace(phase=WEIGHT_GRADIENT) for row in rows], shares


def _shares(arrays: Arrays, rank: Rank, known: bool) -> Shares:
    """How the recorded parameters divide: layers are the model's, what they leave is the embedding as the file counts it.
    `known`: whether messages of experts' gradients are."""
    mixed, of_rank = _reduced_parameters(arrays, moving.ALL_PARAMETERS), rank.shares
    experts = arrays.shares.experts if known or not mixed else min(rank.experts / mixed, 1.0)
    dense = _reduced_parameters(arrays, moving.PARAMETERS) + mixed * (1 - experts)
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
