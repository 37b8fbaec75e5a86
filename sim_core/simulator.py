"""The one place that puts the rooms together: plans in, columns of results out; or, for one plan, its events."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.memory import model_state_bytes
from sim_core.engine.events import Program, Times, allocate, run
from sim_core.engine.schedule import CHUNK_MASK, CHUNK_SHIFT, MICRO_BATCH_SHIFT, fill_order
from sim_core.errors import SpecError
from sim_core.hardware.table import HardwareTable
from sim_core.jit import kernel
from sim_core.planning.columns import EVENT, SIMAI, Plans, slice_plans
from sim_core.planning.legality import EXPLANATIONS, REASON, REASONS, check
from sim_core.simai.model import SIMAI_PARTS, simai_one, simai_rows
from sim_core.simai.tables import bus_tables
from sim_core.step.gradients import reduce_gradients
from sim_core.step.lower import (
    BUBBLE,
    DP_EXPOSED,
    METRICS,
    N_SUMS,
    PP_EXPOSED,
    PP_TOTAL,
    STEP_TIME,
    Lowered,
    allocate_lowered,
    lower,
)
from sim_core.step.once import after_gradients, gather_parameters
from sim_core.workloads.moving import N_RULES
from sim_core.workloads.workload import Arrays, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NOT_FINITE = REASON["result_not_finite"]


class Results(NamedTuple):
    """`reason[n]`, 0 where `metrics[len(METRICS), n]` holds a result (seconds), NaN elsewhere.

    `state_bytes[n]` is the memory of the model's state on a rank, NaN where the workload does not tell.
    """

    reason: Ints
    metrics: Floats
    state_bytes: Floats


class Events(NamedTuple):
    """The blocks of one plan in the order (start, stage), times in seconds from the start of the step."""

    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Ints
    start_s: Floats
    end_s: Floats


def simulate(workload: Workload, hardware: HardwareTable, plans: Plans) -> Results:
    """Simulate all `plans`, each in its fidelity. A plan that cannot run has a reason code instead of a result."""
    reason, state_bytes = legality(workload, hardware, plans)
    metrics = np.full((len(METRICS), len(reason)), np.nan)
    by_event = np.flatnonzero((reason == 0) & (plans.fidelity == EVENT))
    by_simai = np.flatnonzero((reason == 0) & (plans.fidelity == SIMAI))
    if len(by_event):
        _simulate_rows(workload.arrays, hardware, plans, by_event, reason, metrics)
    if len(by_simai):
        no_nic = REASON["nics_fewer_than_ranks"]
        simai_rows(workload.arrays, hardware, bus_tables(), plans, by_simai, no_nic, _NOT_FINITE, reason, metrics)
    return Results(reason, metrics, state_bytes)


def legality(workload: Workload, hardware: HardwareTable, plans: Plans) -> tuple[Ints, Floats]:
    """The reason code of each plan, 0 where it can run; and its model state, bytes on a rank."""
    reason = check(workload, plans)
    state_bytes = model_state_bytes(workload, plans)
    too_big = (reason == 0) & (state_bytes > hardware.memory_bytes[plans.hardware])
    reason[too_big] = REASON["model_state_exceeds_memory"]
    return reason, state_bytes


def simai_breakdown(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> dict[str, float]:
    """Nanoseconds of the parts that SimAI-Analytical prints, of one plan, whatever its memory. Raises SpecError."""
    reason = int(check(workload, plans)[row])
    sums = np.zeros(len(SIMAI_PARTS))
    if reason == 0 and not simai_one(workload.arrays, hardware, bus_tables(), plans, row, np.empty(N_RULES), sums):
        reason = REASON["nics_fewer_than_ranks"]
    if reason:
        raise SpecError(f"{REASONS[reason]}: {EXPLANATIONS[REASONS[reason]]}")
    return dict(zip(SIMAI_PARTS, sums.tolist(), strict=True))


def trace(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Events:
    """The events of one legal plan."""
    one = slice_plans(plans, slice(row, row + 1))
    blocks = int(2 * one.pp[0] * one.vpp[0] * one.ga[0])
    program, times, low = _scratch(workload.arrays, one, np.zeros(1, np.int64))
    sums = np.zeros(len(METRICS))
    fill_order(one.schedule[0], one.pp[0], one.vpp[0], one.ga[0], program.order)
    _simulate_one(workload.arrays, hardware, one, 0, low, program, times, sums)
    codes = program.order[:blocks]
    stage = np.arange(blocks) // (blocks // one.pp[0])
    backward, chunk, micro_batch = codes & 1, (codes >> CHUNK_SHIFT) & CHUNK_MASK, codes >> MICRO_BATCH_SHIFT
    cell = stage * one.vpp[0] + chunk
    end = times.end_s[backward * (blocks // 2) + cell * one.ga[0] + micro_batch]
    start = end - program.duration_s[backward, cell]
    by_start = np.lexsort((stage, start))
    return Events(
        stage=stage[by_start],
        chunk=chunk[by_start],
        micro_batch=micro_batch[by_start],
        backward=backward[by_start],
        start_s=start[by_start],
        end_s=end[by_start],
    )


@kernel
def _scratch(arrays: Arrays, plans: Plans, legal: Ints) -> tuple[Program, Times, Lowered]:
    """Scratch that holds the largest of the legal plans."""
    blocks, stages, chunks = 0, 0, 0
    for i in legal:
        held = plans.pp[i] * plans.vpp[i]
        blocks = max(blocks, 2 * held * plans.ga[i])
        stages = max(stages, plans.pp[i])
        chunks = max(chunks, held)
    program, times = allocate(blocks, stages, chunks)
    return program, times, allocate_lowered(arrays, stages)


@kernel
def _simulate_rows(arrays: Arrays, hardware: HardwareTable, plans: Plans, legal: Ints, reason: Ints, metrics: Floats) -> None:
    """Simulate the legal plans; plans that follow each other share their schedule's order where they can."""
    program, times, low = _scratch(arrays, plans, legal)
    sums = np.empty(metrics.shape[0])
    schedule, pp, vpp, ga = -1, -1, -1, -1
    for i in legal:
        if plans.schedule[i] != schedule or plans.pp[i] != pp or plans.vpp[i] != vpp or plans.ga[i] != ga:
            schedule, pp, vpp, ga = plans.schedule[i], plans.pp[i], plans.vpp[i], plans.ga[i]
            fill_order(schedule, pp, vpp, ga, program.order)
        sums[:] = 0.0
        ran = _simulate_one(arrays, hardware, plans, i, low, program, times, sums)
        if not ran or not np.all(np.isfinite(sums)) or not sums[STEP_TIME] > 0:
            reason[i] = _NOT_FINITE
            continue
        for m in range(metrics.shape[0]):
            metrics[m, i] = sums[m]


@kernel
def _simulate_one(
    arrays: Arrays,
    hardware: HardwareTable,
    plans: Plans,
    i: int,
    low: Lowered,
    program: Program,
    times: Times,
    out: Floats,
) -> bool:
    """One step of plan `i`; adds its metrics to `out`, which comes in zeroed."""
    pp, vpp, ga = plans.pp[i], plans.vpp[i], plans.ga[i]
    lower(arrays, hardware, plans, i, low, program)
    gather_parameters(arrays, hardware, plans, i, low, program, out)
    if not run(program, pp, vpp, ga, plans.overlap_pp[i] == 1, times):
        return False
    for unit in range(low.passes.shape[0]):
        for k in range(N_SUMS):
            parts = low.passes[unit] * low.unit_work[unit, k] + low.again[unit] * low.unit_again[unit, k]
            out[k] += parts * ga / pp
    for k in range(3):
        out[k] += low.extra_s[k] * ga / pp
    barrier_s = reduce_gradients(arrays, hardware, plans, i, low, program, times, out)
    slowest_s = after_gradients(arrays, hardware, plans, i, low, out)
    for stage in range(pp):
        out[PP_TOTAL] += times.message_s[stage] / pp
        out[PP_EXPOSED] += times.exposed_s[stage] / pp
        out[DP_EXPOSED] += times.gated_s[stage] / pp
        out[BUBBLE] += times.idle_s[stage] / pp
        out[BUBBLE] += (barrier_s - low.stream_end_s[stage] + slowest_s - low.after_s[stage]) / pp
    out[STEP_TIME] = barrier_s + slowest_s
    return True
