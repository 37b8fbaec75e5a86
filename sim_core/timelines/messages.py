"""Gradients and parameters of data-parallel ranks, bucket by bucket or layer by layer, behind the blocks."""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import Tables, case_at
from sim_core.engine.codes import WEIGHTS, chunks_of, virtual_of
from sim_core.engine.program import DOWN, UP, WEIGHT, Program, Times
from sim_core.engine.schedules import BOTH_WAYS, PLACEMENT, SPLITS
from sim_core.metrics import STEP_TIME
from sim_core.planning.columns import Plan, plan_at
from sim_core.simulator import Ran
from sim_core.step.gradients import shared_s
from sim_core.step.once import gather_parameters
from sim_core.step.scratch import Layers, Scratch
from sim_core.step.sharding import run_layers
from sim_core.timelines.blocks import Timed
from sim_core.timelines.spans import GATHER, GRADIENTS, PARAMETERS, REDUCE, Columns, Spans, spans


@outer_kernel
def _gather(tables: Tables, scratch: Scratch) -> None:
    """Cost the gather of parameters again, for its buckets."""
    tables, scratch = reference(tables), reference(scratch)
    gather_parameters(reference(case_at(tables, 0)), scratch)


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
    plan = plan_at(ran.plans, 0)
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
        columns: Columns = {"stage": stage, "stream": GRADIENTS, "kind": REDUCE, "chunk": chunk}
        drawn.append(spans(len(ready_s), **columns, start_s=start_s, end_s=start_s + seconds, shared_s=longer_s))
    return drawn


def _buckets_of(ran: Ran, plan: Plan, blocks: Timed, stage: int) -> tuple[Floats, Floats, Ints, Floats]:
    """When each bucket of a stage is ready, its seconds, its chunk, seconds of sharing NICs, in the order of sending.

    A backward that shares NICs is slower from the first bucket on, and so are the buckets until it ends; those that are sent
    beside the backwards that follow are later by as much in all.
    """
    split, buckets, duration_s = ran.tables.split, ran.scratch.buckets, ran.scratch.program.duration_s
    chunks, first = chunks_of(plan.schedule, plan.vpp), int(split.offset[split.key[0]])
    mine = (blocks.stage == stage) & (blocks.backward == 1)
    lasts = []
    for chunk in range(chunks):
        of_chunk = mine & (blocks.chunk == chunk)
        end_s = float(blocks.end_s[of_chunk].max())
        apart = SPLITS[plan.schedule] and bool((blocks.part[of_chunk & (blocks.end_s == end_s)] == WEIGHTS).any())
        lasts.append((end_s, float(duration_s[WEIGHT if apart else UP, stage * chunks + chunk]), chunk))
    columns: list[tuple[Floats, Floats, Ints, Floats]] = [(np.zeros(0), np.zeros(0), np.zeros(0, np.int64), np.zeros(0))]
    for end_s, tail_s, chunk in sorted(lasts, key=lambda each: (each[0], -each[2])):
        size = int(split.size[first + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp)])
        begin_s, late_s, before_s = 0.0, 0.0, 0.0
        if plan.overlap_grad == 1 and not SPLITS[plan.schedule]:
            cell = stage * chunks + chunk
            begin_s, late_s = _shared_s(ran.scratch.program, ran.scratch.times, cell)
            before_s = float(ran.scratch.times.later_s[cell])
        ready, seconds_of, chunk_of, longer_of = columns[-1]
        if len(longer_of):
            columns[-1] = ready, seconds_of + before_s / len(longer_of), chunk_of, longer_of + before_s / len(longer_of)
        done, seconds = [], []
        for number, bucket_s in zip(buckets.number[size], buckets.bucket_s[size], strict=True):
            if bucket_s > 0:
                done.append((np.arange(int(number)) + 1) / number)
                seconds.append(np.full(int(number), bucket_s))
        if done:
            order = np.argsort(np.concatenate(done), kind="stable")
            of_chunk = np.full(len(order), chunk, np.int64)
            part = np.concatenate(done)[order]
            ready_s = end_s - begin_s - tail_s + part * tail_s
            shifted_s = late_s * (part - part[0]) / max(1 - part[0], 1e-300)
            longer_s = np.append(np.diff(shifted_s), 0.0)
            columns.append((ready_s + shifted_s, np.concatenate(seconds)[order] + longer_s, of_chunk, longer_s))
    ready_of, seconds_of, chunk_of, longer_of = (np.concatenate(column) for column in zip(*columns, strict=True))
    return ready_of, seconds_of, chunk_of, longer_of


def parameter_spans(ran: Ran, blocks: Timed) -> list[Spans]:
    """Parameters of each virtual stage that are gathered once a step, behind the first forwards."""
    plan, tables, scratch = plan_at(ran.plans, 0), ran.tables, ran.scratch
    if plan.overlap_param == 0:
        return []
    early_s, step_s = scratch.once.early_s.copy(), float(ran.metrics[STEP_TIME])  # costing the buckets again changes the first
    again = scratch._replace(sums=np.zeros_like(ran.metrics))
    _gather(tables, again)
    chunks, first = chunks_of(plan.schedule, plan.vpp), int(tables.split.offset[tables.split.key[0]])
    drawn = []
    for stage in range(plan.pp):
        rows = [first + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp) for chunk in range(chunks)]
        begins = (blocks.stage == stage) & (blocks.micro_batch == 0) & (blocks.backward == 0)
        late_s = np.array([float(blocks.late_s[begins & (blocks.chunk == chunk)][0]) for chunk in range(chunks)])
        end_s = np.cumsum(scratch.buckets.total_s[tables.split.size[rows]]) + late_s - early_s[stage]
        start_s = np.concatenate(([-early_s[stage]], end_s[:-1]))
        columns: Columns = {"stage": stage, "stream": PARAMETERS, "kind": GATHER}
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
    plan, tables, scratch = plan_at(ran.plans, 0), ran.tables, ran.scratch
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
            for kind, stream, start_s, end_s, more_s in _longer(_sent(scratch.layers, count, way, plan), longer_s):
                begin_s, micro_batch = blocks.start_s[mine][:, None], blocks.micro_batch[mine]
                rows = len(micro_batch) * len(start_s)
                columns: Columns = {"stage": stage, "stream": stream, "kind": kind, "chunk": chunk}
                drawn.append(
                    spans(
                        rows,
                        **columns,
                        micro_batch=np.repeat(micro_batch, len(start_s)),
                        start_s=(begin_s + start_s).ravel(),
                        end_s=(begin_s + end_s).ravel(),
                        shared_s=np.tile(more_s, len(micro_batch)),
                    )
                )
    return drawn


def _longer(sent: list[tuple[int, int, Floats, Floats]], longer_s: float) -> list[tuple[int, int, Floats, Floats, Floats]]:
    """The messages of a block, each longer by its part of `longer_s`; those after it begin later by as much."""
    if not sent:
        return []
    begin_s, seconds = (
        np.concatenate(each) for each in zip(*((start, stop - start) for _, _, start, stop in sent), strict=True)
    )
    part = longer_s / max(float(seconds.sum()), 1e-300)
    longer = []
    for kind, stream, start_s, stop_s in sent:
        later_s = part * np.array([seconds[begin_s < at].sum() for at in start_s])
        more_s = part * (stop_s - start_s)
        longer.append((kind, stream, start_s + later_s, stop_s + later_s + more_s, more_s))
    return longer


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
    messages = []
    for kind, stream, times in ((GATHER, PARAMETERS, gathers), (REDUCE, GRADIENTS, scatters)):
        if times:
            start_s, stop_s = np.array(times).T
            messages.append((kind, stream, start_s, stop_s))
    return messages
