"""What the engine runs and what it leaves: durations of blocks, costs of messages, the links between virtual stages, times.

The engine knows blocks, stages and messages, not models or plans. There are two kinds of pipeline sends:
- overlapped: the sender continues at once; the receiver posted its receive earlier: arrival = end of block + cost;
- blocking: between two blocks a stage posts its send and its next receive, and continues when both are complete; a
  message completes at max(sender's post, receiver's post) + cost (Megatron's batched isend/irecv, then wait).

A stage's NICs send one overlapped message after another: one that is begun while another is still sent waits for it.

Beside its blocks a stage may send over the same NICs: parameters that it gathers, then gradients that it reduces (a stream),
and the pipeline message of the block before. A stream sends all the time until it is through. A block beside it takes longer,
and the stream is later. Both follow from when the block begins: the stream may have gone on while the stage was idle.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats
from sim_core.compiled.jit import inner_kernel
from sim_core.engine.codes import virtual_of
from sim_core.engine.schedules import BOTH_WAYS, LOOP

DOWN, UP = 0, 1
"""Directions of blocks and messages: forward runs down the stages, backward up."""
WEIGHT, PAIR = 2, 3
"""Further durations: the weight gradient; a forward of a cell and a backward of the stage's other one, at the same time."""

LONGER, SENT = 0, 1
"""Rows of `beside_s`, at KINDS * direction, of a block with the stream beside all of it: seconds that the block takes longer;
those of the stream that get through meanwhile, never 0. What both take more than these, the stream is later."""
KINDS = 2
READY, OWN, LATER = 4, 5, 6
"""Its further rows: seconds of a cell's gradients that can be sent before its last backward ends; of all of them; and at +
direction, of LONGER those of the message that the block sends on."""
CROWDED, CLEARED = 8, 10
"""Its last rows, at + direction: seconds that a block takes longer that begins with a pipeline message of its stage under way;
and how much fewer for each second that the stage has waited before it, and the message gone on."""
ROWS = 12

STREAMS, MESSAGES, QUEUES = 0, 1, 2
"""Columns of `shares`."""
OF_INPUTS, OF_WEIGHTS = 0, 1
"""Rows of `last_s`: input gradients, weight gradients."""


class Shape(NamedTuple):
    """A pipeline without its durations: what its order of blocks, and who waits for whom, follow from."""

    schedule: int
    pp: int
    vpp: int
    ga: int
    overlapped: bool  # sends


class Program(NamedTuple):
    """The durations of a pipeline. A *cell* is one virtual stage, numbered stage * chunks + chunk."""

    duration_s: Floats  # [4, cells] of a forward; of a whole backward; of the weight gradient in it; of a PAIR
    message_s: Floats  # [2, stages] cost of the message INTO a stage, by direction; the last stage also sends to the first
    gate_start_s: Floats  # [cells] earliest start of the first forward (its parameters are being gathered) ...
    gate_end_s: Floats  # [cells] ... and its earliest end
    gathered_s: Floats  # [stages] when all parameters have been gathered that share NICs with forwards; 0: none do
    beside_s: Floats  # [ROWS, cells] what a block and what is sent beside it do to each other
    sent_s: Floats  # [2, cells] of NICs for the message that a block sends on, by direction; 0: none, or within a node
    busy_s: Floats  # [2, cells] of NICs for the messages of a block itself
    left: Floats  # [2, stages] part of the NICs that a stage's stream leaves to messages of a direction ...
    slower: Floats  # [2, stages] ... and how many times as long as alone the stream takes beside them
    shares: (
        Bools  # [3] whether blocks share NICs with STREAMS, with MESSAGES of the pipeline; whether messages wait for each other
    )


class Times(NamedTuple):
    """What a run leaves for the rest of a step. Columns of streams hold nothing where blocks share no NICs with them."""

    first_s: Floats  # [cells] end of the first forward
    last_s: Floats  # [2, cells] end of the last input gradient, and of the last weight gradient
    free_s: Floats  # [stages] end of all its pipeline work
    message_s: Floats  # [stages] time of its messages, exposed or not
    exposed_s: Floats  # [stages] exposed part of message_s: the stage was idle
    queued_s: Floats  # [stages] idle because a message waited for others
    idle_s: Floats  # [stages] idle for any other reason
    gated_s: Floats  # [stages] waiting for gathered parameters
    gathers_late_s: Floats  # [stages] by how much its parameters arrive later
    slowed_s: Floats  # [stages] what its blocks take longer beside streams, first forwards aside: these wait
    crowded_s: Floats  # [stages] what its blocks take longer beside pipeline messages
    shared: Floats  # [cells] part of the cell's last backward that gradients are beside ...
    later_s: Floats  # [cells] ... and by how much the gradients of the cells before are later when it begins


def allocate_program(stages: int, cells: int) -> Program:
    """A program of up to `stages` stages and `cells` virtual stages, which shares nothing and waits for no parameters."""
    program = Program(
        duration_s=np.zeros((4, cells)),
        message_s=np.zeros((2, stages)),
        gate_start_s=np.zeros(cells),
        gate_end_s=np.zeros(cells),
        gathered_s=np.zeros(stages),
        beside_s=np.zeros((ROWS, cells)),
        sent_s=np.zeros((2, cells)),
        busy_s=np.zeros((2, cells)),
        left=np.ones((2, stages)),
        slower=np.ones((2, stages)),
        shares=np.zeros(3, bool),
    )
    program.beside_s[SENT::KINDS][:2] = 1.0  # of streams that send nothing
    return program


def allocate_times(stages: int, cells: int) -> Times:
    """Times of up to `stages` stages and `cells` virtual stages."""
    of_cells = {name: np.zeros(cells) for name in ("first_s", "shared", "later_s")}
    of_stages = {name: np.zeros(stages) for name in Times._fields if name not in of_cells and name != "last_s"}
    return Times(last_s=np.zeros((2, cells)), **of_cells, **of_stages)


@inner_kernel
def sender_of(placement: int, way: int, stage: int, chunk: int, pp: int, chunks: int) -> int:
    """The cell whose blocks send to those of a chunk, by direction: that before it in the model, or after it; -1: none is."""
    virtual = virtual_of(placement, stage, chunk, pp) + (1 if way == UP else -1)
    if virtual < 0 or virtual >= (pp if placement == BOTH_WAYS else pp * chunks):
        return -1
    there, at = chunk if placement == BOTH_WAYS else virtual // pp, virtual % pp
    return int((at if placement == LOOP or there % 2 == 0 else pp - 1 - at) * chunks + there)


@inner_kernel
def message_into(placement: int, way: int, stage: int, chunk: int, pp: int, chunks: int) -> int:
    """The column of `message_s` with what a chunk's blocks wait for; -1: for nothing, or for a message within the stage.

    Where virtual stages run up the stages, a forward's message goes over the link on which those of others come back.
    """
    sender = sender_of(placement, way, stage, chunk, pp, chunks)
    if sender < 0 or sender // chunks == stage:
        return -1
    if placement == LOOP:
        return stage
    return max(stage, sender // chunks) if way == DOWN else min(stage, sender // chunks)
