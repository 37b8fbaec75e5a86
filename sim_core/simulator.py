"""Simulation of plans: columns of results for many plans, or the events of one plan. Puts the other modules together."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Floats, Ints
from sim_core.batch import batch_of, batches, run_rows
from sim_core.compiled.jit import quickest
from sim_core.compiled.references import row_at
from sim_core.costing.case import Tables
from sim_core.costing.memory import model_state_bytes
from sim_core.costing.operators import measured_share
from sim_core.costing.peak import peak_memory
from sim_core.costing.recomputed import again_flops, flops_again_simai
from sim_core.costing.recorded import TRIALS, at_replayed, at_step, with_recorded
from sim_core.costing.running import as_run, as_run_but_for_costs, without_precision
from sim_core.engine.codes import events_of
from sim_core.engine.lanes import RECORDED, record
from sim_core.engine.program import Shape
from sim_core.errors import SpecError
from sim_core.hardware.table import HardwareTable, hardware_table, recorded_on
from sim_core.metrics import HOST_BYTES, MEMORY, METRICS, PEAK_BYTES, STATE_BYTES, STEP_TIME
from sim_core.planning.building import check_plans, plans as plans_of
from sim_core.planning.columns import BALANCED_COST, EVENT, SIMAI, Plan, Plans, plan_at, slice_plans
from sim_core.planning.legality import EXPLANATIONS, REASON, REASONS, check, offloads, refuse
from sim_core.simai.model import SIMAI_PARTS, bus_tables, simai_one, simai_rows
from sim_core.step.scratch import Scratch
from sim_core.workloads.moving import N_RULES
from sim_core.workloads.stages.workload import STAGES
from sim_core.workloads.workload import Arrays, Framework, Workload

_NOT_FINITE = REASON["result_not_finite"]


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


Checked = tuple[Ints, Floats]
"""What `legality` says."""


class Hosts(NamedTuple):
    """Stacks that are a workload's but for their host and jitter: plan n runs on the one of `plan[n]`."""

    plan: Ints
    launches: Floats  # [hosts] on what the host takes to launch a layer of a model
    frameworks: tuple[Framework, ...]  # [hosts]


def simulate(
    workload: Workload, hardware: HardwareTable, plans: Plans, checked: Checked | None = None, hosts: Hosts | None = None
) -> Results:
    """Simulate all `plans`, each in its fidelity. A plan that cannot run has a reason code instead of a result.

    `checked`: by `legality`, where it is known already. `hosts`: those of the plans, where they differ: what does not depend on
    them is costed once for all.

    Raises SpecError for columns of unequal length or type, or with invalid values.
    """
    _check_arguments(workload, hardware, plans)
    with quickest(plain_python_s(workload, plans)):
        if checked:
            can_run = np.flatnonzero(checked[0] == 0)
            run = Running(checked[0].copy(), checked[1], can_run, as_run(workload, hardware, slice_plans(plans, can_run)))
        else:
            run = running(workload, hardware, plans, states=True)
        reason, memory, of_row, plans = run
        workload = replace(workload, arrays=arrays_of(workload, hardware))
        hosts = hosts or Hosts(np.zeros(len(reason), int), np.ones(1), (workload.arrays.framework,))
        metrics = np.full((len(METRICS), len(reason)), np.nan)
        measured, recomputed = np.full((2, len(reason)), np.nan)
        for some, own in batches(workload.arrays, plans, run.ready(EVENT)):
            rows = of_row[some]
            batch = batch_of(workload, hardware, own, hosts.launches[hosts.plan[rows]])
            for number, framework in enumerate(hosts.frameworks):
                tables = batch.tables._replace(arrays=workload.arrays._replace(framework=framework))
                run_rows(batch._replace(tables=tables), np.flatnonzero(hosts.plan[rows] == number))
            reason[rows], metrics[:, rows], recomputed[rows] = batch.reason, batch.metrics, batch.recomputed
            if not workload.from_file:
                measured[rows] = measured_share(workload.arrays, batch.tables.blocks, own.layers, np.arange(len(rows)))
        some = run.ready(SIMAI)
        if len(some):
            own, rows, every = slice_plans(plans, some), of_row[some], np.arange(len(some))
            of_own, found, no_nic = reason[rows], metrics[:, rows], REASON["nics_fewer_than_ranks"]
            simai_rows(workload.arrays, hardware.columns, bus_tables(), own, every, no_nic, _NOT_FINITE, of_own, found)
            reason[rows], metrics[:, rows] = of_own, found
            recomputed[rows] = flops_again_simai(workload, again_flops(workload), own, every)
        measured[reason != 0] = recomputed[reason != 0] = np.nan
        return Results(reason, metrics, memory, measured, recomputed)


PLAN_S = 5e-3
EVENT_S = 20e-6
"""What plain Python takes for a plan, and for each forward and backward of its pipeline."""


def plain_python_s(workload: Workload, plans: Plans) -> float:
    """About how many seconds plain Python takes to simulate `plans`."""
    can_run = (plans.pp <= plans.all_gpus) & (plans.pp * plans.vpp.astype(float) <= plans.layers)
    seconds = float((PLAN_S + EVENT_S * np.where(can_run, 2.0 * plans.pp * plans.vpp * plans.ga, 0.0)).sum())
    if workload.replayed_s is not None:  # the recorded plan is simulated until its step is the replayed one
        base = workload.base
        seconds += 2 * TRIALS * (PLAN_S + EVENT_S * 2.0 * base.pp * base.ga)
    return seconds


def arrays_of(workload: Workload, hardware: HardwareTable) -> Arrays:
    """The columns of a workload with what was recorded of its messages and of its step."""
    arrays = with_recorded(workload, hardware)
    of_stages = workload.kind == STAGES  # whose messages are not recorded, as those of traces are
    if workload.replayed_s is None or (workload.recorded is None and not of_stages):
        return arrays
    own = plans_of(workload)
    if check(workload, own)[0]:
        return arrays
    table = hardware_table([recorded_on(hardware)], None)

    def step_s(tried: Arrays) -> float:
        batch = batch_of(replace(workload, arrays=tried), table, own)
        run_rows(batch, np.zeros(1, int))
        return float(batch.metrics[STEP_TIME, 0])

    return (at_step if of_stages else at_replayed)(arrays, workload.replayed_s, step_s)


def legality(workload: Workload, hardware: HardwareTable, plans: Plans) -> Checked:
    """The reason code of each plan, 0 if it can run; and bytes on a rank, [len(MEMORY), n].

    Raises SpecError for columns of unequal length or type, or with invalid values.
    """
    _check_arguments(workload, hardware, plans)
    found = running(workload, hardware, plans, states=True)
    return found.reason, found.memory


class Running(NamedTuple):
    """What `legality` says of plans, and those of them that may run."""

    reason: Ints  # [n]
    memory: Floats  # [len(MEMORY), n]
    rows: Ints  # all that can run, and perhaps others ...
    plans: Plans  # ... as they run, [rows]

    def ready(self, fidelity: int) -> Ints:
        """Which of `plans` can run in a fidelity."""
        return np.flatnonzero((self.reason[self.rows] == 0) & (self.plans.fidelity == fidelity))


def running(workload: Workload, hardware: HardwareTable, plans: Plans, *, states: bool = False) -> Running:
    """The plans that can run, and why the others cannot; `states`: with model states of those that break a rule of `check`."""
    memory, memory_of = np.full((len(MEMORY), len(plans.tp)), np.nan), workload.memory_of or workload
    reason, rows = check(workload, plans), np.arange(len(plans.tp))
    divided = plans.layer_split == BALANCED_COST
    if not states or (divided & (reason == 0)).any():
        others, rows = np.flatnonzero(reason), np.flatnonzero(reason == 0)
        if states and len(others):
            refused = as_run_but_for_costs(workload, hardware, slice_plans(plans, others))
            memory[STATE_BYTES, others] = model_state_bytes(memory_of, refused)
        plans = as_run(workload, hardware, slice_plans(plans, rows) if len(others) else plans)
        again = np.flatnonzero(divided[rows])
        if len(again):  # their layers are lists now
            reason[rows[again]] = check(workload, slice_plans(plans, again))
    else:
        plans = as_run_but_for_costs(workload, hardware, plans)
    if len(rows):
        memory[:, rows], reason[rows] = _fitting(memory_of, hardware, plans, reason[rows])
    return Running(reason, memory, rows, plans)


def _fitting(workload: Workload, hardware: HardwareTable, plans: Plans, reason: Ints) -> tuple[Floats, Ints]:
    """Memory of plans as they run, [len(MEMORY), n], and `reason` with those that their devices cannot run."""
    reason[(reason == 0) & without_precision(hardware, plans)] = REASON["precision_not_on_device"]
    device_bytes, columns = hardware.columns.memory_bytes[plans.hardware], hardware.columns
    host_bytes = columns.host_bytes[plans.hardware]
    unknown = np.minimum(np.minimum(columns.host_bandwidth, columns.update_bandwidth)[plans.hardware], host_bytes) == 0
    reason[(reason == 0) & unknown & offloads(plans)] = REASON["host_not_told"]
    memory = peak_memory(workload, plans, np.flatnonzero(reason == 0))
    unknown = np.isnan(memory[STATE_BYTES])
    memory[STATE_BYTES, unknown] = model_state_bytes(workload, plans)[unknown]
    need = np.fmax(memory[STATE_BYTES], memory[PEAK_BYTES])  # the state alone where the rest is unknown
    reason[(reason == 0) & (need > device_bytes)] = REASON["memory_exceeds_device"]
    of_node = memory[HOST_BYTES] * np.minimum(columns.gpus_per_node[plans.hardware], plans.all_gpus)
    reason[(reason == 0) & (of_node > host_bytes) & (of_node > 0)] = REASON["memory_exceeds_host"]
    return memory, reason


def _check_arguments(workload: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Raise SpecError for arguments of other types (most often swapped), or invalid plans."""
    for name, value, kind in (("workload", workload, Workload), ("hardware", hardware, HardwareTable), ("plans", plans, Plans)):
        if not isinstance(value, kind):
            raise SpecError(f"{name}: found a {type(value).__name__}, expected a {kind.__name__}")
    check_plans(plans, len(hardware))


def simai_breakdown(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> dict[str, float]:
    """Nanoseconds of the parts that SimAI-Analytical prints, for one plan, without a memory check. Raises SpecError."""
    _check_arguments(workload, hardware, plans)
    reason = int(check(workload, plans)[row])
    sums = np.zeros(len(SIMAI_PARTS))
    if reason == 0 and not simai_one(workload.arrays, hardware.columns, bus_tables(), plans, row, np.empty(N_RULES), sums):
        reason = REASON["nics_fewer_than_ranks"]
    refuse(reason)
    return dict(zip(SIMAI_PARTS, sums.tolist(), strict=True))


MOST_RECORDED = 2**22
"""Events of a step that are written down: half a GB."""


class Ran(NamedTuple):
    """One plan after its simulation in the event engine: what it was run with, and what the run has left in the scratch."""

    workload: Workload
    plans: Plans  # of one row
    tables: Tables
    scratch: Scratch
    order: Ints  # of blocks
    events: Floats  # [events, RECORDED] what the engine did, in its order
    metrics: Floats  # [METRICS]

    @property
    def plan(self) -> Plan:
        """The plan as scalars."""
        return plan_at(self.plans, 0)


def run_alone(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Ran:
    """Simulate one plan in the event engine. Raises SpecError if it cannot run, or has too many blocks to write them down."""
    _check_arguments(workload, hardware, plans)
    if not 0 <= row < len(plans.tp):
        raise SpecError(f"trace: found row {row}, expected 0 to {len(plans.tp) - 1}")
    alone = slice_plans(plans, slice(row, row + 1))
    alone = alone._replace(fidelity=np.full(1, EVENT, int))
    with quickest(plain_python_s(workload, alone)):
        reasons, _, _, alone = running(workload, hardware, alone)
        if reason := REASONS[int(reasons[0])]:
            raise SpecError(f"the plan cannot run: {reason} ({EXPLANATIONS[reason]})")
        plan = plan_at(alone, 0)
        shape = Shape(plan.schedule, plan.pp, plan.vpp, plan.ga, plan.overlap_pp == 1)
        most = events_of(shape.schedule, shape.pp, shape.vpp, shape.ga)
        if most > MOST_RECORDED:
            raise SpecError(f"timeline: found a step of {most:,} blocks, expected at most {MOST_RECORDED:,}")
        workload = replace(workload, arrays=arrays_of(workload, hardware))
        batch = batch_of(workload, hardware, alone)
        run_rows(batch, np.zeros(1, int))
        scratch, events = row_at(batch.scratch, 0), np.empty((most, RECORDED))
        ran = record(shape, batch.order, scratch.program, batch.sequence, batch.lanes, events)
        return Ran(workload, alone, batch.tables, scratch, batch.order, events[:ran], batch.metrics[:, 0])
