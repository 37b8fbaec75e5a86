"""What the messages and blocks of a stage do to each other that share its NICs.

Pipeline messages in the background share them with the messages of the blocks beside them; so do streams: parameters that a
stage gathers, gradients that it reduces.
"""

import numpy as np

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.costing.case import Case
from sim_core.costing.fabric import beside_stream, left_beside, shared_s
from sim_core.costing.groups import Groups, between_nodes
from sim_core.engine.codes import rounds_of
from sim_core.engine.program import (
    CLEARED,
    CROWDED,
    DOWN,
    KINDS,
    LATER,
    LONGER,
    MESSAGES,
    OWN,
    PAIR,
    QUEUES,
    READY,
    SENT,
    STREAMS,
    UP,
    WEIGHT,
    sender_of,
)
from sim_core.engine.schedules import DEEPSPEED, LOOP, ONE_F_ONE_B, PAIRS, SPLITS
from sim_core.metrics import CP_TOTAL, DP_TOTAL, EP_TOTAL, PP_TOTAL, TP_TOTAL
from sim_core.planning.columns import Plan
from sim_core.step.gradients import cost_gradients
from sim_core.step.scratch import Scratch
from sim_core.terms import CP_A2A, CP_RING, EP, TP

ALL = 0
OPEN = 1
FREE = 2
"""Columns of `Lowered.nic_s`: all messages of a block, those that nothing hides, and the part of it that has none."""
NOTHING_S = 1e-300
"""Seconds that a stream gets through beside a block of no time: no part of it is then missing."""


@inner_kernel
def in_background(plan: Plan) -> bool:
    """Whether pipeline messages are sent while the stage computes."""
    return bool((plan.overlap_pp == 1 or SPLITS[plan.schedule]) and plan.schedule != DEEPSPEED)


@inner_kernel
def link_of(case: Case, way: int, stage: int, chunk: int) -> int:
    """The link that the message of a block leaves by: k is between stages k and k + 1 (the last: to the first); -1: none."""
    pp = case.plan.pp
    if case.placement == LOOP and pp > 1:
        if way == DOWN:
            return stage if stage < pp - 1 or chunk < case.plan.vpp - 1 else -1
        return stage - 1 if stage > 0 else (pp - 1 if chunk > 0 else -1)
    back = UP if way == DOWN else DOWN
    there = sender_of(case.placement, back, stage, chunk, pp, case.chunks) // case.chunks  # that sends back
    return -1 if there < 0 or there == stage else min(stage, there)


@inner_kernel
def count_carried(case: Case, scratch: Scratch) -> None:
    """What the NICs of each stage carry in the pipeline: messages of its blocks, and those that they send on (`sent_s`)."""
    low, sent_s, nic_s, send_nic_s = scratch.low, scratch.program.sent_s, scratch.low.nic_s, scratch.low.send_nic_s
    rounds = rounds_of(case.plan.schedule, case.plan.ga)
    for stage in range(case.plan.pp):
        carried_s = 0.0
        for chunk in range(case.chunks):
            cell = stage * case.chunks + chunk
            for way in (DOWN, UP):
                link = link_of(case, way, stage, chunk)
                sent_s[way, cell] = send_nic_s[link] if link >= 0 else 0.0
                carried_s += nic_s[way, cell, ALL]
                carried_s += sent_s[way, cell]
        low.carried_s[stage] = carried_s * rounds


@inner_kernel
def share_sends(case: Case, scratch: Scratch) -> None:
    """Lengthen pipeline messages beside blocks, one beside each block that sends, and pairs; say how much longer blocks are.

    A forward beside a backward of the stage's other chunk takes as long as the NICs need for both.
    """
    plan, program, low, later_s = case.plan, scratch.program, scratch.low, scratch.longer.sends_s
    pp, chunks, pairs = plan.pp, case.chunks, PAIRS[plan.schedule]
    later_s[:] = 0.0
    program.shares[:], program.left[:], program.slower[:] = False, 1.0, 1.0
    if pairs:
        low.pairs_s[: pp * chunks] = 0.0
    alone = chunks * rounds_of(plan.schedule, plan.ga) == 1  # nothing follows a block but the backward that waits for others
    if pp == 1 or alone or not case.shares or not in_background(plan):
        return
    # before all but 1 of pp blocks of 1F1B a stage waits for a message as long as its own takes (the window of its schedule)
    part = 1.0 / pp if plan.schedule == ONE_F_ONE_B and chunks == 1 else 1.0
    beside_s, nic_s, duration_s = program.beside_s, low.nic_s, program.duration_s
    beside_s[CROWDED : CLEARED + 2, : pp * chunks] = 0.0
    for stage in range(pp):
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            for way in (DOWN, UP):
                free_s, all_s = nic_s[way, cell, FREE], nic_s[way, cell, ALL]
                sent_s, block_s = program.sent_s[way, cell] - free_s, duration_s[way, cell] - free_s  # that meet
                if sent_s <= 0 or all_s <= 0:
                    continue
                more_s = shared_s(block_s, nic_s[way, cell, OPEN], all_s, min(sent_s, block_s))
                beside_s[CROWDED + way, cell], beside_s[CLEARED + way, cell] = more_s, more_s / sent_s
                program.shares[MESSAGES] = True
                link = link_of(case, way, stage, chunk)
                senders = chunks - 1 if case.placement == LOOP and link == pp - 1 else chunks
                later_s[way, (link + 1) % pp if way == DOWN else link] += part * sent_s * min(all_s / block_s, 1.0) / senders
    _fill_queues(case, scratch)
    if program.shares[QUEUES]:
        later_s[:] = 0.0
    for way in (DOWN, UP):
        for stage in range(pp):
            program.message_s[way, stage] += later_s[way, stage]
    if pairs:
        _lengthen_pairs(case, scratch)


@inner_kernel
def _lengthen_pairs(case: Case, scratch: Scratch) -> None:
    """A pair takes as long as the NICs need for both of its blocks, and for their messages unless these queue."""
    low, program, duration_s, nic_s = scratch.low, scratch.program, scratch.program.duration_s, scratch.low.nic_s
    for stage in range(case.plan.pp):
        for chunk in range(2):
            cell, other = stage * 2 + chunk, 1 - chunk
            busy_s = nic_s[DOWN, cell, ALL] + nic_s[UP, stage * 2 + other, ALL]
            if not program.shares[QUEUES]:
                busy_s += program.sent_s[DOWN, cell] + program.sent_s[UP, stage * 2 + other]
            low.pairs_s[cell] = max(busy_s - duration_s[PAIR, cell], 0.0)
            duration_s[PAIR, cell] += low.pairs_s[cell]


@inner_kernel
def _fill_queues(case: Case, scratch: Scratch) -> None:
    """Whether messages queue: one can wait for others where these need a stage's NICs for more than its least block."""
    program, schedule, chunks, later_s = scratch.program, case.plan.schedule, case.chunks, scratch.longer.sends_s
    duration_s, sent_s, pairs, crowds = program.duration_s, program.sent_s, PAIRS[schedule], program.shares[MESSAGES]
    for stage in range(case.plan.pp):
        first, most_s, least_s = stage * chunks, 0.0, np.inf
        for chunk in range(chunks):
            cell = first + chunk
            for way in (DOWN, UP):
                seconds, block_s = sent_s[way, cell], duration_s[way, cell]
                if seconds <= 0:
                    continue
                if way == UP and SPLITS[schedule]:
                    block_s -= duration_s[WEIGHT, cell]
                if crowds:
                    link = link_of(case, way, stage, chunk)
                    seconds += later_s[way, (link + 1) % case.plan.pp if way == DOWN else link]
                most_s, least_s = max(most_s, seconds), min(least_s, block_s)
        if pairs:
            for cell in range(first, first + 2):
                most_s = max(most_s, sent_s[DOWN, cell] + sent_s[UP, 2 * first + 1 - cell])
                least_s = min(least_s, duration_s[PAIR, cell])
        program.shares[QUEUES] |= most_s > least_s
    for cell in range(case.plan.pp * chunks if program.shares[QUEUES] else 0):
        for way in (DOWN, UP):
            program.busy_s[way, cell] = scratch.low.nic_s[way, cell, ALL]


@outer_kernel
def owner_of(plan: Plan, groups: Groups, row: int) -> int:
    """The total of the messages between nodes in blocks, a metric; `row` of `groups` is the plan's."""
    if between_nodes(groups, row, EP):
        return EP_TOTAL
    if between_nodes(groups, row, CP_RING) or between_nodes(groups, row, CP_A2A):
        return CP_TOTAL
    if between_nodes(groups, row, TP):
        return TP_TOTAL
    return PP_TOTAL if PAIRS[plan.schedule] else DP_TOTAL


@inner_kernel
def fill_beside(case: Case, scratch: Scratch, way: int, stage: int, rate: float) -> None:
    """Fill the rows of a direction in `beside_s`, for a stage whose stream needs the NICs for the part `rate` of its time.

    Where `rate` is 0 it shares nothing. What is like the last that was worked out is not worked out again. No
    parameters are on their way any more when the first forward of the last chunk has ended, and sends its message on.
    """
    program, low, last, shares = scratch.program, scratch.low, scratch.low.beside, rate > 0
    beside_s, duration_s, nic_s = program.beside_s, program.duration_s, low.nic_s
    program.shares[STREAMS] |= shares
    if shares:
        program.left[way, stage], program.slower[way, stage] = left_beside(rate), max(2.0 * rate, 1.0)
    for chunk in range(case.chunks):
        cell = stage * case.chunks + chunk
        longer_s, gone_s, sent_s = 0.0, 1.0, 0.0
        if shares:
            if (way == UP or chunk < case.chunks - 1) and not program.shares[QUEUES]:
                sent_s = program.sent_s[way, cell]
            free_s, all_s, open_s = nic_s[way, cell, FREE], nic_s[way, cell, ALL], nic_s[way, cell, OPEN]
            block_s = duration_s[way, cell] - free_s
            alike = last[0] == rate and last[1] == block_s and last[2] == open_s and last[3] == all_s and last[4] == sent_s
            if not alike:
                longer_s, gone_s = beside_stream(block_s, open_s, all_s, sent_s, rate)
                if not longer_s + gone_s < np.inf:  # nor is the step; lanes multiply what is left of it by 0
                    longer_s, gone_s = 0.0, 1.0
                last[0], last[1], last[2], last[3], last[4] = rate, block_s, open_s, all_s, sent_s
                last[5], last[6] = longer_s, max(gone_s, NOTHING_S)
            longer_s, gone_s = last[5], last[6] + free_s
        beside_s[LATER + way, cell] = sent_s * (1.0 / left_beside(rate) - 1.0) if sent_s > 0 else 0.0
        beside_s[KINDS * way + LONGER, cell] = longer_s
        beside_s[KINDS * way + SENT, cell] = gone_s


@inner_kernel
def cost_last_backwards(case: Case, scratch: Scratch) -> None:
    """Fill what `beside_s` says of backwards and gradients. Of n buckets n - 1 are ready before the backward ends."""
    plan, chunks, beside_s = case.plan, case.chunks, scratch.program.beside_s
    scratch.buckets.costed[:] = False
    if not case.shares or plan.overlap_grad == 0 or SPLITS[plan.schedule]:
        for cell in range(plan.pp * chunks):
            beside_s[KINDS + LONGER, cell], beside_s[KINDS + SENT, cell] = 0.0, 1.0
            beside_s[READY, cell], beside_s[OWN, cell] = 0.0, 0.0
        return
    latest, before_last = 0.0, 0.0  # buckets of a chunk, and the part of them that is ready
    for stage in range(plan.pp):
        whole_s, nic_s = 0.0, 0.0
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            number, total_s, of_nics = cost_gradients(case, chunk * plan.pp + stage, scratch.buckets)
            if number != latest:
                latest, before_last = number, 1.0 - 1.0 / number
            beside_s[OWN, cell], beside_s[READY, cell] = total_s, before_last
            whole_s += total_s
            nic_s += of_nics
        fill_beside(case, scratch, UP, stage, nic_s / whole_s if nic_s > 0 else 0.0)
        for cell in range(stage * chunks, (stage + 1) * chunks):
            if nic_s <= 0:
                beside_s[OWN, cell] = 0.0
            beside_s[READY, cell] *= min(beside_s[OWN, cell], beside_s[KINDS + SENT, cell])
