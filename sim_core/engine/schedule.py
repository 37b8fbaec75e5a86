"""Pipeline schedules as data: the order in which each stage runs its blocks (codes.py).

GPipe: all forwards, then all backwards (Huang et al. 2019, figure 2). 1F1B: pp-1-stage warm-up forwards, then one forward
and one backward alternately (Narayanan et al. 2021, PipeDream-Flush); DeepSpeed's has the same order. Interleaved: vpp chunks
per stage, micro-batches in groups, 2(pp-1-stage) + (vpp-1) group warm-up forwards (Narayanan et al. 2021, arXiv 2104.04473,
section 2.2; the count is that of Megatron-Core pipeline_parallel/schedules.py, whose
--microbatch-group-size-per-virtual-pipeline-stage is the group). Looped BFS: chunk after chunk, all micro-batches in each
(Lamy-Poirier 2022, arXiv 2211.05953). Those with weight gradients apart: split_orders.py, v_orders.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import (
    DUALPIPE,
    DUALPIPEV,
    GPIPE,
    LOOPED_BFS,
    SPLITS,
    V_HALF,
    V_MIN,
    ZB_V,
    block_code,
)
from sim_core.engine.split_orders import fill_dual, fill_split, fill_zb_v
from sim_core.engine.v_orders import fill_v
from sim_core.jit import kernel

Codes = npt.NDArray[np.int64]


@kernel
def group_of(schedule: int, pp: int, vpp: int, ga: int, group: int) -> int:
    """Micro-batches that a chunk takes in turn; `group` as in the plan, 0: the framework's own (pp)."""
    if vpp == 1 or schedule in (LOOPED_BFS, GPIPE):
        return ga
    return group if group > 0 else pp


@kernel
def warmup_blocks(schedule: int, stage: int, pp: int, vpp: int, ga: int, group: int) -> int:
    """Number of forwards that a stage runs before it alternates with backwards; `group` as of group_of."""
    if schedule in (GPIPE, LOOPED_BFS):
        return ga * vpp
    if vpp == 1:
        return min(pp - 1 - stage, ga)
    return min(2 * (pp - 1 - stage) + (vpp - 1) * group, ga * vpp)


@kernel
def fill_order(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Codes, scratch: Codes) -> None:
    """Write each stage's codes into `order`, flat, `row_of` per stage. The plan must be legal; `group` as in the plan.

    `scratch` has `most_scratch` numbers: callers that do not count references can call nothing that allocates.
    """
    if not SPLITS[schedule]:
        _fill_whole(schedule, pp, vpp, ga, group_of(schedule, pp, vpp, ga, group), order)
    elif schedule == ZB_V:
        fill_zb_v(pp, ga, order, scratch)
    elif schedule in (V_HALF, V_MIN):
        fill_v(schedule, pp, ga, order, scratch)
    elif schedule in (DUALPIPE, DUALPIPEV):
        fill_dual(schedule, pp, ga, order, scratch)
    else:
        fill_split(schedule, pp, vpp, ga, order)


@kernel
def _fill_whole(schedule: int, pp: int, vpp: int, ga: int, group: int, order: Codes) -> None:
    """Orders of forwards and whole backwards."""
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
