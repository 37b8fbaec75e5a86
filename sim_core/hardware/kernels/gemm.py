"""Seconds of GEMMs and of grouped GEMMs (the experts of a mixture), forward and backward."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np

from sim_core.arrays import Floats
from sim_core.hardware.kernels.device import DTYPES, Kernels, Sizes, Timed, unmeasured
from sim_core.hardware.kernels.tables import interpolate, ratio_grid, wave_efficiency

Phase = Literal["forward", "input_gradient", "weight_gradient"]
GEMM_PHASES: tuple[Phase, ...] = ("forward", "input_gradient", "weight_gradient")

WEIGHT_GRADIENT = 1.05
"""Seconds of a weight gradient, which adds to a gradient in fp32, over those of a forward GEMM of its shape.

MooreThreads/SimuMax 4dcaae5, configs/system: 1.05 on an A100, 1.03-1.08 on a B200. An input gradient takes as long as a
forward GEMM of its shape (1.00 on both). docs/kernels.md has the spread.
"""
ALIGNED_BYTES = 16
"""Tensor cores want rows in multiples of 16 bytes (NVIDIA, Matrix Multiplication Background User's Guide, section 3)."""
NARROW = 2
"""Operands of fewer bytes have a factor of their own under load."""
UNALIGNED_FLOPS = 100e12
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
    shape = _floats(m, n, k)
    return _aligned(dtype, _dense(kernels, dtype, shape, phase), shape)


def gemm_of_device_s(kernels: Kernels, dtype: str, m: Sizes, n: Sizes, k: Sizes, *, phase: Phase = "forward") -> Floats:
    """Seconds of GEMMs as the device's tables or peak have them, without factors and whatever the alignment.

    What the times of a user's surface are held against (`ratio_grid`). Raises SpecError as `gemm_s`.
    """
    return _of_device(kernels, dtype, _floats(m, n, k), phase, 1.0).seconds


def grouped_gemm_s(
    kernels: Kernels, dtype: str, groups: Sizes, m: Sizes, n: Sizes, k: Sizes, *, phase: Phase = "forward", fused: bool = False
) -> Timed:
    """`groups` GEMMs of m tokens each, run as one grouped kernel; m is the mean and need not be whole.

    The geometric mean of `groups` GEMMs one by one and of one GEMM with the tokens of all; `fused`: a kernel written for
    them all, as fast as one GEMM. Rules, so never measured; docs/kernels.md compares the first with measured grouped kernels.
    """
    groups, m, n, k = _floats(groups, m, n, k)
    together = m * groups, n, k
    seconds = _dense(kernels, dtype, together, phase, experts=not fused).seconds
    if not fused:
        seconds = np.sqrt(groups * _dense(kernels, dtype, (m, n, k), phase, experts=True).seconds * seconds)
    return _aligned(dtype, unmeasured(seconds), together)


SCAN_OVER_FP32 = 1.5
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
    return unmeasured(flops * kernels.numbers["sustained_scale"] / reached)


def _floats(*sizes: Sizes) -> tuple[Floats, ...]:
    return tuple(np.asarray(size, float) for size in sizes)


def _logs(sizes: Sequence[Floats]) -> list[Floats]:
    return [np.log(np.maximum(size, 1.0)) for size in sizes]


def _dense(kernels: Kernels, dtype: str, shape: Sequence[Floats], phase: Phase, *, experts: bool = False) -> Timed:
    """Seconds by the table or the peak, and where a user measured GEMMs, times what these take over those of the device."""
    kernels.peak(dtype)
    of = DTYPES[dtype]
    scale = kernels.numbers["gemm_scale"] * kernels.numbers["sustained_scale"]
    if of.bytes < NARROW:
        scale *= kernels.numbers["narrow_scale"]
    base = _of_device(kernels, dtype, shape, phase, scale, experts=experts)
    own = kernels.surface.gemm if kernels.surface and of.own else ()
    by_phase = {surface.phase: surface for surface in own if DTYPES[surface.dtype].table == of.table}
    surface = by_phase.get(phase, by_phase.get("forward"))  # of a gradient that was not measured, the forward's of its shape
    if surface is None:
        return base
    grid = ratio_grid(surface, partial(gemm_of_device_s, kernels, dtype, phase=surface.phase))
    factor, inside = interpolate(grid, _logs(_as_forward(shape, phase) if surface.phase == "forward" else shape))
    return Timed(base.seconds * factor, base.measured | inside)


def _as_forward(shape: Sequence[Floats], phase: Phase) -> Sequence[Floats]:
    """The shape of the GEMM that a phase runs."""
    m, n, k = shape
    return {"forward": (m, n, k), "input_gradient": (m, k, n), "weight_gradient": (n, k, m)}[phase]


def _of_device(
    kernels: Kernels, dtype: str, shape: Sequence[Floats], phase: Phase, factor: float, *, experts: bool = False
) -> Timed:
    """`factor` times the seconds by the table, or where there is none, by a stated part of the peak or the bytes of the
    matrices, and the overhead of a kernel."""
    peak, of, tables = kernels.peak(dtype), DTYPES[dtype], kernels.tables
    sizes = _as_forward(shape, phase)
    if phase == "weight_gradient":
        factor *= WEIGHT_GRADIENT
    table = (tables.expert_gemm if experts else tables.gemm).get(of.table) if tables else None
    if table is None or tables is None:
        m, n, k = sizes
        compute = 2.0 * m * n * k / (peak * kernels.numbers["gemm_efficiency"])
        memory = ((m * k + k * n) * of.bytes + m * n * max(of.bytes, 2)) / kernels.hbm_bandwidth
        return unmeasured(factor * (np.maximum(compute, memory) + kernels.numbers["kernel_overhead"]))
    rate, inside = interpolate(table, _logs(sizes))
    # A GEMM below the smallest measured size takes as long as the smallest: it fills no more of the GPU.
    m, n, k = (np.maximum(size, np.exp(axis[0])) for size, axis in zip(sizes, table.axes, strict=True))
    if tables.multiprocessors:
        # of full waves: between sizes it may be too high
        rate = np.minimum(rate * wave_efficiency(m, n, tables.multiprocessors), tables.fastest[of.table])
    return Timed(factor * 2.0 * m * n * k / rate, inside & (kernels.own and of.own))


def _aligned(dtype: str, timed: Timed, shape: Sequence[Floats]) -> Timed:
    """At most UNALIGNED_FLOPS where n or k, the contiguous sizes of all three GEMMs of a layer, are not aligned."""
    m, n, k = shape
    multiple = ALIGNED_BYTES / DTYPES[dtype].bytes
    unaligned = (n % multiple != 0) | (k % multiple != 0)
    if dtype == "fp32" or not unaligned.any():
        return timed
    slowest = np.maximum(timed.seconds, 2.0 * m * n * k / UNALIGNED_FLOPS)
    return Timed(np.where(unaligned, slowest, timed.seconds), timed.measured & ~unaligned)
