"""A job's traces as a `Workload`: compute of layers, sizes of messages, extra work of the end stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.traces.calls import Comm, collectives
from sim_core.workloads.traces.chosen import stages_of
from sim_core.workloads.traces.experts import ExpertLoad, expert_load, weights_note
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job
from sim_core.workloads.traces.layer import split
from sim_core.workloads.traces.means import play_stages
from sim_core.workloads.traces.meeting import OPTIMIZER, Meeting, meetings
from sim_core.workloads.traces.once import Message, gradients_known, once_per_step
from sim_core.workloads.traces.ranks import settle
from sim_core.workloads.traces.sizes import layer_of, moving_notes
from sim_core.workloads.traces.stage import BLOCKS, EMBEDDING_REDUCTION, Phases, Stages
from sim_core.workloads.traces.stages import call_costs
from sim_core.workloads.workload import (
    EP,
    FORWARD,
    GROUP_NAMES,
    INPUT_GRADIENT,
    NO_LOAD,
    SEND_RECEIVE,
    Arrays,
    BasePlan,
    Pieces,
    RecordedMessages,
    Workload,
    layers_by_unit,
)

ONCE_A_STEP: Final = ("dp_allreduce", *EXPERT_REDUCTIONS, EMBEDDING_REDUCTION, OPTIMIZER)
RECORDED: Final = {"overlap_grad": False, "overlap_param": False}
"""Nothing overlaps inside a rank of these traces: every operation ends in a synchronisation."""
FASTEST: Final = 4e12
"""Bytes/s that no rank sends to others: NVLink 6 has 1.8 TB/s in each direction (NVIDIA, Rubin)."""
PIPELINE: Final = len(GROUP_NAMES)
"""The group of pipeline messages among recorded ones."""


def workload_from_job(job: Job, *, sequence: int | None, measured_on: str | None, micro_batch: int | None) -> Workload:
    """The workload of a job. The user may give `sequence` (tokens) and `micro_batch` if its messages lack them."""
    layout = job.layout
    met = meetings(job)
    stages = stages_of(job)
    chunks = layout.pp * layout.vpp
    notes = [*layout.notes, *stages.notes, *_uncertainty(job)]
    layers = layout.layers or chunks
    if layout.layers is None:
        notes.append(f"layers are unknown: each of the {chunks} virtual stages is taken as one (set workload.layers)")
    a_block = layers / chunks
    together = call_costs(job, [meeting for meeting in met if len(meeting.members) > 1])
    load = expert_load(job, a_block, notes)
    comms = collectives(job, together, a_block, 1.0 if load is None else load.imbalance)
    inside_s = (a_block * sum(comm.seconds[0] for comm in comms), a_block * sum(comm.seconds[1] for comm in comms))
    layer_s, first_s, last_s = split(job, stages, inside_s, a_block, notes)
    if load is not None and load.weight_bytes[0]:
        notes.append(weights_note(load))
    a_layer_s = (layer_s[0] / a_block, layer_s[1] / a_block)
    pieces, rules, names, first, last = _pieces(a_layer_s, first_s, last_s, comms, load)
    once = once_per_step(job, stages, together, notes)
    _note_what_is_left_out(job, notes)
    sharded = _is_sequence_parallel(job)
    tokens = sequence or job.sequence * (layout.tp if sharded else 1)
    sizes = layer_of(job, once, layers / layout.pp)
    units = int(pieces.unit.max()) + 1
    p2p_bytes = _message_bytes(job, (sequence or 0) * (micro_batch or layout.micro_batch) / (layout.tp if sharded else 1))
    base = BasePlan(
        tp=layout.tp,
        pp=layout.pp,
        vpp=layout.vpp,
        ep=layout.ep,
        all_gpus=layout.tp * layout.pp * layout.dp,
        ga=layout.ga,
        micro_batch=micro_batch or layout.micro_batch,
    )
    replayed_s, unrecorded_s = _replayed(job, stages, met)
    recorded = None if job.alone else _recorded(stages, comms, once.messages, p2p_bytes, notes)
    arrays = Arrays(
        base=base,
        pieces=pieces,
        step=once.step,
        unit_layers=layers_by_unit(np.zeros(layers, np.int64), units),
        first_unit=first,
        last_unit=last,
        p2p_bytes=p2p_bytes,
        p2p_rule=moving.SHARDED_ACTIVATION if sharded else moving.ACTIVATION,
        micro_batches=float(layout.ga),
        layer_unit=0,
        gradient_width=once.width,
        layered_gradients=False,
        shares=once.shares,
        compute_rule=rules,
        recorded_load=1.0 if load is None else load.imbalance,
        expert_load=NO_LOAD if load is None else load.table,
        sequence=float(tokens) if sizes else 0.0,
        experts=float(layout.experts or 0) if job.has_experts else 0.0,
    )
    return Workload(
        kind="trace",
        base=base,
        layers=layers,
        names=names,
        arrays=arrays,
        sequence=tokens or None,
        measured_on=measured_on,
        has_experts=job.has_experts,
        experts=layout.experts,
        recorded_step_s=job.span_s if job.span_s > 0 and not job.alone else None,
        replayed_s=replayed_s if job.has_step else None,
        unrecorded_s=unrecorded_s,
        files="all" if job.whole else "groups" if load is not None and load.whole else "ranks",
        recorded=recorded,
        layer=sizes,
        moving_notes=tuple(moving_notes(sizes, layout.experts if job.has_experts else None)),
        expert_weights=(0.0, 0.0) if load is None else load.weight_bytes,
        gradients_known=gradients_known(once.step),
        recorded_fields={**RECORDED, "overlap_grad": any(rank.beside for rank in job.ranks)},
        notes=tuple(notes),
    )


def _uncertainty(job: Job) -> Iterator[str]:
    """How far the step from one rank alone was off in recorded jobs (docs/traces.md); from more ranks it is off by less."""
    total = job.layout.pp * job.layout.ranks_per_stage
    if not job.whole:
        yield (
            f"from {len(job.ranks)} of {total} ranks: alone, 172 ranks of 16 jobs each gave their step within 0.6 % (half "
            "of them), 6 % (nine in ten), 24 % (the worst; up to 28 % in others' jobs); work and late starts of other ranks "
            "are not in its file"
        )


def _replayed(job: Job, stages: Stages, met: list[Meeting]) -> tuple[float, float]:
    """The replayed step: of all ranks with their own times, else of the mean stages. And its seconds after the end of the
    stages that have a trace."""
    events = settle(job, met).events if job.whole else play_stages(job, stages)
    step_s, recorded = max(event.end_s for event in events), {rank.stage for rank in job.ranks}
    return step_s, step_s - max(event.end_s for event in events if event.stage in recorded)


def _message_bytes(job: Job, tokens: float) -> float:
    """Bytes of a pipeline message; where none was recorded, of as many tokens as the user says, if experts tell theirs."""
    sent = [o.bytes for rank in job.ranks for o in rank.operations if o.parts and o.bytes > 0]
    return median(sent) if sent else tokens * job.token_bytes


def _recorded(
    stages: Stages, comms: list[Comm], once: tuple[Message, ...], p2p_bytes: float, notes: list[str]
) -> RecordedMessages:
    """What the messages of the step took: of a layer, of all pipeline links, once per step; not those that no network sends."""
    rows: list[Message] = list(once)
    for comm in comms:
        rows += [
            (comm.kind, comm.group, comm.bytes[at], float(comm.calls[at]), comm.seconds[at], False, -1)
            for at in range(2)
            if comm.calls[at]
        ]
    known = min(stage.stage for stage in stages.stages if not stage.inferred)
    at = min(known, max(len(stages.stages) - 2, 0))  # a single rank's fastest message goes to the next stage or comes from it
    links = stages.message_s or {(at, at + 1, ""): stages.usual_message_s}
    for (sender, receiver, _), seconds in links.items():
        rows.append((SEND_RECEIVE, PIPELINE, p2p_bytes, 1.0, seconds, False, min(sender, receiver)))
    too_fast = [row for row in rows if row[2] * row[3] > FASTEST * row[4] > 0]
    if too_fast:
        rate = max(row[2] * row[3] / row[4] for row in too_fast)
        notes.append(
            f"recorded messages of up to {short(rate, 'B/s')} are faster than any network: taken as the model has them"
        )
    columns = list(zip(*(row for row in rows if row not in too_fast), strict=True)) or [()] * 7
    return RecordedMessages(
        kind=np.array(columns[0], np.int64),
        group=np.array(columns[1], np.int64),
        bytes=np.array(columns[2], np.float64),
        number=np.array(columns[3], np.float64),
        seconds=np.array(columns[4], np.float64),
        bucketed=np.array(columns[5], np.bool_),
        stage=np.array(columns[6], np.int64),
    )


def _pieces(
    layer_s: Phases, first_s: Phases, last_s: Phases, comms: list[Comm], load: ExpertLoad | None
) -> tuple[Pieces, npt.NDArray[np.int64], tuple[str, ...], int, int]:
    """Unit 0 is the layer; extra work of the end stages, if any, is in separate units. And the rules of compute."""
    none = (0.0, 0.0)
    loaded_s = none if load is None else (min(load.loaded_s[0], layer_s[0]), min(load.loaded_s[1], layer_s[1]))
    rest_s = (layer_s[0] - loaded_s[0], layer_s[1] - loaded_s[1])
    rows: list[tuple[int, str, Phases, Comm | None, tuple[int, int]]] = [(0, "layer", rest_s, None, (0, 0))]
    rules = [moving.COMPUTE]
    if load is not None:  # the weights' part of the layer is known with the hardware (costing/recorded.py)
        rows += [(0, "expert weights", none, None, (0, 0)), (0, "experts", loaded_s, None, (0, 0))]
        rules += [moving.EXPERT_WEIGHTS, moving.EXPERT_LOAD]
    for comm in comms:
        rows += [
            (0, "collective", none, comm, (int(k < comm.calls[0]), int(k < comm.calls[1]))) for k in range(max(comm.calls))
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
                comm_rule[r, phase] = moving.EXPERT_LOAD if held.group == EP else moving.ACTIVATION
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
    rules += [moving.COMPUTE] * (n - len(rules))
    return pieces, np.array(rules, np.int64), tuple(row[1] for row in rows), ends[0], ends[1]


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
