"""The best plans found so far, and the cost above which a plan cannot be among the best any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sweep.search.objective import Objective

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class Frontier:
    """Cost and number of the best simulated plans of each group, ascending. A plan counts once, however often it is added."""

    objective: Objective
    found: dict[bytes, tuple[Floats, Ints]] = field(default_factory=dict)
    limit: dict[bytes, float] = field(default_factory=dict)  # of groups of which as many as the best are known
    simulated: int = 0
    tightness: float = 0.0  # sum over the simulated of bound / step

    def copy(self) -> Frontier:
        """One to be added to on its own, which has simulated nothing yet; the arrays are never changed in place."""
        return Frontier(objective=self.objective, found=dict(self.found), limit=dict(self.limit))

    def add(self, keys: Sequence[bytes], group: Ints, cost: Floats, plan: Ints) -> None:
        """Take in simulated plans: [rows] each but for `keys`, the groups that `group` counts."""
        by_group = np.argsort(group, kind="stable")
        for mine in np.split(by_group, np.flatnonzero(np.diff(group[by_group])) + 1) if len(group) else ():
            k = int(group[mine[0]])
            before = self.found.get(keys[k], (np.empty(0), np.empty(0, np.int64)))
            plans, first = np.unique(np.concatenate([before[1], plan[mine]]), return_index=True)
            costs = np.concatenate([before[0], cost[mine]])[first]
            order = np.lexsort((plans, costs))[: self.objective.best]
            costs = costs[order]
            self.found[keys[k]] = costs, plans[order]
            if len(costs) == self.objective.best:
                self.limit[keys[k]] = self.objective.limit(float(costs[0]), float(costs[-1]))

    def limits(self, keys: Sequence[bytes]) -> Floats:
        """The highest cost of a plan that can be in the answer, of each group; infinite while fewer than the best are known."""
        return np.array([self.limit.get(key, np.inf) for key in keys], np.float64)
