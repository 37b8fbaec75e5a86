"""How far apart plans are: doublings of their sizes, and one for each other choice that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FOLLOWING: Final = ("dp", "ga", "dp_shard", "plan", "fidelity", "status", "reason")
"""Columns that follow from others, or define no plan."""
DEVICE: Final = "hardware"
OTHER_DEVICE: Final = 12.0
"""Another device counts as so many doublings: no measured pairs say how alike the errors on two devices are."""


class Coordinates(NamedTuple):
    """Plans as points: `sizes` [n, k] as base-2 logarithms, `choices` [n, m] as codes, with what a difference counts, [m]."""

    sizes: Floats
    choices: Ints
    weights: Floats


def coordinates(rows: pa.Table, columns: Sequence[str]) -> Coordinates:
    """The rows as points in the plan columns given. Sizes are numbers above 0 in every row; all others are choices."""
    sizes, choices, weights = [], [], []
    for name in columns:
        if name in FOLLOWING:
            continue
        column = rows.column(name)
        kind = column.type
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            values = column.to_numpy().astype(np.float64)
            if len(values) and values.min() > 0:
                sizes.append(np.log2(values))
                continue
        choices.append(_codes(column))
        weights.append(OTHER_DEVICE if name == DEVICE else 1.0)
    n = rows.num_rows
    return Coordinates(
        np.stack(sizes, 1) if sizes else np.zeros((n, 0)),
        np.stack(choices, 1) if choices else np.zeros((n, 0), np.int64),
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


def all_distances(points: Coordinates, others: Ints | None = None) -> Floats:
    """Doublings between all plans and the `others` (default: all), [n, others]."""
    chosen = range(len(points.sizes)) if others is None else others.tolist()
    found = [distances(points, at) for at in chosen]
    return np.stack(found, 1) if found else np.zeros((len(points.sizes), 0))


def _codes(column: pa.ChunkedArray) -> Ints:
    combined = column.combine_chunks()
    encoded = combined if pa.types.is_dictionary(combined.type) else combined.dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.float64).astype(np.int64)
