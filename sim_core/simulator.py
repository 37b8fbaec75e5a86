"""Simulation of plans: columns of results for many plans, or the events of one plan. Puts the other modules together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.blocks import cost_blocks
from sim_core.costing.case import Blocks, Case, case_at
from sim_core.costing.groups import Groups, group_plans
from sim_core.costing.measured import measured_share
from sim_core.costing.memory import model_state_bytes
from sim_core.costing.peak import peak_memory
from sim_core.costing.recomputed import again_flops, flops_again, flops_again_simai
from sim_core.costing.recorded import at_replayed, with_recorded
from sim_core.engine.codes import PAIRS, chunks_of, most_blocks, most_cells, most_scratch, rounds_of
from sim_core.engine.events import Program, Times, allocate
from sim_core.engine.schedule import fill_order
from sim_core.engine.split_events import hidden_s
from sim_core.errors import SpecError
from sim_core.hardware.kernels.device import has_precision
from sim_core.hardware.table import HardwareColumns, HardwareTable, hardware_table, recorded_on
from sim_core.jit import inner_kernel, outer_kernel
from sim_core.metrics import (
    BUBBLE,
    DP_EXPOSED,
    EP_EXPOSED,
    MEMORY,
    METRICS,
    N_SUMS,
    PEAK_BYTES,
    PP_EXPOSED,
    PP_TOTAL,
    STATE_BYTES,
    STEP_TIME,
)
from sim_core.models.precision import PRECISIONS
from sim_core.planning.building import check_plans
from sim_core.planning.building import plans as plans_of
from sim_core.planning.columns import EVENT, SIMAI, Plans, by_order, slice_plans
from sim_core.planning.imbalance import with_loads
from sim_core.planning.legality import EXPLANATIONS, REASON, REASONS, check
from sim_core.planning.split import Split, split_plans
from sim_core.simai.model import SIMAI_PARTS, simai_one, simai_rows
from sim_core.simai.tables import bus_tables
from sim_core.step.buckets import Buckets, allocate_buckets
from sim_core.step.gradients import reduce_gradients
from sim_core.step.last import slow_last_backwards
from sim_core.step.lower import Lowered, allocate_lowered, lower
from sim_core.step.nics import count_carried, share_sends
from sim_core.step.once import Once, allocate_once, finish_step, gather_parameters
from sim_core.step.pipeline import go_on, run_pipeline
from sim_core.step.sharding import Layers, allocate_layers, shard_blocks
from sim_core.workloads.moving import N_RULES
from sim_core.workloads.workload import Arrays, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NOT_FINITE = REASON["result_not_finite"]
BATCH: Final = 8192
"""Plans per batch, which share tables: many, so that they share much; few, so that the tables stay small."""
CELLS: Final = 2**25
"""Numbers in the table of splits of a batch (256 MiB): plans of very many virtual stages come in smaller batches."""


class Results(NamedTuple):
    """`reason[n]` is 0 if `metrics[len(METRICS), n]` holds a result (seconds); otherwise the metrics are NaN.

    `memory[len(MEMORY), n]` are bytes on a rank of the fullest stage, NaN if unknown. `measured_share[n]` is the part of the
    forward and backward seconds that rests on measured kernels of that very device, NaN for recorded times.
    `recomputed_flops[n]` are those per token that recompute runs again, NaN if unknown.
    """

    reason: Ints
    metrics: Floats
    memory: Floats
    measured_share: Floats
    recomputed_flops: Floats

    @property
    def state_bytes(self) -> Floats:
        """Weights, gradients and optimizer, [n]."""
        state: Floats = self.memory[STATE_BYTES]
        return state

    def named(self) -> dict[str, npt.NDArray[Any]]:
        """Columns by name, [n] each: `reason` as words ('' for a result), METRICS, MEMORY."""
        return {
            "reason": np.array(REASONS)[self.reason],
            **dict(zip(METRICS, self.metrics, strict=True)),
            **dict(zip(MEMORY, self.memory, strict=True)),
            "measured_share": self.measured_share,
            "recomputed_flops": self.recomputed_flops,
        }


class Tables(NamedTuple):
    """The tables of a batch of plans; each has the row of every plan."""

    groups: Groups
    split: Split
    blocks: Blocks


class Scratch(NamedTuple):
    """Scratch that all plans of a batch use in turn."""

    program: Program
    of_order: Ints  # of fill_order
    times: Times
    low: Lowered
    layers: Layers
    buckets: Buckets
    reduced_s: Floats  # [stages] end of a stage's gradient reduction
    once: Once
    sums: Floats  # [METRICS]


def simulate(workload: Workload, hardware: HardwareTable, plans: Plans) -> Results:
    """Simulate all `plans`, each in its fidelity. A plan that cannot run has a reason code instead of a result.

    Raises SpecError for columns of unequal length or type, or with invalid values.
    """
    reason, memory = legality(workload, hardware, plans)
    plans = with_loads(workload, plans)
    workload = replace(workload, arrays=arrays_of(workload, hardware))
    metrics = np.full((len(METRICS), len(reason)), np.nan)
    measured, recomputed, again = np.full(len(reason), np.nan), np.full(len(reason), np.nan), again_flops(workload)
    for rows in batches(workload.arrays, plans, np.flatnonzero((reason == 0) & (plans.fidelity == EVENT))):
        tables = tables_of(workload, hardware, plans, rows)
        scratch = allocate_scratch(workload.arrays, plans, tables.split, rows)
        _run_rows(workload.arrays, hardware.columns, plans, tables, rows, scratch, again, reason, metrics, recomputed)
        if not workload.from_file:
            measured[rows] = measured_share(workload.arrays, tables.blocks, plans.layers, rows)
    measured[reason != 0] = np.nan
    by_simai = np.flatnonzero((reason == 0) & (plans.fidelity == SIMAI))
    if len(by_simai):
        no_nic = REASON["nics_fewer_than_ranks"]
        simai_rows(workload.arrays, hardware.columns, bus_tables(), plans, by_simai, no_nic, _NOT_FINITE, reason, metrics)
        recomputed[by_simai] = flops_again_simai(workload, again, plans, by_simai)
    recomputed[reason != 0] = np.nan
    return Results(reason=reason, metrics=metrics, memory=memory, measured_share=measured, recomputed_flops=recomputed)


def arrays_of(workload: Workload, hardware: HardwareTable) -> Arrays:
    """The columns of a workload with what was recorded of its messages and of its step."""
    arrays = with_recorded(workload, hardware)
    own = plans_of(workload)
    if workload.recorded is None or workload.replayed_s is None or check(workload, own)[0]:
        return arrays
    table, row = hardware_table([recorded_on(hardware)], None), np.zeros(1, np.int64)

    def step_s(tried: Arrays) -> float:
        one = replace(workload, arrays=tried)
        tables, metrics = tables_of(one, table, own, row), np.full((len(METRICS), 1), np.nan)
        scratch = allocate_scratch(tried, own, tables.split, row)
        _run_rows(tried, table.columns, own, tables, row, scratch, again_flops(one), row.copy(), metrics, np.empty(1))
        return float(metrics[STEP_TIME, 0])

    return at_replayed(arrays, workload.replayed_s, step_s)


def legality(workload: Workload, hardware: HardwareTable, plans: Plans) -> tuple[Ints, Floats]:
    """The reason code of each plan, 0 if it can run; and bytes on a rank, [len(MEMORY), n].

    Raises SpecError for columns of unequal length or type, or with invalid values.
    """
    _check_arguments(workload, hardware, plans)
    reason = check(workload, plans)
    plans = with_loads(workload, plans)
    memory = np.full((len(MEMORY), len(reason)), np.nan)
    held = workload.memory_of or workload
    memory[STATE_BYTES] = model_state_bytes(held, plans)
    if (plans.precision > 0).any():
        lacking = np.array([[not has_precision(device, one.linear) for one in PRECISIONS] for device in hardware.variants])
        reason[(reason == 0) & lacking[plans.hardware, plans.precision]] = REASON["precision_not_on_device"]
    device_bytes = hardware.columns.memory_bytes[plans.hardware]
    peak = peak_memory(held, plans, np.flatnonzero(reason == 0))
    memory = np.where(np.isnan(peak), memory, peak)
    need = np.fmax(memory[STATE_BYTES], memory[PEAK_BYTES])  # the state alone where the rest is unknown
    reason[(reason == 0) & (need > device_bytes)] = REASON["memory_exceeds_device"]
    return reason, memory


def _check_arguments(workload: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Raise SpecError for arguments of other types (most often swapped), or invalid plans."""
    for name, value, kind in (("workload", workload, Workload), ("hardware", hardware, HardwareTable), ("plans", plans, Plans)):
        if not isinstance(value, kind):
            raise SpecError(f"{name}: found a {type(value).__name__}, expected a {kind.__name__}")
    check_plans(plans, len(hardware))


def batches(arrays: Arrays, plans: Plans, rows: Ints) -> Iterator[Ints]:
    """The rows in batches, sorted by schedule, so that consecutive plans share the order of blocks."""
    ordered = by_order(plans, rows)
    virtual = np.cumsum(plans.pp[ordered] * plans.vpp[ordered])
    most = CELLS // (2 * len(arrays.unit_layers) + 3)  # columns of a Split
    begin = 0
    while begin < len(ordered):
        before = virtual[begin - 1] if begin else 0
        end = min(begin + BATCH, max(begin + 1, int(np.searchsorted(virtual, before + most, side="right"))))
        yield ordered[begin:end]
        begin = end


def tables_of(workload: Workload, hardware: HardwareTable, plans: Plans, rows: Ints) -> Tables:
    groups = group_plans(hardware.columns, plans, rows, workload.arrays.shares.whole_experts)
    split = split_plans(workload.arrays, plans, rows)
    return Tables(groups=groups, split=split, blocks=cost_blocks(workload, hardware, plans, groups, split, rows))


def simai_breakdown(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> dict[str, float]:
    """Nanoseconds of the parts that SimAI-Analytical prints, for one plan, without a memory check. Raises SpecError."""
    _check_arguments(workload, hardware, plans)
    reason = int(check(workload, plans)[row])
    sums = np.zeros(len(SIMAI_PARTS))
    if reason == 0 and not simai_one(workload.arrays, hardware.columns, bus_tables(), plans, row, np.empty(N_RULES), sums):
        reason = REASON["nics_fewer_than_ranks"]
    if reason:
        raise SpecError(f"{REASONS[reason]}: {EXPLANATIONS[REASONS[reason]]}")
    return dict(zip(SIMAI_PARTS, sums.tolist(), strict=True))


class Ran(NamedTuple):
    """One plan after its simulation in the event engine: what it was run with, and what the run has left in the scratch."""

    workload: Workload
    plans: Plans  # of one row
    tables: Tables
    scratch: Scratch
    metrics: Floats  # [METRICS]


def run_alone(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Ran:
    """Simulate one plan in the event engine. Raises SpecError if it cannot run."""
    _check_arguments(workload, hardware, plans)
    if not 0 <= row < len(plans.tp):
        raise SpecError(f"trace: found row {row}, expected 0 to {len(plans.tp) - 1}")
    one = slice_plans(plans, slice(row, row + 1))
    one = one._replace(fidelity=np.full(1, EVENT, np.int64))
    reason = REASONS[int(legality(workload, hardware, one)[0][0])]
    if reason:
        raise SpecError(f"trace: {reason}: {EXPLANATIONS[reason]}")
    one = with_loads(workload, one)
    workload = replace(workload, arrays=arrays_of(workload, hardware))
    rows = np.zeros(1, np.int64)
    tables = tables_of(workload, hardware, one, rows)
    scratch = allocate_scratch(workload.arrays, one, tables.split, rows)
    metrics = np.empty((len(METRICS), 1))
    again, recomputed = again_flops(workload), np.empty(1)
    _run_rows(workload.arrays, hardware.columns, one, tables, rows, scratch, again, np.zeros(1, np.int64), metrics, recomputed)
    return Ran(workload=workload, plans=one, tables=tables, scratch=scratch, metrics=metrics[:, 0])


def allocate_scratch(arrays: Arrays, plans: Plans, split: Split, rows: Ints) -> Scratch:
    """Scratch large enough for each plan in `rows`."""
    schedule, pp, vpp = plans.schedule[rows], plans.pp[rows], plans.vpp[rows]
    blocks, stages, cells = most_blocks(schedule, pp, vpp, plans.ga[rows]), int(pp.max()), most_cells(schedule, pp, vpp)
    program, times = allocate(blocks, stages, cells)
    return Scratch(
        program=program,
        of_order=np.empty(most_scratch(schedule, pp, plans.ga[rows]), np.int64),
        times=times,
        low=allocate_lowered(arrays, stages, cells),
        layers=allocate_layers(arrays, int(plans.layers[rows].max())),
        buckets=allocate_buckets(arrays, split.sizes),
        reduced_s=np.empty(stages),
        once=allocate_once(arrays, split.sizes, stages),
        sums=np.zeros(len(METRICS)),
    )


@outer_kernel
def _run_rows(
    arrays: Arrays,
    hardware: HardwareColumns,
    plans: Plans,
    tables: Tables,
    rows: Ints,
    scratch: Scratch,
    again: Floats,
    reason: Ints,
    metrics: Floats,
    recomputed: Floats,
) -> None:
    """Simulate legal plans; consecutive plans with the same schedule share its order of blocks."""
    sums = scratch.sums
    schedule, pp, vpp, ga, group = -1, -1, -1, -1, -1
    for i in rows:
        same = plans.schedule[i] == schedule and plans.pp[i] == pp and plans.vpp[i] == vpp and plans.ga[i] == ga
        if not same or plans.microbatch_group_size[i] != group:
            schedule, pp, vpp, ga = plans.schedule[i], plans.pp[i], plans.vpp[i], plans.ga[i]
            group = plans.microbatch_group_size[i]
            fill_order(schedule, pp, vpp, ga, group, scratch.program.order, scratch.of_order)
        sums[:] = 0.0
        case = case_at(arrays, hardware, plans, tables.groups, tables.split, tables.blocks, i)
        ran = _simulate_one(case, scratch, sums)
        if not ran or not _all_finite(sums) or not sums[STEP_TIME] > 0:
            reason[i] = _NOT_FINITE
            continue
        for m in range(metrics.shape[0]):
            metrics[m, i] = sums[m]
        recomputed[i] = flops_again(again, scratch.low.again, plans.checkpointing[i], plans.checkpoint_layers[i])


@inner_kernel
def _all_finite(values: Floats) -> bool:
    for value in values:  # noqa: SIM110 (a generator would allocate)
        if not np.isfinite(value):
            return False
    return True


@inner_kernel
def _simulate_one(case: Case, scratch: Scratch, out: Floats) -> bool:
    """Simulate one step; adds its metrics to the zeroed `out`. False if some blocks can never run."""
    plan, program, times, low = case.plan, scratch.program, scratch.times, scratch.low
    pp, ga = plan.pp, plan.ga
    lower(case, low, program)
    count_carried(case, low)
    shard_blocks(case, low, program, scratch.layers, out)
    share_sends(case, low, program, out)
    gather_parameters(case, low, program, scratch.buckets, scratch.once, out)
    slow_last_backwards(case, low, program, scratch.buckets)
    if not run_pipeline(plan, program, times):
        return False
    passes, again, unit_work, unit_again, key = low.passes, low.again, case.blocks.work, case.blocks.again, case.block
    for unit in range(passes.shape[0]):
        for k in range(N_SUMS):
            out[k] += (passes[unit] * unit_work[key, unit, k] + again[unit] * unit_again[key, unit, k]) * ga / pp
    for k in range(low.extra_s.shape[0]):
        out[k] += low.extra_s[k] * ga / pp
    barrier_s = reduce_gradients(case, low, program, times, scratch.buckets, scratch.reduced_s, out)
    slowest_s = finish_step(case, scratch.once, out)
    message_s, exposed_s, gated_s, idle_s = times.message_s, times.exposed_s, times.gated_s, times.idle_s
    reduced_s, after_s = scratch.reduced_s, scratch.once.after_s
    for stage in range(pp):
        out[PP_TOTAL] += message_s[stage] / pp
        out[PP_EXPOSED] += exposed_s[stage] / pp
        out[DP_EXPOSED] += gated_s[stage] / pp
        out[BUBBLE] += idle_s[stage] / pp
        out[BUBBLE] += (barrier_s - reduced_s[stage] + slowest_s - after_s[stage]) / pp
    if PAIRS[plan.schedule]:
        out[EP_EXPOSED] -= hidden_s(program, pp, chunks_of(plan.schedule, plan.vpp), rounds_of(plan.schedule, ga)) / pp
    out[STEP_TIME] = barrier_s + slowest_s
    if plan.post_validation == 1:
        go_on(plan, program, times, reduced_s, after_s, out)
    return True
