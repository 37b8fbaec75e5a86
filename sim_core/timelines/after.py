"""What follows the pipeline: the last gradients, the barrier, optimizer and parameters; what a stage waits for at the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.engine.schedules import PLACEMENT, V
from sim_core.metrics import CP_EXPOSED, DP_EXPOSED, EP_EXPOSED, STEP_TIME, TP_EXPOSED
from sim_core.planning.columns import Plan, plan_at
from sim_core.simulator import Ran
from sim_core.terms import EMBEDDING
from sim_core.timelines.spans import (
    BUBBLE_PART,
    COLLECTIVE,
    COMPUTE,
    CONTENTION,
    CP_PART,
    DP_PART,
    EP_PART,
    GATHER,
    GRADIENT_WAIT,
    OPTIMIZER_PART,
    OPTIMIZER_STEP,
    STAGE_WAIT,
    TP_PART,
    Spans,
    of_part,
    spans,
)
from sim_core.workloads.workload import AFTER_GRADIENTS, ONCE_ON_FIRST_STAGE

Floats = npt.NDArray[np.float64]

_PART = {TP_EXPOSED: TP_PART, EP_EXPOSED: EP_PART, CP_EXPOSED: CP_PART, DP_EXPOSED: DP_PART}


class Ends(NamedTuple):
    """Ends of the stages of a plan, copied from the scratch of its run: [stages] each."""

    free_s: Floats  # of the pipeline
    reduced_s: Floats  # of its gradients
    full_s: Floats  # seconds of that because its NICs were full
    after_s: Floats  # seconds of the work after the barrier


def ends_of(ran: Ran) -> Ends:
    """The ends of a run."""
    pp, scratch = int(ran.plans.pp[0]), ran.scratch
    return Ends(
        scratch.times.free_s[:pp].copy(),
        scratch.reduced_s[:pp].copy(),
        scratch.low.longer.full_s[:pp].copy(),
        scratch.once.after_s[:pp].copy(),
    )


def after_spans(ran: Ran, ends: Ends, first_s: Floats) -> list[Spans]:
    """Spans of each stage from the end of its pipeline on; `first_s[stages]`: its first block, when its message has arrived.

    With post-validation a stage goes on at once; it waits for the slowest one only once a step.
    """
    plan = plan_at(ran.plans, 0)
    stage = np.arange(plan.pp)
    step_s = float(ran.metrics[STEP_TIME])
    barrier_s = ends.reduced_s if plan.post_validation == 1 else np.full(plan.pp, ends.reduced_s.max())
    found = [
        _row(stage, GRADIENT_WAIT, DP_PART, ends.free_s, ends.reduced_s)._replace(shared_s=ends.full_s),
        _row(stage, STAGE_WAIT, BUBBLE_PART, ends.reduced_s, barrier_s),
    ]
    now_s = barrier_s
    for kind, part, seconds in _once(ran, plan):
        found.append(_row(stage, kind, part, now_s, now_s + seconds))
        now_s = now_s + seconds
    gathered_s = barrier_s + ends.after_s  # gathers that nothing hides, or what hidden ones cost
    kind = CONTENTION if plan.overlap_param == 1 else GATHER
    found.append(_row(stage, kind, DP_PART, now_s, np.maximum(gathered_s, now_s)))
    last_s = first_s + step_s if plan.post_validation == 1 else np.full(plan.pp, step_s)
    found.append(_row(stage, STAGE_WAIT, BUBBLE_PART, np.maximum(gathered_s, now_s), last_s))
    return found


def _row(stage: npt.NDArray[np.int64], kind: int, part: int, start_s: Floats, end_s: Floats) -> Spans:
    return spans(
        len(stage),
        stage=stage,
        stream=COMPUTE,
        kind=kind,
        start_s=start_s,
        end_s=end_s,
        parts=of_part(part, end_s - start_s),
    )


def _once(ran: Ran, plan: Plan) -> list[tuple[int, int, Floats]]:
    """Work of each stage once a step, as `work_after` adds it up: kind, part, seconds [stages]."""
    step, once, split = ran.workload.arrays.step, ran.scratch.once, ran.tables.split
    first = int(split.stage_offset[split.key[0]])
    size = split.stage_size[first : first + plan.pp]
    stage = np.arange(plan.pp)
    slower = np.where(stage == plan.straggler_stage, plan.straggler_factor, 1.0)
    together = plan.pp > 1 and PLACEMENT[plan.schedule] == V
    at_end = ((stage == 0) | (stage == plan.pp - 1)) & (not together)
    found: list[tuple[int, int, Floats]] = []
    optimizer_s = once.optimizer_s[size] * slower
    for k in range(len(step.role)):
        here = (step.role[k] == AFTER_GRADIENTS) | ((step.role[k] == ONCE_ON_FIRST_STAGE) & (stage == 0))
        optimizer_s = optimizer_s + np.where(here, once.compute_s[size, k] * slower, 0.0)
        sends = here & (at_end if step.comm_group[k] == EMBEDDING else True)
        seconds = np.where(sends, once.comm_s[size, k], 0.0)
        if seconds.any():
            part = _PART[int(TOTAL_OF[step.comm_group[k]]) + EXPOSED]
            found.append((COLLECTIVE, part, seconds))
    return [*found, (OPTIMIZER_STEP, OPTIMIZER_PART, optimizer_s)]
