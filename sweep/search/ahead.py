"""What a search knows: the best plans so far, and what is ahead of it: plans or blocks, each with a bound of its cost."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sim_core import REASONS, Floats, Ints, coarse_bounds, work_bounds
from sweep.evaluation.evaluation import bounded, bounded_over
from sweep.evaluation.preparation import Sweep
from sweep.search.blocks import Blocks
from sweep.search.objective import Objective, group_keys

LAUNCHED = b"launch:"
"""What the key of a group begins with where its plans are compared by what a launch costs; no other key has its length."""


def launched(keys: Sequence[bytes]) -> list[bytes]:
    """The keys of groups whose plans are compared by what it costs to launch them."""
    return [LAUNCHED + key for key in keys]


@dataclass(kw_only=True)
class Frontier:
    """Cost, number and numbers (`same_numbers`) of the best simulated plans of each group, ascending.

    A plan counts once, however often it is added; so do plans with the same numbers: the lowest is kept.
    """

    objective: Objective
    found: dict[bytes, tuple[Floats, Ints, Ints]] = field(default_factory=dict)
    limit: dict[bytes, float] = field(default_factory=dict)  # of groups of which as many as the best are known
    seen: Ints = field(default_factory=lambda: np.empty(0, int))  # positions that have been simulated, ascending ...
    simulated: int = 0  # ... and how many of them here, not before it was copied
    tightness: float = 0.0  # sum over these of bound / step

    def copy(self) -> "Frontier":
        """A copy that grows on its own and has simulated nothing yet; arrays can be shared, since none is changed in place."""
        return Frontier(objective=self.objective, found=dict(self.found), limit=dict(self.limit), seen=self.seen)

    def count(self, positions: Ints, tightness: Floats) -> None:
        """Count simulated plans once each; `tightness`, [rows]: bound / step."""
        new = ~np.isin(positions, self.seen)
        self.seen = np.union1d(self.seen, positions)
        self.simulated += int(new.sum())
        self.tightness += float(np.nansum(tightness[new]))

    def add(self, keys: Sequence[bytes], group: Ints, cost: Floats, plan: Ints, same: Ints) -> None:
        """Take in simulated plans, [rows] each; `group` is an index into `keys`, `same` from `same_numbers`."""
        by_group = np.argsort(group, kind="stable")
        for mine in np.split(by_group, np.flatnonzero(np.diff(group[by_group])) + 1) if len(group) else ():
            key = keys[int(group[mine[0]])]
            before = self.found.get(key, (np.empty(0), np.empty(0, int), np.empty(0, int)))
            costs = np.concatenate([before[0], cost[mine]])
            plans, alike = np.concatenate([before[1], plan[mine]]), np.concatenate([before[2], same[mine]])
            order = np.lexsort((plans, costs))
            _, first = np.unique(alike[order], return_index=True)
            order = order[np.sort(first)[: self.objective.best]]
            self.found[key] = costs[order], plans[order], alike[order]
            if len(order) == self.objective.best:
                self.limit[key] = self.objective.limit(float(costs[order[0]]), float(costs[order[-1]]))

    def limits(self, keys: Sequence[bytes]) -> Floats:
        """The highest cost that a plan of the answer can have, by group; infinite until enough plans are known."""
        return np.maximum(self.limits_of(keys), self.limits_of(launched(keys)) if self.objective.dear else -np.inf)

    def limits_of(self, keys: Sequence[bytes]) -> Floats:
        """The same by the cost alone; of groups as they are `launched`, by that of a launch."""
        return np.array([self.limit.get(key, np.inf) for key in keys], float)


class Ahead(NamedTuple):
    """Plans, or one plan for each block: the code of its reason (0: legal), the least that it can cost, its group; [rows]."""

    reason: Ints
    cost: Floats
    keys: list[bytes]
    group: Ints  # index into `keys`

    def still_open(self, rows: Ints, frontier: Frontier) -> Ints:
        """Those of some rows whose bound is not worse than what has been found."""
        return rows[~(self.cost[rows] > frontier.limits(self.keys)[self.group[rows]])]

    def promising(self, frontier: Frontier) -> Ints:
        """The legal rows that are still open, most promising first: nearest to the best bound of their group."""
        rows = self.still_open(np.flatnonzero(self.reason == 0), frontier)
        cost, group, lowest = self.cost[rows], self.group[rows], np.full(len(self.keys), np.inf)
        finite = np.isfinite(cost)  # not where it is unknown, or a plan never ends: these come last
        np.minimum.at(lowest, group[finite], cost[finite])
        above = np.full(len(cost), np.inf)
        above[finite] = cost[finite] - lowest[group[finite]]
        return rows[np.argsort(above, kind="stable")]

    def first(self, frontier: Frontier) -> Ints:
        """The most promising rows of each group, up to as many as are looked for."""
        rows = self.promising(frontier)
        rows = rows[np.argsort(self.group[rows], kind="stable")]
        group = self.group[rows]
        return rows[np.arange(len(group)) - np.searchsorted(group, group) < frontier.objective.best]

    def rounds(self, frontier: Frontier, plans: Ints, size: int, most: int) -> Iterator[Ints]:
        """All promising rows, about `size` plans at first and twice as many each time, up to `most`, as long as they are open.

        `plans`, [rows]: how many each stands for.
        """
        left = self.promising(frontier)
        while len(left := self.still_open(left, frontier)):
            taken = max(1, int(np.searchsorted(np.cumsum(plans[left]), size, side="right")))
            yield left[:taken]
            left, size = left[taken:], min(2 * size, most)

    def reasons(self, plans: Ints) -> Counter[str]:
        """Plans by reason, '' for those that can run; each row stands for some `plans`, [rows]."""
        of_reason = np.bincount(self.reason, plans).astype(int)
        return Counter({REASONS[code]: int(count) for code, count in enumerate(of_reason) if count})


def of_bounded(rows: pa.RecordBatch, objective: Objective) -> Ahead:
    """What is ahead, from rows of `bounded`."""
    keys, group = group_keys(rows, objective.per)
    reason = rows.column("reason").indices.to_numpy().astype(int)
    return Ahead(reason, objective.cost(rows), keys, group)


def of_blocks(sweep: Sweep, blocks: Blocks, objective: Objective, families: Ints, *, rough: bool = False) -> Ahead:
    """Coarse bounds of all blocks of some families; `rough` bounds take less time where a family has several blocks. Of plans
    that are no blocks those by their work."""
    standing = blocks.standing_for(families * blocks.family)
    if not blocks.micro_batches:
        return of_bounded(bounded(sweep, standing, by=coarse_bounds if blocks.pays else work_bounds), objective)
    ga = np.array(blocks.micro_batches, int)
    rows, reason, step_s = bounded_over(sweep, standing, ga, rough=rough)
    keys, group = group_keys(rows, objective.per)
    cost = objective.cost_over(rows, ga, step_s).ravel()
    return Ahead(reason.ravel(), cost, keys, np.repeat(group, len(ga)))
