"""Plans beside the best: an interval of each, the chance that it is as fast, and whether it ties with the best.

Errors of plans are a Gaussian process over the plan: what a set of runs has in common (`Spread.between`), what plans share
the more the nearer they are (`Differences.covariance`), what each has for itself. Own runs condition it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sweep.uncertainty.distance import all_distances, coordinates, distances
from sweep.uncertainty.evidence import CONFIDENCE, Basis, Differences, Spread
from sweep.uncertainty.quantiles import t3_cdf

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class OwnRuns:
    """A user's measured runs: plan columns a row each, and ln(measured / simulated), [m]."""

    plans: pa.Table
    error: Floats


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Of some plans, [n]. Without evidence of single plans `low` and `high` are NaN; without any, nothing ties."""

    best: int  # the row that is expected to be the best
    low: Floats  # measured over simulated step, at least and at most, at evidence.LEVEL
    high: Floats
    expected: Floats  # measured over simulated step
    chance: Floats  # that it is as fast as the best, or faster; 1 for the best
    tie: Bools  # cannot be told from the best at evidence.CONFIDENCE; true for the best


def judge(rows: pa.Table, columns: Sequence[str], seconds: Floats, basis: Basis, own: OwnRuns | None = None) -> Judgement:
    """Judge plans that compete with each other, by the plan `columns` that vary among them.

    `seconds`, [n]: what each plan takes, simulated, in any unit that is proportional to time (GPU-seconds a sample, 1 / MFU).
    Columnar: some vectors of n for each column and each own run. Plans that are not above 0 and finite cannot be judged.
    """
    n = rows.num_rows
    if n == 0 or basis.differences is None or basis.spread is None:
        best = int(np.argmin(seconds)) if n else 0
        chance = np.where(np.arange(n) == best, 1.0, np.nan)
        unknown = np.full(n, np.nan)
        return Judgement(best=best, low=unknown, high=unknown, expected=unknown, chance=chance, tie=chance == 1)
    known = _Known(rows, columns, basis.spread, basis.differences, own)
    order = np.log(seconds) + known.mean
    best = int(np.argmin(order))
    variance = known.difference_variance(best)
    chance = 1 - t3_cdf((order - order[best]) / np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny)))
    chance[best] = 1.0
    spread = basis.spread
    return Judgement(
        best=best,
        low=np.exp(known.mean - (spread.middle - spread.low) * known.narrowing),
        high=np.exp(known.mean + (spread.high - spread.middle) * known.narrowing),
        expected=np.exp(known.mean),
        chance=chance,
        tie=chance >= 1 - CONFIDENCE,
    )


class _Known:
    """The errors of plans after own runs: `mean` [n] and by how much intervals are narrower, `narrowing` [n]."""

    def __init__(
        self, rows: pa.Table, columns: Sequence[str], spread: Spread, differences: Differences, own: OwnRuns | None
    ) -> None:
        n = rows.num_rows
        runs = 0 if own is None else len(own.error)
        if own is not None and runs:
            columns = [name for name in columns if name in own.plans.column_names]
            table = pa.concat_tables([rows.select(columns), own.plans.select(columns).cast(rows.select(columns).schema)])
            table = table.unify_dictionaries()
        else:
            table = rows
        self._points = coordinates(table, columns)
        self._n, self._differences = n, differences
        self.mean = np.full(n, spread.middle)
        self.narrowing = np.ones(n)
        self._shared: Floats = np.zeros((n, 0))
        self._weights: Floats = np.zeros((0, 0))
        if own is not None and runs:
            apart = all_distances(self._points, np.arange(n, n + runs))
            shared = spread.between**2 + differences.covariance(apart)
            among = shared[n:] + np.eye(runs) * differences.same**2 / 2
            self._shared = shared[:n]
            self._weights = np.asarray(np.linalg.inv(among), np.float64)
            self.mean = spread.middle + self._shared @ (self._weights @ (own.error - spread.middle))
            prior = spread.between**2 + differences.variance + differences.same**2 / 2
            told = np.einsum("ij,jk,ik->i", self._shared, self._weights, self._shared)
            self.narrowing = np.sqrt(np.maximum(prior - told, 0.0) / prior)

    def difference_variance(self, to: int) -> Floats:
        """Variance of the error of the ratio of each plan to one of them, [n]."""
        variance = self._differences.variogram(distances(self._points, to)[: self._n])
        apart = self._shared - self._shared[to]
        left: Floats = variance - np.einsum("ij,jk,ik->i", apart, self._weights, apart)
        return left
