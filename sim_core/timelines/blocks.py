"""The blocks of a plan with their seconds by part: compute, recompute, exposed collectives, gathers of sharded layers."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.batch import tables_of
from sim_core.costing.blocks import EXPOSED, TOTAL_OF
from sim_core.costing.case import JITTER_FROM, WAIT_APART, WEIGHT_COMPUTE, WEIGHT_GRADIENTS
from sim_core.engine.codes import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    INPUT,
    MICRO_BATCH_SHIFT,
    PAIRED,
    PART_MASK,
    PART_SHIFT,
    WEIGHTS,
    WHOLE,
    chunks_of,
    row_of,
    virtual_of,
)
from sim_core.engine.lanes import (
    ALONE_S,
    COST_S,
    CROWDED_S,
    END_S,
    LATE_S,
    MESSAGE_S,
    PAIR_COST_S,
    PAIR_SENT_S,
    QUEUED_S,
    READY_S,
    SENT_S,
    SLOWED_S,
    STAGE,
    WORKS,
)
from sim_core.engine.program import DOWN, UP, WEIGHT
from sim_core.engine.schedules import PLACEMENT, SPLITS
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import BACKWARD_S, CP_EXPOSED, EP_EXPOSED, FORWARD_S, LAUNCH_S, PARTS, RECOMPUTE_S, TP_EXPOSED
from sim_core.planning.columns import BLOCK, FILE, NONE, Plan
from sim_core.planning.split import count_layers
from sim_core.simulator import Ran
from sim_core.step.sharing import owner_of
from sim_core.terms import NO_COMM, WEIGHT_GRADIENT
from sim_core.timelines.spans import (
    BACKWARD,
    BACKWARD_PART,
    BESIDE,
    COMPUTE,
    DP_PART,
    EP_PART,
    FORWARD,
    FORWARD_PART,
    INPUT_GRADIENT,
    LAUNCH_PART,
    PART_OF,
    RECOMPUTE_PART,
    WEIGHT_GRADIENT as WEIGHT_BLOCK,
    Spans,
    spans,
)
from sim_core.workloads.workload import Arrays

_IDLE = (TP_EXPOSED, EP_EXPOSED, CP_EXPOSED, LAUNCH_S)
"""What a device waits for in a block."""


class Timed(NamedTuple):
    """Blocks as the engine has run them, stage after stage; the second of a pair follows the first."""

    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Ints
    part: Ints
    second: Bools  # whether it is the second of a pair
    start_s: Floats
    end_s: Floats
    longer_s: Floats  # of the block, beside parameters or gradients of its stage
    crowded_s: Floats  # of the block, beside a pipeline message of its stage
    ready_s: Floats  # when it could start but for parameters
    message_s: Floats  # seconds of a message at most in what it waited for
    queued_s: Floats  # what it waited because messages wait for each other
    sent_s: Floats  # when its message was sent ...
    cost_s: Floats  # ... and its cost, 0: none
    late_s: Floats  # by how much parameters of its stage are late


def timed(ran: Ran) -> Timed:
    """The blocks of a plan after its run."""
    plan = ran.plan
    codes = ran.order[: plan.pp * row_of(plan.schedule, plan.vpp, plan.ga)]
    stage = np.repeat(np.arange(plan.pp), len(codes) // plan.pp)[codes >= 0]
    codes = codes[codes >= 0]
    part = (codes >> PART_SHIFT) & PART_MASK
    second = np.roll(part == PAIRED, 1)
    works = np.flatnonzero(ran.events[:, WORKS] == 1)
    at = works[np.argsort(ran.events[works, STAGE], kind="stable")][np.cumsum(~second) - 1]

    pairs = second.any()

    def of_events(column: int, of_pair: int | None = None) -> Floats:
        values: Floats = ran.events[at, column]
        if of_pair is not None and pairs:
            values[second] = ran.events[at[second], of_pair]
        return values

    end_s, longer_s, crowded_s = of_events(END_S), of_events(SLOWED_S), of_events(CROWDED_S)
    return Timed(
        stage=stage,
        chunk=(codes >> CHUNK_SHIFT) & CHUNK_MASK,
        micro_batch=codes >> MICRO_BATCH_SHIFT,
        backward=codes & 1,
        part=np.where(part == PAIRED, WHOLE, part),
        second=second,
        start_s=end_s - (of_events(ALONE_S) + longer_s + crowded_s),
        end_s=end_s,
        longer_s=longer_s,
        crowded_s=crowded_s,
        ready_s=of_events(READY_S),
        message_s=of_events(MESSAGE_S),
        queued_s=of_events(QUEUED_S),
        sent_s=of_events(SENT_S, PAIR_SENT_S),
        cost_s=of_events(COST_S, PAIR_COST_S),
        late_s=of_events(LATE_S),
    )


def block_spans(ran: Ran, hardware: HardwareTable, blocks: Timed) -> Spans:
    """Spans of all blocks."""
    plan = ran.plan
    forward, backward, weight = _cells(ran, hardware, plan)
    longer = ran.scratch.longer
    cell = blocks.stage * chunks_of(plan.schedule, plan.vpp) + blocks.chunk
    second = blocks.second
    parts = np.where((blocks.backward == 0)[:, None], forward[cell], backward[cell])
    kind = np.where(blocks.backward == 0, FORWARD, BACKWARD)
    shared_s = longer.layers_s[blocks.backward, cell]
    shared_s[(blocks.part == WEIGHTS) & (blocks.backward == 1)] = 0.0
    shared_s += blocks.longer_s + blocks.crowded_s
    for part, seconds, name in ((INPUT, backward - weight, INPUT_GRADIENT), (WEIGHTS, weight, WEIGHT_BLOCK)):
        of_part = (blocks.part == part) & (blocks.backward == 1)
        parts[of_part], kind[of_part] = seconds[cell[of_part]], name
    # what blocks that share NICs with pipeline messages are longer by
    owner = part_of_owner(ran)
    parts[:, DP_PART] += blocks.longer_s
    parts[:, owner] += blocks.crowded_s
    rows = np.flatnonzero(second)
    if len(rows):  # a pair hides all-to-alls of the one behind compute of the other
        crowded_s = ran.scratch.low.pairs_s[cell[rows - 1]]
        hidden = parts[rows - 1].sum(axis=1) + parts[rows].sum(axis=1) - (blocks.end_s[rows] - blocks.start_s[rows] - crowded_s)
        of_experts = np.minimum(hidden, ran.scratch.low.hideable_s[cell[rows - 1]])
        for part, saved in ((EP_PART, of_experts), (LAUNCH_PART, hidden - of_experts)):
            both = parts[rows - 1, part] + parts[rows, part]
            left = np.where(both > 0, 1 - saved / np.where(both > 0, both, 1.0), 1.0)
            parts[rows - 1, part] *= left
            parts[rows, part] *= left
        parts[rows - 1, owner] += crowded_s
        shared_s[rows - 1], shared_s[rows] = crowded_s, 0.0
    return spans(
        len(kind),
        stage=blocks.stage,
        stream=np.where(second, BESIDE, COMPUTE),
        kind=kind,
        chunk=blocks.chunk,
        micro_batch=blocks.micro_batch,
        start_s=blocks.start_s,
        end_s=blocks.end_s,
        parts=parts,
        shared_s=shared_s,
    )


def part_of_owner(ran: Ran) -> int:
    """The part that has what sharing NICs makes longer."""
    return PART_OF.get(owner_of(ran.plan, ran.tables.groups, int(ran.tables.groups.key[0])) + EXPOSED, DP_PART)


def _cells(ran: Ran, hardware: HardwareTable, plan: Plan) -> tuple[Floats, Floats, Floats]:
    """Seconds by part of a forward, of a whole backward and of the weight gradient in it, [cells, PARTS] each."""
    arrays, split, table = ran.workload.arrays, ran.tables.split, ran.tables.blocks
    plain = ran.plans._replace(checkpointing=np.full(1, NONE, int), checkpoint_layers=np.zeros(1, int))
    whole = tables_of(ran.workload, hardware, plain).blocks
    once = whole.again[whole.key[0]]  # every forward run again once: what of these seconds is in the forward
    work, again, apart = (column[table.key[0]] for column in (table.work, table.again, table.apart_s))
    chunks = chunks_of(plan.schedule, plan.vpp)
    jitter = 1 + arrays.framework.jitter * max(np.log2(plan.all_gpus / JITTER_FROM), 0.0)
    forward, backward, weight = (np.zeros((plan.pp * chunks, len(PARTS))) for _ in range(3))
    duration_s = ran.scratch.program.duration_s
    in_weights = LAUNCH_PART if ran.workload.modelled and not ran.workload.from_file else _group_of_weights(arrays)
    for cell in range(plan.pp * chunks):
        stage, chunk = divmod(cell, chunks)
        row = split_row(ran, plan, stage, chunk)
        factor = plan.straggler_factor if stage == plan.straggler_stage else 1.0
        passes, slower = split.passes[row].astype(float), 1 + float(factor * jitter - 1)  # as `slowness` in step/lower.py
        redone = _redone(ran, plan, row)
        forward[cell, FORWARD_PART] = slower * (passes @ work[:, FORWARD_S])
        backward[cell, BACKWARD_PART] = slower * (passes @ work[:, BACKWARD_S])
        backward[cell, RECOMPUTE_PART] = slower * (redone @ again[:, RECOMPUTE_S])
        for metric in _IDLE:
            part = PART_OF[metric]
            forward[cell, part] = passes @ once[:, metric]
            backward[cell, part] = passes @ (work[:, metric] - once[:, metric]) + redone @ again[:, metric]
        forward[cell, LAUNCH_PART] += arrays.framework.micro_batch_host_s * (plan.pp > 1)
        # what is left of a block are gathers and scatters of sharded layers
        forward[cell, DP_PART] = duration_s[DOWN, cell] - forward[cell].sum()
        backward[cell, DP_PART] = duration_s[UP, cell] - backward[cell].sum()
        if SPLITS[plan.schedule]:
            compute_s = slower * (split.layers[row] @ apart[:, WEIGHT_COMPUTE])
            waited_s = split.layers[row] @ (apart[:, WEIGHT_GRADIENTS] - apart[:, WEIGHT_COMPUTE])
            weight[cell, BACKWARD_PART], weight[cell, in_weights] = compute_s, waited_s
            apart_s = split.layers[row] @ apart[:, WAIT_APART]
            backward[cell, LAUNCH_PART] += apart_s
            backward[cell, DP_PART] -= apart_s
            weight[cell, BACKWARD_PART] += duration_s[WEIGHT, cell] - compute_s - waited_s
    return forward, backward, weight


def split_row(ran: Ran, plan: Plan, stage: int, chunk: int) -> int:
    """The row of a chunk in the split of a plan."""
    split = ran.tables.split
    return int(split.offset[split.key[0]]) + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp)


def _redone(ran: Ran, plan: Plan, row: int) -> Floats:
    """Passes of each unit that the backward of a virtual stage runs again."""
    split, arrays = ran.tables.split, ran.workload.arrays
    if plan.checkpointing != BLOCK:
        passes: Floats = (split.passes if plan.checkpointing == FILE else split.layers)[row].astype(float)
        return passes * (plan.checkpointing != NONE)
    begin = int(split.begin[row])
    end = min(begin + plan.checkpoint_layers, int(split.end[row]))
    units = range(split.passes.shape[1])
    return np.array([count_layers(arrays.unit_layers, arrays.layer_unit, unit, begin, end) for unit in units], float)


def _group_of_weights(arrays: Arrays) -> int:
    """The part that collectives of weight gradients belong to: that of the first; no format has those of several groups."""
    sent = np.flatnonzero(arrays.pieces.comm_kind[:, WEIGHT_GRADIENT] != NO_COMM)
    group = int(arrays.pieces.comm_group[sent[0], WEIGHT_GRADIENT]) if len(sent) else 0
    return PART_OF.get(int(TOTAL_OF[group]) + EXPOSED, DP_PART)
