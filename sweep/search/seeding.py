"""The costs to beat, before a search begins: the best of some plans spread over the space, and of those around them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sweep.evaluation import spread
from sweep.preparation import Sweep
from sweep.search.ahead import of_blocks, promise_of, refined
from sweep.search.blocks import Blocks
from sweep.search.candidates import search_among
from sweep.search.frontier import Frontier
from sweep.search.objective import Objective

Ints = npt.NDArray[np.int64]

SEEDS: Final = 4096
"""Families of blocks, spread over the space, that are looked at first, or an eighth of them."""
MOST_AROUND: Final = 256
CLIMBS: Final = 20
"""At most so often the search goes on from its best plans to those that differ from them in one axis."""


def seed(sweep: Sweep, blocks: Blocks, objective: Objective) -> Frontier:
    """The same costs at every call."""
    frontier = Frontier(objective=objective)
    families = blocks.count // blocks.family
    chosen = spread(families, min(SEEDS, max(families // 8, 1)))
    if blocks.pays:
        _search_families(sweep, blocks, chosen, frontier)
    else:
        search_among(sweep, blocks.numbers(chosen), frontier)
    if sweep.space.sample is not None:
        return frontier  # the plans around one are not in the sample
    seen = np.empty(0, np.int64)
    for _ in range(CLIMBS):
        best = np.unique(np.concatenate([np.empty(0, np.int64), *(plans for _, plans in frontier.found.values())]))
        best = np.setdiff1d(best, seen)[:MOST_AROUND]
        if not len(best):
            break
        seen = np.union1d(seen, best)
        if blocks.pays:
            around = np.unique(blocks.block_of(_around(best, blocks.outer)) // blocks.family)
            _search_families(sweep, blocks, np.setdiff1d(around, chosen), frontier)
            chosen = np.union1d(chosen, around)
            search_among(sweep, _around(best, blocks.inner), frontier)
        else:
            search_among(sweep, _around(best, blocks.outer), frontier)
    return frontier


def _search_families(sweep: Sweep, blocks: Blocks, families: Ints, frontier: Frontier) -> None:
    """Simulate the plans that stand for the most promising blocks of each group in some families."""
    ahead, best = of_blocks(sweep, blocks, frontier.objective, families, rough=True), frontier.objective.best
    ahead = refined(sweep, blocks, families, ahead, promise_of(ahead, frontier).first(best), frontier)
    first = promise_of(ahead, frontier).first(best)
    search_among(sweep, blocks.standing_for(families[first // blocks.family] * blocks.family + first % blocks.family), frontier)


def _around(plans: Ints, axes: tuple[tuple[int, int], ...]) -> Ints:
    """All plans that differ from one of `plans` in one of some axes, (size, stride) each."""
    found = [(plans - plans // stride % size * stride)[:, None] + np.arange(size) * stride for size, stride in axes]
    return np.unique(np.concatenate([plans, *(numbers.ravel() for numbers in found)]))
