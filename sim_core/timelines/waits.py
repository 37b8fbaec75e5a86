"""What stages do and wait for between their blocks and after them: messages, other stages, parameters, gradients, optimizer."""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.lanes import END_S, MESSAGE_S, STAGE
from sim_core.engine.schedules import BOTH_WAYS, DEEPSPEED, LOOP, PLACEMENT, SPLITS, V
from sim_core.metrics import PARTS, STEP_TIME
from sim_core.planning.columns import Plan
from sim_core.simulator import Ran
from sim_core.terms import EMBEDDING
from sim_core.timelines.blocks import Timed, part_of_owner
from sim_core.timelines.spans import (
    BACKWARD,
    BUBBLE_PART,
    COLLECTIVE,
    COMPUTE,
    CONTENTION,
    DP_PART,
    FORWARD,
    GATHER,
    GRADIENT_WAIT,
    HOST_WAIT,
    INPUT_GRADIENT,
    MESSAGE_WAIT,
    OFFLOAD_PART,
    OPTIMIZER_PART,
    OPTIMIZER_STEP,
    PARAMETER_WAIT,
    PART_OF,
    PP_PART,
    QUEUE_WAIT,
    QUEUED_PART,
    SEND_DOWN,
    SEND_UP,
    SENDS,
    STAGE_WAIT,
    Spans,
    spans,
)
from sim_core.workloads.workload import AFTER_GRADIENTS, ONCE_ON_FIRST_STAGE


def wait_spans(ran: Ran, blocks: Timed) -> tuple[list[Spans], Floats]:
    """Waits of the pipeline and messages in the background; and when the message to a stage's first block is there, [stages].

    With post-validation no step but the first waits for that.
    """
    plan = ran.plan
    rows = np.flatnonzero(~blocks.second)  # of each pair, or the only one
    stage = blocks.stage[rows]
    start_s, end_s, ready_s, message_s, queued_s = (
        column[rows] for column in (blocks.start_s, blocks.end_s, blocks.ready_s, blocks.message_s, blocks.queued_s)
    )
    begins = np.concatenate(([True], stage[1:] != stage[:-1]))
    free_s = np.where(begins, 0.0, np.concatenate(([0.0], end_s[:-1])))
    if plan.post_validation == 1:
        free_s = np.where(begins, ready_s, free_s)
    gated = (blocks.micro_batch[rows] == 0) & (blocks.backward[rows] == 0)
    if plan.schedule == DEEPSPEED:
        gated_s = np.where(gated, ran.scratch.times.gated_s[stage], 0.0)
    else:
        gated_s = np.where(gated, np.maximum(start_s - ready_s, 0.0), 0.0)
    waited_s = start_s - free_s - gated_s
    queued_s = np.minimum(queued_s, np.maximum(waited_s, 0.0))
    each = np.arange(plan.pp)
    last = np.searchsorted(stage, each, side="right") - 1
    # end of the last event of each stage, and seconds of a message at most in what it waited for
    events = ran.events[np.argsort(ran.events[:, STAGE], kind="stable")]
    through_s, last_message_s = events[np.searchsorted(events[:, STAGE], each, side="right") - 1][:, (END_S, MESSAGE_S)].T
    ended_s = end_s[last]
    after_s = through_s - ended_s  # waiting until the last message has gone
    if plan.schedule == DEEPSPEED:
        of_slots = _part_of_messages(ran, plan, message_s[begins], ready_s[begins])
        message_s, last_message_s = waited_s * of_slots[stage], after_s * of_slots
    else:
        message_s, last_message_s = np.minimum(waited_s - queued_s, message_s), np.minimum(after_s, last_message_s)
    queue_end_s = free_s + waited_s - message_s
    idle_end_s = queue_end_s - queued_s
    waits = [
        _waits(stage, STAGE_WAIT, BUBBLE_PART, free_s, idle_end_s),
        _waits(stage, QUEUE_WAIT, QUEUED_PART, idle_end_s, queue_end_s),
        _waits(stage, MESSAGE_WAIT, PP_PART, queue_end_s, free_s + waited_s),
        _waits(stage, PARAMETER_WAIT, DP_PART, free_s + waited_s, start_s),
        _waits(each, STAGE_WAIT, BUBBLE_PART, ended_s, through_s - last_message_s),
        _waits(each, MESSAGE_WAIT, PP_PART, through_s - last_message_s, through_s),
    ]
    if plan.schedule != DEEPSPEED and (SPLITS[plan.schedule] or plan.overlap_pp == 1):
        waits.append(_background(ran, plan, blocks))
    return waits, ready_s[begins]


def _waits(stage: Ints, kind: int, part: int, start_s: Floats, end_s: Floats) -> Spans:
    parts = np.zeros((len(stage), len(PARTS)))
    parts[:, part] = end_s - start_s
    return spans(len(stage), stage=stage, stream=COMPUTE, kind=kind, start_s=start_s, end_s=end_s, parts=parts)


def _part_of_messages(ran: Ran, plan: Plan, first_cost_s: Floats, first_s: Floats) -> Floats:
    """The part of a stage's waits in slots that is messages, [stages]: a gap may hold several meetings, so one for all gaps.

    With post-validation without the wait for its first block, until `first_s`, at the end of which is a message.
    """
    exposed_s = ran.scratch.times.exposed_s[: plan.pp].copy()
    waited_s = exposed_s + ran.scratch.times.idle_s[: plan.pp]
    if plan.post_validation == 1:
        exposed_s -= first_cost_s
        waited_s -= first_s
    return exposed_s / np.maximum(waited_s, 1e-300)


def _senders(plan: Plan) -> Ints:
    """The cell that sends to each cell, by direction, -1: none; [2, cells]."""
    placement, chunks = int(PLACEMENT[plan.schedule]), chunks_of(plan.schedule, plan.vpp)
    place = {}  # the cell of each virtual stage, in each copy of the model
    for cell in range(plan.pp * chunks):
        stage, chunk = divmod(cell, chunks)
        place[chunk if placement == BOTH_WAYS else 0, virtual_of(placement, stage, chunk, plan.pp)] = cell
    by_cell = sorted(place, key=lambda virtual: place[virtual])
    return np.array([[place.get((copy, virtual + step), -1) for copy, virtual in by_cell] for step in (-1, 1)])


def arrows_between(ran: Ran, drawn: Spans) -> Ints:
    """Rows of the blocks of which one sends to the other, on another stage, [n, 2]."""
    plan = ran.plan
    chunks, sender_of = chunks_of(plan.schedule, plan.vpp), _senders(plan)
    rows = np.flatnonzero(np.isin(drawn.kind, (FORWARD, BACKWARD, INPUT_GRADIENT)))
    way, micro_batch = (drawn.kind[rows] != FORWARD).astype(int), drawn.micro_batch[rows]
    cell = drawn.stage[rows] * chunks + drawn.chunk[rows]
    row_of = np.full((*sender_of.shape, int(micro_batch.max()) + 1), -1)
    row_of[way, cell, micro_batch] = rows
    sender = sender_of[way, cell]
    sent_by = np.where(sender >= 0, row_of[way, sender, micro_batch], -1)
    away = (sent_by >= 0) & (sender // chunks != drawn.stage[rows])
    return np.column_stack((sent_by[away], rows[away]))


def _background(ran: Ran, plan: Plan, blocks: Timed) -> Spans:
    """Messages behind the blocks, on the stage that sends them."""
    chunks = chunks_of(plan.schedule, plan.vpp)
    rows = np.flatnonzero(blocks.cost_s > 0)
    way, stage, sent_s = blocks.backward[rows], blocks.stage[rows], blocks.sent_s[rows]
    sender = _senders(plan)[way, stage * chunks + blocks.chunk[rows]]
    # the message goes over the link into the stage further down; one from the last stage to the first into the receiver
    link = np.where(way == 1, np.minimum(stage, sender // chunks), np.maximum(stage, sender // chunks))
    link = stage if PLACEMENT[plan.schedule] == LOOP else link
    return spans(
        len(rows),
        stage=sender // chunks,
        stream=SENDS,
        kind=np.where(way == 1, SEND_UP, SEND_DOWN),
        chunk=sender % chunks,
        micro_batch=blocks.micro_batch[rows],
        start_s=sent_s,
        end_s=sent_s + blocks.cost_s[rows],
        shared_s=ran.scratch.longer.sends_s[way, link],
    )


def after_spans(ran: Ran, first_s: Floats) -> list[Spans]:
    """Spans of each stage from the end of its pipeline on; `first_s[stages]`: its first block, when its message has arrived.

    With post-validation a stage goes on at once; it waits for the slowest one only once a step.
    """
    plan, scratch = ran.plan, ran.scratch
    stage = np.arange(plan.pp)
    step_s = float(ran.metrics[STEP_TIME])
    free_s, reduced_s, full_s = (
        column[: plan.pp] for column in (scratch.times.free_s, scratch.once.reduced_s, scratch.longer.full_s)
    )
    barrier_s = reduced_s if plan.post_validation == 1 else np.full(plan.pp, reduced_s.max())
    after = [
        _waits(stage, GRADIENT_WAIT, DP_PART, free_s, reduced_s - full_s),
        _waits(stage, CONTENTION, part_of_owner(ran), reduced_s - full_s, reduced_s)._replace(shared_s=full_s),
        _waits(stage, STAGE_WAIT, BUBBLE_PART, reduced_s, barrier_s),
    ]
    now_s = barrier_s
    for kind, part, seconds in _once(ran, plan):
        after.append(_waits(stage, kind, part, now_s, now_s + seconds))
        now_s = now_s + seconds
    gathered_s = barrier_s + scratch.low.after_s[: plan.pp]  # gathers that nothing hides, or what hidden ones cost
    kind = CONTENTION if plan.overlap_param == 1 else GATHER
    after.append(_waits(stage, kind, DP_PART, now_s, np.maximum(gathered_s, now_s)))
    last_s = first_s + step_s if plan.post_validation == 1 else np.full(plan.pp, step_s)
    after.append(_waits(stage, STAGE_WAIT, BUBBLE_PART, np.maximum(gathered_s, now_s), last_s))
    return after


def _once(ran: Ran, plan: Plan) -> list[tuple[int, int, Floats]]:
    """Work of each stage once a step, as `work_after` adds it up: kind, part, seconds [stages]."""
    step, once, split = ran.workload.arrays.step, ran.scratch.once, ran.tables.split
    first = int(split.stage_offset[split.key[0]])
    size = split.stage_size[first : first + plan.pp]
    stage = np.arange(plan.pp)
    slower = np.where(stage == plan.straggler_stage, plan.straggler_factor, 1.0)
    together = plan.pp > 1 and PLACEMENT[plan.schedule] == V
    at_end = ((stage == 0) | (stage == plan.pp - 1)) & (not together)
    work = []
    optimizer_s = once.update_s[: plan.pp] * slower
    for k in range(len(step.role)):
        here = (step.role[k] == AFTER_GRADIENTS) | ((step.role[k] == ONCE_ON_FIRST_STAGE) & (stage == 0))
        optimizer_s = optimizer_s + np.where(here, once.compute_s[size, k] * slower, 0.0)
        sends = here & (at_end if step.comm_group[k] == EMBEDDING else True)
        seconds = np.where(sends, once.comm_s[size, k], 0.0)
        if seconds.any():
            part = PART_OF[int(TOTAL_OF[step.comm_group[k]]) + EXPOSED]
            work.append((COLLECTIVE, part, seconds))
    return [*work, (OPTIMIZER_STEP, OPTIMIZER_PART, optimizer_s), (HOST_WAIT, OFFLOAD_PART, once.host_s[: plan.pp])]
