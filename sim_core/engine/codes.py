"""Blocks as numbers, and where the virtual stages of a schedule lie.

A block is one micro-batch through one virtual stage (chunk): a forward, a whole backward, or a part of a backward that runs
apart: the input gradient, which the stage before waits for, or the weight gradient, for which nothing waits but the
optimizer (Qi et al. 2023, arXiv 2401.10241, section 2).
"""

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.jit import inner_kernel, kernel, outer_kernel
from sim_core.engine.schedules import BOTH_WAYS, DEEPSPEED, HALF_V, LOOP, ORDER, PLACEMENT, SPLITS, THIRD_V

WHOLE, INPUT, WEIGHTS, PAIRED = 0, 1, 2, 3
"""Parts: all of a forward or backward; the input gradient; the weight gradient; a forward that runs beside the next block."""
NO_BLOCK = -1
"""Fills the row of a stage with fewer blocks than the row is long."""
PART_SHIFT = 1
PART_MASK = 3
CHUNK_SHIFT = 3
MICRO_BATCH_SHIFT = 23
CHUNK_MASK = (1 << (MICRO_BATCH_SHIFT - CHUNK_SHIFT)) - 1


@inner_kernel
def block_code(backward: int, chunk: int, micro_batch: int, part: int = WHOLE) -> int:
    """The code of one block."""
    return backward | (part << PART_SHIFT) | (chunk << CHUNK_SHIFT) | (micro_batch << MICRO_BATCH_SHIFT)


@kernel
def chunks_of(schedule: int, vpp: int) -> int:
    """Virtual stages that a stage runs."""
    return 2 if PLACEMENT[schedule] == BOTH_WAYS else vpp


@kernel
def rounds_of(schedule: int, ga: int) -> int:
    """Micro-batches through each of them: half of all where two copies of the model share them out."""
    return ga // 2 if PLACEMENT[schedule] == BOTH_WAYS else ga


@kernel
def row_of(schedule: int, vpp: int, ga: int) -> int:
    """Codes of one stage in an order."""
    return (3 if SPLITS[schedule] else 2) * chunks_of(schedule, vpp) * rounds_of(schedule, ga)


@kernel
def events_of(schedule: int, pp: int, vpp: int, ga: int) -> int:
    """Events in the sequence of a plan, at most: its blocks, and last sends or meetings without a block."""
    return pp * (2 * (ga + pp - 1) if schedule == DEEPSPEED else row_of(schedule, vpp, ga) + 1)


def most_blocks(schedule: Ints, pp: Ints, vpp: Ints, ga: Ints) -> int:
    """Codes in the longest order of some plans."""
    rows = np.where(SPLITS[schedule], 3, 2) * vpp * ga  # two copies of the model share the micro-batches out
    return int((pp * rows).max())


def most_events(schedule: Ints, pp: Ints, vpp: Ints, ga: Ints) -> int:
    """Events in the longest sequence of some plans, at most."""
    rows = np.where(SPLITS[schedule], 3, 2) * vpp * ga + 1
    return int((pp * np.where(schedule == DEEPSPEED, 2 * (ga + pp - 1), rows)).max())


def most_scratch(schedule: Ints, pp: Ints, ga: Ints) -> int:
    """Numbers that the longest order of some plans needs as scratch."""
    compacted = (ORDER[schedule] == HALF_V) | (ORDER[schedule] == THIRD_V)
    return int(np.where(compacted, pp * (22 * ga + 18 * pp + 16) + 2 * ga, 4 * pp + 7).max())


def most_cells(schedule: Ints, pp: Ints, vpp: Ints) -> int:
    """Virtual stages of all stages of some plans, at most."""
    return int((pp * np.where(PLACEMENT[schedule] == BOTH_WAYS, 2, vpp)).max())


@outer_kernel
def virtual_of(placement: int, stage: int, chunk: int, pp: int) -> int:
    """Number, in model order, of the virtual stage that is chunk `chunk` of a stage."""
    if placement == LOOP or chunk % 2 == 0:
        return chunk * pp + stage
    mirrored = pp - 1 - stage
    return mirrored if placement == BOTH_WAYS else chunk * pp + mirrored
