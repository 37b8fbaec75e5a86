"""Gradients and parameters of data-parallel ranks, bucket by bucket or layer by layer, behind the blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Blocks, case_at
from sim_core.costing.groups import Groups
from sim_core.engine.codes import BOTH_WAYS, PLACEMENT, SPLITS, WEIGHTS, chunks_of, virtual_of
from sim_core.engine.events import DOWN, UP, WEIGHT, Program
from sim_core.hardware.table import HardwareColumns, HardwareTable
from sim_core.jit import outer_kernel
from sim_core.planning.columns import Plan, Plans, plan_at
from sim_core.planning.split import Split
from sim_core.simulator import Ran
from sim_core.step.buckets import Buckets
from sim_core.step.lower import Lowered
from sim_core.step.once import Once, gather_parameters
from sim_core.step.sharding import Layers, run_layers
from sim_core.timelines.blocks import Timed
from sim_core.timelines.spans import GATHER, GRADIENTS, PARAMETERS, REDUCE, Columns, Spans, spans
from sim_core.workloads.workload import Arrays

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@outer_kernel
def _gather(
    arrays: Arrays,
    hardware: HardwareColumns,
    plans: Plans,
    groups: Groups,
    split: Split,
    table: Blocks,
    low: Lowered,
    program: Program,
    buckets: Buckets,
    once: Once,
    out: Floats,
) -> None:
    """Cost the gather of parameters again, for its buckets."""
    gather_parameters(case_at(arrays, hardware, plans, groups, split, table, 0), low, program, buckets, once, out)


@outer_kernel
def _layers(
    arrays: Arrays,
    hardware: HardwareColumns,
    plans: Plans,
    groups: Groups,
    split: Split,
    table: Blocks,
    layers: Layers,
    virtual: int,
    way: int,
) -> int:
    """Run the layers of one block again, for their gathers and scatters; returns their number."""
    return run_layers(case_at(arrays, hardware, plans, groups, split, table, 0), virtual, way, layers)


def gradient_spans(ran: Ran, blocks: Timed) -> list[Spans]:
    """Buckets of gradients; call this before `parameter_spans`, which uses the same scratch.

    The stream takes buckets of all kinds as they become ready, (j + 1) / n through the last backward of their layers.
    Gradients of an operator table, and the sum over the two copies of DualPipe, are not told apart.
    """
    plan = plan_at(ran.plans, 0)
    if ran.workload.arrays.layered_gradients:
        return []
    found = []
    for stage in range(plan.pp):
        stream_s = 0.0 if plan.overlap_grad == 1 else float(ran.scratch.times.free_s[stage])
        ready_s, seconds, chunk = _buckets_of(ran, plan, blocks, stage)
        if plan.overlap_grad == 0:
            ready_s = np.full_like(ready_s, stream_s)
        start_s = np.empty_like(ready_s)
        for k in range(len(ready_s)):
            start_s[k] = max(stream_s, ready_s[k])
            stream_s = start_s[k] + seconds[k]
        columns: Columns = {"stage": stage, "stream": GRADIENTS, "kind": REDUCE, "chunk": chunk}
        found.append(spans(len(ready_s), **columns, start_s=start_s, end_s=start_s + seconds))
    return found


def _buckets_of(ran: Ran, plan: Plan, blocks: Timed, stage: int) -> tuple[Floats, Floats, Ints]:
    """When each bucket of a stage is ready, its seconds and its chunk, in the order in which they are sent."""
    split, buckets, duration_s = ran.tables.split, ran.scratch.buckets, ran.scratch.program.duration_s
    chunks, first = chunks_of(plan.schedule, plan.vpp), int(split.offset[split.key[0]])
    mine = (blocks.stage == stage) & (blocks.backward == 1)
    lasts = []
    for chunk in range(chunks):
        of_chunk = mine & (blocks.chunk == chunk)
        end_s = float(blocks.end_s[of_chunk].max())
        apart = SPLITS[plan.schedule] and bool((blocks.part[of_chunk & (blocks.end_s == end_s)] == WEIGHTS).any())
        lasts.append((end_s, float(duration_s[WEIGHT if apart else UP, stage * chunks + chunk]), chunk))
    found: list[tuple[Floats, Floats, Ints]] = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]
    for end_s, tail_s, chunk in sorted(lasts, key=lambda each: (each[0], -each[2])):
        size = int(split.size[first + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp)])
        ready, seconds = [], []
        for number, bucket_s in zip(buckets.number[size], buckets.bucket_s[size], strict=True):
            if bucket_s > 0:
                ready.append(end_s - tail_s + (np.arange(int(number)) + 1) / number * tail_s)
                seconds.append(np.full(int(number), bucket_s))
        if ready:
            order = np.argsort(np.concatenate(ready), kind="stable")
            of_chunk = np.full(len(order), chunk, np.int64)
            found.append((np.concatenate(ready)[order], np.concatenate(seconds)[order], of_chunk))
    ready_s, seconds_of, chunk_of = (np.concatenate(column) for column in zip(*found, strict=True))
    return ready_s, seconds_of, chunk_of


def parameter_spans(ran: Ran, hardware: HardwareTable) -> list[Spans]:
    """Parameters of each virtual stage that are gathered once a step, behind the first forwards."""
    plan, tables, scratch = plan_at(ran.plans, 0), ran.tables, ran.scratch
    if plan.overlap_param == 0:
        return []
    given = ran.workload.arrays, hardware.columns, ran.plans, tables.groups, tables.split, tables.blocks
    _gather(*given, scratch.low, scratch.program, scratch.buckets, scratch.once, np.zeros_like(ran.metrics))
    chunks, first = chunks_of(plan.schedule, plan.vpp), int(tables.split.offset[tables.split.key[0]])
    found = []
    for stage in range(plan.pp):
        rows = [first + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp) for chunk in range(chunks)]
        end_s = np.cumsum(scratch.buckets.total_s[tables.split.size[rows]])
        start_s = np.concatenate(([0.0], end_s[:-1]))
        columns: Columns = {"stage": stage, "stream": PARAMETERS, "kind": GATHER, "chunk": np.arange(chunks)}
        found.append(spans(chunks, **columns, start_s=start_s, end_s=end_s))
    return found


def layer_spans(ran: Ran, hardware: HardwareTable, blocks: Timed) -> list[Spans]:
    """Gathers of parameters and scatters of gradients of sharded layers, in every block."""
    plan, tables, scratch = plan_at(ran.plans, 0), ran.tables, ran.scratch
    given = ran.workload.arrays, hardware.columns, ran.plans, tables.groups, tables.split, tables.blocks
    if PLACEMENT[plan.schedule] == BOTH_WAYS or SPLITS[plan.schedule]:
        return []
    found = []
    for virtual in range(plan.pp * plan.vpp):
        stage, chunk = virtual % plan.pp, virtual // plan.pp
        for way in (DOWN, UP):
            count = int(_layers(*given, scratch.layers, virtual, way))
            if count == 0:
                return []
            mine = (blocks.stage == stage) & (blocks.chunk == chunk) & (blocks.backward == way)
            for kind, stream, start_s, end_s in _sent(scratch.layers, count, way, plan):
                begin_s, micro_batch = blocks.start_s[mine][:, None], blocks.micro_batch[mine]
                rows = len(micro_batch) * len(start_s)
                columns: Columns = {"stage": stage, "stream": stream, "kind": kind, "chunk": chunk}
                found.append(
                    spans(
                        rows,
                        **columns,
                        micro_batch=np.repeat(micro_batch, len(start_s)),
                        start_s=(begin_s + start_s).ravel(),
                        end_s=(begin_s + end_s).ravel(),
                    )
                )
    return found


def _sent(layers: Layers, count: int, way: int, plan: Plan) -> list[tuple[int, int, Floats, Floats]]:
    """Gathers and scatters of one block, from its begin on, as `forward_s` and `backward_s` of step/sharding.py order them."""
    waits = way == UP and plan.overlap_grad == 0
    ahead = plan.prefetch_layers if plan.overlap_param == 1 and not waits else 0
    order = np.arange(count) if way == DOWN else np.arange(count)[::-1]
    gather_s, scatter_s, end_s = (column[order] for column in (layers.gather_s, layers.scatter_s, layers.end_s))
    stream_s, sent = 0.0, 0
    gathers, scatters = [], []

    def scatter_up_to(layer: int) -> None:
        nonlocal stream_s, sent
        while way == UP and sent < layer:
            begin_s = max(stream_s, end_s[sent])
            stream_s = begin_s + scatter_s[sent]
            scatters.append((begin_s, stream_s))
            sent += 1

    for k in range(count):
        scatter_up_to(k - ahead)
        if gather_s[k] > 0:
            begin_s = max(stream_s, end_s[k - 1 - ahead]) if k > ahead else stream_s
            stream_s = begin_s + gather_s[k]
            gathers.append((begin_s, stream_s))
    scatter_up_to(count)
    found = []
    for kind, stream, times in ((GATHER, PARAMETERS, gathers), (REDUCE, GRADIENTS, scatters)):
        if times:
            start_s, stop_s = np.array(times).T
            found.append((kind, stream, start_s, stop_s))
    return found
