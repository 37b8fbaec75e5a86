"""Plans beside the best: an interval of each, the chance that it is as fast, and whether it ties with the best.

The error of the ratio of two plans grows with their distance, by the variogram of the Gaussian process that `sweep tune`
learns from (process.py), of a size that measured pairs tell (`Differences.size`). How far apart plans are: doublings of their
sizes, and one for each other choice that differs.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sim_core import FOLLOWING, Bools, Floats, Ints
from sweep.uncertainty.evidence import CONFIDENCE, Basis, t3_cdf, t3_quantile
from sweep.uncertainty.process import variogram

NO_CHOICE = (*FOLLOWING, "dp_shard", "plan", "fidelity", "status", "reason")
"""Columns that follow from others, or define no plan."""
DEVICE = "hardware"
OTHER_DEVICE = 12.0
"""Another device counts as so many doublings: no measured pairs say how alike the errors on two devices are."""


class Coordinates(NamedTuple):
    """Plans as points: `sizes` [n, k], base-2 logarithms; `choices` [n, m], codes; `weights` [m], a difference in doublings."""

    sizes: Floats
    choices: Ints
    weights: Floats


def coordinates(rows: pa.Table, columns: Sequence[str]) -> Coordinates:
    """The rows as points in the plan columns given.

    Sizes are numbers above 0 in every row; all others are choices."""
    sizes, choices, weights = [], [], []
    for name in columns:
        if name in NO_CHOICE:
            continue
        column = rows.column(name).combine_chunks()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            values = column.to_numpy(zero_copy_only=False).astype(float)
            if len(values) and values.min() > 0:
                sizes.append(np.log2(values))
                continue
        codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        choices.append(codes.indices.to_numpy(zero_copy_only=False).astype(float).astype(int))
        weights.append(OTHER_DEVICE if name == DEVICE else 1.0)
    n = rows.num_rows
    return Coordinates(
        np.stack(sizes, 1) if sizes else np.zeros((n, 0)),
        np.stack(choices, 1) if choices else np.zeros((n, 0), int),
        np.array(weights),
    )


def distances(points: Coordinates, to: int | Ints) -> Floats:
    """Doublings from each plan to one of them, or each to its own, [n]."""
    total = np.zeros(len(points.sizes))
    for column in points.sizes.T:  # a column at a time: no [n, k] of differences
        total += np.abs(column - column[to])
    for column, weight in zip(points.choices.T, points.weights, strict=True):
        total += weight * (column != column[to])
    return total


def squares(points: Coordinates, to: int | Ints) -> Floats:
    """Squared doublings along each axis from each plan to one of them, or each to its own, in sum, [n]."""
    total = np.zeros(len(points.sizes))
    for column in points.sizes.T:
        total += (column - column[to]) ** 2
    for column in points.choices.T:
        total += column != column[to]
    return total


def features(points: Coordinates) -> Floats:
    """Plans as vectors whose squared distance is `squares`, [n, k]: a column for each value of a choice."""
    columns = [points.sizes]
    for codes in points.choices.T:
        values = np.unique(codes)
        if len(values) > 1:
            columns.append((codes[:, None] == values) / np.sqrt(2))
    return np.concatenate(columns, 1)


def all_distances(points: Coordinates) -> Floats:
    """Doublings between all plans, [n, n]."""
    columns = [distances(points, at) for at in range(len(points.sizes))]
    return np.stack(columns, 1) if columns else np.zeros((0, 0))


class Judgement(NamedTuple):
    """Of some plans, [n]. Without evidence of single plans `low`, `high` and `expected` are NaN; without any, nothing ties."""

    best: Ints  # the row that is expected to be the best of the plan's group
    low: Floats  # measured over simulated step, at least and at most, at evidence.LEVEL
    high: Floats
    expected: Floats  # measured over simulated step
    chance: Floats  # that it is as fast as the best of its group, or faster; 1 for the best
    tie: Bools  # cannot be told from the best at evidence.CONFIDENCE; true for the best

    def widened(self, factor: Floats) -> "Judgement":
        """With both ends of each interval further from what is expected by a factor, [n] (`Basis.wider`)."""
        low, high = (self.expected * (end / self.expected) ** factor for end in (self.low, self.high))
        return self._replace(low=low, high=high)


def judge(
    rows: pa.Table,
    columns: Sequence[str],
    seconds: Floats,
    basis: Basis,
    group: Ints | None = None,
) -> Judgement:
    """Judge plans beside the best of their `group` (numbers, [n]; default: one group), by the plan `columns` that vary.

    `seconds`, [n]: what each plan takes, simulated, in any unit that is proportional to time (GPU-seconds a sample, 1 / MFU),
    above 0 and finite. Columnar: some vectors of n for each column.
    """
    n = rows.num_rows
    groups = np.zeros(n, int) if group is None else group
    if n == 0 or basis.differences is None or basis.spread is None:
        best = _best(seconds, groups)
        chance = np.where(np.arange(n) == best, 1.0, np.nan)
        unknown = np.full(n, np.nan)
        return Judgement(best=best, low=unknown, high=unknown, expected=unknown, chance=chance, tie=chance == 1)
    spread, size, points = basis.spread, basis.differences.size, coordinates(rows, columns)
    order = np.log(seconds) + spread.middle
    best = _best(order, groups)
    variance = size**2 * variogram(distances(points, best), squares(points, best))
    chance = 1 - t3_cdf((order - order[best]) / np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny)))
    chance[best] = 1.0
    low, middle, high = np.exp([[spread.low], [spread.middle], [spread.high]]) * np.ones(n)
    return Judgement(best=best, low=low, high=high, expected=middle, chance=chance, tie=chance >= 1 - CONFIDENCE)


def widest(basis: Basis) -> float:
    """The greatest ratio of a plan to the best with which it can tie."""
    if basis.differences is None:
        return 1.0
    far = float(basis.differences.variogram(np.array(np.inf), np.array(np.inf)))
    return float(np.exp(t3_quantile(CONFIDENCE) * far**0.5))


def _best(values: Floats, group: Ints) -> Ints:
    """The row with the least value in the group of each row, [n]; of equal ones the first."""
    order = np.lexsort((values, group))
    _, first, of_row = np.unique(group[order], return_index=True, return_inverse=True)
    best = np.empty(len(values), int)
    best[order] = order[first][of_row]
    return best
