"""Errors of simulated runs, as columns: what intervals and differences are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """A row is a measured run that was simulated. `job`: runs of one number differ in nothing but their plan."""

    error: Floats  # ln(measured / simulated)
    set: npt.NDArray[np.str_]
    experts: Bools
    job: Ints
    sizes: Floats  # [n, k]: base-2 logarithms of the plan's sizes
    choices: npt.NDArray[np.str_]  # [n, m]: its words

    def chosen(self, rows: Bools) -> Residuals:
        """Some of the rows."""
        return Residuals(
            error=self.error[rows], set=self.set[rows], experts=self.experts[rows], job=self.job[rows],
            sizes=self.sizes[rows], choices=self.choices[rows],
        )  # fmt: skip


class Pairs(NamedTuple):
    """Two plans of one job: by how much the simulated ratio is off, and how far apart the plans are."""

    error: Floats
    doublings: Floats
    set: npt.NDArray[np.str_]
    experts: Bools

    def chosen(self, rows: Bools) -> Pairs:
        """Some of the pairs."""
        return Pairs(self.error[rows], self.doublings[rows], self.set[rows], self.experts[rows])


def pairs_of(runs: Residuals) -> Pairs:
    """All pairs of different plans of each job. Of a plan that was measured twice, the mean."""
    errors, apart, sets, experts = [], [], [], []
    for job in np.unique(runs.job):
        rows = np.flatnonzero(runs.job == job)
        if len(rows) < 2:
            continue
        size, words = runs.sizes[rows], runs.choices[rows]
        doublings = np.abs(size[:, None] - size[None]).sum(2) + (words[:, None] != words[None]).sum(2)
        _, plan = np.unique(doublings == 0, axis=0, return_inverse=True)
        first = [np.flatnonzero(plan == one)[0] for one in range(plan.max() + 1)]
        mean = np.array([runs.error[rows][plan == one].mean() for one in range(plan.max() + 1)])
        for one, other in zip(*np.triu_indices(len(mean), 1), strict=True):
            errors.append(mean[one] - mean[other])
            apart.append(doublings[first[one], first[other]])
            sets.append(runs.set[rows[0]])
            experts.append(runs.experts[rows[0]])
    return Pairs(
        np.array(errors, np.float64), np.array(apart, np.float64), np.array(sets, np.str_), np.array(experts, np.bool_)
    )
