"""Kernels that a user measured, over those of the device: a factor by shape, which keeps what lies between measured sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim_core.hardware.kernels.grid import Floats, Grid
from sim_core.hardware.kernels.tables import without_gaps
from sim_core.hardware.surface import AttentionSurface, GemmSurface


def ratio_grid(measured: GemmSurface | AttentionSurface, of_device: Callable[..., Floats]) -> Grid:
    """Measured seconds over those that `of_device` says, called with one array per axis, at the measured sizes.

    Interpolated like a rate: linear in logarithms, that of the nearest size outside.
    """
    axes = [np.array(axis, np.float64) for axis in measured.axes]
    nodes = [sizes.ravel() for sizes in np.meshgrid(*axes, indexing="ij")]
    seconds = np.array([np.nan if us is None else us * 1e-6 for us in measured.us])
    values = np.log(seconds / of_device(*nodes)).reshape([len(axis) for axis in axes])
    missing = np.isnan(values)
    return Grid(tuple(np.log(axis) for axis in axes), without_gaps(values), missing)
