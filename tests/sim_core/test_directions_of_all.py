"""Directions of all models, stacks, devices and shardings: what should help hurts no plan, or a page says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from sim_core import read_stack
from tests.directions import Pair, summary, worse_of

COMPETES: Final[Mapping[str, float]] = {"overlap_grad": 1.0, "overlap_param": 0.03, "overlap_pp": 0.1}
"""What is sent beside other messages through the same NICs costs these more than it hides (docs/shared_nics.md; a fluid
simulation says the same: tests/oracle/fluid.py). `explain` names it."""
ROUGH: Final = 0.02
"""The rules of shared NICs are this near a fluid simulation in most plans; a better number may cross from one to the next."""
MEAN: Final = 5e-4
"""What compute loses beside gathers is a mean over the blocks of a stage: 2 of 10,001 plans are worse by 0.02 %."""
ORDER: Final = 0.1
"""v-half and v-min: warm-up and cool-down of an order of our own move with the number of micro-batches (docs/schedules.md)."""


def allowed(pair: Pair) -> float:
    """By how much a page says that a plan may be worse."""
    if pair.what == "overlap_ep" and read_stack(pair.stack).host_overlap_ep != 1:
        return 1.0  # an eager layer takes longer to launch (docs/stacks.md)
    if pair.what == "fewer micro-batches":
        return ORDER
    if not pair.shared:
        return MEAN
    return COMPETES.get(pair.what, ROUGH)


@pytest.mark.parametrize(("count", "seed"), [(300, 1), pytest.param(10_000, 43, marks=pytest.mark.long)])
def test_what_should_help_does(count: int, seed: int) -> None:
    plans, pairs = worse_of(count, seed)
    assert plans >= count
    beyond = [pair for pair in pairs if pair.worse > max(allowed(pair), 1e-9)]
    assert not beyond, summary(plans, beyond)
