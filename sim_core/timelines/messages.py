"""Gradients and parameters of data-parallel ranks, bucket by bucket or layer by layer, behind the blocks."""

from collections.abc import Iterator

import numpy as np

from sim_core.arrays import Floats
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import Tables, case_at
from sim_core.engine.codes import WEIGHTS, chunks_of
from sim_core.engine.program import DOWN, UP, WEIGHT, Program, Times
from sim_core.engine.schedules import BOTH_WAYS, PLACEMENT, SPLITS
from sim_core.metrics import STEP_TIME
from sim_core.planning.columns import Plan
from sim_core.simulator import Ran
from sim_core.step.gradients import shared_s
from sim_core.step.scratch import Layers
from sim_core.step.sharding import run_layers
from sim_core.timelines.blocks import Timed, split_row
from sim_core.timelines.spans import GATHER, GRADIENTS, PARAMETERS, REDUCE, Spans, spans


@outer_kernel
def _shared_s(program: Program, times: Times, cell: int) -> tuple[float, float]:
    """What a cell's last backward and its gradients have waited for each other."""
    return shared_s(program, times, cell)


@outer_kernel
def _layers(tables: Tables, layers: Layers, virtual: int, way: int) -> int:
    """Run the layers of one block again, for their gathers and scatters; returns their number."""
    tables = reference(tables)
    return run_layers(reference(case_at(tables, 0)), virtual, way, layers)


def gradient_spans(ran: Ran, blocks: Timed) -> list[Spans]:
    """Buckets of gradients; call this before `parameter_spans`, which uses the same scratch.

    The stream takes buckets of all kinds as they become ready, (j + 1) / n through the last backward of their layers.
    Gradients of an operator table, and the sum over the two copies of DualPipe, are not told apart.
    """
    plan = ran.plan
    if ran.workload.arrays.layered_gradients:
        return []
    drawn = []
    for stage in range(plan.pp):
        stream_s = 0.0 if plan.overlap_grad == 1 else float(ran.scratch.times.free_s[stage])
        ready_s, seconds, chunk, longer_s = _buckets_of(ran, plan, blocks, stage)
        if plan.overlap_grad == 0:
            ready_s = np.full_like(ready_s, stream_s)
        start_s = np.empty_like(ready_s)
        for k in range(len(ready_s)):
            start_s[k] = max(stream_s, ready_s[k])
            stream_s = start_s[k] + seconds[k]
        times = {"start_s": start_s, "end_s": start_s + seconds, "shared_s": longer_s}
        drawn.append(spans(len(ready_s), stage=stage, stream=GRADIENTS, kind=REDUCE, chunk=chunk, **times))
    return drawn


def _buckets_of(ran: Ran, plan: Plan, blocks: Timed, stage: int) -> Floats:
    """When each bucket of a stage is ready, its seconds, its chunk, seconds of sharing NICs, in the order of sending, [4, n].

    A backward that shares NICs is slower from the first bucket on, and so are the buckets until it ends; those that are sent
    beside the backwards that follow are later by as much in all.
    """
    buckets, duration_s = ran.scratch.buckets, ran.scratch.program.duration_s
    chunks = chunks_of(plan.schedule, plan.vpp)
    mine = (blocks.stage == stage) & (blocks.backward == 1)
    lasts = []
    for chunk in range(chunks):
        of_chunk = mine & (blocks.chunk == chunk)
        end_s = float(blocks.end_s[of_chunk].max())
        apart = SPLITS[plan.schedule] and bool((blocks.part[of_chunk & (blocks.end_s == end_s)] == WEIGHTS).any())
        lasts.append((end_s, float(duration_s[WEIGHT if apart else UP, stage * chunks + chunk]), chunk))
    sent = [np.zeros((4, 0))]
    for end_s, tail_s, chunk in sorted(lasts, key=lambda each: (each[0], -each[2])):
        size = int(ran.tables.split.size[split_row(ran, plan, stage, chunk)])
        begin_s, late_s, before_s = 0.0, 0.0, 0.0
        if plan.overlap_grad == 1 and not SPLITS[plan.schedule]:
            cell = stage * chunks + chunk
            begin_s, late_s = _shared_s(ran.scratch.program, ran.scratch.times, cell)
            before_s = float(ran.scratch.times.later_s[cell])
        if sent[-1].size:
            sent[-1][[1, 3]] += before_s / sent[-1].shape[1]
        kinds = zip(buckets.number[size], buckets.bucket_s[size], strict=True)
        of_kinds = [
            ((np.arange(int(number)) + 1) / number, np.full(int(number), each_s)) for number, each_s in kinds if each_s > 0
        ]
        if of_kinds:
            part, seconds = np.hstack(of_kinds)
            order = np.argsort(part, kind="stable")
            part = part[order]
            shifted_s = late_s * (part - part[0]) / max(1 - part[0], 1e-300)
            longer_s = np.append(np.diff(shifted_s), 0.0)
            ready_s = end_s - begin_s - tail_s + part * tail_s + shifted_s
            sent.append(np.array([ready_s, seconds[order] + longer_s, np.full(len(part), chunk), longer_s]))
    return np.concatenate(sent, axis=1)


def parameter_spans(ran: Ran, blocks: Timed) -> list[Spans]:
    """Parameters of each virtual stage that are gathered once a step, behind the first forwards."""
    plan, tables, scratch = ran.plan, ran.tables, ran.scratch
    if plan.overlap_param == 0:
        return []
    early_s, step_s = scratch.once.early_s, float(ran.metrics[STEP_TIME])
    chunks = chunks_of(plan.schedule, plan.vpp)
    drawn = []
    for stage in range(plan.pp):
        rows = [split_row(ran, plan, stage, chunk) for chunk in range(chunks)]
        begins = (blocks.stage == stage) & (blocks.micro_batch == 0) & (blocks.backward == 0)
        late_s = np.array([float(blocks.late_s[begins & (blocks.chunk == chunk)][0]) for chunk in range(chunks)])
        end_s = np.cumsum(scratch.gathers.total_s[tables.split.size[rows]]) + late_s - early_s[stage]
        start_s = np.concatenate(([-early_s[stage]], end_s[:-1]))
        columns = {"stage": stage, "stream": PARAMETERS, "kind": GATHER}
        more_s = np.diff(late_s, prepend=0.0)
        inside, before = np.flatnonzero(end_s > 0), np.flatnonzero(start_s < 0)
        times = {"start_s": np.maximum(start_s[inside], 0.0), "end_s": end_s[inside], "shared_s": more_s[inside]}
        drawn.append(spans(len(inside), **columns, chunk=inside, **times))
        # what a stage gathers before others have ended the step before, it gathers at the end of this one, for the next
        times = {"start_s": start_s[before] + step_s, "end_s": np.minimum(end_s[before], 0.0) + step_s}
        drawn.append(spans(len(before), **columns, chunk=before, **times))
    return drawn


def layer_spans(ran: Ran, blocks: Timed) -> list[Spans]:
    """Gathers of parameters and scatters of gradients of sharded layers, in every block."""
    plan, tables, scratch = ran.plan, ran.tables, ran.scratch
    if PLACEMENT[plan.schedule] == BOTH_WAYS or SPLITS[plan.schedule]:
        return []
    drawn = []
    for virtual in range(plan.pp * plan.vpp):
        stage, chunk = virtual % plan.pp, virtual // plan.pp
        for way in (DOWN, UP):
            count = int(_layers(tables, scratch.layers, virtual, way))
            if count == 0:
                return []
            mine = (blocks.stage == stage) & (blocks.chunk == chunk) & (blocks.backward == way)
            longer_s = float(scratch.longer.layers_s[way, stage * plan.vpp + chunk])
            for kind, stream, start_s, end_s, more_s in _sent(scratch.layers, count, way, plan, longer_s):
                begin_s, micro_batch = blocks.start_s[mine][:, None], blocks.micro_batch[mine]
                drawn.append(
                    spans(
                        len(micro_batch) * len(start_s),
                        stage=stage,
                        stream=stream,
                        kind=kind,
                        chunk=chunk,
                        micro_batch=np.repeat(micro_batch, len(start_s)),
                        start_s=(begin_s + start_s).ravel(),
                        end_s=(begin_s + end_s).ravel(),
                        shared_s=np.tile(more_s, len(micro_batch)),
                    )
                )
    return drawn


def _sent(
    layers: Layers, count: int, way: int, plan: Plan, longer_s: float
) -> Iterator[tuple[int, int, Floats, Floats, Floats]]:
    """Gathers and scatters of one block, from its begin on, as `forward_s` and `backward_s` of step/sharding.py order them.

    Each is longer by its part of `longer_s`; those after it begin later by as much.
    """
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
    begins_s, ends_s = np.array(gathers + scatters).reshape(-1, 2).T
    seconds = ends_s - begins_s
    part = longer_s / max(float(seconds.sum()), 1e-300)
    for kind, stream, times in ((GATHER, PARAMETERS, gathers), (REDUCE, GRADIENTS, scatters)):
        if times:
            start_s, stop_s = np.array(times).T
            later_s = part * np.array([seconds[begins_s < at].sum() for at in start_s])
            more_s = part * (stop_s - start_s)
            yield kind, stream, start_s + later_s, stop_s + later_s + more_s, more_s
