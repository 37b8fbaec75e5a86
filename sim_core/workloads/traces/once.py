"""The once-per-step work of a job as step pieces of a workload: gradient reduction, tied embeddings, optimizer."""

from collections import defaultdict
from statistics import fmean, median
from typing import NamedTuple

from sim_core.arrays import Bools
from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.stage import total_s
from sim_core.workloads.traces.stages import Costs, Stages
from sim_core.workloads.traces.text import EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_REDUCE,
    DP,
    DP_EP,
    EMBEDDING,
    REDUCE_GRADIENTS,
    Shares,
    StepPieces,
    StepRow,
    step_pieces,
)

BESIDE_OF = {DP: ("dp",), DP_EP: ("ep_dp", "exp_dp")}
"""Groups of the gradient buckets that newer traces record during the backward."""
REDUCTIONS = {
    "dp_allreduce": (DP, moving.PARAMETERS),
    **dict.fromkeys(EXPERT_REDUCTIONS, (DP_EP, moving.EXPERT_PARAMETERS)),
}
ATTENTION = 4
"""Weights of attention are at most so many squares of the hidden size: queries, keys, values, output."""
MORE = 1.001
"""An end stage holds an embedding if its dense gradients are more than this many times those of an inner one."""


class Message(NamedTuple):
    """A row of RecordedMessages."""

    kind: int
    group: int
    bytes: float
    number: float
    seconds: float
    bucketed: bool = False
    stage: int = -1


class Once(NamedTuple):
    """Work once per step; `width`: bytes of a gradient's element; `messages`: what the reductions took."""

    step: StepPieces
    width: float
    shares: Shares
    messages: list[Message]

    def reduces(self, group: int) -> Bools:
        """The rows that reduce gradients in a group."""
        rows: Bools = (self.step.role == REDUCE_GRADIENTS) & (self.step.comm_group == group)
        return rows


def once_per_step(job: Job, stages: Stages, costs: Costs, notes: list[str]) -> Once:
    """The work once per step. What is neither a message nor the optimizer (waits of replicas for each other, gaps) stays as
    long as on the first stage, which ends a step."""
    rows = []
    messages = []
    width, rest_s, first = 4.0, 0.0, stages.known[0]
    parameters = {}  # by group and stage
    shares = Shares()
    alone = {DP: job.layout.dp == 1, DP_EP: job.layout.dp == job.layout.ep}  # nobody else holds the same parameters
    for name, (group, rule) in REDUCTIONS.items():
        reduced = _reduced(job, name, costs)
        took_s = total_s(stages.stages[first], name)
        size_of = {stage: size for stage, (size, _, _) in reduced.items() if size}
        if size_of:
            width = next((w for _, w, _ in reduced.values() if w), width)
        else:  # buckets that were reduced during the backward, by stage
            size_of = {r.stage: r.beside[kind] for r in job.ranks for kind in BESIDE_OF[group] if kind in r.beside}
            if reduced and not size_of:
                rows.append(_unsized(name, took_s, notes))
            if not size_of or (not reduced and group in parameters):
                continue
            reduced = {}
        parameters[group] = {stage: size / width for stage, size in size_of.items()}
        size = fmean(size_of.values())
        if group == DP:
            size = _of_an_end(size_of, job.layout.pp)
            shares = _shares(job, size_of, width)
        rows.append(StepRow(REDUCE_GRADIENTS, comm_kind=ALL_REDUCE, comm_group=group, comm_bytes=size, comm_rule=rule))
        together = [] if alone[group] else [(sent, seconds) for sent, _, seconds in reduced.values() if sent > 0]
        messages += [Message(ALL_REDUCE, group, sent, 1.0, seconds, bucketed=True) for sent, seconds in together]
        if together:
            pace = sum(seconds for _, seconds in together) / sum(sent for sent, _ in together)  # of all stages alike
            rest_s += max(took_s - pace * size_of[first], 0.0) if first in size_of else 0.0
        elif took_s > 0:  # of a group of one: gradients are scaled in memory
            rows.append(_work(took_s * size / size_of.get(first, size), rule))
    tied = [operation for stage in stages.known for operation in stages.stages[stage].named(EMBEDDING_REDUCTION)]
    if tied:
        took_s, gap_s = fmean(operation.duration_s for operation in tied), fmean(operation.gap_s for operation in tied)
        sizes = [operation.bytes for operation in job.named(EMBEDDING_REDUCTION) if operation.bytes > 0]
        if sizes:
            size, rule = median(sizes), moving.VOCABULARY
            rows.append(StepRow(AFTER_GRADIENTS, comm_kind=ALL_REDUCE, comm_group=EMBEDDING, comm_bytes=size, comm_rule=rule))
            messages.append(Message(ALL_REDUCE, EMBEDDING, size, 1.0, took_s))
            rest_s += gap_s
        else:
            rows.append(_unsized(EMBEDDING_REDUCTION, took_s + gap_s, notes))
    rows += _optimizer(stages, parameters)
    if rest_s > 0:
        rows.append(_work(rest_s, moving.FIXED))
    return Once(step_pieces(rows), width, shares, messages)


def _reduced(job: Job, name: str, costs: Costs) -> dict[int, tuple[float, float, float]]:
    """By stage with this reduction: bytes, bytes of an element, seconds without waits."""
    ranks = defaultdict(list)
    for number, rank in enumerate(job.ranks):
        own = [(o, costs.get((number, k, -1), o.duration_s)) for k, o in enumerate(rank.operations) if o.name == name]
        if own:
            ranks[rank.stage].append((sum(o.bytes for o, _ in own), own[0][0].width, sum(seconds for _, seconds in own)))
    reduced = {}
    for stage, of_stage in ranks.items():
        sizes, widths, seconds = zip(*of_stage, strict=True)
        reduced[stage] = fmean(sizes), next(filter(None, widths), 0.0), fmean(seconds)
    return reduced


def _of_an_end(of_stage: dict[int, float], pp: int) -> float:
    """The first stage's value, else the last's, else the mean."""
    return of_stage.get(0, of_stage.get(pp - 1, fmean(of_stage.values())))


def hidden_of(job: Job) -> float:
    """Hidden size, of a pipeline message [sequence, micro-batch, hidden]; 0 where none tells it."""
    sent = [message.bytes / message.width for message in job.messages if message.width > 0]
    return median(sent) / (job.sequence * job.layout.micro_batch) if sent and job.sequence else 0.0


def _shares(job: Job, size_of: dict[int, float], width: float) -> Shares:
    """What an end stage holds besides layers: its gradients beyond those of an inner stage, or those of tied embeddings.

    Without the trace of an inner stage: those beyond attention's, as a layer with experts has no other dense parameters.
    """
    layout = job.layout
    ends = {s: size for s, size in size_of.items() if s in (0, layout.pp - 1)}
    inner = [size for s, size in size_of.items() if s not in ends]
    tied = [o.bytes / o.width for o in job.named(EMBEDDING_REDUCTION) if o.width]
    if not ends or layout.pp == 1:
        return Shares()
    size = _of_an_end(ends, layout.pp)
    if inner and size > MORE * fmean(inner):
        return Shares(ends=1 - fmean(inner) / size)
    if tied and tied[0] * width < size:
        return Shares(ends=tied[0] * width / size)
    if job.has_experts and not inner and layout.layers:
        of_layers = layout.layers / layout.pp * ATTENTION * hidden_of(job) ** 2 / layout.tp
        return Shares(ends=max(1 - of_layers * width / size, 0.0) if of_layers else 0.0)
    return Shares()


def _optimizer(stages: Stages, parameters: dict[int, dict[int, float]]) -> list[StepRow]:
    """The optimizer of an end stage, in proportion to its parameters, at the pace of the stage that waits least for others."""
    took = [total_s(stages.stages[s], OPTIMIZER) for s in stages.known]
    held = [sum(of_group.get(s, 0.0) for of_group in parameters.values()) for s in stages.known]
    if not sum(took):
        return []
    if not all(held):
        return [_work(fmean(took), moving.PARAMETERS)]
    pace = min(seconds / size for seconds, size in zip(took, held, strict=True))
    rows = []
    if of_stage := parameters.get(DP):
        rows.append(_work(pace * _of_an_end(of_stage, len(stages.stages)), moving.PARAMETERS))
    if of_stage := parameters.get(DP_EP):
        rows.append(_work(pace * fmean(of_stage.values()), moving.EXPERT_PARAMETERS))
    return rows


def _unsized(name: str, seconds: float, notes: list[str]) -> StepRow:
    """A reduction of which only the time is known: once per step, after the gradients."""
    notes.append(f"{name} has no size: taken as {short(seconds, 's')} of work after the gradients")
    return _work(seconds, moving.FIXED)


def _work(seconds: float, rule: int) -> StepRow:
    return StepRow(AFTER_GRADIENTS, compute_s=seconds, compute_rule=rule)
