"""A job's traces as a `Workload`: compute of layers, sizes of messages, extra work of the end stages."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

import numpy as np

from sim_core.arrays import Ints
from sim_core.terms import kinds_by
from sim_core.units import short
from sim_core.workloads import moving
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.experts import ExpertLoad, expert_load, weights_note
from sim_core.workloads.traces.job import Call, Job, Operation
from sim_core.workloads.traces.meeting import Meeting, meetings, settle
from sim_core.workloads.traces.once import Message, Once, gradients_known, hidden_of, once_per_step
from sim_core.workloads.traces.stage import Phases, block_s
from sim_core.workloads.traces.stages import Costs, Stages, call_costs, play_stages, stages_of
from sim_core.workloads.traces.text import BLOCKS, EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER
from sim_core.workloads.workload import (
    ALL_GATHER,
    ALL_TO_ALL,
    DP,
    EP,
    FORWARD,
    GROUP_NAMES,
    INPUT_GRADIENT,
    NO_COMM,
    NO_LOAD,
    REDUCE_GRADIENTS,
    SEND_RECEIVE,
    TP,
    Arrays,
    BasePlan,
    Pieces,
    RecordedLayer,
    RecordedMessages,
    Workload,
    layers_by_unit,
    no_work,
)

KIND_OF_CALL: Final = kinds_by("call")
GROUP_OF_CALL: Final = {"tp": TP, "exp": EP}
BEST: Final = 0.1
"""Part of the large calls of a kind that are taken to be free of waits: the slowest of them has the rate of the kind. A single
fastest one may be a call that only starts its transfer."""
LARGE: Final = 0.5
"""A call is large from this part of the largest of its kind on; smaller ones are latency."""


@dataclass(frozen=True, kw_only=True)
class Comm:
    """A collective of a layer, in its forward and its backward: calls, bytes of a call, seconds of all of them."""

    kind: int
    group: int
    calls: tuple[int, int]
    bytes: Phases
    seconds: Phases


def collectives(job: Job, costs: Costs, a_block: float, imbalance: float = 1.0) -> list[Comm]:
    """Collectives of a layer on TP and EP groups; `a_block`: layers of a block.

    An all-to-all carries the tokens of the fullest rank, `imbalance` times the mean.

    A call costs its bytes x the best rate of its kind in the job. All else is waiting or compute beside it (asynchronous
    calls), and stays in the block, as do calls without a cost model (broadcasts).
    """
    carried = [size * imbalance for size in _mean_tokens_bytes(job)]
    rates = _rates(job, costs, carried)
    sent: dict[tuple[int, int], list[list[tuple[float, float]]]] = defaultdict(lambda: [[], []])
    blocks = [job.named(name) for name in BLOCKS]
    for phase, operations in enumerate(blocks):
        for call in (call for operation in operations for call in operation.calls):
            kind, group = kind_of(job, call)
            if kind != NO_COMM:
                size = carried[phase] if kind == ALL_TO_ALL else call.bytes
                sent[kind, group][phase].append((size, size * rates[call.group, call.name]))
    number = [len(operations) for operations in blocks]
    return [_comm(kind, group, calls, number, a_block, job) for (kind, group), calls in sorted(sent.items())]


def _mean_tokens_bytes(job: Job) -> Phases:
    """Bytes that a rank sends in an all-to-all of experts, in a forward and a backward: those out are every rank's own tokens,
    those back what it got; the first of each pair is the mean of all ranks."""
    sizes: list[list[float]] = [[], []]
    for phase, name in enumerate(BLOCKS):
        for operation in job.named(name):
            calls = [call.bytes for call in operation.expert_exchanges]
            sizes[phase] += calls[::2] if len(calls) % 2 == 0 else calls
    return float(np.mean(sizes[0] or [0.0])), float(np.mean(sizes[1] or [0.0]))


def kind_of(job: Job, call: Call) -> tuple[int, int]:
    """Collective and group of a call inside a block; NO_COMM where it has no cost model."""
    group = GROUP_OF_CALL.get(call.group, -1)
    kind = KIND_OF_CALL.get(call.name, NO_COMM)
    spans = (group == TP and job.layout.tp > 1) or group == EP  # what one rank sends to the others is known
    return (kind, group) if spans and call.bytes > 0 else (NO_COMM, -1)


def _rates(job: Job, costs: Costs, carried: Sequence[float]) -> dict[tuple[str, str], float]:
    """Seconds per byte of each kind of call: the best of the large ones. `carried`: bytes of an all-to-all by phase."""
    sizes_and_seconds: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            for c, call in enumerate(operation.calls):
                if call.bytes > 0:
                    tokens = operation.name in BLOCKS and kind_of(job, call)[0] == ALL_TO_ALL
                    size = carried[BLOCKS.index(operation.name)] if tokens else call.bytes
                    sizes_and_seconds[call.group, call.name].append((size, costs.get((number, k, c), call.duration_s)))
    rates = {}
    for kind, calls in sizes_and_seconds.items():
        size, seconds = np.array(calls).T
        large = size >= LARGE * size.max()
        rates[kind] = float(np.quantile(seconds[large] / size[large], BEST, method="higher"))
    return rates


def _comm(kind: int, group: int, sent: list[list[tuple[float, float]]], blocks: list[int], a_block: float, job: Job) -> Comm:
    """Calls of one kind per layer: those of a block over its layers, rounded up; total bytes and seconds are kept.

    `sent`: bytes and seconds of each call, by phase.
    """
    calls, size, seconds = [0, 0], [0.0, 0.0], [0.0, 0.0]
    whole = job.layout.ep if group == EP else job.layout.tp
    for phase in range(2):
        if not (sent[phase] and blocks[phase]):
            continue
        layers = blocks[phase] * a_block
        calls[phase] = max(int(np.ceil(len(sent[phase]) / layers - 1e-6)), 1)
        size[phase] = sum(bytes_ for bytes_, _ in sent[phase]) / layers / calls[phase]
        size[phase] *= whole if kind == ALL_GATHER else 1  # a call records its own input, a gather's tensor is the group's
        if whole > 1:  # a group of one copies in memory, which is compute
            seconds[phase] = sum(cost_s for _, cost_s in sent[phase]) / layers
    return Comm(kind=kind, group=group, calls=(calls[0], calls[1]), bytes=(size[0], size[1]), seconds=(seconds[0], seconds[1]))


LIGHTER: Final = 0.02
"""Part of a block by which an end stage may be faster than the inner ones without a note."""

UNEVEN: Final = 1.5
"""Times between the calls of the first layer and those of the last that differ by more are not those of equal layers."""


def split(job: Job, stages: Stages, inside_s: Phases, a_block: float, notes: list[str]) -> tuple[Phases, Phases, Phases]:
    """Compute of an inner stage's block, and the extra compute per micro-batch of the first and the last stage.

    Idle gaps count as compute. `inside_s` is the seconds of collectives, whose cost is computed separately. Without an inner
    stage, the time from layer to layer inside the blocks says what is a layer's; else what the ends have in common is.
    """
    ga, vpp = job.layout.ga, job.layout.vpp
    blocks = ga * vpp
    own: list[Phases] = []
    gaps: list[float] = []
    for stage in stages.stages:
        gaps.append(sum(step.gap_s for step in stage.steps if step.parts) / (2 * blocks))
        forward_s, backward_s = block_s(stage)
        own.append((max(forward_s - inside_s[0] + gaps[-1], 0.0), max(backward_s - inside_s[1] + gaps[-1], 0.0)))
    last = len(own) - 1
    inner = [s for s in range(1, last) if not stages.stages[s].inferred]
    if inner:
        layer_s = fmean(own[s][0] for s in inner), fmean(own[s][1] for s in inner)
    else:
        layer_s = min(own[0][0], own[last][0]), min(own[0][1], own[last][1])
        paces = [_pace_s(job, name, a_block) for name in BLOCKS]
        if last > 0 and None not in paces:
            paced = [max(pace * a_block - s + min(gaps), 0.0) for pace, s in zip(paces, inside_s, strict=True)]  # type: ignore[operator]
            layer_s = min(layer_s[0], paced[0]), min(layer_s[1], paced[1])
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


def _pace_s(job: Job, name: str, a_block: float) -> float | None:
    """Seconds from layer to layer inside the blocks of this name: from the end of a call to that of the same call of the last
    layer. None where no kind of call is made equally often by each of several layers."""
    layers = round(a_block)
    if layers < 2 or layers != a_block:
        return None
    paces = [pace for operation in job.named(name) if (pace := _pace_of(operation, layers)) is not None]
    return fmean(paces) if paces else None


def _pace_of(operation: Operation, layers: int) -> float | None:
    """Every layer makes the same calls, at least two: each of them says how far it is from the first layer to the last."""
    counts = Counter((call.group, call.name) for call in operation.calls if call.group in ("exp", "tp"))
    regular = [kind for kind, count in counts.most_common() if count % layers == 0 and count // layers > 1]
    if not regular:
        return None
    ends = [call.begin_s + call.duration_s for call in operation.calls if (call.group, call.name) == regular[0]]
    of_layer = len(ends) // layers
    spans = [last - first for first, last in zip(ends[:of_layer], ends[-of_layer:], strict=True)]
    return spans[0] / (layers - 1) if max(spans) <= UNEVEN * min(spans) else None


DTYPE_OF_WIDTH: Final = {2.0: "bf16", 4.0: "fp32"}


def layer_of(job: Job, once: Once, a_stage: float) -> RecordedLayer | None:
    """Sizes of a layer, `a_stage` of them on a stage; None where no pipeline message or no dense gradient tells them."""
    widths = [message.width for message in job.messages if message.width in DTYPE_OF_WIDTH]
    reduced = (once.step.role == REDUCE_GRADIENTS) & (once.step.comm_group == DP)
    elements = float(once.step.comm_bytes[reduced].sum()) / once.width * (1 - once.shares.ends)
    hidden = hidden_of(job)
    if not widths or not hidden or hidden != int(hidden) or not elements > 0:
        return None
    return RecordedLayer(hidden=int(hidden), parameters=elements / a_stage, dtype=DTYPE_OF_WIDTH[widths[0]])


def moving_notes(layer: RecordedLayer | None, experts: int | None) -> Iterator[tuple[str, str]]:
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


ONCE_A_STEP: Final = ("dp_allreduce", *EXPERT_REDUCTIONS, EMBEDDING_REDUCTION, OPTIMIZER)
RECORDED: Final = {"overlap_grad": False, "overlap_param": False}
"""Nothing overlaps inside a rank of these traces: every operation ends in a synchronisation."""
FASTEST: Final = 4e12
"""Bytes/s that no rank sends to others: NVLink 6 has 1.8 TB/s in each direction (NVIDIA, Rubin)."""
PIPELINE: Final = len(GROUP_NAMES)
"""The group of pipeline messages among recorded ones."""


def workload_from_job(job: Job, facts: Facts) -> Workload:
    """The workload of a job. `facts` may give `sequence` and `micro_batch` if its messages lack them."""
    layout, sequence = job.layout, facts.sequence
    micro_batch = facts.micro_batch or layout.micro_batch
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
    p2p_bytes = _message_bytes(job, (sequence or 0) * micro_batch / (layout.tp if sharded else 1))
    base = BasePlan(
        tp=layout.tp,
        pp=layout.pp,
        vpp=layout.vpp,
        ep=layout.ep,
        all_gpus=layout.tp * layout.pp * layout.dp,
        ga=layout.ga,
        micro_batch=micro_batch,
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
        measured_on=facts.measured_on,
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
    sent = [message.bytes for message in job.messages]
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
) -> tuple[Pieces, Ints, tuple[str, ...], int, int]:
    """Unit 0 is the layer; extra work of the end stages, if any, is in separate units. And the rules of compute."""
    none = (0.0, 0.0)
    loaded_s = none if load is None else (min(load.loaded_s[0], layer_s[0]), min(load.loaded_s[1], layer_s[1]))
    rest_s = (layer_s[0] - loaded_s[0], layer_s[1] - loaded_s[1])
    rows: list[tuple[int, str, Phases, Comm | None, tuple[int, int]]] = [(0, "layer", rest_s, None, (0, 0))]
    rules = [moving.COMPUTE]
    if load is not None:  # the weights' part of the layer is known with the hardware (costing/recorded.py)
        rows += [(0, "expert weights", none, None, (0, 0)), (0, "experts", loaded_s, None, (0, 0))]
        rules += [moving.EXPERT_WEIGHTS, moving.EXPERT_LOAD]
    for sent in comms:
        rows += [
            (0, "collective", none, sent, (int(k < sent.calls[0]), int(k < sent.calls[1]))) for k in range(max(sent.calls))
        ]
    ends = []
    for name, extra in (("first stage", first_s), ("last stage", last_s)):
        ends.append(rows[-1][0] + 1 if sum(extra) > 0 else -1)
        if sum(extra) > 0:
            rows.append((ends[-1], name, extra, None, (0, 0)))
    pieces = no_work(len(rows))._replace(
        unit=np.array([row[0] for row in rows], np.int64),
        compute_s=np.array([(f, b / 2, b / 2) for _, _, (f, b), _, _ in rows]),  # two products, each like the forward's
    )
    for r, (_, _, _, comm, on) in enumerate(rows):
        for at, phase in enumerate((FORWARD, INPUT_GRADIENT)):
            if comm is not None and on[at]:
                pieces.comm_kind[r, phase], pieces.comm_group[r, phase] = comm.kind, comm.group
                pieces.comm_bytes[r, phase] = comm.bytes[at]
                pieces.comm_rule[r, phase] = moving.EXPERT_LOAD if comm.group == EP else moving.ACTIVATION
    rules += [moving.COMPUTE] * (len(rows) - len(rules))
    return pieces, np.array(rules, np.int64), tuple(row[1] for row in rows), ends[0], ends[1]


def _is_sequence_parallel(job: Job) -> bool:
    """Whether activations between layers are split over TP: gathered and scattered there, not reduced."""
    calls = (call for operation in job.operations for call in operation.calls)
    return job.layout.tp > 1 and any(call.group == "tp" and call.name in ("allgather", "reduce_scatter") for call in calls)


def _note_what_is_left_out(job: Job, notes: list[str]) -> None:
    """Notes about operations that only the replay supports."""
    seconds: dict[str, float] = defaultdict(float)
    for operation in job.operations:
        if not operation.parts and operation.name not in (*BLOCKS, "get_batch", "loss_func", *ONCE_A_STEP):
            seconds[operation.name] += operation.duration_s / len(job.ranks)
    for name, total_s in seconds.items():
        notes.append(f"{name} ({short(total_s, 's')} per step) is not in the sweep, only in the replay")
