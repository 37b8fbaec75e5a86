"""The once-per-step work of a job as step pieces of a workload: gradient reduction, tied embeddings, optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, median
from typing import Final

import numpy as np

from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job, Operation
from sim_core.workloads.traces.meeting import OPTIMIZER
from sim_core.workloads.traces.stage import EMBEDDING_REDUCTION, Stages
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_REDUCE,
    DP,
    DP_EP,
    EMBEDDING,
    NO_COMM,
    REDUCE_GRADIENTS,
    TP,
    StepPieces,
)

BESIDE_OF: Final = {DP: ("dp",), DP_EP: ("ep_dp", "exp_dp")}
"""Groups of the gradient buckets that newer traces record during the backward."""
Row = tuple[int, float, int, int, int, float, int]
"""Role, seconds and their rule; collective, group, bytes and their rule."""


def step_pieces(job: Job, stages: Stages, notes: list[str]) -> tuple[StepPieces, float]:
    """The work once per step, and the bytes of a gradient's element."""
    rows: list[Row] = []
    reductions = (
        ("dp_allreduce", DP, moving.PARAMETERS),
        *((name, DP_EP, moving.EXPERT_PARAMETERS) for name in EXPERT_REDUCTIONS),
    )
    width = 4.0
    reduced: dict[int, float] = {}
    for name, group, rule in reductions:
        found = _of_stages(job, name)
        sizes = [sum(o.bytes for o in operations) for operations in found]
        beside = {rank.stage: rank.beside[kind] for rank in job.ranks for kind in BESIDE_OF[group] if kind in rank.beside}
        if not any(sizes) and group not in reduced:
            sizes = list(beside.values())
        if any(sizes):
            reduced[group] = fmean(s for s in sizes if s)
            rows.append((REDUCE_GRADIENTS, 0.0, moving.FIXED, ALL_REDUCE, group, reduced[group], rule))
            width = next((o.width for operations in found for o in operations if o.width), width)
        elif found:
            rows.append(_unsized(name, _seconds(stages, name), notes))
    embedding = _of_stages(job, EMBEDDING_REDUCTION)
    sizes = [o.bytes for operations in embedding for o in operations if o.bytes > 0]
    if sizes:
        rows.append((AFTER_GRADIENTS, 0.0, moving.FIXED, ALL_REDUCE, EMBEDDING, median(sizes), moving.VOCABULARY))
    elif embedding:
        rows.append(_unsized(EMBEDDING_REDUCTION, _seconds(stages, EMBEDDING_REDUCTION), notes))
    optimizer_s = _seconds(stages, OPTIMIZER)
    of_experts = reduced.get(DP_EP, 0.0) / max(sum(reduced.values()), 1.0)
    for rule, share in ((moving.PARAMETERS, 1 - of_experts), (moving.EXPERT_PARAMETERS, of_experts)):
        if optimizer_s * share > 0:
            rows.append((AFTER_GRADIENTS, optimizer_s * share, rule, NO_COMM, TP, 0.0, moving.FIXED))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    step = StepPieces(
        role=np.array(columns[0], np.int64),
        phase=np.zeros(len(rows), np.int64),
        compute_s=np.array(columns[1], np.float64),
        compute_rule=np.array(columns[2], np.int64),
        comm_kind=np.array(columns[3], np.int64),
        comm_group=np.array(columns[4], np.int64),
        comm_bytes=np.array(columns[5], np.float64),
        comm_rule=np.array(columns[6], np.int64),
        forward_on_ep=np.zeros(len(rows), np.bool_),
    )
    return step, width


def _unsized(name: str, seconds: float, notes: list[str]) -> Row:
    """A reduction of which only the time is known: once per step, after the gradients."""
    notes.append(f"{name} has no size: taken as {short(seconds, 's')} of work after the gradients")
    return AFTER_GRADIENTS, seconds, moving.FIXED, NO_COMM, TP, 0.0, moving.FIXED


def gradients_known(step: StepPieces) -> tuple[bool, bool]:
    """Whether the messages of the dense and of the experts' gradients are known."""
    reduces = step.role == REDUCE_GRADIENTS
    return bool((reduces & (step.comm_group == DP)).any()), bool((reduces & (step.comm_group == DP_EP)).any())


def _of_stages(job: Job, name: str) -> list[list[Operation]]:
    """Operations with this name, of the first rank of each stage that has any."""
    found: dict[int, list[Operation]] = {}
    for rank in job.ranks:
        operations = rank.named(name)
        if operations:
            found.setdefault(rank.stage, operations)
    return list(found.values())


def _seconds(stages: Stages, name: str) -> float:
    """Seconds per step of the operations with this name, mean over the recorded stages."""
    totals: Iterable[float] = (
        sum(step.work_s + step.gap_s for step in stage.steps if step.name == name)
        for stage in stages.stages
        if not stage.inferred
    )
    found = [total for total in totals if total > 0]
    return fmean(found) if found else 0.0
