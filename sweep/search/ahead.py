"""What is ahead of a search: plans or blocks that are not simulated, what each can cost at best, the most promising first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import REASONS
from sweep.evaluation import bounded, bounded_over
from sweep.preparation import Sweep
from sweep.search.blocks import Blocks
from sweep.search.frontier import Frontier
from sweep.search.objective import Objective, group_keys

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Ahead:
    """Plans, or the plans that stand for blocks: codes of their reasons, what the legal can cost at best, their groups."""

    reason: Ints
    cost: Floats
    keys: list[bytes]
    group: Ints  # index into `keys`


def of_bounded(rows: pa.RecordBatch, objective: Objective) -> Ahead:
    """The same of rows of `bounded`."""
    keys, group = group_keys(rows, objective.per)
    reason = rows.column("reason").indices.to_numpy().astype(np.int64)
    return Ahead(reason=reason, cost=objective.cost(rows), keys=keys, group=group)


def of_blocks(sweep: Sweep, blocks: Blocks, objective: Objective, families: Ints, *, rough: bool = False) -> Ahead:
    """The coarse bounds of all blocks of some families; `rough` ones take less time where families are of several."""
    standing = blocks.standing_for(families * blocks.family)
    if not blocks.micro_batches:
        return of_bounded(bounded(sweep, standing, coarse=True), objective)
    ga = np.array(blocks.micro_batches, np.int64)
    rows, reason, step_s = bounded_over(sweep, standing, ga, rough=rough)
    keys, group = group_keys(rows, objective.per)
    cost = objective.cost_over(rows, ga, step_s)
    return Ahead(reason=reason.ravel(), cost=cost.ravel(), keys=keys, group=np.repeat(group, len(ga)))


def refined(sweep: Sweep, blocks: Blocks, families: Ints, ahead: Ahead, chosen: Ints, frontier: Frontier) -> Ahead:
    """Rough bounds of all blocks of `families`, with those in the families of the `chosen` rows as they are when not rough."""
    better = np.unique(chosen // blocks.family)
    if not blocks.micro_batches or not len(better):
        return ahead
    cost = ahead.cost.copy().reshape(-1, blocks.family)
    cost[better] = of_blocks(sweep, blocks, frontier.objective, families[better]).cost.reshape(-1, blocks.family)
    return replace(ahead, cost=cost.ravel())


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Of what is ahead, the rows that can be in the answer, with what they can cost at best."""

    rows: Ints
    cost: Floats
    keys: list[bytes]
    group: Ints
    order: Ints  # of `rows`, `cost` and `group`, most promising first: nearest to the best bound of its group

    def still_open(self, ahead: Ints, frontier: Frontier) -> Ints:
        """Those of `ahead`, a part of the order, that can be in the answer by what is found."""
        return ahead[~(self.cost[ahead] > frontier.limits(self.keys)[self.group[ahead]])]

    def first(self, most: int) -> Ints:
        """The most promising rows of each group, up to `most` of each."""
        by_group = self.order[np.argsort(self.group[self.order], kind="stable")]
        group = self.group[by_group]
        place = np.arange(len(group)) - np.searchsorted(group, group)
        return self.rows[by_group[place < most]]


def promise_of(ahead: Ahead, frontier: Frontier) -> Promise:
    """The legal rows whose bound is not beaten by what is found."""
    rows = np.flatnonzero((ahead.reason == 0) & ~(ahead.cost > frontier.limits(ahead.keys)[ahead.group]))
    cost, group = ahead.cost[rows], ahead.group[rows]
    lowest = np.full(len(ahead.keys), np.inf)
    finite = np.isfinite(cost)  # not where it is unknown, or a plan never ends: these come last
    np.minimum.at(lowest, group[finite], cost[finite])
    above = np.full(len(cost), np.inf)
    above[finite] = cost[finite] - lowest[group[finite]]
    order = np.argsort(above, kind="stable")
    return Promise(rows=rows, cost=cost, keys=ahead.keys, group=group, order=order)


def count_reasons(ahead: Ahead, plans: Ints) -> Counter[str]:
    """Plans that cannot run, by reason, where each row stands for some plans; and under '' those that can."""
    of_reason = np.bincount(ahead.reason, plans).astype(np.int64)
    return Counter({REASONS[code]: int(count) for code, count in enumerate(of_reason) if count})
