"""A job's traces as a `Workload`: compute of layers, sizes of messages, extra work of the end stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import numpy as np

from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job
from sim_core.workloads.traces.meeting import OPTIMIZER, meetings
from sim_core.workloads.traces.once import gradients_known, step_pieces
from sim_core.workloads.traces.stage import BLOCKS, EMBEDDING_REDUCTION, Stages, block_s
from sim_core.workloads.traces.stages import call_costs, stages_of
from sim_core.workloads.workload import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    EP,
    FORWARD,
    INPUT_GRADIENT,
    NO_COMM,
    REDUCE_SCATTER,
    TP,
    Arrays,
    BasePlan,
    Pieces,
    Workload,
    layers_by_unit,
)

KIND_OF_CALL: Final = {
    "allreduce": ALL_REDUCE,
    "allgather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
}
GROUP_OF_CALL: Final = {"tp": TP, "exp": EP}
LIGHTER: Final = 0.02
"""Part of a block by which an end stage may be faster than the inner ones without a note."""
ONCE_A_STEP: Final = ("dp_allreduce", *EXPERT_REDUCTIONS, EMBEDDING_REDUCTION, OPTIMIZER)
RECORDED: Final = {"overlap_grad": False, "overlap_param": False}
"""Nothing overlaps inside a rank of these traces: every operation ends in a synchronisation."""
Phases = tuple[float, float]
"""Seconds of a forward and of a backward."""


@dataclass(frozen=True, kw_only=True)
class _Comm:
    """A collective of a layer: calls per forward and per backward of a layer, and bytes per call."""

    kind: int
    group: int
    calls: tuple[int, int]
    bytes: Phases


def workload_from_job(job: Job, *, sequence: int | None, measured_on: str | None, micro_batch: int | None) -> Workload:
    """The workload of a job. The user may give `sequence` (tokens) and `micro_batch` if its messages lack them."""
    layout = job.layout
    met = meetings(job)
    stages = stages_of(job)
    chunks = layout.pp * layout.vpp
    notes = [*layout.notes, *stages.notes]
    layers = layout.layers or chunks
    if layout.layers is None:
        notes.append(f"layers are unknown: each of the {chunks} virtual stages is taken as one (set workload.layers)")
    a_block = layers / chunks
    together = call_costs(job, [meeting for meeting in met if len(meeting.members) > 1])
    comms, inside_s = _collectives(job, together, a_block)
    layer_s, first_s, last_s = _split(stages, inside_s, layout.ga, layout.vpp, notes)
    pieces, names, first, last = _pieces((layer_s[0] / a_block, layer_s[1] / a_block), first_s, last_s, comms)
    step, width = step_pieces(job, stages, notes)
    _note_what_is_left_out(job, notes)
    sharded = _is_sequence_parallel(job)
    units = int(pieces.unit.max()) + 1
    messages = [o.bytes for rank in job.ranks for o in rank.operations if o.parts and o.bytes > 0]
    base = BasePlan(
        tp=layout.tp,
        pp=layout.pp,
        vpp=layout.vpp,
        ep=layout.ep,
        all_gpus=layout.tp * layout.pp * layout.dp,
        ga=layout.ga,
        micro_batch=micro_batch or layout.micro_batch,
    )
    arrays = Arrays(
        base=base,
        pieces=pieces,
        step=step,
        unit_layers=layers_by_unit(np.zeros(layers, np.int64), units),
        first_unit=first,
        last_unit=last,
        p2p_bytes=median(messages) if messages else 0.0,
        p2p_rule=moving.SHARDED_ACTIVATION if sharded else moving.ACTIVATION,
        micro_batches=float(layout.ga),
        layer_unit=0,
        gradient_width=width,
        layered_gradients=False,
    )
    return Workload(
        kind="trace",
        base=base,
        layers=layers,
        names=names,
        arrays=arrays,
        sequence=sequence or job.sequence * (layout.tp if sharded else 1) or None,
        measured_on=measured_on,
        has_experts=job.has_experts,
        experts=layout.experts,
        gradients_known=gradients_known(step),
        recorded_fields={**RECORDED, "overlap_grad": any(rank.beside for rank in job.ranks)},
        notes=tuple(notes),
    )


def _collectives(job: Job, costs: Mapping[tuple[int, int, int], float], a_block: float) -> tuple[list[_Comm], Phases]:
    """Collectives of a layer on TP and EP groups, and the seconds that they cost in a recorded forward and backward.

    Calls of a kind have equal shares of their bytes. A call whose other members have no trace costs as much as the shortest of
    its kind and size; its waits remain part of the compute, as do calls without a cost model (broadcasts, groups of one).
    """
    counts: dict[tuple[int, int], list[list[float]]] = defaultdict(lambda: [[], []])
    seconds: list[list[float]] = [[], []]
    blocks = [0, 0]
    shortest: dict[tuple[str, str, float], float] = {}
    for rank in job.ranks:
        for call in (call for operation in rank.operations for call in operation.calls):
            alike = (call.group, call.name, call.bytes)
            shortest[alike] = min(shortest.get(alike, np.inf), call.duration_s)
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            if operation.name not in BLOCKS:
                continue
            phase = BLOCKS.index(operation.name)
            blocks[phase] += 1
            held_s = 0.0
            for c, call in enumerate(operation.calls):
                group = GROUP_OF_CALL.get(call.group, -1)
                kind = KIND_OF_CALL.get(call.name, NO_COMM)
                if kind == NO_COMM or not _spans(job, group) or call.bytes <= 0:
                    continue
                counts[kind, group][phase].append(call.bytes)
                held_s += costs.get((number, k, c), shortest[call.group, call.name, call.bytes])
            seconds[phase].append(held_s)
    comms = [_comm(kind, group, sizes, blocks, a_block, job) for (kind, group), sizes in sorted(counts.items())]
    return comms, (fmean(seconds[0] or [0.0]), fmean(seconds[1] or [0.0]))


def _spans(job: Job, group: int) -> bool:
    return (group == TP and job.layout.tp > 1) or group == EP  # the bytes that one rank sends to the others are known


def _comm(kind: int, group: int, sizes: list[list[float]], blocks: list[int], a_block: float, job: Job) -> _Comm:
    """Calls of one kind per layer: those of a block over its layers, rounded up; the total bytes are kept."""
    calls, size = [0, 0], [0.0, 0.0]
    whole = job.layout.ep if group == EP else job.layout.tp
    for phase in range(2):
        if sizes[phase] and blocks[phase]:
            a_layer = len(sizes[phase]) / blocks[phase] / a_block
            calls[phase] = max(int(np.ceil(a_layer - 1e-6)), 1)
            size[phase] = sum(sizes[phase]) / blocks[phase] / a_block / calls[phase]
            size[phase] *= whole if kind == ALL_GATHER else 1  # a call records its own input, a gather's tensor is the group's
    return _Comm(kind=kind, group=group, calls=(calls[0], calls[1]), bytes=(size[0], size[1]))


def _split(stages: Stages, inside_s: Phases, ga: int, vpp: int, notes: list[str]) -> tuple[Phases, Phases, Phases]:
    """Compute of an inner stage's block, and the extra compute per micro-batch of the first and the last stage.

    Idle gaps count as compute. `inside_s` is the seconds of collectives, whose cost is computed separately.
    """
    blocks = ga * vpp
    own: list[Phases] = []
    for stage in stages.stages:
        gap_s = sum(step.gap_s for step in stage.steps if step.parts) / (2 * blocks)
        forward_s, backward_s = block_s(stage)
        own.append((max(forward_s - inside_s[0] + gap_s, 0.0), max(backward_s - inside_s[1] + gap_s, 0.0)))
    last = len(own) - 1
    inner = [s for s in range(1, last) if not stages.stages[s].inferred]
    if inner:
        layer_s = fmean(own[s][0] for s in inner), fmean(own[s][1] for s in inner)
    else:  # extra time of both ends belongs to the layers
        layer_s = min(own[0][0], own[last][0]), min(own[0][1], own[last][1])
    ends = []
    for s in (0, last):
        extra = (max(own[s][0] - layer_s[0], 0.0) * vpp, max(own[s][1] - layer_s[1], 0.0) * vpp)
        lighter_s = (sum(layer_s) - sum(own[s])) * vpp
        if last > 0 and not sum(extra) and lighter_s > LIGHTER * sum(layer_s) * vpp:
            notes.append(
                f"stage {s} is {short(lighter_s, 's')} per micro-batch faster than the inner stages: taken as equal to them"
            )
        ends.append(extra if last > 0 else (0.0, 0.0))
    return layer_s, ends[0], ends[1]


def _pieces(layer_s: Phases, first_s: Phases, last_s: Phases, comms: list[_Comm]) -> tuple[Pieces, tuple[str, ...], int, int]:
    """Unit 0 is the layer; extra work of the end stages, if any, is in separate units."""
    rows: list[tuple[int, str, Phases, _Comm | None, tuple[int, int]]] = [(0, "layer", layer_s, None, (0, 0))]
    for comm in comms:
        rows += [
            (0, "collective", (0.0, 0.0), comm, (int(k < comm.calls[0]), int(k < comm.calls[1])))
            for k in range(max(comm.calls))
        ]
    ends = []
    for name, extra in (("first stage", first_s), ("last stage", last_s)):
        ends.append(rows[-1][0] + 1 if sum(extra) > 0 else -1)
        if sum(extra) > 0:
            rows.append((ends[-1], name, extra, None, (0, 0)))
    n = len(rows)
    comm_kind, comm_group = np.zeros((n, 3), np.int64), np.zeros((n, 3), np.int64)
    comm_bytes, comm_rule = np.zeros((n, 3)), np.zeros((n, 3), np.int64)
    for r, (_, _, _, held, on) in enumerate(rows):
        for at, phase in enumerate((FORWARD, INPUT_GRADIENT)):
            if held is not None and on[at]:
                comm_kind[r, phase], comm_group[r, phase] = held.kind, held.group
                comm_bytes[r, phase] = held.bytes[at]
                comm_rule[r, phase] = moving.SHARDED_ACTIVATION if held.group == EP else moving.ACTIVATION
    pieces = Pieces(
        unit=np.array([row[0] for row in rows], np.int64),
        compute_s=np.array([(f, b / 2, b / 2) for _, _, (f, b), _, _ in rows]),  # two products, each like the forward's
        comm_kind=comm_kind,
        comm_group=comm_group,
        comm_bytes=comm_bytes,
        comm_rule=comm_rule,
        rerun=np.zeros(n),
        rerun_s=np.zeros(n),
        attention_core=np.zeros(n, np.bool_),
        gradient_bytes=np.zeros(n),
    )
    return pieces, tuple(row[1] for row in rows), ends[0], ends[1]


def _is_sequence_parallel(job: Job) -> bool:
    """Whether activations between layers are split over TP: gathered and scattered there, not reduced."""
    calls = (call for rank in job.ranks for operation in rank.operations for call in operation.calls)
    return job.layout.tp > 1 and any(call.group == "tp" and call.name in ("allgather", "reduce_scatter") for call in calls)


def _note_what_is_left_out(job: Job, notes: list[str]) -> None:
    """Notes about operations that only the replay supports."""
    seconds: dict[str, float] = defaultdict(float)
    for rank in job.ranks:
        for operation in rank.operations:
            if not operation.parts and operation.name not in (*BLOCKS, "get_batch", "loss_func", *ONCE_A_STEP):
                seconds[operation.name] += operation.duration_s / len(job.ranks)
    for name, total_s in seconds.items():
        notes.append(f"{name} ({short(total_s, 's')} per step) is not in the sweep, only in the replay")
