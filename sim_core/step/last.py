"""Backwards while their stage reduces gradients over the same NICs."""

from __future__ import annotations

from sim_core.costing.case import Case, shares_nics
from sim_core.costing.fabric import beside_stream
from sim_core.engine.codes import SPLITS, chunks_of
from sim_core.engine.events import LONGER, OWN, READY, SENT, UP, Program
from sim_core.jit import inlined_kernel
from sim_core.step.buckets import Buckets, cost_gradients
from sim_core.step.lower import Lowered
from sim_core.step.nics import ALL, OPEN, sends_of


@inlined_kernel
def cost_last_backwards(case: Case, low: Lowered, program: Program, buckets: Buckets) -> None:
    """Fill `stream_s` of `program`: what a backward and the gradients of its stage do to each other while both send.

    Of n buckets n - 1 are ready before the backward of their layers ends.
    """
    plan = case.plan
    pp, chunks = plan.pp, chunks_of(plan.schedule, plan.vpp)
    stream_s = program.stream_s
    stream_s[:, : pp * chunks] = 0.0
    stream_s[SENT, : pp * chunks] = 1.0
    buckets.costed[:] = False
    if not shares_nics(case) or plan.overlap_grad == 0 or SPLITS[plan.schedule]:
        return
    for stage in range(pp):
        whole_s, nic_s = 0.0, 0.0
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            number, total_s, of_nics = cost_gradients(case, chunk * pp + stage, buckets)
            stream_s[OWN, cell], stream_s[READY, cell] = total_s, 1.0 - 1.0 / number
            whole_s += total_s
            nic_s += of_nics
        for chunk in range(chunks):
            cell = stage * chunks + chunk
            block_s, sent_s = program.duration_s[UP, cell], sends_of(low, plan, UP, stage, chunk)
            if block_s <= 0 or nic_s <= 0:
                stream_s[OWN, cell], stream_s[READY, cell] = 0.0, 0.0
                continue
            all_s, open_s = low.nic_s[UP, cell, ALL], low.nic_s[UP, cell, OPEN]
            longer_s, gone_s = beside_stream(block_s, open_s, all_s, sent_s, nic_s / whole_s)
            stream_s[LONGER, cell], stream_s[SENT, cell] = longer_s, gone_s
            stream_s[READY, cell] *= min(stream_s[OWN, cell], gone_s)
