"""Seconds of the attention core: one fused (flash) kernel, or the unfused GEMMs, softmax and dropout of earlier stacks."""

from typing import Literal

import numpy as np

from sim_core.arrays import Floats
from sim_core.hardware.kernels.device import DTYPES, Kernels, Sizes, Timed, unmeasured
from sim_core.hardware.kernels.gemm import ALIGNED_BYTES
from sim_core.hardware.kernels.tables import interpolate, ratio_grid

Phase = Literal["forward", "backward"]

BACKWARD = 2.9
"""Seconds of the backward over those of the forward, MooreThreads/SimuMax 4dcaae5: median of 12 shapes on an A100
(2.55-3.31), and of 32 on a B200 2.69 (1.22-3.23)."""
IN_8_BITS = {
    "H": ((0.69, 0.69, 0.67, 0.67, 0.66), (0.94, 1.01, 1.26, 1.55, 1.57)),
    "GB200": ((0.85, 0.81, 0.84, 0.82, 0.80), (0.91, 0.89, 0.86, 0.84, 0.84)),
    "GB300": ((0.81, 0.79, 0.76, 0.72, 0.69), (0.95, 0.92, 0.87, 0.85, 0.84)),
}
"""Seconds of attention in 8 bits over those in 16, causal, forward and backward, for sequences of IN_8_BITS_AT tokens, by the
beginning of a device's name without its form: NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training/results, llama3.1 on H200
(cuDNN 9.19, df73764), GB200 and GB300 (9.18, 9072c4e, b8c0656). On Hopper the backward is slower in 8 bits."""
IN_8_BITS_AT = (2048, 4096, 8192, 16384, 32768)
BATCHED_GEMM_EFFICIENCY = 0.55
"""Part of the peak that the batched GEMMs of unfused attention reach, and below the part of the memory bandwidth
[fitted to runs of vTrain, Megatron-LM 2021-22 and BigScience on A100s]."""
BATCHED_GEMM_HBM = 0.65
LARGEST_FUSED = 2048
"""Keys of a row of scores that the fused softmax of Megatron-LM v2.5 can hold."""
UNALIGNED = 0.51
"""Part of the fp32 peak that batched GEMMs of unaligned heads reach: 10 TFLOP/s of 19.5 on an A100, fitted to 14 runs of
bigscience-workshop/bigscience (tr11) whose heads of 108 and 150 channels are not aligned."""


def in_8_bits(device: str, phase: Phase, s: Sizes) -> Floats:
    """Seconds of flash attention in 8 bits over those in 16 for sequences of s tokens. One that was not measured: as GB200."""
    name = device if device.startswith("GB") else device.replace("B", "GB", 1)
    family = next((family for family in IN_8_BITS if name.startswith(family)), "GB200")
    return np.interp(np.log(s), np.log(IN_8_BITS_AT), IN_8_BITS[family][phase == "backward"])


def attention_s(
    kernels: Kernels,
    dtype: str,
    b: Sizes,
    s: Sizes,
    heads: Sizes,
    kv_heads: Sizes,
    d: Sizes,
    d_v: Sizes | None = None,
    *,
    phase: Phase = "forward",
) -> Timed:
    """Causal flash attention of b sequences of s tokens, heads of d channels (values: d_v), on one GPU; arrays of one length.

    Half of the scores are counted as work. The rate of a size of heads that was not measured is that of the nearest. The
    backward takes `BACKWARD` times the forward. Where a user measured a phase: times what it takes over that of the device.
    """
    of_phase = BACKWARD if phase == "backward" else 1.0
    d_v = d if d_v is None else d_v
    b, s, heads, kv_heads, d, d_v = (np.asarray(size, np.float64) for size in (b, s, heads, kv_heads, d, d_v))
    base_s, measured = _forward(kernels, dtype, kernels.numbers["sustained_scale"], b, s, heads, kv_heads, d, d_v)
    seconds = of_phase * base_s
    own = kernels.surface.attention if kernels.surface else ()
    surfaces = [surface for surface in own if surface.phase == phase and DTYPES[surface.dtype].table == DTYPES[dtype].table]
    if not surfaces:
        return Timed(seconds, measured)
    nearest = np.argmin([np.abs(np.log(d / surface.head_dim)) for surface in surfaces], axis=0)
    at = [np.log(b * heads), np.log(s)]
    for number, surface in enumerate(surfaces):
        rows = np.flatnonzero(nearest == number)

        def of_device(heads: Floats, s: Floats, head_dim: int = surface.head_dim) -> Floats:
            each = np.full(len(s), float(head_dim))
            return of_phase * _forward(kernels, dtype, 1.0, np.ones(len(s)), s, heads, heads, each, each).seconds

        factor, inside = interpolate(ratio_grid(surface, of_device), [x[rows] for x in at])
        seconds[rows] *= factor
        measured[rows] |= inside & (d[rows] == surface.head_dim) & (d_v[rows] == d[rows])
    return Timed(seconds, measured)


def _forward(
    kernels: Kernels, dtype: str, factor: float, b: Floats, s: Floats, heads: Floats, kv_heads: Floats, d: Floats, d_v: Floats
) -> Timed:
    """`factor` times the forward by the tables, or by the peak where there are none."""
    peak = kernels.peak(dtype)
    grids = kernels.tables.attention.get(DTYPES[dtype].table) if kernels.tables else None
    if not grids:
        reached = peak * kernels.numbers["attention_efficiency"]
        return unmeasured(factor * b * heads * s * s * (d + d_v) / reached + kernels.numbers["kernel_overhead"])
    measured_d = np.array(sorted(grids))
    nearest = measured_d[np.argmin(np.abs(np.log(d)[:, None] - np.log(measured_d)), axis=1)]
    shortest, longest = np.exp(next(iter(grids.values())).axes[2][[0, -1]])
    many = heads * np.maximum(s / longest, 1.0)  # a longer one has as many more blocks of queries as more heads have
    # place on the second axis: 1 to 8 key-value heads, then as many as heads, as logarithms
    between = np.log(8.0) + np.log(2.0) * np.log(np.maximum(kv_heads, 8) / 8) / np.log(np.maximum(heads, 9) / 8)
    slot = np.where(kv_heads == heads, np.log(16.0), np.where(kv_heads <= 8, np.log(kv_heads), between))
    rate, inside = np.empty(len(d)), np.empty(len(d), bool)
    for size in np.unique(nearest):
        rows = nearest == size
        rate[rows], inside[rows] = interpolate(grids[int(size)], [x[rows] for x in (np.log(many), slot, np.log(s), np.log(b))])
    work = b * heads * s * np.maximum(s, shortest) * (d + d_v)
    return Timed(factor * work / rate, inside & (nearest == d) & (d == d_v) & kernels.own)


def unfused_attention_s(
    kernels: Kernels,
    dtype: str,
    b: Sizes,
    s: Sizes,
    heads: Sizes,
    d: Sizes,
    *,
    phase: Phase = "forward",
    dropout: bool,
) -> Timed:
    """Attention of Megatron-LM before flash attention: batched GEMMs, softmax and dropout over the full square of scores.

    Forward and backward: two and four GEMMs; bytes per score, 4 and 6 in the fused softmax (read, write, 16 bits), 5 in dropout
    (and a mask of a byte), 37 and 40 in the passes of fp32 that replace that softmax: to fp32, scale, mask, softmax, and back.
    It runs where batch x heads and the sequence are multiples of 4 and the sequence is at most LARGEST_FUSED
    (NVIDIA/Megatron-LM v2.5, megatron/model/fused_softmax.py).
    """
    gemms, softmax = (2, (4, 37)) if phase == "forward" else (4, (6, 40))
    peak = kernels.peak(dtype)
    b, s, heads, d = (np.asarray(size, np.float64) for size in (b, s, heads, d))
    width, batches = DTYPES[dtype].bytes, b * heads
    rate = np.where(d * width % ALIGNED_BYTES == 0, BATCHED_GEMM_EFFICIENCY * peak, UNALIGNED * kernels.peak("fp32"))
    moved = width * batches * (2 * s * d + s * s)
    gemm = np.maximum(2.0 * batches * s * s * d / rate, moved / (BATCHED_GEMM_HBM * kernels.numbers["memory_bandwidth"]))
    fused = (batches % 4 == 0) & (s % 4 == 0) & (s <= LARGEST_FUSED)
    passes = batches * s * s * (np.where(fused, *softmax) + 5 * dropout) / kernels.hbm_bandwidth
    launched = gemms + np.where(fused, 1, 5) + dropout
    return unmeasured(gemms * gemm + passes + launched * kernels.numbers["kernel_overhead"])
