"""Rules of legality about the number of micro-batches: they read nothing of a plan but its pipeline and its schedule."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.engine.schedules import BOTH_WAYS, IN_GROUPS, IN_ROUNDS, MICRO_BATCHES, PLACEMENT, TWICE_PP
from sim_core.engine.schedules import SPLITS as SPLITS_BACKWARD
from sim_core.planning.columns import EVENT, Plans

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_BLOCKS: Final = 2**24
PIPELINE: Final = ("schedule", "pp", "vpp", "microbatch_group_size", "fidelity")
"""The columns of plans that these rules read, besides `ga`."""


def micro_batches_unfit(plans: Plans) -> dict[str, Bools]:
    """Plans whose number of micro-batches does not suit their schedule, by reason, [n] each."""
    event, asks = plans.fidelity == EVENT, MICRO_BATCHES[plans.schedule]
    megatron = event & (plans.vpp > 1) & (asks == IN_GROUPS)
    group = np.where(plans.microbatch_group_size > 0, plans.microbatch_group_size, plans.pp)
    rounds = np.maximum(plans.ga // plans.pp, 1)
    blocks = np.where(SPLITS_BACKWARD[plans.schedule], 3.0, 2.0) * (plans.pp * plans.vpp) * plans.ga
    too_few = (asks == TWICE_PP) & (plans.ga < 2 * plans.pp)
    odd = (PLACEMENT[plans.schedule] == BOTH_WAYS) & (plans.ga % 2 != 0)  # two directions share them out
    return {
        "global_batch_not_divisible": plans.ga == 0,
        "dualpipe_needs_more_microbatches": event & (too_few | odd),
        "microbatches_not_multiple_of_pp": megatron & (group == plans.pp) & (plans.ga % plans.pp != 0),
        "microbatch_group_does_not_fit": megatron & ~_group_fits(plans, group),
        "microbatches_not_in_rounds": event & (asks == IN_ROUNDS) & (plans.ga % rounds != 0),
        "step_too_large": event & (blocks > MAX_BLOCKS),
    }


def _group_fits(plans: Plans, group: Ints) -> Bools:
    """Groups of micro-batches that Megatron-Core interleaves (core/pipeline_parallel/schedules.py)."""
    left = plans.ga % group
    fits: Bools = (plans.pp <= group) & (group <= plans.ga) & ((left == 0) | (left >= plans.pp))
    return fits
