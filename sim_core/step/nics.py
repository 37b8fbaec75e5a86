"""Pipeline messages in the background share the NICs with the messages of the blocks beside them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.costing.blocks import EXPOSED
from sim_core.costing.case import Case, shares_nics
from sim_core.costing.fabric import shared_s
from sim_core.costing.groups import between_nodes
from sim_core.engine.codes import DEEPSPEED, PAIRS, PLACEMENT, SPLITS, chunks_of, rounds_of
from sim_core.engine.events import DOWN, PAIR, UP, Program
from sim_core.engine.split_events import set_links
from sim_core.jit import inner_kernel
from sim_core.metrics import CP_TOTAL, EP_TOTAL, TP_TOTAL
from sim_core.planning.columns import Plan
from sim_core.step.lower import Lowered
from sim_core.terms import CP_A2A, CP_RING, EP

Floats = npt.NDArray[np.float64]

ALL: Final = 0
OPEN: Final = 1
"""Columns of `Lowered.nic_s`: all messages of a block, and those that nothing hides."""


@inner_kernel
def in_background(plan: Plan) -> bool:
    """Whether pipeline messages are sent while the stage computes."""
    return bool((plan.overlap_pp == 1 or SPLITS[plan.schedule]) and plan.schedule != DEEPSPEED)


@inner_kernel
def sends_of(low: Lowered, way: int, stage: int, pp: int) -> float:
    """Seconds of NICs for the message that a block of a stage sends on."""
    return float(low.send_nic_s[stage] if way == DOWN else low.send_nic_s[stage - 1 if stage > 0 else pp - 1])


@inner_kernel
def share_sends(case: Case, low: Lowered, program: Program, out: Floats) -> None:
    """Lengthen blocks and pipeline messages that are under way at the same time, one message beside each block."""
    plan = case.plan
    pp, chunks = plan.pp, chunks_of(plan.schedule, plan.vpp)
    if pp == 1 or not shares_nics(case) or not in_background(plan):
        return
    rounds, part = rounds_of(plan.schedule, plan.ga), _owner(case)
    nic_s, duration_s, message_s = low.nic_s, program.duration_s, program.message_s
    changed = False
    for stage in range(pp):
        for way in (DOWN, UP):
            sent_s = sends_of(low, way, stage, pp)
            slower_s = 0.0
            for chunk in range(chunks):
                cell = stage * chunks + chunk
                block_s, all_s = duration_s[way, cell], nic_s[way, cell, ALL]
                if sent_s <= 0 or all_s <= 0:
                    continue
                more_s = shared_s(block_s, nic_s[way, cell, OPEN], all_s, sent_s)
                duration_s[way, cell] += more_s
                slower_s += sent_s * min(all_s / block_s, 1.0) / chunks
                out[part] += more_s * rounds / pp
                out[part + EXPOSED] += more_s * rounds / pp
                changed = True
            if way == DOWN:
                message_s[DOWN, (stage + 1) % pp] += slower_s
            else:
                message_s[UP, stage - 1 if stage > 0 else pp - 1] += slower_s
    if not changed or not SPLITS[plan.schedule]:
        return
    set_links(PLACEMENT[plan.schedule], pp, chunks, program)
    for stage in range(pp if PAIRS[plan.schedule] else 0):
        for chunk in range(2):
            cell, beside = stage * 2 + chunk, stage * 2 + 1 - chunk
            busy_s = nic_s[DOWN, cell, ALL] + nic_s[UP, beside, ALL]
            busy_s += sends_of(low, DOWN, stage, pp) + sends_of(low, UP, stage, pp)
            duration_s[PAIR, cell] = max(duration_s[PAIR, cell], busy_s)


@inner_kernel
def _owner(case: Case) -> int:
    """The part of a step that the messages of blocks between nodes belong to."""
    if PAIRS[case.plan.schedule] or between_nodes(case.groups, case.group, EP):
        return EP_TOTAL
    if between_nodes(case.groups, case.group, CP_RING) or between_nodes(case.groups, case.group, CP_A2A):
        return CP_TOTAL
    return TP_TOTAL
