"""Orders with weight gradients apart: ZB-H1, ZB-H2, interleaved zero bubble, ZB-V, DualPipe, DualPipeV.

ZB-H1, ZB-H2: Qi et al. 2023 (arXiv 2401.10241), sections 2.1 and 2.2, figures 2 and 3. Interleaved zero bubble and ZB-V as in
PyTorch's torch/distributed/pipelining/schedules.py (ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble). DualPipe:
DeepSeek-AI 2024 (arXiv 2412.19437), section 3.2.1; its steps and DualPipeV's as in github.com/deepseek-ai/DualPipe.
Weight gradients run in the order of their input gradients.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import DUALPIPE, INPUT, NO_BLOCK, PAIRED, WEIGHTS, WHOLE, ZB_H2, block_code
from sim_core.jit import kernel

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int64]


@kernel
def fill_split(schedule: int, pp: int, vpp: int, ga: int, order: Codes) -> None:
    """1F1B and interleaved 1F1B whose weight gradients begin `factor * stage` backwards late; ZB-H2 warms up twice as long."""
    factor = 2 if schedule == ZB_H2 else 1
    group = ga // max(ga // pp, 1)
    total = vpp * ga
    for stage in range(pp):
        at = stage * 3 * total
        warmup = min(total, (vpp - 1) * group + factor * (pp - 1 - stage))
        late = factor * stage
        for k in range(total + warmup + late):
            if k < total:
                chunk, micro_batch = _entry(k, group, vpp, ga)
                order[at] = block_code(0, chunk, micro_batch)
                at += 1
            if warmup <= k < total + warmup:
                chunk, micro_batch = _entry(k - warmup, group, vpp, ga)
                order[at] = block_code(1, vpp - 1 - chunk, micro_batch, INPUT)
                at += 1
            if warmup + late <= k:
                chunk, micro_batch = _entry(k - warmup - late, group, vpp, ga)
                order[at] = block_code(1, vpp - 1 - chunk, micro_batch, WEIGHTS)
                at += 1


@kernel
def _entry(k: int, group: int, vpp: int, ga: int) -> tuple[int, int]:
    """(chunk, micro-batch) of the k-th forward: micro-batches in groups, the last of which may be shorter."""
    first = k // (group * vpp) * group
    size = min(group, ga - first)
    inner = k - first * vpp
    return inner // size, first + inner % size


@kernel
def fill_zb_v(pp: int, ga: int, order: Codes, scratch: Ints) -> None:
    """Two chunks in a V. The order is that of at least 2 pp - 1 micro-batches, of which those beyond `ga` are left out."""
    for stage in range(pp):
        _fill_zb_v_stage(order[stage * 6 * ga : (stage + 1) * 6 * ga], pp, stage, ga, scratch[:6])


@kernel
def _fill_zb_v_stage(row: Codes, pp: int, stage: int, ga: int, done: Ints) -> None:
    total = max(ga, 2 * pp - 1)
    done[:] = 0  # F0, F1, B0, B1, W0, W1
    at = 0
    for _ in range(2 * (pp - stage) - 1):
        at = _next(row, at, done, 0, ga)
    for _ in range(stage):
        at = _next(row, at, done, 1, ga)
        at = _next(row, at, done, 0, ga)
    for _ in range(pp - stage):
        for what in (1, 3, 5):
            at = _next(row, at, done, what, ga)
    while done[1] < done[0] or done[0] < total:
        if done[0] < total:
            at = _next(row, at, done, 0, ga)
        for what in (2, 4, 1, 3, 5):
            at = _next(row, at, done, what, ga)
    for _ in range(stage):
        at = _next(row, at, done, 2, ga)
        at = _next(row, at, done, 3, ga)
    for _ in range(pp - stage):
        at = _next(row, at, done, 2, ga)
        at = _next(row, at, done, 4, ga)
    for what in (5, 4):
        while done[what] < total:
            at = _next(row, at, done, what, ga)


@kernel
def _next(row: Codes, at: int, done: Ints, what: int, ga: int) -> int:
    """Append the next block of a kind and chunk; returns the next place."""
    micro_batch = done[what]
    done[what] += 1
    if micro_batch >= ga:
        return at
    kind = what // 2
    row[at] = block_code(int(kind > 0), what % 2, micro_batch, kind if kind > 0 else WHOLE)
    return at + 1


@kernel
def fill_dual(schedule: int, pp: int, ga: int, order: Codes, scratch: Ints) -> None:
    """DualPipe, DualPipeV: micro-batches meet halfway, those of one direction forward while those of the other go backward."""
    dual = schedule == DUALPIPE
    half, rounds = (pp // 2, ga // 2) if dual else (pp, ga)
    order[: pp * 6 * rounds] = NO_BLOCK
    for stage in range(pp):
        row = order[stage * 6 * rounds : (stage + 1) * 6 * rounds]
        deep = min(stage, pp - 1 - stage) if dual else stage
        near = 1 if dual and stage >= half else 0  # the chunk of those that enter at this end
        _fill_dual_stage(row, half, deep, rounds, near, scratch)


@kernel
def _fill_dual_stage(row: Codes, half: int, deep: int, rounds: int, near: int, scratch: Ints) -> None:
    """One stage, the `deep`-th from its end of a half of `half` stages."""
    far = 1 - near
    scratch[:6] = 0
    done = scratch[:4].reshape(2, 2)  # forwards and backwards of each chunk
    queue = scratch[4:6]  # weight gradients put off so far, and how many of them have run
    waiting = scratch[6:]  # all that were put off
    inner = half - deep - 1
    at = 0
    for _ in range(2 * inner):
        at = _forward(row, at, done, near, WHOLE)
    for _ in range(deep + 1):
        at = _forward(row, at, done, near, WHOLE)
        at = _forward(row, at, done, far, WHOLE)
    for _ in range(inner):
        at = _backward(row, at, done, far, True, waiting, queue)
        at = _weights(row, at, waiting, queue)
        at = _forward(row, at, done, far, WHOLE)
    for turn in range(rounds - 2 * half + deep + 1):
        apart = turn == 0 and inner == 0  # this forward is what the backward needs
        at = _forward(row, at, done, near, WHOLE if apart else PAIRED)
        at = _backward(row, at, done, far, False, waiting, queue)
        at = _forward(row, at, done, far, PAIRED)
        at = _backward(row, at, done, near, False, waiting, queue)
    for _ in range(inner):
        at = _backward(row, at, done, far, False, waiting, queue)
        at = _forward(row, at, done, far, PAIRED)
        at = _backward(row, at, done, near, False, waiting, queue)
    turning = (deep + 1) // 2
    for turn in range(deep + 1):
        at = _backward(row, at, done, far, turn > turning or (turn == turning and deep % 2 == 1), waiting, queue)
        at = _backward(row, at, done, near, turn >= turning, waiting, queue)
    for _ in range(inner):
        at = _weights(row, at, waiting, queue)
        at = _backward(row, at, done, near, True, waiting, queue)
    for _ in range(deep + 1):
        at = _weights(row, at, waiting, queue)


@kernel
def _forward(row: Codes, at: int, done: Ints, chunk: int, part: int) -> int:
    row[at] = block_code(0, chunk, done[0, chunk], part)
    done[0, chunk] += 1
    return at + 1


@kernel
def _backward(row: Codes, at: int, done: Ints, chunk: int, apart: bool, waiting: Ints, queue: Ints) -> int:
    micro_batch = done[1, chunk]
    row[at] = block_code(1, chunk, micro_batch, INPUT if apart else WHOLE)
    done[1, chunk] += 1
    if apart:
        waiting[queue[0]] = block_code(1, chunk, micro_batch, WEIGHTS)
        queue[0] += 1
    return at + 1


@kernel
def _weights(row: Codes, at: int, waiting: Ints, queue: Ints) -> int:
    row[at] = waiting[queue[1]]
    queue[1] += 1
    return at + 1
