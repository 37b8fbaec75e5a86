"""Measured rates of kernels on grids of shapes: the tables that ship with sim_core, and what a user measured over them.

A table is one file per device, with source and licence (benchmarks/kernel_tables.py). A rate is linear between nodes in the
logarithms of sizes and rate, clamped outside.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Bools, Floats
from sim_core.hardware.description import KERNEL_DIR
from sim_core.hardware.surface import AttentionSurface, GemmSurface

CHUNK = 8192
"""Shapes at a time, so that they stay in the cache."""
SLACK = 1e-9
"""Rounding of a logarithm: a size that is a node lies on it."""
STEPS = 500
"""A stored rate is a whole number of steps: the natural logarithm of TFLOP/s, times this. It rounds by at most 0.1 %."""
NOT_MEASURED = np.iinfo(np.int16).min


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
    inside, flat, missing = np.ones(len(at[0]), bool), grid.log_rate.ravel(), grid.missing.ravel()
    stride, sides = flat.size, []  # of each axis (step to the node, its share), below and above
    for axis, x in zip(grid.axes, at, strict=True):
        stride //= len(axis)
        position = np.interp(x, axis, np.arange(len(axis)))
        below = np.minimum(position.astype(int), len(axis) - 2)
        upper = position - below
        inside &= (x >= axis[0] - SLACK) & (x <= axis[-1] + SLACK)
        sides.append(((below * stride, 1 - upper), ((below + 1) * stride, upper)))
    log_rate, gaps = np.zeros(len(inside)), missing.any()
    for corner in product(*sides):
        node, share = sum(step for step, _ in corner), prod(part for _, part in corner)
        log_rate += share * flat[node]
        if gaps:
            inside &= ~missing[node] | (share < SLACK)
    return Found(np.exp(log_rate), inside)


class Tables(NamedTuple):
    """What was measured on one device. Rates are in FLOP/s."""

    device: str
    source: str
    multiprocessors: int  # GEMM rates are those of full waves on this many; 0: rates as measured
    gemm: dict[str, Grid]  # by precision; m, n, k
    expert_gemm: dict[str, Grid]  # the same measurements, the median over frameworks in each precision
    fastest: dict[str, float]  # by precision: the rate of the fastest GEMM that was measured
    attention: dict[str, dict[int, Grid]]  # by precision and head dimension; heads, key-value slot, sequence, batch


@cache
def read_tables(device: str) -> Tables:
    """The tables of a device whose file is in KERNEL_DIR."""
    with np.load(KERNEL_DIR / f"{device}.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    axes = {
        kind: tuple(np.log(arrays[f"{kind}_{axis}"].astype(float)) for axis in names)
        for kind, names in (("gemm", ("m", "n", "k")), ("attention", ("heads", "slot", "s", "b")))
    }
    gemm: dict[str, Grid] = {}
    experts: dict[str, Grid] = {}
    attention: dict[str, dict[int, Grid]] = {}
    for name, steps in arrays.items():
        match name.split(":"):
            case "gemm", dtype:
                gemm[dtype] = filled(axes["gemm"], steps)
            case "expert_gemm", dtype:
                experts[dtype] = filled(axes["gemm"], steps)
            case "attention", dtype, head_dim:
                attention.setdefault(dtype, {})[int(head_dim)] = filled(axes["attention"], steps)
    multiprocessors = int(arrays["multiprocessors"])
    fastest = {}
    for dtype, grid in gemm.items():
        rate = np.exp(np.where(grid.missing, -np.inf, grid.log_rate))
        if multiprocessors:
            m, n = (np.exp(axis) for axis in grid.axes[:2])
            rate = rate * wave_efficiency(m[:, None], n[None, :], multiprocessors)[:, :, None]
        fastest[dtype] = float(rate.max())
    return Tables(device, str(arrays["source"]), multiprocessors, gemm, gemm | experts, fastest, attention)


def wave_efficiency(m: Floats, n: Floats, multiprocessors: int) -> Floats:
    """Part of the work that is useful where tiles of 256 x 128 (or 128 x 256) run in waves, one tile per multiprocessor.

    NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization (an A100: 108).
    """
    best = np.zeros(np.broadcast(m, n).shape)
    for rows, columns in ((256, 128), (128, 256)):
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        best = np.maximum(best, m * n / (np.ceil(tiles / multiprocessors) * multiprocessors * rows * columns))
    return best


def filled(axes: tuple[Floats, ...], steps: npt.NDArray[np.int16]) -> Grid:
    """A grid from stored steps. A node that was not measured takes a neighbour along the last axis that has one."""
    missing = steps == NOT_MEASURED
    return Grid(axes, without_gaps(np.where(missing, np.nan, steps.astype(float) / STEPS + np.log(1e12))), missing)


def without_gaps(values: Floats) -> Floats:
    """The same array, in place; a NaN takes a neighbour along the last axis that has one."""
    for axis in reversed(range(values.ndim)):
        for order in (slice(None), slice(None, None, -1)):
            along = np.moveaxis(values, axis, 0)[order]
            for node in range(1, len(along)):
                gap = np.isnan(along[node])
                along[node][gap] = along[node - 1][gap]
    return values


def ratio_grid(measured: GemmSurface | AttentionSurface, of_device: Callable[..., Floats]) -> Grid:
    """Measured seconds over those that `of_device` says, called with one array per axis, at the measured sizes.

    Interpolated like a rate: linear in logarithms, that of the nearest size outside.
    """
    axes = [np.array(axis, float) for axis in measured.axes]
    nodes = [sizes.ravel() for sizes in np.meshgrid(*axes, indexing="ij")]
    seconds = np.array([np.nan if us is None else us * 1e-6 for us in measured.us])
    values = np.log(seconds / of_device(*nodes)).reshape([len(axis) for axis in axes])
    return Grid(tuple(map(np.log, axes)), without_gaps(values), np.isnan(values))
