"""The last backward of each virtual stage, while its gradients are reduced by the same NICs."""

from __future__ import annotations

from sim_core.costing.case import Case, shares_nics
from sim_core.costing.fabric import shared_s
from sim_core.engine.codes import SPLITS, chunks_of
from sim_core.engine.events import UP, Program
from sim_core.jit import inlined_kernel
from sim_core.step.buckets import Buckets, cost_gradients
from sim_core.step.lower import Lowered
from sim_core.step.nics import ALL, OPEN, sends_of


@inlined_kernel
def slow_last_backwards(case: Case, low: Lowered, program: Program, buckets: Buckets) -> None:
    """Fill `late_s` of `program`: how much longer the last backwards take, and their stage's stream of gradients as well.

    The stream of a chunk begins with its first bucket. It goes on beside the backwards that the stage has left: of a stage's
    last chunk none but this one, of the others as many more as there are stages.
    """
    plan = case.plan
    pp, chunks = plan.pp, chunks_of(plan.schedule, plan.vpp)
    program.late_s[: pp * chunks] = 0.0
    buckets.costed[:] = False
    if not shares_nics(case) or plan.overlap_grad == 0 or SPLITS[plan.schedule]:
        return
    for stage in range(pp):
        for chunk in range(chunks):
            sent_s = sends_of(low, plan, UP, stage, chunk)
            cell = stage * chunks + chunk
            block_s, all_s = program.duration_s[UP, cell], low.nic_s[UP, cell, ALL] + sent_s
            if all_s <= 0 or block_s <= 0:
                continue
            number, total_s, nic_s = cost_gradients(case, chunk * pp + stage, buckets)
            if nic_s <= 0:
                continue
            blocks = 1.0 - 1.0 / number + (min(pp, plan.ga) - 1.0 if chunk > 0 else 0.0)
            window_s = block_s * blocks
            beside_s = min(total_s * (1.0 - 1.0 / number), window_s) * nic_s / total_s
            open_s = low.nic_s[UP, cell, OPEN] + sent_s
            program.late_s[cell] = shared_s(window_s, open_s * blocks, all_s * blocks, beside_s)
