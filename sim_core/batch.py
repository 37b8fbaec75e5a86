"""Batches of legal plans in the event engine: tables that they share, memory that they use in turn, LANES steps at once."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import Addresses, inlined_kernel, inner_kernel, outer_kernel
from sim_core.compiled.references import call, reference, row_at
from sim_core.compiled.vectors import LANES
from sim_core.costing.blocks import cost_blocks
from sim_core.costing.case import Tables, case_at
from sim_core.costing.groups import group_plans
from sim_core.costing.recomputed import flops_again
from sim_core.costing.updates import update_table
from sim_core.engine.codes import chunks_of, most_blocks, most_cells, most_events, most_scratch
from sim_core.engine.lanes import Lanes, allocate_lanes, engine_for, put, take, take_beside
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import MESSAGES, STREAMS, Shape
from sim_core.engine.sequence import Sequence, allocate_sequence
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import STEP_TIME
from sim_core.planning.columns import Plans, alike_in_order, by_order
from sim_core.planning.legality import REASON
from sim_core.planning.split import Split, split_plans
from sim_core.step.scratch import Scratch, allocate_scratch
from sim_core.step.whole import begin_step, finish_step
from sim_core.workloads.workload import Arrays, Workload

_NOT_FINITE = REASON["result_not_finite"]
BATCH: Final = 8192
"""Plans per batch, which share tables: many, so that they share much; few, so that the tables stay small."""
CELLS: Final = 2**25
"""Numbers in the table of splits of a batch (256 MiB): plans of very many virtual stages come in smaller batches."""
PIECE: Final = 2**20
"""Events of a piece of a sequence, 40 bytes each: few steps have more, and run in several."""


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


def tables_of(workload: Workload, hardware: HardwareTable, plans: Plans, rows: Ints, launches: Floats | None = None) -> Tables:
    """What the plans in `rows`, which must be legal, share: places of their groups, layers of their stages, cost of a layer.

    `launches`, [rows]: on what the host takes to launch a layer of a model.
    """
    groups = group_plans(hardware.columns, plans, rows, workload.arrays.shares.whole_experts)
    split = split_plans(workload.arrays, plans, rows)
    blocks = cost_blocks(workload, hardware, plans, groups, split, rows, launches)
    updates = update_table(workload, hardware, plans, groups, split, rows, blocks.updates)
    return Tables(workload.arrays, hardware.columns, plans, groups, split, blocks._replace(updates=updates))


class Together(NamedTuple):
    """Memory for LANES plans at once."""

    one: Scratch  # of the first lane
    kept: Scratch  # what a plan keeps while the pipelines run has one more axis, [LANES, ...]: see scratch_of
    writers: Addresses  # of the orders of blocks
    order: Ints  # the order of blocks, flat: row_of codes per stage
    of_order: Ints  # scratch of fill_order
    sequence: Sequence
    lanes: Lanes
    engine: Addresses  # which runs the lanes
    ran: Ints  # what it says: the turns of the sequence; 1 if it has run


def scratch_for(arrays: Arrays, plans: Plans, split: Split, rows: Ints) -> Scratch:
    """Scratch large enough for each plan in `rows`."""
    stages, cells = int(plans.pp[rows].max()), most_cells(plans.schedule[rows], plans.pp[rows], plans.vpp[rows])
    return allocate_scratch(arrays, stages, cells, int(plans.layers[rows].max()), split.sizes)


def allocate_together(arrays: Arrays, plans: Plans, split: Split, rows: Ints) -> Together:
    """Memory large enough for any of the plans in `rows`."""
    scratch = scratch_for(arrays, plans, split, rows)
    schedule, pp, vpp, ga = plans.schedule[rows], plans.pp[rows], plans.vpp[rows], plans.ga[rows]
    events, stages, cells = most_events(schedule, pp, vpp, ga), int(pp.max()), most_cells(schedule, pp, vpp)
    of_one_stage = int((3 * vpp * ga + pp).max())
    kept = scratch._replace(
        program=_widened(scratch.program),
        low=_widened(scratch.low),
        buckets=_widened(scratch.buckets),
        sums=np.repeat(scratch.sums[None], LANES, axis=0),
    )
    order, ran = np.empty(most_blocks(schedule, pp, vpp, ga), np.int64), np.zeros(2, np.int64)
    sequence, lanes = allocate_sequence(events, max(PIECE, of_one_stage), stages, cells), allocate_lanes(events, stages, cells)
    return Together(
        one=_of_lane(kept, 0),
        kept=kept,
        writers=order_writers(schedule),
        order=order,
        of_order=np.empty(most_scratch(schedule, pp, ga), np.int64),
        sequence=sequence,
        lanes=lanes,
        engine=engine_for(order, sequence, lanes, ran),
        ran=ran,
    )


def _widened(columns: Any) -> Any:
    """The same arrays with one more axis."""
    return type(columns)(*(np.repeat(column[None], LANES, axis=0) for column in columns))


def _of_lane(kept: Scratch, lane: int) -> Scratch:
    """The scratch of one lane."""
    return Scratch(
        program=row_at(kept.program, lane),
        times=kept.times,
        low=row_at(kept.low, lane),
        longer=kept.longer,  # only the timeline of a plan alone reads it
        layers=kept.layers,
        buckets=row_at(kept.buckets, lane),
        once=kept.once,
        sums=kept.sums[lane],
    )


scratch_of = inlined_kernel(_of_lane)


@outer_kernel
def run_rows(
    tables: Tables,
    rows: Ints,
    together: Together,
    again: Floats,
    reason: Ints,
    metrics: Floats,
    recomputed: Floats,
) -> None:
    """Simulate legal plans; consecutive plans with the same order of blocks share its sequence, and run together."""
    tables, together = reference(tables), reference(together)
    plans = tables.plans
    order, sequence, lanes, kept = together.order, together.sequence, together.lanes, together.kept
    writers, of_order, engine, ran = together.writers, together.of_order, together.engine, together.ran
    begin = 0
    while begin < len(rows):
        i = rows[begin]
        end = begin + 1
        while end < len(rows) and alike_in_order(plans, i, rows[end]):
            end += 1
        shape = Shape(plans.schedule[i], plans.pp[i], plans.vpp[i], plans.ga[i], plans.overlap_pp[i] == 1)
        pp, cells = shape.pp, shape.pp * chunks_of(shape.schedule, shape.vpp)
        fill_order(writers, shape.schedule, pp, shape.vpp, shape.ga, plans.microbatch_group_size[i], order, of_order)
        anew = True
        while begin < end:
            used = min(end - begin, LANES)
            streams, crowds = False, False
            for lane in range(used):
                case = reference(case_at(tables, rows[begin + lane]))
                own = reference(scratch_of(kept, lane))
                begin_step(case, own)
                streams, crowds = streams or own.program.shares[STREAMS], crowds or own.program.shares[MESSAGES]
                put(own.program, shape, lane, lanes)
            call(engine[0], reference(shape), order, sequence, anew, streams, crowds, lanes, ran)
            anew = False
            for lane in range(used):
                case = reference(case_at(tables, rows[begin + lane]))
                own = reference(scratch_of(kept, lane))
                if ran[1] == 1:
                    take(lanes, lane, pp, cells, own.times)
                    if streams or crowds:
                        take_beside(lanes, lane, pp, cells, own.times)
                    finish_step(case, order, own)
                else:
                    own.sums[STEP_TIME] = np.nan
                _keep(plans, rows[begin + lane], own, again, reason, metrics, recomputed)
            begin += used


@inner_kernel
def _keep(plans: Plans, i: int, scratch: Scratch, again: Floats, reason: Ints, metrics: Floats, recomputed: Floats) -> None:
    """Write the result of a plan, or that it has none."""
    sums = scratch.sums
    if not _all_finite(sums) or not sums[STEP_TIME] > 0:
        reason[i] = _NOT_FINITE
        return
    for m in range(metrics.shape[0]):
        metrics[m, i] = sums[m]
    recomputed[i] = flops_again(again, scratch.low.again, plans.checkpointing[i], plans.checkpoint_layers[i])


@inner_kernel
def _all_finite(values: Floats) -> bool:
    for value in values:  # noqa: SIM110 (a generator would allocate)
        if not np.isfinite(value):
            return False
    return True
