"""V-Half and V-Min: a repeated building block on two chunks in a V, with its warm-up and cool-down moved together.

Qi et al. 2024 (arXiv 2405.15362): the peak of activations is bounded by the lifespans of the building block, about 1/2 and 1/3
of 1F1B's. Time is in slots of one block; each stage repeats its block every 6 slots, one micro-batch after another: four
slots for the forwards and input gradients of its chunks, two for the oldest weight gradients. The slots of the building block
are the authors' (github.com/sail-sg/zero-bubble-pipeline-parallelism). Moving together is our own: before stage 0 first goes
backward through its first layers, and after its last forward, a block takes the earliest free slot that keeps the stage's peak.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import INPUT, V_MIN, WEIGHTS, WHOLE, block_code
from sim_core.jit import kernel

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]

PERIOD = 6
_FREE = -1
_F0, _F1, _B1, _B0 = 0, 1, 2, 3
"""Kinds in the order of a micro-batch: down, up, and back."""


@kernel
def _pattern(schedule: int, stage: int, pp: int, kind: int) -> int:
    """Slot of micro-batch 0."""
    if schedule == V_MIN:
        gap = 2 if pp % 3 == 0 else 0
        if kind == _F0:
            return stage
        if kind == _F1:
            return 2 * pp - 1 - stage
        return 2 * pp + gap + stage if kind == _B1 else 4 * pp + gap - 1 - stage
    gap = 3 if pp % 2 == 0 else 0
    if kind == _F0:
        return 2 * stage
    if kind == _F1:
        return 3 * pp - 2 - stage
    return 3 * pp + gap - 1 + 2 * stage if kind == _B1 else 6 * pp + gap - 2 - stage


@kernel
def fill_v(schedule: int, pp: int, ga: int, order: Codes, scratch: Ints) -> None:
    """Write the order of V-Half or V-Min: two chunks, pp above 1. `scratch`: see scratch_of."""
    slots = PERIOD * (ga + pp) + 4
    table = pp * (slots + 1)
    taken = scratch[:table].reshape(pp, slots + 1)  # kind * ga + micro-batch
    # at the start of each slot: chunks of activations in memory, and weight gradients to do
    held, waiting = scratch[table : 2 * table].reshape(pp, slots + 1), scratch[2 * table : 3 * table].reshape(pp, slots + 1)
    slot_of = scratch[3 * table : 3 * table + 4 * pp * ga].reshape(pp, 4, ga)
    peak = scratch[3 * table + 4 * pp * ga : 3 * table + 4 * pp * ga + pp]
    queue = scratch[3 * table + 4 * pp * ga + pp :]
    taken[:] = _FREE
    held[:, 0] = 0
    waiting[:, 0] = 0
    peak[:] = 0
    for stage in range(pp):
        for kind in range(4):
            for micro_batch in range(ga):
                slot = _pattern(schedule, stage, pp, kind) + PERIOD * micro_batch
                taken[stage, slot] = kind * ga + micro_batch
                slot_of[stage, kind, micro_batch] = slot
    for stage in range(pp):
        for slot in range(slots):
            held[stage, slot + 1], waiting[stage, slot + 1] = _after(
                taken[stage, slot], ga, held[stage, slot], waiting[stage, slot]
            )
            peak[stage] = max(peak[stage], held[stage, slot + 1])
    first_back, last_forward = slot_of[0, _B0, 0], slot_of[0, _F0, ga - 1]
    for slot in range(first_back):
        for stage in range(pp):
            _move(taken[stage], slot_of, held[stage], waiting[stage], peak[stage], stage, slot)
    for slot in range(last_forward + 1, slots):
        for stage in range(pp):
            _move(taken[stage], slot_of, held[stage], waiting[stage], peak[stage], stage, slot)
    for stage in range(pp):
        _write(taken[stage], ga, order[stage * 6 * ga : (stage + 1) * 6 * ga], queue)


@kernel
def _after(block: int, ga: int, held: int, waiting: int) -> tuple[int, int]:
    """Memory and weight gradients to do after a slot; a free one does the oldest weight gradient."""
    if block == _FREE:
        return (held - 1, waiting - 1) if waiting > 0 else (held, waiting)
    return (held + 1, waiting) if block < _B1 * ga else (held, waiting + 1)


@kernel
def _move(row: Codes, slot_of: Ints, held: Ints, waiting: Ints, peak: int, stage: int, slot: int) -> None:
    """Move the block in a slot to the earliest free one after what it waits for, if the peak stays."""
    block = row[slot]
    if block == _FREE:
        return
    ga = slot_of.shape[2]
    kind, micro_batch = block // ga, block % ga
    for new in range(_ready(slot_of, stage, kind, micro_batch), slot):
        if row[new] != _FREE:
            continue
        row[slot], row[new] = _FREE, block
        if _peak_from(row, ga, held, waiting, new, slot, False) <= peak:
            _peak_from(row, ga, held, waiting, new, slot, True)
            slot_of[stage, kind, micro_batch] = new
            return
        row[slot], row[new] = block, _FREE


@kernel
def _ready(slot_of: Ints, stage: int, kind: int, micro_batch: int) -> int:
    """The first slot after the block that one waits for."""
    last = slot_of.shape[0] - 1
    down = kind == _F0 or kind == _B1  # from the stage before
    if (stage == 0 and down) or (stage == last and not down):
        return 0 if kind == _F0 else int(slot_of[stage, kind - 1, micro_batch]) + 1
    return int(slot_of[stage - 1 if down else stage + 1, kind, micro_batch]) + 1


@kernel
def _peak_from(row: Codes, ga: int, held: Ints, waiting: Ints, first: int, last: int, write: bool) -> int:
    """Peak of memory from slot `first` on, until all is as before again, which is after slot `last` at the earliest."""
    now, to_do = int(held[first]), int(waiting[first])
    peak = now
    for slot in range(first, len(row)):
        if slot > last and now == held[slot] and to_do == waiting[slot]:
            break
        if write:
            held[slot], waiting[slot] = now, to_do
        now, to_do = _after(row[slot], ga, now, to_do)
        peak = max(peak, now)
    return peak


@kernel
def _write(row: Codes, ga: int, codes: Codes, queue: Ints) -> None:
    """The blocks of a stage in the order of their slots, weight gradients in the free ones and at the end."""
    at, waiting, done = 0, 0, 0
    for slot in range(len(row)):
        block = row[slot]
        if block == _FREE:
            if done < waiting:
                codes[at] = queue[done]
                done += 1
                at += 1
            continue
        kind, micro_batch = block // ga, block % ga
        chunk = 1 if kind in (_F1, _B1) else 0
        if kind <= _F1:
            codes[at] = block_code(0, chunk, micro_batch, WHOLE)
        else:
            codes[at] = block_code(1, chunk, micro_batch, INPUT)
            queue[waiting] = block_code(1, chunk, micro_batch, WEIGHTS)
            waiting += 1
        at += 1
    for k in range(done, waiting):
        codes[at + k - done] = queue[k]
