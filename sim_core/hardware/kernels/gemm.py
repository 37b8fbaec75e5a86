"""Seconds of GEMMs and of grouped GEMMs (the experts of a mixture), forward and backward."""

from typing import Final, Literal

import numpy as np

from sim_core.arrays import Floats
from sim_core.hardware.kernels.device import DTYPES, Dtype, Kernels, Sizes, Timed
from sim_core.hardware.kernels.tables import Grid, interpolate, ratio_grid, wave_efficiency
from sim_core.hardware.surface import GemmSurface

Phase = Literal["forward", "input_gradient", "weight_gradient"]
GEMM_PHASES: Final[tuple[Phase, ...]] = ("forward", "input_gradient", "weight_gradient")

WEIGHT_GRADIENT: Final = 1.05
"""Seconds of a weight gradient, which adds to a gradient in fp32, over those of a forward GEMM of its shape.

MooreThreads/SimuMax 4dcaae5, configs/system: 1.05 on an A100, 1.03-1.08 on a B200. An input gradient takes as long as a
forward GEMM of its shape (1.00 on both). docs/kernels.md has the spread.
"""
ALIGNED_BYTES: Final = 16
"""Tensor cores want rows in multiples of 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide, section 3)."""
NARROW: Final = 2
"""Operands of fewer bytes have a factor of their own under load."""
UNALIGNED_FLOPS: Final = 100e12
"""FLOP/s that GEMMs with rows of other widths reach at most, on tensor cores all the same (cuBLAS 11 and later).

cuBLAS falls back to kernels of Turing that load operands one by one, about as fast on every GPU since. H100: 107 TFLOP/s at a
vocabulary of 30,522 (a PyTorch trace: 41 us, 4.4 GFLOP), 71 to 115 (median 87) at five shapes of odd k
(meta-pytorch/float8_experimental#145, which also lists one at 505). RTX 4090: 107 to 116 at odd widths of 2,055 to 2,073, where
aligned ones reach 156 (pytorch/pytorch#181718). A100: 86 in batches of k 140 (pytorch/pytorch#83272).
"""


def gemm_s(kernels: Kernels, dtype: str, m: Sizes, n: Sizes, k: Sizes, *, phase: Phase = "forward") -> Timed:
    """GEMMs of a linear layer: [m, k] x [k, n], m tokens from k to n channels; arrays of one length.

    `phase` takes the same m, n and k: the input gradient is a GEMM (m, k, n), the weight gradient (n, k, m).
    Raises SpecError where the device does not have the precision.
    """
    kernels.peak(dtype)
    table = kernels.tables.gemm.get(DTYPES[dtype].table) if kernels.tables else None
    return _aligned(kernels, dtype, _dense(kernels, dtype, table, m, n, k, phase), m, n, k)


def gemm_of_device_s(kernels: Kernels, dtype: str, m: Sizes, n: Sizes, k: Sizes, *, phase: Phase = "forward") -> Floats:
    """Seconds of GEMMs as the device's tables or peak have them, without factors and whatever the alignment.

    What the times of a user's surface are held against (`ratio_grid`). Raises SpecError as `gemm_s`.
    """
    kernels.peak(dtype)
    table = kernels.tables.gemm.get(DTYPES[dtype].table) if kernels.tables else None
    return _of_device(kernels, dtype, table, m, n, k, phase, 1.0).seconds


def grouped_gemm_s(
    kernels: Kernels, dtype: str, groups: Sizes, m: Sizes, n: Sizes, k: Sizes, *, phase: Phase = "forward", fused: bool = False
) -> Timed:
    """`groups` GEMMs of m tokens each, run as one grouped kernel; m is the mean and need not be whole.

    The geometric mean of `groups` GEMMs one by one and of one GEMM with the tokens of all; `fused`: a kernel written for
    them all, as fast as one GEMM. Rules, so never measured; docs/kernels.md compares the first with measured grouped kernels.
    """
    kernels.peak(dtype)
    if fused:
        table = kernels.tables.gemm.get(DTYPES[dtype].table) if kernels.tables else None
        whole = np.asarray(m, np.float64) * groups
        timed = _dense(kernels, dtype, table, whole, n, k, phase)
        return _aligned(kernels, dtype, Timed(timed.seconds, np.zeros(len(whole), np.bool_)), whole, n, k)
    table = kernels.tables.expert_gemm.get(DTYPES[dtype].table) if kernels.tables else None
    groups, m = np.asarray(groups, np.float64), np.asarray(m, np.float64)
    apart = groups * _dense(kernels, dtype, table, m, n, k, phase).seconds
    together = _dense(kernels, dtype, table, m * groups, n, k, phase).seconds
    seconds = np.sqrt(apart * together)
    return _aligned(kernels, dtype, Timed(seconds, np.zeros(len(seconds), np.bool_)), m * groups, n, k)


SCAN_OVER_FP32: Final = 1.5
"""FLOP/s of the products of a chunked scan over the peak of CUDA cores in fp32, beside the time of its bytes.

Between small products of one head and chunk, decays are computed, masked and multiplied in: CUDA cores are busy, tensor cores
are not. Forward of fla's KDA on an H20, 8,192 tokens, 96 and 64 heads of 128: 4.51 and 2.96 ms (MoonshotAI/FlashKDA 9f54414,
BENCHMARK_H20.md): 0.9. Mamba-2 on an A100, width 2,048, state 64: as fast as FlashAttention-2 at 2,048 tokens and 6 times at
16,384 (arXiv 2405.21060, figure 10), 67 ns a token: 1.4. mamba_ssm's chunk scan on an H100, 80 heads of 64, state 128, chunks
of 256: 1.8 times the 19.4 ns a token of TileLang's (tile-ai/tilelang be9c08f, benchmark/mamba2; arXiv 2504.17577): 2.3.
"""


def inside_s(kernels: Kernels, dtype: str, flops: Floats, *, scan: bool) -> Timed:
    """Products whose operands and results stay on the chip: of an attention kernel, or of a chunked `scan`. Never measured."""
    reached = kernels.peak(dtype) * kernels.numbers["attention_efficiency"]
    if scan:
        reached = min(reached, SCAN_OVER_FP32 * kernels.peak("fp32"))
    flops = np.asarray(flops, np.float64)
    return Timed(flops * kernels.numbers["sustained_scale"] / reached, np.zeros(len(flops), np.bool_))


def _dense(kernels: Kernels, dtype: str, table: Grid | None, m: Sizes, n: Sizes, k: Sizes, phase: Phase) -> Timed:
    """Seconds by the table or the peak, and where a user measured GEMMs, times what these take over those of the device."""
    scale = kernels.numbers["gemm_scale"] * kernels.numbers["sustained_scale"]
    if DTYPES[dtype].bytes < NARROW:
        scale *= kernels.numbers["narrow_scale"]
    base = _of_device(kernels, dtype, table, m, n, k, phase, scale)
    surface = _own(kernels, dtype, phase)
    if surface is None:
        return base
    shape = _as_forward(m, n, k, phase) if surface.phase == "forward" else (m, n, k)
    dense = kernels.tables.gemm.get(DTYPES[dtype].table) if kernels.tables else None
    grid = ratio_grid(surface, lambda m, n, k: _of_device(kernels, dtype, dense, m, n, k, surface.phase, 1.0).seconds)
    factor, inside = interpolate(grid, [np.log(np.maximum(np.asarray(size, np.float64), 1.0)) for size in shape])
    return Timed(base.seconds * factor, base.measured | inside)


def _own(kernels: Kernels, dtype: str, phase: Phase) -> GemmSurface | None:
    """What a user measured of a phase; of a gradient that was not, the forward, whose shapes it takes."""
    if kernels.surface is None or not DTYPES[dtype].own:
        return None
    by_phase = {
        surface.phase: surface for surface in kernels.surface.gemm if DTYPES[surface.dtype].table == DTYPES[dtype].table
    }
    return by_phase.get(phase, by_phase.get("forward"))


def _as_forward(m: Sizes, n: Sizes, k: Sizes, phase: Phase) -> tuple[Sizes, Sizes, Sizes]:
    """The shape of the GEMM that a phase runs."""
    return {"forward": (m, n, k), "input_gradient": (m, k, n), "weight_gradient": (n, k, m)}[phase]


def _of_device(
    kernels: Kernels, dtype: str, table: Grid | None, m: Sizes, n: Sizes, k: Sizes, phase: Phase, factor: float
) -> Timed:
    """`factor` times the seconds by the table, or by the peak where there is none."""
    sizes = [np.asarray(size, np.float64) for size in _as_forward(m, n, k, phase)]
    if phase == "weight_gradient":
        factor *= WEIGHT_GRADIENT
    if table is None:
        return Timed(factor * _roofline(kernels, DTYPES[dtype], *sizes), np.zeros(len(sizes[0]), np.bool_))
    rate, inside = interpolate(table, [np.log(np.maximum(size, 1.0)) for size in sizes])
    # A GEMM below the smallest measured size takes as long as the smallest: it fills no more of the GPU.
    rows, columns, depth = (np.maximum(size, np.exp(axis[0])) for size, axis in zip(sizes, table.axes, strict=True))
    if kernels.tables and kernels.tables.multiprocessors:
        rate = rate * wave_efficiency(rows, columns, kernels.tables.multiprocessors)
        rate = np.minimum(rate, kernels.tables.fastest[DTYPES[dtype].table])  # of full waves: between sizes it may be too high
    return Timed(factor * 2.0 * rows * columns * depth / rate, inside & (kernels.own and DTYPES[dtype].own))


def _roofline(kernels: Kernels, dtype: Dtype, m: Floats, n: Floats, k: Floats) -> Floats:
    """Where nothing was measured: a stated part of the peak, or the bytes of the matrices; and the overhead of a kernel."""
    compute = 2.0 * m * n * k / (kernels.numbers[dtype.peak] * kernels.numbers["gemm_efficiency"])
    memory = ((m * k + k * n) * dtype.bytes + m * n * max(dtype.bytes, 2)) / kernels.hbm_bandwidth
    return np.maximum(compute, memory) + kernels.numbers["kernel_overhead"]


def _aligned(kernels: Kernels, dtype: str, timed: Timed, m: Sizes, n: Sizes, k: Sizes) -> Timed:
    """At most UNALIGNED_FLOPS where n or k, the contiguous sizes of all three GEMMs of a layer, are not aligned."""
    multiple = ALIGNED_BYTES / DTYPES[dtype].bytes
    unaligned = (np.asarray(n, np.float64) % multiple != 0) | (np.asarray(k, np.float64) % multiple != 0)
    if dtype == "fp32" or not unaligned.any():
        return timed
    slow = 2.0 * np.asarray(m, np.float64) * n * k / UNALIGNED_FLOPS
    return Timed(np.where(unaligned, np.maximum(timed.seconds, slow), timed.seconds), timed.measured & ~unaligned)
