"""Seconds of memory-bound kernels: norms, activations, residual adds, optimizer."""

from __future__ import annotations

import numpy as np

from sim_core.hardware.kernels.device import Kernels, Sizes, Timed


def memory_s(kernels: Kernels, moved_bytes: Sizes, launched: Sizes) -> Timed:
    """`launched` kernels that read and write `moved_bytes` in all. No table behind it, so never measured."""
    moved, launched = np.asarray(moved_bytes, np.float64), np.asarray(launched, np.float64)
    seconds = moved / kernels.hbm_bandwidth + launched * kernels.numbers["kernel_overhead"]
    return Timed(seconds, np.zeros(len(seconds), np.bool_))
