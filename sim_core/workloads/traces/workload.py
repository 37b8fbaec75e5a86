"""A job's traces as a `Workload`: compute of layers, sizes of messages, extra work of the end stages."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean, median

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.collectives import Comm, collectives, pace_s
from sim_core.workloads.traces.experts import ExpertLoad, expert_load
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.meeting import ends_of, meetings, settle
from sim_core.workloads.traces.once import Message, Once, hidden_of, once_per_step
from sim_core.workloads.traces.stage import block_s
from sim_core.workloads.traces.stages import Stages, call_costs, play_stages, stages_of
from sim_core.workloads.traces.text import BLOCKS, EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER
from sim_core.workloads.workload import (
    DP,
    DP_EP,
    EP,
    FORWARD,
    GROUP_NAMES,
    INPUT_GRADIENT,
    SEND_RECEIVE,
    Arrays,
    BasePlan,
    Pieces,
    RecordedLayer,
    RecordedMessages,
    Workload,
    layers_by_unit,
    no_work,
)

LIGHTER = 0.02
"""Part of a block by which an end stage may be faster than the inner ones without a note."""
FASTEST = 4e12
"""Bytes/s that no rank sends to others: NVLink 6 has 1.8 TB/s in each direction (NVIDIA, Rubin)."""
PIPELINE = len(GROUP_NAMES)
"""The group of pipeline messages among recorded ones."""
DTYPE_OF_WIDTH = {2.0: "bf16", 4.0: "fp32"}
SWEPT = (*BLOCKS, "get_batch", "loss_func", "dp_allreduce", *EXPERT_REDUCTIONS, EMBEDDING_REDUCTION, OPTIMIZER)
"""Operations that a workload holds; others are only replayed."""


def workload_from_job(job: Job, facts: Facts) -> Workload:
    """The workload of a job. `facts` may give `sequence` and `micro_batch` if its messages lack them."""
    layout, micro_batch = job.layout, facts.micro_batch or job.layout.micro_batch
    met = meetings(job)
    stages = stages_of(job)
    chunks = layout.pp * layout.vpp
    notes = [*layout.notes, *stages.notes]
    if not job.whole:  # how far the step from one rank alone was off in recorded jobs (docs/traces.md)
        notes.append(
            f"from {len(job.ranks)} of {job.total} ranks: alone, 172 ranks of 16 jobs each gave their step within 0.6 % (half "
            "of them), 6 % (nine in ten), 24 % (the worst; up to 28 % in others' jobs); work and late starts of other ranks "
            "are not in its file"
        )
    layers = layout.layers or chunks
    if layout.layers is None:
        notes.append(f"layers are unknown: each of the {chunks} virtual stages is taken as one (set workload.layers)")
    a_block = layers / chunks
    together = call_costs(job, [meeting for meeting in met if len(meeting.members) > 1])
    load = expert_load(job, a_block, notes)
    comms = collectives(job, together, a_block, load.imbalance)
    inside_s = a_block * np.array([sum(comm.seconds[phase] for comm in comms) for phase in range(len(BLOCKS))])
    layer_s, first_s, last_s = split(job, stages, inside_s, a_block, notes)
    if load.weight_bytes[0]:
        forward, backward = (short(size, "B") for size in load.weight_bytes)
        what = f"{forward} of weights and gradients in a layer's forward, {backward} in its backward"
        notes.append(f"a rank's experts read and write {what}")
    pieces, rules, names = _pieces(layer_s / a_block, first_s, last_s, comms, load)
    once = once_per_step(job, stages, together, notes)
    notes += _left_out(job)
    calls = (call for operation in job.operations for call in operation.calls)
    # over TP activations between layers are split, gathered and scattered there, or reduced
    sharded = layout.tp > 1 and any(call.group == "tp" and call.name in ("allgather", "reduce_scatter") for call in calls)
    rank_tokens = layout.tp if sharded else 1  # ranks that a sequence between layers is divided among
    tokens = facts.sequence or job.sequence * rank_tokens
    sizes = _layer(job, once, layers / layout.pp)
    # where no message was recorded, of as many tokens as the user says, if experts tell theirs
    p2p_bytes = median([o.bytes for o in job.messages] or [(facts.sequence or 0) * micro_batch / rank_tokens * job.token_bytes])
    base = BasePlan(layout.tp, layout.pp, layout.vpp, layout.ep, job.total, layout.ga, micro_batch)
    # all ranks with their own times, else the mean stages
    replayed_s, known_s = ends_of(settle(job, met)[0] if job.whole else play_stages(job, stages), job.stages)
    has_step = not job.alone and (layout.pp == 1 or any(operation.parts for operation in job.operations))
    experts = (layout.experts or 0) if job.has_experts else 0
    arrays = Arrays(
        base=base,
        pieces=pieces,
        step=once.step,
        unit_layers=layers_by_unit(np.zeros(layers, int), int(pieces.unit.max()) + 1),
        first_unit=1 if sum(first_s) > 0 else -1,
        last_unit=int(pieces.unit.max()) if sum(last_s) > 0 else -1,
        p2p_bytes=p2p_bytes,
        p2p_rule=moving.SHARDED_ACTIVATION if sharded else moving.ACTIVATION,
        micro_batches=float(layout.ga),
        layer_unit=0,
        gradient_width=once.width,
        shares=once.shares,
        compute_rule=rules,
        recorded_load=load.imbalance,
        expert_load=load.table,
        sequence=float(tokens) if sizes else 0.0,
        experts=float(experts),
    )
    return Workload(
        kind="trace",
        base=base,
        layers=layers,
        names=names,
        arrays=arrays,
        sequence=tokens or None,
        measured_on=facts.measured_on,
        has_experts=job.has_experts,
        experts=layout.experts,
        recorded_step_s=job.span_s if job.span_s > 0 and not job.alone else None,
        replayed_s=replayed_s if has_step else None,
        unrecorded_s=replayed_s - known_s,
        files="all" if job.whole else "groups" if load.whole else "ranks",
        recorded=None if job.alone else _recorded(stages, comms, once.messages, p2p_bytes, notes),
        layer=sizes,
        moving_notes=tuple(_moving_notes(sizes, experts)),
        expert_weights=load.weight_bytes,
        gradients_known=(bool(once.reduces(DP).any()), bool(once.reduces(DP_EP).any())),
        # nothing else overlaps inside a rank of these traces: every operation ends in a synchronisation
        recorded_fields={"overlap_grad": any(rank.beside for rank in job.ranks), "overlap_param": False},
        notes=tuple(notes),
    )


def split(job: Job, stages: Stages, inside_s: Floats, a_block: float, notes: list[str]) -> tuple[Floats, Floats, Floats]:
    """Compute of an inner stage's block, and the extra compute per micro-batch of the first and the last stage, [2] each.

    Idle gaps count as compute. `inside_s` is the seconds of collectives, whose cost is computed separately. Without an inner
    stage, the time from layer to layer inside the blocks says what is a layer's; else what the ends have in common is.
    """
    vpp, last = job.layout.vpp, len(stages.stages) - 1
    blocks = job.layout.ga * vpp
    gaps = np.array([sum(o.gap_s for o in stage.operations if o.parts) / (2 * blocks) for stage in stages.stages])
    own = np.maximum(np.array([block_s(stage) for stage in stages.stages]) - inside_s + gaps[:, None], 0.0)
    inner = [s for s in stages.known if 0 < s < last]
    if inner:
        layer_s = np.array([fmean(own[inner, phase]) for phase in range(len(BLOCKS))])
    else:
        layer_s = np.minimum(own[0], own[last])
        paces = [pace for name in BLOCKS if (pace := pace_s(job, name, a_block)) is not None]
        if last > 0 and len(paces) == len(BLOCKS):
            layer_s = np.minimum(layer_s, np.maximum(np.array(paces) * a_block - inside_s + gaps.min(), 0.0))
    ends_s = np.zeros((2, len(BLOCKS)))
    for end_s, s in zip(ends_s, (0, last) if last else (), strict=False):
        end_s += np.maximum(own[s] - layer_s, 0.0) * vpp
        lighter_s = (sum(layer_s) - sum(own[s])) * vpp
        if not sum(end_s) and lighter_s > LIGHTER * sum(layer_s) * vpp:
            faster = f"stage {s} is {short(lighter_s, 's')} per micro-batch faster than the inner stages"
            notes.append(f"{faster}: taken as equal to them")
    return layer_s, ends_s[0], ends_s[1]


def _layer(job: Job, once: Once, a_stage: float) -> RecordedLayer | None:
    """Sizes of a layer, `a_stage` of them on a stage; None where no pipeline message or no dense gradient tells them."""
    widths = [message.width for message in job.messages if message.width in DTYPE_OF_WIDTH]
    elements = float(once.step.comm_bytes[once.reduces(DP)].sum()) / once.width * (1 - once.shares.ends)
    hidden = hidden_of(job)
    if not widths or not hidden or hidden != int(hidden) or not elements > 0:
        return None
    return RecordedLayer(hidden=int(hidden), parameters=elements / a_stage, dtype=DTYPE_OF_WIDTH[widths[0]])


def _moving_notes(layer: RecordedLayer | None, experts: int) -> Iterator[tuple[str, str]]:
    """What is assumed of plans with another value, by column."""
    if layer is None:
        text = "compute is in proportion to micro_batch and 1/tp: the sizes of a layer are unknown (set workload.model)"
        yield from ((name, text) for name in ("micro_batch", "tp"))
    else:
        text = (
            "compute of a layer with another micro_batch, sequence or tp is the longer of launching its kernels, as recorded "
            "where they take less, and running them, by the device's tables: "
            f"{layer.parameters / 1e6:.1f} M dense parameters of a rank, causal flash attention of hidden size {layer.hidden} "
            "(the square of the sequence); experts, embedding and head are in proportion to the tokens"
        )
        yield from ((name, text) for name in ("micro_batch", "sequence", "tp"))
    if experts:
        yield "experts", f"experts: ranks get the tokens they got with {experts}; weights, gradients, optimizer grow with them"


def _recorded(stages: Stages, comms: list[Comm], once: list[Message], p2p_bytes: float, notes: list[str]) -> RecordedMessages:
    """What the messages of the step took: of a layer, of all pipeline links, once per step; not those that no network sends."""
    rows = list(once)
    for kind, group, *phases in comms:
        calls = zip(*phases, strict=True)
        rows += [Message(kind, group, size, float(number), seconds) for number, size, seconds in calls if number]
    # a single rank's fastest message goes to the next stage or comes from it
    at = min(stages.known[0], max(len(stages.stages) - 2, 0))
    links = stages.message_s or {(at, at + 1, ""): stages.usual_message_s}
    for (sender, receiver, _), seconds in links.items():
        rows.append(Message(SEND_RECEIVE, PIPELINE, p2p_bytes, 1.0, seconds, stage=min(sender, receiver)))
    too_fast = [row for row in rows if row.bytes * row.number > FASTEST * row.seconds > 0]
    if too_fast:
        rate = short(max(row.bytes * row.number / row.seconds for row in too_fast), "B/s")
        notes.append(f"recorded messages of up to {rate} are faster than any network: taken as the model has them")
    kept = [row for row in rows if row not in too_fast]
    kinds = Message.__annotations__.values()
    return RecordedMessages(*(np.array([row[k] for row in kept], kind) for k, kind in enumerate(kinds)))


def _pieces(
    layer_s: Floats, first_s: Floats, last_s: Floats, comms: list[Comm], load: ExpertLoad
) -> tuple[Pieces, Ints, tuple[str, ...]]:
    """Unit 0 is the layer; extra work of the end stages, if any, is in separate units. And the rules of compute, and names."""
    none, loaded_s = np.zeros(len(BLOCKS)), np.minimum(load.loaded_s, layer_s)
    rows = [("layer", 0, layer_s - loaded_s, moving.COMPUTE)]
    if load.known:  # the weights' part of the layer is known with the hardware (costing/recorded.py)
        rows += [("expert weights", 0, none, moving.EXPERT_WEIGHTS), ("experts", 0, loaded_s, moving.EXPERT_LOAD)]
    calls = [(len(rows) + k, comm, turn) for k, (comm, turn) in enumerate((c, n) for c in comms for n in range(max(c.calls)))]
    rows += [("collective", 0, none, moving.COMPUTE)] * len(calls)
    ends = [(name, extra) for name, extra in (("first stage", first_s), ("last stage", last_s)) if sum(extra) > 0]
    rows += [(name, unit, extra, moving.COMPUTE) for unit, (name, extra) in enumerate(ends, 1)]
    names, units, seconds, rules = zip(*rows, strict=True)
    pieces = no_work(len(rows))._replace(
        unit=np.array(units),
        compute_s=np.array([(f, b / 2, b / 2) for f, b in seconds]),  # two products, each like the forward's
    )
    for row, comm, turn in calls:
        for at, phase in enumerate((FORWARD, INPUT_GRADIENT)):
            if turn < comm.calls[at]:
                pieces.comm_kind[row, phase], pieces.comm_group[row, phase] = comm.kind, comm.group
                pieces.comm_bytes[row, phase] = comm.bytes[at]
                pieces.comm_rule[row, phase] = moving.EXPERT_LOAD if comm.group == EP else moving.ACTIVATION
    return pieces, np.array(rules), names


def _left_out(job: Job) -> Iterator[str]:
    """Notes about operations that only the replay supports."""
    seconds: dict[str, float] = defaultdict(float)
    for operation in job.operations:
        if not operation.parts and operation.name not in SWEPT:
            seconds[operation.name] += operation.duration_s / len(job.ranks)
    for name, total_s in seconds.items():
        yield f"{name} ({short(total_s, 's')} per step) is not in the sweep, only in the replay"
