"""Activations in flight by the order of blocks itself: micro-batches of each chunk between forward and backward.

Where weight gradients run apart, a micro-batch keeps all its activations until the input gradient, and from there to its
weight gradient what that needs (Qi et al. 2023, arXiv 2401.10241, appendix G).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    INPUT,
    PART_MASK,
    PART_SHIFT,
    SPLITS,
    WEIGHTS,
    chunks_of,
    row_of,
)
from sim_core.jit import kernel

Ints = npt.NDArray[np.int64]

_WEIGHED: Final = np.array([[1, 1], [1, 0], [2, 1], [1, 2], [0, 1]])
"""Bytes before and after the input gradient, up to a factor: the moments looked at are the peaks of these five."""
MOMENTS: Final = len(_WEIGHED)


@kernel
def count_in_flight(order: Ints, schedule: int, pp: int, vpp: int, ga: int, in_flight: Ints) -> int:
    """Fill `in_flight`, [moments, 2, cells]: micro-batches of each chunk before their input gradient, and between it and their
    weight gradient, when a stage may keep the most. Returns the number of moments: 1 if backwards are whole."""
    moments = MOMENTS if SPLITS[schedule] else 1
    chunks, blocks = chunks_of(schedule, vpp), row_of(schedule, vpp, ga)
    now = np.zeros((2, chunks), np.int64)
    most = np.empty(MOMENTS, np.int64)
    for stage in range(pp):
        now[:] = 0
        most[:] = -1
        whole, waiting = 0, 0
        for at in range(stage * blocks, (stage + 1) * blocks):
            code = order[at]
            if code < 0:
                continue
            part = (code >> PART_SHIFT) & PART_MASK
            chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
            if part == WEIGHTS:
                now[1, chunk] -= 1
                waiting -= 1
            else:
                change = -1 if code & 1 else 1
                now[0, chunk] += change
                whole += change
                if part == INPUT:
                    now[1, chunk] += 1
                    waiting += 1
            for k in range(moments):
                held = _WEIGHED[k, 0] * whole + _WEIGHED[k, 1] * waiting
                if held > most[k]:
                    most[k] = held
                    for at_chunk in range(chunks):
                        in_flight[k, 0, stage * chunks + at_chunk] = now[0, at_chunk]
                        in_flight[k, 1, stage * chunks + at_chunk] = now[1, at_chunk]
    return moments
