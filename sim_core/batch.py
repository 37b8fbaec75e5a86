"""Batches of legal plans in the event engine: tables that they share, memory that they use in turn, LANES steps at once."""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import Addresses, inner_kernel, outer_kernel
from sim_core.compiled.references import call, for_lanes, reference, row_at
from sim_core.compiled.vectors import LANES
from sim_core.costing.blocks import cost_blocks
from sim_core.costing.case import Case, Tables, case_at
from sim_core.costing.groups import group_plans
from sim_core.costing.recomputed import again_flops, flops_again
from sim_core.costing.updates import update_table
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import chunks_of, most_blocks, most_cells, most_events, most_scratch
from sim_core.engine.lanes import Lanes, allocate_lanes, engine, put, take
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.program import MESSAGES, QUEUES, STREAMS, Shape
from sim_core.engine.sequence import Sequence, allocate_sequence
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import METRICS, STEP_TIME
from sim_core.planning.columns import Plans, by_order, order_table, slice_plans
from sim_core.planning.legality import REASON
from sim_core.planning.split import split_plans
from sim_core.step.scratch import Scratch, allocate_scratch
from sim_core.step.whole import begin_again, begin_step, count_pairs, finish_step, gathers_ahead
from sim_core.workloads.workload import Arrays, Workload

_NOT_FINITE = REASON["result_not_finite"]
BATCH = 8184
"""Plans per batch, which share tables: many, so that they share much; few, so that the tables stay small. No power of two: the
values of a plan, one in each column, would fall on the same few lines of the cache."""
CELLS = 2**25
"""Numbers in the table of splits of a batch (256 MiB): plans of very many virtual stages come in smaller batches."""
PIECE = 2**21
"""Events of a piece of a sequence, 40 bytes each, beside those that are kept: few steps have more, and run in several."""


def batches(arrays: Arrays, plans: Plans, rows: Ints) -> Iterator[tuple[Ints, Plans]]:
    """The rows in batches, and their plans, sorted by schedule, so that consecutive plans share the order of blocks."""
    ordered = by_order(plans, rows)
    virtual = np.cumsum(plans.pp[ordered] * plans.vpp[ordered])
    most = CELLS // (2 * len(arrays.unit_layers) + 3)  # columns of a Split
    begin = 0
    while begin < len(ordered):
        before = virtual[begin - 1] if begin else 0
        end = min(begin + BATCH, max(begin + 1, int(np.searchsorted(virtual, before + most, side="right"))))
        yield ordered[begin:end], slice_plans(plans, ordered[begin:end])  # one after the other in memory
        begin = end


def tables_of(
    workload: Workload, hardware: HardwareTable, plans: Plans, launches: Floats | None = None, *, all_paired: bool = False
) -> Tables:
    """What plans, which must be legal, share: places of their groups, layers of their stages, cost of a layer.

    `launches`, [plans], and `all_paired`: see `cost_blocks`.
    """
    rows = np.arange(len(plans.tp))
    groups = group_plans(hardware.columns, plans, rows, workload.arrays.shares.whole_experts)
    split = split_plans(workload.arrays, plans, rows)
    blocks = cost_blocks(workload, hardware, plans, groups, split, rows, launches, all_paired=all_paired)
    updates = update_table(workload, hardware, plans, groups, split, rows, blocks.updates)
    return Tables(workload.arrays, hardware.columns, plans, groups, split, blocks._replace(updates=updates))


def scratch_for(tables: Tables) -> Scratch:
    """Scratch large enough for each plan."""
    plans = tables.plans
    cells = most_cells(plans.schedule, plans.pp, plans.vpp)
    return allocate_scratch(tables.arrays, int(plans.pp.max()), cells, int(plans.layers.max()), tables.split.sizes)


class Batch(NamedTuple):
    """Legal plans with the memory in which LANES of them run at once, and what comes of them."""

    tables: Tables
    alike: Ints  # [plans] the same number for those with the same order of blocks, sent in the same way
    scratch: Scratch  # of all lanes: its arrays have one more axis, [LANES, ...]
    writers: Addresses  # of the orders of blocks
    order: Ints  # the order of blocks, flat: row_of codes per stage
    of_order: Ints  # scratch of fill_order
    pairs: Ints  # [cells] see count_pairs
    sequence: Sequence
    lanes: Lanes
    engine: Addresses  # which runs the lanes
    ran: Ints  # what it says: the turns of the sequence; 1 if it has run
    again: Floats  # FLOPs that recompute runs again, see again_flops
    reason: Ints  # [plans] 0 for a result
    metrics: Floats  # [METRICS, plans] NaN without one
    recomputed: Floats  # [plans]


class _Kept(threading.local):
    """What a thread keeps from batch to batch; the memory is of its own, and only what is written is in use."""

    def __init__(self) -> None:
        self.sequence = allocate_sequence(PIECE, PIECE, PIECE, PIECE)


_KEPT = _Kept()


def batch_of(workload: Workload, hardware: HardwareTable, plans: Plans, launches: Floats | None = None) -> Batch:
    """Legal plans, ready for `run_rows`; `launches`: see tables_of."""
    tables, schedule, pp, vpp, ga = (
        tables_of(workload, hardware, plans, launches),
        plans.schedule,
        plans.pp,
        plans.vpp,
        plans.ga,
    )
    events, stages, cells = most_events(schedule, pp, vpp, ga), int(pp.max()), most_cells(schedule, pp, vpp)
    order, ran = np.empty(most_blocks(schedule, pp, vpp, ga), int), np.zeros(2, int)
    sequence = _KEPT.sequence
    if events > PIECE:
        sequence = allocate_sequence(events, max(PIECE, int((3 * vpp * ga + pp).max())), stages, cells)
    return Batch(
        tables=tables,
        alike=distinct_rows(order_table(plans))[0],
        scratch=_for_lanes(scratch_for(tables)),
        writers=order_writers(schedule),
        order=order,
        of_order=np.empty(most_scratch(schedule, pp, ga), int),
        pairs=np.zeros(cells, int),
        sequence=sequence,
        lanes=allocate_lanes(events, stages, cells),
        engine=engine(),
        ran=ran,
        again=again_flops(workload),
        reason=np.zeros(len(pp), int),
        metrics=np.full((len(METRICS), len(pp)), np.nan),
        recomputed=np.full(len(pp), np.nan),
    )


def _for_lanes(columns: Any) -> Any:
    """The same arrays with one more axis, [LANES, ...]."""
    if isinstance(columns, tuple):
        return type(columns)(*map(_for_lanes, columns))
    return np.repeat(columns[None], LANES, axis=0)


@outer_kernel
def run_rows(batch: Batch, rows: Ints) -> None:
    """Simulate plans of a batch; consecutive ones with the same order of blocks share its sequence, and run together."""
    batch = reference(batch)
    tables, plans, order, sequence, lanes = batch.tables, batch.tables.plans, batch.order, batch.sequence, batch.lanes
    scratch, cases = for_lanes(row_at(batch.scratch, 0)), for_lanes(case_at(tables, rows[0]))
    for lane in range(LANES):
        scratch[lane] = row_at(batch.scratch, lane)
    begin = 0
    while begin < len(rows):
        i = rows[begin]
        end = begin + 1
        while end < len(rows) and batch.alike[rows[end]] == batch.alike[i]:
            end += 1
        shape = Shape(plans.schedule[i], plans.pp[i], plans.vpp[i], plans.ga[i], plans.overlap_pp[i] == 1)
        pp, cells = shape.pp, shape.pp * chunks_of(shape.schedule, shape.vpp)
        group = plans.microbatch_group_size[i]
        fill_order(batch.writers, shape.schedule, pp, shape.vpp, shape.ga, group, order, batch.of_order)
        count_pairs(shape, order, batch.pairs)
        anew = True
        while begin < end:
            used, runs, ran = min(end - begin, LANES), 1, 0
            for lane in range(used):
                cases[lane] = case_at(tables, rows[begin + lane])
                runs = max(runs, 1 + gathers_ahead(cases[lane].plan))
            while ran < runs:
                streams, crowds, queues = False, False, False
                for lane in range(used):
                    case, own = cases[lane], scratch[lane]
                    if ran == 0:
                        begin_step(case, own)
                    elif gathers_ahead(case.plan):
                        begin_again(case, order, own)
                    shares = own.program.shares
                    streams, crowds, queues = streams or shares[STREAMS], crowds or shares[MESSAGES], queues or shares[QUEUES]
                    put(own.program, shape, lane, lanes)
                call(batch.engine[0], reference(shape), group, order, sequence, anew, streams, crowds, queues, lanes, batch.ran)
                anew = False
                ran = ran + 1 if batch.ran[1] == 1 else runs
                for lane in range(used):
                    take(lanes, lane, pp, cells, streams or crowds, scratch[lane].times)
            for lane in range(used):
                _finish(batch, rows[begin + lane], cases[lane], scratch[lane])
            begin += used


@inner_kernel
def _finish(batch: Batch, i: int, case: Case, scratch: Scratch) -> None:
    """Finish a step and write the result of its plan, or that it has none."""
    if batch.ran[1] == 1:
        finish_step(case, batch.order, batch.pairs, scratch)
    else:
        scratch.sums[STEP_TIME] = np.nan
    sums, plans = scratch.sums, batch.tables.plans
    finite = sums[STEP_TIME] > 0
    for value in sums:
        finite = finite and np.isfinite(value)
    if not finite:
        batch.reason[i] = _NOT_FINITE
        return
    for m in range(len(sums)):
        batch.metrics[m, i] = sums[m]
    again = scratch.low.again
    batch.recomputed[i] = flops_again(batch.again, again, plans.checkpointing[i], plans.checkpoint_layers[i])
