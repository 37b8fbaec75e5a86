"""What a block and a stream of messages beside it do to each other: parameters that its stage gathers, gradients it reduces."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim_core.costing.case import Case, shares_nics
from sim_core.costing.fabric import beside_stream, left_beside
from sim_core.engine.codes import chunks_of
from sim_core.engine.events import DOWN, STREAMS, UP, Program
from sim_core.engine.schedules import SPLITS
from sim_core.engine.streams import KINDS, LATER, LONGER, OWN, READY, SENT
from sim_core.jit import inlined_kernel
from sim_core.planning.columns import Plan
from sim_core.step.buckets import Buckets, cost_gradients
from sim_core.step.lower import Lowered
from sim_core.step.nics import ALL, OPEN, sends_of

NOTHING_S: Final = 1e-300
"""Seconds that a stream gets through beside a block of no time: no part of it is then missing."""


@inlined_kernel
def fill_beside(plan: Plan, low: Lowered, program: Program, way: int, stage: int, rate: float) -> None:
    """Fill the rows of a direction in `beside_s`, for a stage whose stream needs the NICs for the part `rate` of its time.

    Where `rate` is 0 it shares nothing. Chunks that are alike are worked out once. No parameters are on their way any more when
    the first forward of the last chunk has ended, and sends its message on.
    """
    chunks, beside_s, duration_s, nic_s = chunks_of(plan.schedule, plan.vpp), program.beside_s, program.duration_s, low.nic_s
    block_s, sent_s, all_s, open_s = -1.0, 0.0, 0.0, 0.0
    longer_s, gone_s = 0.0, 1.0
    program.shares[STREAMS] |= rate > 0
    for chunk in range(chunks):
        cell = stage * chunks + chunk
        now_sent_s = 0.0
        if rate > 0 and (way == UP or chunk < chunks - 1):
            now_sent_s = sends_of(low, plan, way, stage, chunk)
        alike = duration_s[way, cell] == block_s and now_sent_s == sent_s
        alike = alike and nic_s[way, cell, ALL] == all_s and nic_s[way, cell, OPEN] == open_s
        if rate > 0 and not alike:
            block_s, sent_s, all_s, open_s = duration_s[way, cell], now_sent_s, nic_s[way, cell, ALL], nic_s[way, cell, OPEN]
            longer_s, gone_s = beside_stream(block_s, open_s, all_s, sent_s, rate)
            if not longer_s + gone_s < np.inf:  # nor is the step; lanes multiply what is left of it by 0
                longer_s, gone_s = 0.0, 1.0
            gone_s = max(gone_s, NOTHING_S)
        if way == DOWN:
            beside_s[LATER, cell] = now_sent_s * (1.0 / left_beside(rate) - 1.0) if now_sent_s > 0 else 0.0
        beside_s[KINDS * way + LONGER, cell] = longer_s
        beside_s[KINDS * way + SENT, cell] = gone_s


@inlined_kernel
def cost_last_backwards(case: Case, low: Lowered, program: Program, buckets: Buckets) -> None:
    """Fill what `beside_s` says of backwards and gradients. Of n buckets n - 1 are ready before the backward ends."""
    plan, beside_s = case.plan, program.beside_s
    chunks = chunks_of(plan.schedule, plan.vpp)
    buckets.costed[:] = False
    if not shares_nics(case) or plan.overlap_grad == 0 or SPLITS[plan.schedule]:
        for cell in range(plan.pp * chunks):
            beside_s[KINDS + LONGER, cell], beside_s[KINDS + SENT, cell] = 0.0, 1.0
            beside_s[READY, cell], beside_s[OWN, cell] = 0.0, 0.0
        return
    latest, before_last = 0.0, 0.0  # buckets of a chunk, and the part of them that is ready
    for stage in range(plan.pp):
        whole_s, nic_s = 0.0, 0.0
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            number, total_s, of_nics = cost_gradients(case, chunk * plan.pp + stage, buckets)
            if number != latest:
                latest, before_last = number, 1.0 - 1.0 / number
            beside_s[OWN, cell], beside_s[READY, cell] = total_s, before_last
            whole_s += total_s
            nic_s += of_nics
        fill_beside(plan, low, program, UP, stage, nic_s / whole_s if nic_s > 0 else 0.0)
        for cell in range(stage * chunks, (stage + 1) * chunks):
            if nic_s <= 0:
                beside_s[OWN, cell] = 0.0
            beside_s[READY, cell] *= min(beside_s[OWN, cell], beside_s[KINDS + SENT, cell])
