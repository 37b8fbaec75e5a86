"""What is sent beside the blocks of a stage over the same NICs: parameters that it gathers, then gradients that it reduces; and
the pipeline message of the block before.

A stream sends all the time until it is through. A block that it runs beside takes longer, and the stream is later. Both follow
from when the block begins: the stream may have gone on while the stage was idle.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.jit import inner_kernel

Floats = npt.NDArray[np.float64]

LONGER, SENT = 0, 1
"""Rows of `Program.beside_s`, at KINDS * direction, of a block with the stream beside all of it: seconds that the block takes
longer; those of the stream that get through meanwhile. What both take more than these, the stream is later."""
KINDS: Final = 2
READY, OWN, LATER = 4, 5, 6
"""Its further rows: seconds of a cell's gradients that can be sent before its last backward ends; of all of them; and of LONGER
of a forward those of the message that it sends on."""
CROWDED, CLEARED = 7, 9
"""Its last rows, at + direction: seconds that a block takes longer that begins with a pipeline message of its stage under way;
and how much fewer for each second that the stage has waited before it, and the message gone on."""
ROWS: Final = 11


OfBlock = tuple[float, float]
"""Seconds of a block alone, and beside a pipeline message."""


class Streams(NamedTuple):
    """The streams of a run, written by the engines."""

    through_s: Floats  # [stages] when the stage's stream is through if nothing more comes
    gathers_late_s: Floats  # [stages] by how much its parameters arrive later
    behind_s: Floats  # [stages] by how much its gradients are later, since the latest last backward of a chunk
    slowed_s: Floats  # [stages] what its blocks take longer, first forwards aside: these wait
    crowded_s: Floats  # [stages] what its blocks take longer beside pipeline messages
    shared: Floats  # [cells] part of the cell's last backward that gradients are beside ...
    later_s: Floats  # [cells] ... and `behind_s` when it begins
    arrived_late_s: Floats  # [cells] `gathers_late_s` after the cell's first forward; not in `lanes`
    longer_s: Floats  # [blocks] as `Times.end_s`: what the block takes longer beside its stream; not in `lanes`
    beside_message_s: Floats  # [blocks] and beside a pipeline message


def allocate_streams(blocks: int, stages: int, cells: int) -> Streams:
    """Scratch for programs of up to `blocks` blocks, `stages` stages and `cells` virtual stages."""
    return Streams(
        through_s=np.empty(stages),
        gathers_late_s=np.empty(stages),
        behind_s=np.empty(stages),
        slowed_s=np.empty(stages),
        crowded_s=np.empty(stages),
        shared=np.zeros(cells),
        later_s=np.zeros(cells),
        arrived_late_s=np.zeros(cells),
        longer_s=np.empty(blocks),
        beside_message_s=np.empty(blocks),
    )


@inner_kernel
def clear_streams(gathered_s: Floats, pp: int, blocks: int, streams: Streams) -> None:
    """Before a run: each stage gathers parameters from the start, until `gathered_s`."""
    streams.longer_s[:blocks] = 0.0
    streams.beside_message_s[:blocks] = 0.0
    streams.gathers_late_s[:pp] = 0.0
    streams.behind_s[:pp] = 0.0
    streams.slowed_s[:pp] = 0.0
    streams.crowded_s[:pp] = 0.0
    for stage in range(pp):
        streams.through_s[stage] = gathered_s[stage]


@inner_kernel
def beside_message_s(beside_s: Floats, way: int, stage: int, cell: int, block: int, waited_s: float, streams: Streams) -> float:
    """Seconds that a block takes longer beside its stage's latest pipeline message, before which the stage has waited."""
    longer_s = max(beside_s[CROWDED + way, cell] - beside_s[CLEARED + way, cell] * waited_s, 0.0)
    streams.crowded_s[stage] += longer_s
    streams.beside_message_s[block] = longer_s
    return float(longer_s)


@inner_kernel
def first_forward_end(
    beside_s: Floats, stage: int, cell: int, start_s: float, of_block: OfBlock, gate_s: tuple[float, float], streams: Streams
) -> float:
    """End of the first forward of a cell that could start at `start_s`; `gate_s`: earliest start and end by its parameters."""
    late_s, longer_s, sent_s = streams.gathers_late_s[stage], beside_s[LONGER, cell], beside_s[SENT, cell]
    start_s = max(start_s, gate_s[0] + late_s)
    part = min(max(streams.through_s[stage] - start_s, 0.0), sent_s) / sent_s
    behind_s = part * (of_block[0] + longer_s - sent_s)
    streams.through_s[stage] += behind_s
    streams.gathers_late_s[stage] = late_s + behind_s
    streams.arrived_late_s[cell] = late_s + behind_s
    return float(max(start_s + of_block[1] + part * longer_s, gate_s[1] + (late_s + behind_s) + part * beside_s[LATER, cell]))


@inner_kernel
def beside_stream_s(
    beside_s: Floats, way: int, stage: int, cell: int, block: int, start_s: float, alone_s: float, streams: Streams
) -> float:
    """Seconds that another block takes longer while its stage gathers parameters, or reduces gradients, of further chunks."""
    longer_s, sent_s = beside_s[KINDS * way + LONGER, cell], beside_s[KINDS * way + SENT, cell]
    part = min(max(streams.through_s[stage] - start_s, 0.0), sent_s) / sent_s
    behind_s = part * (alone_s + longer_s - sent_s)
    streams.through_s[stage] += behind_s
    if way == 0:
        streams.gathers_late_s[stage] += behind_s
    else:
        streams.behind_s[stage] += behind_s
    streams.slowed_s[stage] += part * longer_s
    streams.longer_s[block] = part * longer_s
    return float(part * longer_s)


@inner_kernel
def last_backward_s(
    beside_s: Floats, stage: int, cell: int, block: int, start_s: float, seconds: float, streams: Streams
) -> float:
    """Seconds that the last backward of a cell takes longer, whose own gradients join the stream; `seconds`: without that."""
    sent_s, ready_s = beside_s[KINDS + SENT, cell], beside_s[READY, cell]
    left_s = max(streams.through_s[stage] - start_s, 0.0) + ready_s
    gone_s = min(left_s, sent_s)
    part = gone_s / sent_s
    longer_s = part * beside_s[KINDS + LONGER, cell]
    end_s = start_s + seconds + longer_s
    streams.through_s[stage] = end_s + (left_s - gone_s) + (beside_s[OWN, cell] - ready_s)
    streams.shared[cell] = part
    streams.later_s[cell] = streams.behind_s[stage]
    streams.behind_s[stage] = 0.0
    streams.slowed_s[stage] += longer_s
    streams.longer_s[block] = longer_s
    return float(longer_s)
