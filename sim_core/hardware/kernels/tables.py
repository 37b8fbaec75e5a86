"""The measured tables that ship with sim_core: one file per device, with source and licence (benchmarks/kernel_tables.py)."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.hardware.description import KERNEL_DIR
from sim_core.hardware.kernels.grid import Floats, Grid

STEPS: Final = 500
"""A stored rate is a whole number of steps: the natural logarithm of TFLOP/s, times this. It rounds by at most 0.1 %."""
NOT_MEASURED: Final = np.iinfo(np.int16).min


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
    gemm_axes = tuple(_log(arrays[f"gemm_{axis}"]) for axis in ("m", "n", "k"))
    attention_axes = tuple(_log(arrays[f"attention_{axis}"]) for axis in ("heads", "slot", "s", "b"))
    gemm, experts = {}, {}
    attention: dict[str, dict[int, Grid]] = {}
    for name, steps in arrays.items():
        kind, _, rest = name.partition(":")
        dtype, _, last = rest.partition(":")
        if kind == "gemm":
            gemm[dtype] = filled(gemm_axes, steps)
        elif kind == "expert_gemm":
            experts[dtype] = filled(gemm_axes, steps)
        elif kind == "attention":
            attention.setdefault(dtype, {})[int(last)] = filled(attention_axes, steps)
    multiprocessors = int(arrays["multiprocessors"])
    fastest = {dtype: _fastest(grid, multiprocessors) for dtype, grid in gemm.items()}
    return Tables(device, str(arrays["source"]), multiprocessors, gemm, gemm | experts, fastest, attention)


def _fastest(grid: Grid, multiprocessors: int) -> float:
    rate = np.exp(np.where(grid.missing, -np.inf, grid.log_rate))
    if multiprocessors:
        m, n = (np.exp(axis) for axis in grid.axes[:2])
        rate = rate * wave_efficiency(m[:, None], n[None, :], multiprocessors)[:, :, None]
    return float(rate.max())


def wave_efficiency(m: Floats, n: Floats, multiprocessors: int) -> Floats:
    """Part of the work that is useful where tiles of 256 x 128 (or 128 x 256) run in waves, one tile per multiprocessor.

    NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization (an A100: 108).
    """
    best = np.zeros(np.broadcast(m, n).shape)
    for rows, columns in ((256, 128), (128, 256)):
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        waves = np.ceil(tiles / multiprocessors)
        best = np.maximum(best, m * n / (waves * multiprocessors * rows * columns))
    return best


def _log(sizes: npt.NDArray[np.integer]) -> Floats:
    return np.log(sizes.astype(np.float64))


def filled(axes: tuple[Floats, ...], steps: npt.NDArray[np.int16]) -> Grid:
    """A grid from stored steps. A node that was not measured takes a neighbour along the last axis that has one."""
    missing = steps == NOT_MEASURED
    values = np.where(missing, np.nan, steps.astype(np.float64) / STEPS + np.log(1e12))
    return Grid(axes, without_gaps(values), missing)


def without_gaps(values: Floats) -> Floats:
    """The same array, in place; a NaN takes a neighbour along the last axis that has one."""
    for axis in reversed(range(values.ndim)):
        for order in (slice(None), slice(None, None, -1)):
            along = np.moveaxis(values, axis, 0)[order]
            for node in range(1, len(along)):
                gap = np.isnan(along[node])
                along[node][gap] = along[node - 1][gap]
    return values
