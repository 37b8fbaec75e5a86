"""Rules of legality about the number of micro-batches: they read nothing of a plan but its pipeline and its schedule."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import DUALPIPE, DUALPIPEV, INTERLEAVED_ZB, ONE_F_ONE_B
from sim_core.engine.codes import SPLITS as SPLITS_BACKWARD
from sim_core.planning.columns import EVENT, Plans

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_BLOCKS: Final = 2**24
PIPELINE: Final = ("schedule", "pp", "vpp", "microbatch_group_size", "fidelity")
"""The columns of plans that these rules read, besides `ga`."""


def micro_batches_unfit(plans: Plans) -> dict[str, Bools]:
    """Plans whose number of micro-batches does not suit their schedule, by reason, [n] each."""
    event = plans.fidelity == EVENT
    megatron = event & (plans.vpp > 1) & (plans.schedule == ONE_F_ONE_B)
    group = np.where(plans.microbatch_group_size > 0, plans.microbatch_group_size, plans.pp)
    rounds = np.maximum(plans.ga // plans.pp, 1)
    blocks = np.where(SPLITS_BACKWARD[plans.schedule], 3.0, 2.0) * (plans.pp * plans.vpp) * plans.ga
    return {
        "global_batch_not_divisible": plans.ga == 0,
        "dualpipe_needs_more_microbatches": event & _too_few_for_dualpipe(plans),
        "microbatches_not_multiple_of_pp": megatron & (group == plans.pp) & (plans.ga % plans.pp != 0),
        "microbatch_group_does_not_fit": megatron & ~_group_fits(plans, group),
        "microbatches_not_in_rounds": event & (plans.schedule == INTERLEAVED_ZB) & (plans.ga % rounds != 0),
        "step_too_large": event & (blocks > MAX_BLOCKS),
    }


def _group_fits(plans: Plans, group: Ints) -> Bools:
    """Groups of micro-batches that Megatron-Core interleaves (core/pipeline_parallel/schedules.py)."""
    left = plans.ga % group
    fits: Bools = (plans.pp <= group) & (group <= plans.ga) & ((left == 0) | (left >= plans.pp))
    return fits


def _too_few_for_dualpipe(plans: Plans) -> Bools:
    """Plans of DualPipe or DualPipeV with fewer micro-batches than it needs, or an odd number for two directions."""
    dual, in_v = plans.schedule == DUALPIPE, plans.schedule == DUALPIPEV
    few: Bools = ((dual | in_v) & (plans.ga < 2 * plans.pp)) | (dual & (plans.ga % 2 != 0))
    return few
