"""Orders of blocks: what each stage of a pipeline runs, block after block, by schedule.

Whole backwards. GPipe: all forwards, then all backwards (Huang et al. 2019, figure 2). 1F1B: pp-1-stage warm-up forwards, then
one forward and one backward alternately (Narayanan et al. 2021, PipeDream-Flush); DeepSpeed's has the same order. Interleaved:
vpp chunks per stage, micro-batches in groups, 2(pp-1-stage) + (vpp-1) group warm-up forwards (Narayanan et al. 2021,
arXiv 2104.04473, section 2.2; the count is that of Megatron-Core pipeline_parallel/schedules.py, whose
--microbatch-group-size-per-virtual-pipeline-stage is the group). Looped BFS: chunk after chunk, all micro-batches in each
(Lamy-Poirier 2022, arXiv 2211.05953).

Weight gradients apart, which run in the order of their input gradients. ZB-H1, ZB-H2: Qi et al. 2023 (arXiv 2401.10241),
sections 2.1 and 2.2, figures 2 and 3. Interleaved zero bubble and ZB-V as in PyTorch, torch/distributed/pipelining/schedules.py
(ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble). DualPipe: DeepSeek-AI 2024 (arXiv 2412.19437), section 3.2.1; its steps
and DualPipeV's as in github.com/deepseek-ai/DualPipe.

V-Half and V-Min repeat a building block on two chunks in a V (Qi et al. 2024, arXiv 2405.15362): the peak of activations is
bounded by the lifespans of the building block, about 1/2 and 1/3 of 1F1B's. Time is in slots of one block; each stage repeats
its block every 6 slots, one micro-batch after another: four slots for the forwards and input gradients of its chunks, two for
the oldest weight gradients. The slots of the building block are the authors'
(github.com/sail-sg/zero-bubble-pipeline-parallelism). Moving warm-up and cool-down together is our own: before stage 0 first
goes backward through its first layers, and after its last forward, a block takes the earliest free slot that keeps the stage's
peak.
"""

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.jit import Addresses, addressed_kernel, addresses, inner_kernel, outer_kernel
from sim_core.compiled.references import call
from sim_core.engine.codes import INPUT, NO_BLOCK, PAIRED, WEIGHTS, WHOLE, block_code
from sim_core.engine.schedules import (
    ALTERNATING,
    BOTH_WAYS,
    FORWARDS_FIRST,
    HALF_V,
    HALFWAY,
    ORDER,
    PLACEMENT,
    THIRD_V,
    WEIGHTS_LATE,
    WEIGHTS_LATER,
    ZERO_BUBBLE_V,
)

PERIOD = 6
AT = 6
"""Where scratch holds the next place in the row of a stage."""
_FREE = -1
_F0, _F1, _B1, _B0 = 0, 1, 2, 3
"""Kinds in the order of a micro-batch in a V: down, up, and back."""


@inner_kernel
def group_of(schedule: int, pp: int, vpp: int, ga: int, group: int) -> int:
    """Micro-batches that a chunk takes in turn; `group` as in the plan, 0: the framework's own (pp)."""
    if vpp == 1 or ORDER[schedule] == FORWARDS_FIRST:
        return ga
    return group if group > 0 else pp


@inner_kernel
def warmup_blocks(schedule: int, stage: int, pp: int, vpp: int, ga: int, group: int) -> int:
    """Number of forwards that a stage runs before it alternates with backwards; `group` as of group_of."""
    if ORDER[schedule] == FORWARDS_FIRST:
        return ga * vpp
    if vpp == 1:
        return min(pp - 1 - stage, ga)
    return min(2 * (pp - 1 - stage) + (vpp - 1) * group, ga * vpp)


@addressed_kernel
def _fill_whole(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """Orders of forwards and whole backwards."""
    group = group_of(schedule, pp, vpp, ga, group)
    total = vpp * ga
    for stage in range(pp):
        warmup = warmup_blocks(schedule, stage, pp, vpp, ga, group)
        at = stage * 2 * total
        # (chunk, micro-batch) of the next forward and backward; counters avoid divisions; the last group may be shorter
        f_chunk, f_first, f_inner, f_group = 0, 0, 0, min(group, ga)
        b_chunk, b_first, b_inner, b_group = vpp - 1, 0, 0, min(group, ga)
        forwards = 0
        backwards = 0
        while backwards < total:
            if forwards < total and forwards - backwards <= warmup:
                order[at] = block_code(0, f_chunk, f_first + f_inner)
                at += 1
                forwards += 1
                f_inner += 1
                if f_inner == f_group:
                    f_inner = 0
                    f_chunk += 1
                    if f_chunk == vpp:
                        f_chunk = 0
                        f_first += group
                        f_group = min(group, ga - f_first)
            if forwards > warmup or forwards == total:
                order[at] = block_code(1, b_chunk, b_first + b_inner)
                at += 1
                backwards += 1
                b_inner += 1
                if b_inner == b_group:
                    b_inner = 0
                    b_chunk -= 1
                    if b_chunk < 0:
                        b_chunk = vpp - 1
                        b_first += group
                        b_group = min(group, ga - b_first)


@addressed_kernel
def _fill_late(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """1F1B and interleaved 1F1B whose weight gradients begin `factor * stage` backwards late; so much longer is the warm-up."""
    factor = 2 if ORDER[schedule] == WEIGHTS_LATER else 1
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


@inner_kernel
def _entry(k: int, group: int, vpp: int, ga: int) -> tuple[int, int]:
    """(chunk, micro-batch) of the k-th forward: micro-batches in groups, the last of which may be shorter."""
    first = k // (group * vpp) * group
    size = min(group, ga - first)
    inner = k - first * vpp
    return inner // size, first + inner % size


@addressed_kernel
def _fill_zb_v(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """Two chunks in a V. The order is that of at least 2 pp - 1 micro-batches, of which those beyond `ga` are left out."""
    for stage in range(pp):
        _fill_zb_v_stage(order[stage * 6 * ga : (stage + 1) * 6 * ga], pp, stage, ga, scratch[: AT + 1])


@inner_kernel
def _fill_zb_v_stage(row: Ints, pp: int, stage: int, ga: int, done: Ints) -> None:
    """`done`: F0, F1, B0, B1, W0, W1, and the next place."""
    total = max(ga, 2 * pp - 1)
    done[:] = 0
    for _ in range(2 * (pp - stage) - 1):
        _next(row, done, 0, ga)
    for _ in range(stage):
        _next(row, done, 1, ga)
        _next(row, done, 0, ga)
    for _ in range(pp - stage):
        for what in (1, 3, 5):
            _next(row, done, what, ga)
    while done[1] < done[0] or done[0] < total:
        if done[0] < total:
            _next(row, done, 0, ga)
        for what in (2, 4, 1, 3, 5):
            _next(row, done, what, ga)
    for _ in range(stage):
        _next(row, done, 2, ga)
        _next(row, done, 3, ga)
    for _ in range(pp - stage):
        _next(row, done, 2, ga)
        _next(row, done, 4, ga)
    for what in (5, 4):
        while done[what] < total:
            _next(row, done, what, ga)


@inner_kernel
def _next(row: Ints, done: Ints, what: int, ga: int) -> None:
    """Append the next block of a kind and chunk."""
    micro_batch, kind = done[what], what // 2
    done[what] += 1
    if micro_batch < ga:
        row[done[AT]] = block_code(int(kind > 0), what % 2, micro_batch, kind if kind > 0 else WHOLE)
        done[AT] += 1


@addressed_kernel
def _fill_halfway(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """DualPipe, DualPipeV: micro-batches meet halfway, those of one direction forward while those of the other go backward."""
    dual = PLACEMENT[schedule] == BOTH_WAYS
    half, rounds = (pp // 2, ga // 2) if dual else (pp, ga)
    order[: pp * 6 * rounds] = NO_BLOCK
    for stage in range(pp):
        row = order[stage * 6 * rounds : (stage + 1) * 6 * rounds]
        deep = min(stage, pp - 1 - stage) if dual else stage
        near = 1 if dual and stage >= half else 0  # the chunk of those that enter at this end
        _fill_halfway_stage(row, half, deep, rounds, near, scratch)


@inner_kernel
def _fill_halfway_stage(row: Ints, half: int, deep: int, rounds: int, near: int, done: Ints) -> None:
    """One stage, the `deep`-th from its end of a half of `half` stages.

    `done`: forwards and backwards of each chunk, weight gradients put off so far, how many of them have run, the next place;
    then all that were put off.
    """
    far, inner = 1 - near, half - deep - 1
    done[: AT + 1] = 0
    for _ in range(2 * inner):
        _forward(row, done, near, WHOLE)
    for _ in range(deep + 1):
        _forward(row, done, near, WHOLE)
        _forward(row, done, far, WHOLE)
    for _ in range(inner):
        _backward(row, done, far, True)
        _weights(row, done)
        _forward(row, done, far, WHOLE)
    for turn in range(rounds - 2 * half + deep + 1):
        apart = turn == 0 and inner == 0  # this forward is what the backward needs
        _forward(row, done, near, WHOLE if apart else PAIRED)
        _backward(row, done, far, False)
        _forward(row, done, far, PAIRED)
        _backward(row, done, near, False)
    for _ in range(inner):
        _backward(row, done, far, False)
        _forward(row, done, far, PAIRED)
        _backward(row, done, near, False)
    turning = (deep + 1) // 2
    for turn in range(deep + 1):
        _backward(row, done, far, turn > turning or (turn == turning and deep % 2 == 1))
        _backward(row, done, near, turn >= turning)
    for _ in range(inner):
        _weights(row, done)
        _backward(row, done, near, True)
    for _ in range(deep + 1):
        _weights(row, done)


@inner_kernel
def _forward(row: Ints, done: Ints, chunk: int, part: int) -> None:
    row[done[AT]] = block_code(0, chunk, done[chunk], part)
    done[chunk] += 1
    done[AT] += 1


@inner_kernel
def _backward(row: Ints, done: Ints, chunk: int, apart: bool) -> None:
    micro_batch = done[2 + chunk]
    row[done[AT]] = block_code(1, chunk, micro_batch, INPUT if apart else WHOLE)
    done[2 + chunk] += 1
    done[AT] += 1
    if apart:
        done[AT + 1 + done[4]] = block_code(1, chunk, micro_batch, WEIGHTS)
        done[4] += 1


@inner_kernel
def _weights(row: Ints, done: Ints) -> None:
    row[done[AT]] = done[AT + 1 + done[5]]
    done[5] += 1
    done[AT] += 1


@inner_kernel
def _pattern(kind_of_v: int, stage: int, pp: int, kind: int) -> int:
    """Slot of micro-batch 0."""
    if kind_of_v == THIRD_V:
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


@addressed_kernel
def _fill_v(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """Write the order of V-Half or V-Min: two chunks, pp above 1. `scratch`: see most_scratch."""
    kind_of_v = ORDER[schedule]
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
                slot = _pattern(kind_of_v, stage, pp, kind) + PERIOD * micro_batch
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


@inner_kernel
def _after(block: int, ga: int, held: int, waiting: int) -> tuple[int, int]:
    """Memory and weight gradients to do after a slot; a free one does the oldest weight gradient."""
    if block == _FREE:
        return (held - 1, waiting - 1) if waiting > 0 else (held, waiting)
    return (held + 1, waiting) if block < _B1 * ga else (held, waiting + 1)


@inner_kernel
def _move(row: Ints, slot_of: Ints, held: Ints, waiting: Ints, peak: int, stage: int, slot: int) -> None:
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


@inner_kernel
def _ready(slot_of: Ints, stage: int, kind: int, micro_batch: int) -> int:
    """The first slot after the block that one waits for."""
    last = slot_of.shape[0] - 1
    down = kind == _F0 or kind == _B1  # from the stage before
    if (stage == 0 and down) or (stage == last and not down):
        return 0 if kind == _F0 else int(slot_of[stage, kind - 1, micro_batch]) + 1
    return int(slot_of[stage - 1 if down else stage + 1, kind, micro_batch]) + 1


@inner_kernel
def _peak_from(row: Ints, ga: int, held: Ints, waiting: Ints, first: int, last: int, write: bool) -> int:
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


@inner_kernel
def _write(row: Ints, ga: int, codes: Ints, queue: Ints) -> None:
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


_WRITERS = {
    ALTERNATING: _fill_whole,
    FORWARDS_FIRST: _fill_whole,
    WEIGHTS_LATE: _fill_late,
    WEIGHTS_LATER: _fill_late,
    ZERO_BUBBLE_V: _fill_zb_v,
    HALF_V: _fill_v,
    THIRD_V: _fill_v,
    HALFWAY: _fill_halfway,
}


def order_writers(schedules: Ints) -> Addresses:
    """What `fill_order` calls for these schedules, by kind of order; compiles or loads what writes them, and no other."""
    return addresses(
        [_WRITERS[kind] for kind in range(len(_WRITERS))], ORDER[schedules], lambda: (*[0] * 5, *[np.empty(0, int)] * 2)
    )


@outer_kernel
def fill_order(writers: Addresses, schedule: int, pp: int, vpp: int, ga: int, group: int, order: Ints, scratch: Ints) -> None:
    """Write each stage's codes into `order`, flat, `row_of` per stage. The plan must be legal; `group` as in the plan.

    `writers`: `order_writers` of this schedule and maybe others. `scratch` has `most_scratch` numbers, since no step allocates.
    """
    call(writers[ORDER[schedule]], schedule, pp, vpp, ga, group, order, scratch)
