"""A measured rate on a grid of shapes: linear between nodes in the logarithms of sizes and rate, clamped outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Grid(NamedTuple):
    """Logarithms of a rate at the nodes of a grid; an axis is the logarithms of its sizes, ascending, at least two."""

    axes: tuple[Floats, ...]
    log_rate: Floats  # [nodes of axis 0, nodes of axis 1, ...], without gaps
    missing: Bools  # same shape: nodes that were not measured and hold the value of a neighbour


class Found(NamedTuple):
    """What a grid says of each shape."""

    rate: Floats
    inside: Bools  # between measured nodes on every axis


def interpolate(grid: Grid, at: Sequence[Floats]) -> Found:
    """The rate at `at`: one array of log sizes per axis, all of one length."""
    parts = [_some(grid, [x[start : start + CHUNK] for x in at]) for start in range(0, max(len(at[0]), 1), CHUNK)]
    return Found(np.concatenate([part.rate for part in parts]), np.concatenate([part.inside for part in parts]))


def _some(grid: Grid, at: Sequence[Floats]) -> Found:
    strides = [int(np.prod(grid.log_rate.shape[axis + 1 :], dtype=np.int64)) for axis in range(len(grid.axes))]
    inside = np.ones(len(at[0]), np.bool_)
    corners: list[tuple[Ints, Floats]] = [(np.zeros(len(inside), np.int64), np.ones(len(inside)))]  # (node, its share)
    for axis, x, stride in zip(grid.axes, at, strides, strict=True):
        position = np.interp(x, axis, np.arange(len(axis), dtype=np.float64))
        below = np.minimum(position.astype(np.int64), len(axis) - 2)
        upper = position - below
        inside &= (x >= axis[0] - SLACK) & (x <= axis[-1] + SLACK)
        lower, first = 1 - upper, below * stride
        corners = [
            (node + step, share * part) for node, share in corners for step, part in ((first, lower), (first + stride, upper))
        ]
    flat, missing = grid.log_rate.ravel(), grid.missing.ravel()
    log_rate = sum((share * flat[node] for node, share in corners), np.zeros(len(inside)))
    if missing.any():
        for node, share in corners:
            inside &= ~missing[node] | (share < SLACK)
    return Found(np.exp(log_rate), inside)


CHUNK: Final = 8192
"""Shapes at a time, so that they stay in the cache."""
SLACK: Final = 1e-9
"""Rounding of a logarithm: a size that is a node lies on it."""
