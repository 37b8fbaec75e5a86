"""The event engine for pipelines: a block starts when its stage is free and its message has arrived.

It knows blocks, stages and messages, not models or plans. There are two kinds of pipeline sends:
- overlapped: the sender continues at once; the receiver posted its receive earlier: arrival = end of block + cost;
- blocking: between two blocks a stage posts its send and its next receive, and continues when both are complete; a
  message completes at max(sender's post, receiver's post) + cost (Megatron's batched isend/irecv, then wait).

The two loops are deliberately long functions: one event takes about 20 ns, less than a call that passes these arrays.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, MICRO_BATCH_SHIFT
from sim_core.engine.streams import (
    KINDS,
    ROWS,
    SENT,
    Streams,
    allocate_streams,
    beside_message_s,
    beside_stream_s,
    clear_streams,
    first_forward_end,
    last_backward_s,
)
from sim_core.jit import inner_kernel, outer_kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

UNKNOWN: Final = -1.0
"""A time not yet computed; all real times are >= 0."""
DOWN, UP = 0, 1
"""Directions of blocks and messages: forward runs down the stages, backward up."""
WEIGHT, PAIR = 2, 3
"""Further durations: the weight gradient; a forward of a cell and a backward of the stage's other one, at the same time."""


STREAMS, MESSAGES = 0, 1
"""Columns of `Program.shares`."""


class Program(NamedTuple):
    """A pipeline to run. A *cell* is one virtual stage, numbered stage * vpp + chunk."""

    order: Ints  # codes of orders.py, flat: row_of per stage
    duration_s: Floats  # [4, cells] of a forward; of a whole backward; of the weight gradient in it; of a PAIR
    message_s: Floats  # [2, stages] cost of the message INTO a stage, by direction; the last stage also sends to the first
    source: Ints  # [2, cells] the cell whose block sends to this one, by direction; -1: none (set_links) ...
    into_s: Floats  # [2, cells] ... and the cost of its message
    gate_start_s: Floats  # [cells] earliest start of the first forward (its parameters are being gathered) ...
    gate_end_s: Floats  # [cells] ... and its earliest end
    gathered_s: Floats  # [stages] when all parameters have been gathered that share NICs with forwards; 0: none do
    beside_s: Floats  # [ROWS, cells] what a block and a stream beside it do to each other (streams.py)
    shares: Ints  # [2] whether blocks share NICs with STREAMS, with MESSAGES of the pipeline


class Times(NamedTuple):
    """The output of a run; scratch that is allocated once and reused."""

    end_s: Floats  # end of each block, at direction * cells * ga + cell * ga + micro-batch; weight gradients come third
    post_s: Floats  # same index: when the receive for this block was posted (blocking sends)
    position: Ints  # [stages] next block of the stage
    free_s: Floats  # [stages] end of the stage's latest block; after the run, end of all its pipeline work
    message_s: Floats  # [stages] time of its messages, exposed or not
    exposed_s: Floats  # [stages] exposed part of message_s: the stage was idle
    idle_s: Floats  # [stages] idle for any other reason
    gated_s: Floats  # [stages] waiting for gathered parameters
    pending: Ints  # [stages] block that receives the stage's incomplete send; -1: none (blocking sends)
    streams: Streams


@outer_kernel
def run(program: Program, pp: int, vpp: int, ga: int, overlapped: bool, times: Times) -> bool:
    """Run all blocks. False if some can never start (a contradictory order). Blocking sends need vpp 1."""
    clear(program, times, pp, 2 * pp * vpp * ga)
    if overlapped or pp == 1:
        return _run_overlapped(program, pp, vpp, ga, times)
    return _run_blocking(program, pp, ga, times)


@inner_kernel
def clear(program: Program, times: Times, pp: int, blocks: int) -> None:
    """Before a run."""
    times.end_s[:blocks] = UNKNOWN
    times.position[:pp] = 0
    times.free_s[:pp] = 0.0
    times.message_s[:pp] = 0.0
    times.exposed_s[:pp] = 0.0
    times.idle_s[:pp] = 0.0
    times.gated_s[:pp] = 0.0
    clear_streams(program.gathered_s, pp, blocks, times.streams)


@inner_kernel
def _run_overlapped(program: Program, pp: int, vpp: int, ga: int, times: Times) -> bool:  # noqa: C901, PLR0915
    """Sweep over the stages, alternately down and up; each runs its blocks until one must wait for a message."""
    order, duration_s, cost_s = program.order, program.duration_s, program.message_s
    gate_start_s, gate_end_s = program.gate_start_s, program.gate_end_s
    end_s, position, free_s = times.end_s, times.position, times.free_s
    streams, beside_s, crowds = times.streams, program.beside_s, program.shares[MESSAGES] == 1
    width = vpp * ga
    half = pp * width
    blocks = 2 * width
    done = 0
    downward = True
    while done < pp * blocks:
        moved = 0
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            free = free_s[stage]
            message = 0.0
            exposed = 0.0
            idle = 0.0
            # the block whose message this one needs: same chunk of the neighbour, or next chunk at the other end
            down_from = -width if stage > 0 else half - width - ga
            up_from = width if stage < pp - 1 else ga + width - half
            while k < blocks:
                code = order[stage * blocks + k]
                direction = code & 1
                chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
                micro_batch = code >> MICRO_BATCH_SHIFT
                cell = stage * vpp + chunk
                block = direction * half + cell * ga + micro_batch
                start = free
                if (stage < pp - 1 or chunk < vpp - 1) if direction else (stage > 0 or chunk > 0):
                    sent = end_s[block + (up_from if direction else down_from)]
                    if sent < 0.0:
                        break
                    cost = cost_s[direction, stage]
                    start = max(free, sent + cost)
                    message += cost
                    exposed += min(start - free, cost)
                    idle += max(start - free - cost, 0.0)
                alone = duration_s[direction, cell]
                seconds = alone
                if crowds:
                    seconds += beside_message_s(beside_s, direction, stage, cell, block, start - free, streams)
                end = start + seconds
                if micro_batch == 0 and direction == DOWN:
                    gate_s = gate_start_s[cell], gate_end_s[cell]
                    gated = first_forward_end(beside_s, stage, cell, start, (alone, seconds), gate_s, streams)
                    times.gated_s[stage] += gated - end
                    end = gated
                    if chunk == vpp - 1:  # all have arrived, but for rounding
                        streams.through_s[stage] = min(streams.through_s[stage], end)
                elif direction == UP and micro_batch == ga - 1:
                    end += last_backward_s(beside_s, stage, cell, block, start, seconds, streams)
                elif streams.through_s[stage] > start:
                    end += beside_stream_s(beside_s, direction, stage, cell, block, start, alone, streams)
                end_s[block] = end
                free = end
                k += 1
            if k > first:
                position[stage] = k
                free_s[stage] = free
                times.message_s[stage] += message
                times.exposed_s[stage] += exposed
                times.idle_s[stage] += idle
                moved += k - first
        if moved == 0:
            return False
        done += moved
        downward = not downward
    return True


@inner_kernel
def _run_blocking(program: Program, pp: int, ga: int, times: Times) -> bool:  # noqa: C901, PLR0915
    """The same with blocking sends and one chunk per stage: a block also waits for the send of the previous block."""
    order, duration_s, cost_s = program.order, program.duration_s, program.message_s
    gate_start_s, gate_end_s = program.gate_start_s, program.gate_end_s
    end_s, post_s, position, free_s, pending = times.end_s, times.post_s, times.position, times.free_s, times.pending
    streams = times.streams
    half = pp * ga
    blocks = 2 * ga
    post_s[: 2 * half] = UNKNOWN
    for stage in range(pp):
        pending[stage] = -1
        code = order[stage * blocks]
        post_s[(code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)] = 0.0
    done = 0
    downward = True
    while done < pp * (blocks + 1):  # one more event per stage: its last send
        moved = 0
        for turn in range(pp):
            stage = turn if downward else pp - 1 - turn
            first = position[stage]
            k = first
            free = free_s[stage]
            waiting = pending[stage]
            message = 0.0
            exposed = 0.0
            idle = 0.0
            while k <= blocks:
                start = free
                cost = 0.0
                if waiting >= 0:
                    posted = post_s[waiting]
                    if posted < 0.0:
                        break
                    cost = cost_s[UP, stage - 1] if waiting >= half else cost_s[DOWN, stage + 1]
                    start = max(free, posted) + cost
                direction = 0
                micro_batch = 0
                block = 0
                if k < blocks:
                    code = order[stage * blocks + k]
                    direction = code & 1
                    micro_batch = code >> MICRO_BATCH_SHIFT
                    block = direction * half + stage * ga + micro_batch
                    if stage < pp - 1 if direction else stage > 0:
                        sent = end_s[block + (ga if direction else -ga)]
                        if sent < 0.0:
                            break
                        cost = max(cost, cost_s[direction, stage])
                        start = max(start, max(free, sent) + cost_s[direction, stage])
                message += cost
                exposed += min(start - free, cost)
                idle += max(start - free - cost, 0.0)
                free = start
                waiting = -1
                if k < blocks:
                    free = start + duration_s[direction, stage]
                    if micro_batch == 0 and direction == DOWN:
                        gate_s = gate_start_s[stage], gate_end_s[stage]
                        of_block = duration_s[DOWN, stage], duration_s[DOWN, stage]
                        gated = first_forward_end(program.beside_s, stage, stage, start, of_block, gate_s, streams)
                        times.gated_s[stage] += gated - free
                        free = gated
                    elif micro_batch == ga - 1 and direction == UP:
                        free += last_backward_s(program.beside_s, stage, stage, block, start, duration_s[UP, stage], streams)
                    end_s[block] = free
                    if stage > 0 if direction else stage < pp - 1:
                        waiting = block + (-ga if direction else ga)
                    if k + 1 < blocks:
                        code = order[stage * blocks + k + 1]
                        post_s[(code & 1) * half + stage * ga + (code >> MICRO_BATCH_SHIFT)] = free
                k += 1
            if k > first:
                position[stage] = k
                free_s[stage] = free
                pending[stage] = waiting
                times.message_s[stage] += message
                times.exposed_s[stage] += exposed
                times.idle_s[stage] += idle
                moved += k - first
        if moved == 0:
            return False
        done += moved
        downward = not downward
    return True


def allocate(blocks: int, stages: int, cells: int) -> tuple[Program, Times]:
    """Scratch for programs of up to `blocks` blocks, `stages` stages and `cells` virtual stages."""
    program = Program(
        order=np.empty(blocks, np.int64),
        duration_s=np.zeros((4, cells)),
        message_s=np.zeros((2, stages)),
        source=np.empty((2, cells), np.int64),
        into_s=np.zeros((2, cells)),
        gate_start_s=np.zeros(cells),
        gate_end_s=np.zeros(cells),
        gathered_s=np.zeros(stages),
        beside_s=np.zeros((ROWS, cells)),
        shares=np.zeros(2, np.int64),
    )
    program.beside_s[SENT::KINDS][:2] = 1.0  # of streams that send nothing
    times = Times(
        end_s=np.empty(blocks),
        post_s=np.empty(blocks),
        position=np.empty(stages, np.int64),
        free_s=np.empty(stages),
        message_s=np.empty(stages),
        exposed_s=np.empty(stages),
        idle_s=np.empty(stages),
        gated_s=np.empty(stages),
        pending=np.empty(stages, np.int64),
        streams=allocate_streams(blocks, stages, cells),
    )
    return program, times
