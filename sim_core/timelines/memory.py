"""Memory of each stage over a step: state and buffers all the time, activations from forward to backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.peak import activations_of_chunks, stage_memory
from sim_core.engine.codes import INPUT, WEIGHTS
from sim_core.metrics import ACTIVATION_BYTES, ALLOCATED, ALLOCATOR_BYTES, LOGITS_BYTES, PEAK_BYTES
from sim_core.simulator import Ran
from sim_core.timelines.blocks import Timed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Held(NamedTuple):
    """Bytes on a rank from one time on, in columns, stage after stage; none where activations are unknown."""

    stage: Ints
    at_s: Floats
    bytes: Floats


def memory_held(ran: Ran, blocks: Timed) -> Held:
    """Memory of each stage after each change, from the start of the step.

    A forward takes what it leaves when it begins, a backward what its recompute works on; it gives both back when it ends. What
    the allocator loses grows with the tensors.
    """
    workload = ran.workload.memory_of or ran.workload
    of_stages = stage_memory(workload, ran.plans)
    if np.isnan(of_stages[PEAK_BYTES]).any():
        return Held(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    factor = 1 + of_stages[ALLOCATOR_BYTES] / of_stages[ALLOCATED].sum(axis=0)
    base = of_stages[PEAK_BYTES] - factor * (of_stages[ACTIVATION_BYTES] + of_stages[LOGITS_BYTES])
    left, working, waiting = activations_of_chunks(workload, ran.plans)[blocks.stage, blocks.chunk].T
    of_weights = (blocks.part == WEIGHTS) & (blocks.backward == 1)
    begun = np.where(of_weights, 0.0, np.where(blocks.backward == 1, working, left))
    ended = np.where(blocks.part == INPUT, waiting, 0.0) - left - working
    ended = np.where(of_weights, -waiting, np.where(blocks.backward == 1, ended, 0.0))
    at = np.arange(len(begun)) - 0.75 * blocks.second  # both blocks of a pair begin before one ends
    order = np.argsort(np.concatenate((at, np.arange(len(begun)) + 0.5)))
    stage = np.tile(blocks.stage, 2)[order]
    held = np.cumsum(np.concatenate((begun, ended))[order])
    first = np.searchsorted(stage, np.arange(len(base)))
    held -= np.concatenate(([0.0], held))[first][stage]
    changes = Held(stage, np.concatenate((blocks.start_s, blocks.end_s))[order], base[stage] + factor[stage] * held)
    return Held(
        *(np.insert(column, first, start) for column, start in zip(changes, (np.arange(len(base)), 0.0, base), strict=True))
    )
