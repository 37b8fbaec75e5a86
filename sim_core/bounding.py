"""A lower bound of the step of many plans, for a search that simulates only plans that could be among the best."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.batch import batches, scratch_for, tables_of
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import Tables, case_at
from sim_core.costing.running import as_run, as_run_but_for_costs, without_precision
from sim_core.costing.stage_activations import micro_batches_to_fill
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import BOTH_WAYS, DEEPSPEED, PAIRS, PLACEMENT
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import STEP_TIME
from sim_core.planning.columns import EVENT, SIMAI, Plans, replicas, slice_plans
from sim_core.planning.legality import BESIDE_GA, MAX_BATCH, check, micro_batches_unfit
from sim_core.simulator import arrays_of, legality, running, simulate
from sim_core.step.bound import bound_pipeline
from sim_core.step.gradients import reduce_gradients
from sim_core.step.once import slowest_after_s
from sim_core.step.scratch import Scratch
from sim_core.step.whole import begin_step
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED
from sim_core.workloads.workload import GATHER_PARAMETERS, REDUCE_GRADIENTS, Workload

ROUNDING = 1 - 1e-9
"""The bound adds the same seconds as the engine in another order; this is more than all rounding of a step."""


FASTER = {
    "overlap_tp": 1,
    "nvlink_bandwidth": 1,
    "nvlink_efficiency": 1,
    "nvlink_latency": -1,
    "nic_bandwidth": 1,
    "nic_efficiency": 1,
    "nic_latency": -1,
    "fabric_efficiency": 1,
}
"""Columns of plans and numbers of hardware that change neither reason nor bytes, and whose higher (1) or lower (-1) value makes
each message, or what is exposed of it, take no longer: `coarse_bounds` never rises."""


FURTHEST = 1000
"""A chord is extended by so many times its length at most."""


class Bounds(NamedTuple):
    """`reason[n]` is 0 if a plan may run; `step_time_s[n]` is then at most the simulated one, else NaN.

    `memory[len(MEMORY), n]` are the bytes that `simulate` gives, but for plans that break a rule: these are NaN.
    """

    reason: Ints
    step_time_s: Floats
    memory: Floats


def bounds(workload: Workload, hardware: HardwareTable, plans: Plans) -> Bounds:
    """Bound the step of all `plans` from below. In fidelity simai the bound is the result itself.

    A plan whose result is not finite is found out only by `simulate`. Raises SpecError as `simulate` does.
    """
    run = running(workload, hardware, plans)
    exact, (reason, memory, rows, own) = replace(workload, arrays=arrays_of(workload, hardware)), run
    step_s, by_simai = np.full(len(reason), np.nan), rows[run.ready(SIMAI)]
    step_s[rows] = _bounds(exact, hardware, own, run.ready(EVENT))
    if len(by_simai):
        simulated = simulate(workload, hardware, slice_plans(plans, by_simai))
        reason[by_simai], step_s[by_simai] = simulated.reason, simulated.metrics[STEP_TIME]
    return Bounds(reason, step_s, memory)


def work_bounds(workload: Workload, hardware: HardwareTable, plans: Plans) -> Bounds:
    """The same, lower and far quicker: by what an average stage runs alone, one block after another. Some stage runs as much.

    Whether a plan fits is not asked: reasons are those of rules alone, without bytes. NaN in fidelity simai, and where a device
    lacks the precision. Of a pair of blocks no more than half is hidden.
    """
    plans, reason = as_run_but_for_costs(workload, hardware, plans), check(workload, plans)
    ready = (reason == 0) & (plans.fidelity == EVENT) & ~without_precision(hardware, plans)
    rows, step_s = np.flatnonzero(ready), np.full(len(reason), np.nan)
    if len(rows):
        plans = slice_plans(plans, rows)
        tables = tables_of(replace(workload, arrays=arrays_of(workload, hardware)), hardware, plans)
        blocks, split = tables.blocks, tables.split
        passes = np.add.reduceat(split.passes, split.offset)[split.key]
        unit_s = passes * (blocks.forward_s + blocks.backward_s)[blocks.key]  # without recompute
        least = np.minimum(plans.straggler_factor, 1.0) * np.where(PAIRS[plans.schedule], 0.5, ROUNDING)
        step_s[rows] = unit_s.sum(axis=1) * least * plans.ga / plans.pp
    return Bounds(reason, step_s, np.empty((0, 0)))


def coarse_bounds(workload: Workload, hardware: HardwareTable, plans: Plans) -> Bounds:
    """The same as if data parallelism sent nothing outside the blocks, and every message had NICs of its own.

    Such a bound holds for all plans that differ from one of `plans` in `ignored_columns`, and for all that are no better in
    FASTER. They have its reason and its bytes, too. Not for fidelity simai.
    """
    run = running(workload, hardware, plans)
    step_s = np.full(len(run.reason), np.nan)
    step_s[run.rows] = _bounds(*_without_replicas(workload, hardware), run.plans, run.ready(EVENT))
    return Bounds(run.reason, step_s, run.memory)


def coarse_bounds_over(
    workload: Workload, hardware: HardwareTable, plans: Plans, ga: Ints, *, rough: bool = False
) -> tuple[Ints, Floats]:
    """`reason` and `step_time_s` of `coarse_bounds` for each plan with each number of micro-batches in `ga`, [n, m].

    Reasons are worked out once for numbers that change nothing, bounds for the fewest, the middle and the most that can run.
    `rough`: for the most alone. A coarse bound falls no faster than the micro-batches: it is made of sums and maxima of seconds
    in proportion to them, and of others, which are not below 0.
    """
    order = np.argsort(ga, kind="stable")
    ga = ga[order]
    reason = reasons_over(workload, hardware, plans, ga)
    legal = reason == 0
    step_s = np.full(legal.shape, np.nan)
    rows = np.flatnonzero(legal.any(axis=1))
    if len(rows):
        number = _first_middle_last(legal[rows])[-1 if rough else 0 :]
        cells, of = np.unique(rows * len(ga) + number, return_inverse=True)
        some = slice_plans(plans, cells // len(ga))._replace(ga=ga[cells % len(ga)])
        some = as_run(workload, hardware, some)
        some_s = _bounds(*_without_replicas(workload, hardware), some, np.arange(len(cells)), all_paired=True)
        known, known_s = ga[number][:, :, None], some_s[of.reshape(number.shape)][:, :, None]
        found_s = known_s[-1] * (ga / known[-1]) * ROUNDING  # of illegal plans, too, which are not kept
        if not rough:
            found_s = np.maximum(found_s, _between(ga, known, known_s))
        step_s[rows] = np.where(legal[rows], found_s, np.nan)
    back = np.argsort(order)
    return reason[:, back], step_s[:, back]


def _first_middle_last(chosen: Bools) -> Ints:
    """The first, middle and last column that is chosen in each row, [3, n]; at least one is."""
    columns, count = chosen.shape[1], np.cumsum(chosen, axis=1)
    middle = np.argmax(count >= (count[:, -1:] + 1) // 2, axis=1)
    return np.stack([np.argmax(chosen, axis=1), middle, columns - 1 - np.argmax(chosen[:, ::-1], axis=1)])


def _without_replicas(workload: Workload, hardware: HardwareTable) -> tuple[Workload, HardwareTable]:
    """Both, so that data parallelism sends nothing outside the blocks, every message has NICs of its own, and what `overlap_tp`
    hides slows compute no more than what is hidden without it, whatever the stack says."""
    arrays, modelled = arrays_of(workload, hardware), workload.modelled
    if modelled is not None and modelled.stack.overlap_contention > modelled.stack.contention:
        stack = modelled.stack.model_copy(update={"overlap_contention": modelled.stack.contention})
        modelled = replace(modelled, stack=stack)
    step, pieces = arrays.step, arrays.pieces
    of_replicas = np.isin(step.role, (REDUCE_GRADIENTS, GATHER_PARAMETERS))
    arrays = arrays._replace(
        step=step._replace(comm_bytes=np.where(of_replicas, 0.0, step.comm_bytes)),
        pieces=pieces._replace(gradient_bytes=np.zeros_like(pieces.gradient_bytes)),
    )
    columns = hardware.columns._replace(shared_nics=np.zeros_like(hardware.columns.shared_nics))
    return replace(workload, arrays=arrays, modelled=modelled), replace(hardware, columns=columns)


def _between(ga: Ints, known: Ints, step_s: Floats) -> Floats:
    """A lower bound at each `ga` of [m], [n, m], by those at three others, [3, n, 1]: a coarse one is convex, and never falls.

    It is made of sums and maxima of seconds that grow in proportion to the micro-batches, or not at all. A convex function is
    above its extended chords, on either side; these do not go far, where they would magnify rounding.
    """
    (low, middle, high), (low_s, middle_s, high_s) = known, step_s
    left = ga < middle
    begin, end = np.where(left, middle, low), np.where(left, high, middle)
    slope_s = np.where(left, high_s - middle_s, middle_s - low_s) / np.maximum(end - begin, 1)
    away = ga - middle
    near = np.abs(away) <= FURTHEST * (end - begin)
    bound_s: Floats = np.maximum(np.where(left, low_s, middle_s), np.where(near, middle_s + slope_s * away, 0.0))
    for at, exact_s in zip(known, step_s, strict=True):
        bound_s = np.where(ga == at, exact_s, bound_s)
    return bound_s


def ignored_columns(workload: Workload, schedules: Ints, shardings: Ints) -> frozenset[str]:
    """Columns of plans, and numbers of hardware, that change neither `coarse_bounds` nor the reason nor the bytes of a plan.

    As long as all plans have one of these schedules and shardings.
    """
    framework = workload.arrays.framework
    kept = np.array([framework.sharding, framework.sharding_in_pipeline])
    if (np.where(shardings[:, None] == AS_STACK, kept, shardings[:, None]) >= GRADIENTS_SHARDED).any():
        return frozenset({"bucket_bytes", "shared_nics"})  # the others change what blocks wait for their layers
    once = {"bucket_bytes", "shared_nics", "overlap_param", "gradient_precision"}
    return frozenset(once if (schedules == DEEPSPEED).any() else once | {"overlap_grad"})


def _bounds(workload: Workload, hardware: HardwareTable, plans: Plans, rows: Ints, *, all_paired: bool = False) -> Floats:
    """Bounds of the plans in `rows`, which must be legal, in the event engine; NaN of all others.

    `all_paired`: see `cost_blocks`. What blocks without a partner take longer is not in proportion to the micro-batches.
    """
    step_s = np.full(len(plans.tp), np.nan)
    for some, own in batches(workload.arrays, plans, rows):
        tables, own_s = tables_of(workload, hardware, own, all_paired=all_paired), np.empty(len(some))
        _bound_rows(tables, scratch_for(tables), own_s)
        step_s[some] = own_s
    return step_s * ROUNDING


@outer_kernel
def _bound_rows(tables: Tables, scratch: Scratch, step_s: Floats) -> None:
    """As `simulate` runs steps, but for their pipelines; metrics are not summed."""
    tables, scratch = reference(tables), reference(scratch)
    times = scratch.times
    for i in range(len(step_s)):
        case = reference(case_at(tables, i))
        plan = case.plan
        begin_step(case, scratch)
        bound_pipeline(case, scratch)
        longest_s = 0.0
        if plan.post_validation == 1:  # a step without a barrier: a stage at least computes, and ends its own step
            for stage in range(plan.pp):
                longest_s = max(longest_s, times.idle_s[stage] + scratch.low.after_s[stage])
        else:
            if PLACEMENT[plan.schedule] != BOTH_WAYS:
                longest_s = reduce_gradients(case, scratch)
            else:
                for stage in range(plan.pp):
                    longest_s = max(longest_s, times.free_s[stage])
            longest_s += slowest_after_s(case, scratch)
        step_s[i] = longest_s


def reasons_over(workload: Workload, hardware: HardwareTable, plans: Plans, ga: Ints) -> Ints:
    """The reason of each plan with each number of micro-batches in `ga`, [n, m], as `legality` gives it.

    `ga` decides a reason by the rules of `micro_batches_unfit`, by the micro-batches that fill a pipeline (peak memory; all of
    them where each has receive buffers, whether it is 1 where the backward makes gradients), and by a global batch that is too
    large. Where all of these agree, one number stands for the others.
    """
    kind, first = distinct_rows(np.column_stack([getattr(plans, name) for name in BESIDE_GA]))
    kinds, numbers = len(first), np.arange(len(ga))
    if (replicas(plans).astype(float) * plans.micro_batch * ga.max() > MAX_BATCH).any():
        alike = np.tile(numbers, (kinds, 1))
    else:
        alike = _alike_in_pipeline(workload, slice_plans(plans, first), ga)
    used = np.zeros((kinds, len(ga)), bool)
    np.put_along_axis(used, alike, values=True, axis=1)
    row, stands = np.nonzero(used[kind])  # of each plan the numbers to be checked
    checked = slice_plans(plans, row)._replace(ga=ga[stands])
    reasons = np.zeros((len(kind), len(ga)), int)
    reasons[row, stands], _ = legality(workload, hardware, checked)
    return np.take_along_axis(reasons, alike[kind], axis=1)


def _alike_in_pipeline(workload: Workload, plans: Plans, ga: Ints) -> Ints:
    """The index of the first number in `ga` that a pipeline cannot tell from another, for each of both, [n, m]."""
    row, number = (index.ravel() for index in np.indices((len(plans.tp), len(ga))))
    each = slice_plans(plans, row)._replace(ga=ga[number])
    filling = micro_batches_to_fill(each, np.arange(len(row)))
    if workload.modelled and workload.modelled.stack.receives_apart:
        filling = each.ga
    rules = [column.astype(int) for column in micro_batches_unfit(workload, each).values()]
    once = (each.ga == 1) & workload.arrays.framework.gradients_made
    key, first = distinct_rows(np.column_stack([row, filling, once, *rules]))
    return number[first[key]].reshape(len(plans.tp), len(ga))
