"""What stages wait for between their blocks: messages, other stages, parameters; and the messages themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import WEIGHTS, chunks_of
from sim_core.engine.events import DOWN, UP
from sim_core.engine.schedules import DEEPSPEED, PLACEMENT, SPLITS
from sim_core.engine.split_events import set_links
from sim_core.planning.columns import Plan, plan_at
from sim_core.simulator import Ran
from sim_core.timelines.blocks import Timed
from sim_core.timelines.spans import (
    BACKWARD,
    BUBBLE_PART,
    COMPUTE,
    DP_PART,
    FORWARD,
    INPUT_GRADIENT,
    MESSAGE_WAIT,
    PARAMETER_WAIT,
    PP_PART,
    SEND_DOWN,
    SEND_UP,
    SENDS,
    STAGE_WAIT,
    Spans,
    of_part,
    spans,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def wait_spans(ran: Ran, blocks: Timed) -> tuple[list[Spans], Floats]:
    """Waits of the pipeline and messages in the background; and when the message to a stage's first block is there, [stages].

    With post-validation no step but the first waits for that.
    """
    plan, times = plan_at(ran.plans, 0), ran.scratch.times
    cost_s, sent_s = _messages(ran, plan, blocks)
    second = blocks.second
    first = np.flatnonzero(~second)  # of each pair, or the only one
    stage, start_s = blocks.stage[first], blocks.start_s[first]
    begins = np.concatenate(([True], stage[1:] != stage[:-1]))
    free_s = np.where(begins, 0.0, np.concatenate(([0.0], blocks.end_s[first][:-1])))
    beside = np.append(second[1:], False)[first]
    other = np.minimum(first + 1, len(second) - 1)
    cost = np.where(beside, np.maximum(cost_s[first], cost_s[other]), cost_s[first])
    arrived_s = np.where(beside, np.maximum(sent_s[first] + cost_s[first], sent_s[other] + cost_s[other]), sent_s[first] + cost)
    ready_s = np.maximum(free_s, arrived_s)  # nan: nothing is sent to this block
    ready_s = np.where(np.isnan(ready_s), free_s, ready_s)
    if plan.post_validation == 1:
        free_s = np.where(begins, ready_s, free_s)
    gated = (blocks.micro_batch[first] == 0) & (blocks.backward[first] == 0)
    gated_s = np.where(gated, np.maximum(start_s - ready_s, 0.0), 0.0)
    waited_s = start_s - free_s - gated_s
    of_slots = np.zeros(plan.pp)
    if plan.schedule == DEEPSPEED:
        gated_s = np.where(gated, times.gated_s[stage], 0.0)
        waited_s = start_s - free_s - gated_s
        of_slots = _part_of_messages(ran, plan, np.nan_to_num(cost[begins]), ready_s[begins])
        message_s = waited_s * of_slots[stage]
    else:
        if _blocks_sender(plan):
            cost = np.maximum(np.nan_to_num(cost), _own_send(ran, plan, blocks, first, begins))
        message_s = np.minimum(waited_s, np.nan_to_num(cost))
    idle_end_s = free_s + waited_s - message_s
    found = [
        _waits(stage, STAGE_WAIT, BUBBLE_PART, free_s, idle_end_s),
        _waits(stage, MESSAGE_WAIT, PP_PART, idle_end_s, free_s + waited_s),
        _waits(stage, PARAMETER_WAIT, DP_PART, free_s + waited_s, start_s),
    ]
    found += _last_sends(ran, plan, blocks, of_slots)
    if not _blocks_sender(plan) and plan.schedule != DEEPSPEED:
        found.append(_background(ran, plan, blocks, cost_s, sent_s))
    return found, ready_s[begins]


def _blocks_sender(plan: Plan) -> bool:
    """Whether a stage waits until its message has gone (`_run_blocking` of the engine)."""
    return not SPLITS[plan.schedule] and plan.schedule != DEEPSPEED and plan.overlap_pp == 0 and plan.pp > 1


def _waits(stage: Ints, kind: int, part: int, start_s: Floats, end_s: Floats) -> Spans:
    seconds = end_s - start_s
    return spans(len(stage), stage=stage, stream=COMPUTE, kind=kind, start_s=start_s, end_s=end_s, parts=of_part(part, seconds))


def sources(ran: Ran, plan: Plan, message_s: Floats) -> tuple[Ints, Floats]:
    """The cell that sends to each cell, by direction, -1: none; and `message_s` of stages, of each cell, [2, cells]."""
    chunks, program = chunks_of(plan.schedule, plan.vpp), ran.scratch.program
    cells = plan.pp * chunks
    if SPLITS[plan.schedule]:
        program = program._replace(message_s=message_s, source=program.source.copy(), into_s=program.into_s.copy())
        set_links(int(PLACEMENT[plan.schedule]), plan.pp, chunks, program)
        return program.source[:, :cells], program.into_s[:, :cells]
    stage, chunk = np.divmod(np.arange(cells), chunks)
    down = np.where(stage > 0, (stage - 1) * chunks + chunk, np.where(chunk > 0, (plan.pp - 1) * chunks + chunk - 1, -1))
    last = stage == plan.pp - 1
    up = np.where(~last, (stage + 1) * chunks + chunk, np.where(chunk < chunks - 1, chunk + 1, -1))
    return np.stack((down, up)), message_s[:, stage]


def arrows_between(ran: Ran, found: Spans) -> Ints:
    """Rows of the blocks of which one sends to the other, on another stage, [n, 2]."""
    plan = plan_at(ran.plans, 0)
    chunks = chunks_of(plan.schedule, plan.vpp)
    source, _ = sources(ran, plan, ran.scratch.program.message_s)
    rows = np.flatnonzero(np.isin(found.kind, (FORWARD, BACKWARD, INPUT_GRADIENT)))
    way, micro_batch = (found.kind[rows] != FORWARD).astype(np.int64), found.micro_batch[rows]
    cell = found.stage[rows] * chunks + found.chunk[rows]
    row_of = np.full((*source.shape, int(micro_batch.max()) + 1), -1)
    row_of[way, cell, micro_batch] = rows
    sender = source[way, cell]
    sent_by = np.where(sender >= 0, row_of[way, sender, micro_batch], -1)
    away = (sent_by >= 0) & (sender // chunks != found.stage[rows])
    found_rows: Ints = np.column_stack((sent_by[away], rows[away]))
    return found_rows


def _messages(ran: Ran, plan: Plan, blocks: Timed) -> tuple[Floats, Floats]:
    """Cost of the message to each block, and when its sender has ended; NaN where nothing is sent."""
    chunks = chunks_of(plan.schedule, plan.vpp)
    rounds = int(blocks.micro_batch.max()) + 1
    cells = plan.pp * chunks
    end_s = np.full((2, cells, rounds), np.nan)
    cell = blocks.stage * chunks + blocks.chunk
    sends = blocks.part != WEIGHTS
    end_s[blocks.backward[sends], cell[sends], blocks.micro_batch[sends]] = blocks.end_s[sends]
    source, into_s = sources(ran, plan, ran.scratch.program.message_s)
    sender = source[blocks.backward, cell]
    none = (sender < 0) | ~sends
    cost = np.where(none, np.nan, into_s[blocks.backward, cell])
    return cost, np.where(none, np.nan, end_s[blocks.backward, sender, blocks.micro_batch])


def _own_send(ran: Ran, plan: Plan, blocks: Timed, first: Ints, begins: npt.NDArray[np.bool_]) -> Floats:
    """Cost of the message that the stage's block before sends, 0 if it sends none."""
    return np.where(begins, 0.0, np.concatenate(([0.0], _sent_by(ran, plan, blocks)[first][:-1])))


def _sent_by(ran: Ran, plan: Plan, blocks: Timed) -> Floats:
    """Cost of the message that each block sends, of a plan with one chunk a stage."""
    message_s, stage = ran.scratch.program.message_s, blocks.stage
    up = np.where(stage > 0, message_s[UP, np.maximum(stage - 1, 0)], 0.0)
    down = np.where(stage < plan.pp - 1, message_s[DOWN, np.minimum(stage + 1, plan.pp - 1)], 0.0)
    return np.where(blocks.backward == 1, up, down)


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


def _last_sends(ran: Ran, plan: Plan, blocks: Timed, of_slots: Floats) -> list[Spans]:
    """What each stage waits for its last message after its last block; `of_slots`: see `_part_of_messages`."""
    stage = np.arange(plan.pp)
    last = np.searchsorted(blocks.stage, stage, side="right") - 1
    end_s, free_s = blocks.end_s[last], ran.scratch.times.free_s[: plan.pp]
    if plan.schedule == DEEPSPEED:
        message_s = (free_s - end_s) * of_slots
    elif _blocks_sender(plan):
        message_s = np.minimum(free_s - end_s, _sent_by(ran, plan, blocks)[last])
    else:
        return []
    return [
        _waits(stage, STAGE_WAIT, BUBBLE_PART, end_s, free_s - message_s),
        _waits(stage, MESSAGE_WAIT, PP_PART, free_s - message_s, free_s),
    ]


def _background(ran: Ran, plan: Plan, blocks: Timed, cost_s: Floats, sent_s: Floats) -> Spans:
    """Messages behind the blocks, on the stage that sends them."""
    chunks = chunks_of(plan.schedule, plan.vpp)
    rows = np.flatnonzero(cost_s > 0)
    source, longer_s = sources(ran, plan, ran.scratch.low.longer.sends_s)
    receiver = blocks.backward[rows], blocks.stage[rows] * chunks + blocks.chunk[rows]
    sender = source[receiver]
    return spans(
        len(rows),
        stage=sender // chunks,
        stream=SENDS,
        kind=np.where(blocks.backward[rows] == 1, SEND_UP, SEND_DOWN),
        chunk=sender % chunks,
        micro_batch=blocks.micro_batch[rows],
        start_s=sent_s[rows],
        end_s=sent_s[rows] + cost_s[rows],
        shared_s=longer_s[receiver],
    )
