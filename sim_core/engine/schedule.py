"""Pipeline schedules as data: the order in which each stage runs its blocks.

A block is one micro-batch through one virtual stage (chunk), forward or backward. Each stage's order is a row of codes;
`block_code` packs direction, chunk and micro-batch into one integer.

GPipe: all forwards, then all backwards (Huang et al. 2019, figure 2). 1F1B: pp-1-stage warm-up forwards, then one forward
and one backward alternately (Narayanan et al. 2021, PipeDream-Flush). Interleaved: vpp chunks per stage, micro-batches in
groups of pp, 2(pp-1-stage) + (vpp-1)pp warm-up forwards (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; the count
is that of Megatron-Core pipeline_parallel/schedules.py).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.jit import kernel

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]

SCHEDULES: Final = ("gpipe", "1f1b")
GPIPE, ONE_F_ONE_B = 0, 1

CHUNK_SHIFT: Final = 1
MICRO_BATCH_SHIFT: Final = 21
CHUNK_MASK: Final = (1 << (MICRO_BATCH_SHIFT - CHUNK_SHIFT)) - 1


@kernel
def block_code(backward: int, chunk: int, micro_batch: int) -> int:
    """The code of one block."""
    return backward | (chunk << CHUNK_SHIFT) | (micro_batch << MICRO_BATCH_SHIFT)


@kernel
def warmup_blocks(schedule: int, stage: int, pp: int, vpp: int, ga: int) -> int:
    """Number of forwards that a stage runs before it alternates with backwards."""
    if schedule == GPIPE:
        return ga * vpp
    if vpp == 1:
        return min(pp - 1 - stage, ga)
    return min(2 * (pp - 1 - stage) + (vpp - 1) * pp, ga * vpp)


@kernel
def fill_order(schedule: int, pp: int, vpp: int, ga: int, order: Codes) -> None:
    """Write each stage's codes into `order`, flat, 2 * vpp * ga per stage. With vpp > 1, pp must divide ga."""
    total = vpp * ga
    for stage in range(pp):
        warmup = warmup_blocks(schedule, stage, pp, vpp, ga)
        at = stage * 2 * total
        # (chunk, micro-batch) of the next forward and backward; counters avoid divisions
        f_chunk, f_first, f_inner = 0, 0, 0
        b_chunk, b_first, b_inner = vpp - 1, 0, 0
        group = pp if vpp > 1 else ga
        forwards = 0
        backwards = 0
        while backwards < total:
            if forwards < total and forwards - backwards <= warmup:
                order[at] = block_code(0, f_chunk, f_first + f_inner)
                at += 1
                forwards += 1
                f_inner += 1
                if f_inner == group:
                    f_inner = 0
                    f_chunk += 1
                    if f_chunk == vpp:
                        f_chunk = 0
                        f_first += group
            if forwards > warmup or forwards == total:
                order[at] = block_code(1, b_chunk, b_first + b_inner)
                at += 1
                backwards += 1
                b_inner += 1
                if b_inner == group:
                    b_inner = 0
                    b_chunk -= 1
                    if b_chunk < 0:
                        b_chunk = vpp - 1
                        b_first += group
