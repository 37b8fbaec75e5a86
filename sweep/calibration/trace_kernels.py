"""The GEMMs of a profiler's files made into a hardware file: under load, and only at the shapes that were measured."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

import numpy as np

from sim_core import Hardware, SpecError, plural
from sim_core.hardware.kernels.device import load_kernels, precisions
from sim_core.hardware.kernels.gemm import gemm_of_device_s, gemm_s
from sim_core.hardware.surface import GemmSurface, Surface
from sweep.calibration.kernels import Class, KernelFit, classes_of
from sweep.inputs.traces.gemms import Gemm
from sweep.inputs.traces.profile import Rank

MOST_SHAPES = 16
"""Shapes of a phase that a file keeps, those that took longest: the grid of their sizes grows with the third power."""
CLEAR_FLOPS = 1e10
"""From this work on, most traces of H100s agree with published kernels within INTERVAL (14 shapes: 0.82 to 1.07)."""
INTERVAL = 0.07
_PHASES = {(False, True): "forward", (False, False): "input_gradient", (True, False): "weight_gradient"}
"""Phases of a linear layer by which operands lie transposed: x W^T, g W, g^T x; without strides: as a forward."""
_DTYPES = ("bf16", "fp16")
_WORK = (("10 GFLOP and more", CLEAR_FLOPS, math.inf), ("below 10 GFLOP", 0.0, CLEAR_FLOPS))
Phase = Literal["forward", "input_gradient", "weight_gradient"]
Layer = tuple[int, int, int]


class _Measured(NamedTuple):
    """Seconds of linear layers (m tokens from k to n channels) in one precision and phase."""

    dtype: Literal["bf16", "fp16"]
    phase: Phase
    seconds: dict[Layer, float]


def fit_trace_kernels(ranks: Sequence[Rank], base: Hardware, name: str) -> KernelFit:
    """`base` with the GEMMs of the ranks of a job: the middle of their times. Raises SpecError if there are none.

    Beside the shapes that were measured nothing changes: the grid ends one size further, at what the device takes there.
    """
    read = [rank for rank in ranks if rank.gemms is not None and rank.gemms.rows]
    if not read:
        raise SpecError("calibrate kernels: found no GEMM with a shape, expected a profile with record_shapes=True")
    share = float(np.mean([rank.gemms.read_share for rank in read if rank.gemms is not None]))
    unread = float(np.mean([rank.gemms.unread_share for rank in read if rank.gemms is not None]))
    devices = sorted({rank.device for rank in read if rank.device})
    source = f"GEMMs of a profiled step, under load, {share:.1%} of its kernel time: {', '.join(devices) or 'GPU not named'}"
    notes = [f"under load: clocks and contention of the job are in them; read: {share:.1%} of the time of kernels that compute"]
    if unread:
        notes.append(f"not read: GEMMs without a shape, {unread:.1%} (fused, FP8, Transformer Engine)")
    notes.append(
        f"interval: +-{INTERVAL:.0%} from {CLEAR_FLOPS / 1e9:g} GFLOP on, not known below; other shapes stay as in {base.name}"
    )
    kernels, surfaces, classes = load_kernels(base), list[GemmSurface](), list[Class]()
    for each in _measured(read, notes):
        if each.dtype not in precisions(kernels):
            notes.append(f"{each.dtype}: left out, {base.name} has no peak of it")
            continue
        surfaces.append(_surface(each, base))
        classes += _classes(each, base)
    if not surfaces:
        raise SpecError(f"calibrate kernels: found no GEMM in bf16 or fp16 that {base.name} runs; {'; '.join(notes[2:])}")
    hardware = base.model_copy(update={"surface": Surface(source=source, gemm=tuple(surfaces)), "name": name})
    return KernelFit(hardware, tuple(classes), tuple(notes))


def _measured(ranks: Iterable[Rank], notes: list[str]) -> Iterator[_Measured]:
    """Seconds by precision, phase and layer, of equal ones the middle; the longest MOST_SHAPES of each."""
    times: dict[tuple[str, Phase], dict[Layer, list[Gemm]]] = defaultdict(lambda: defaultdict(list))
    left = set()
    for rank in ranks:
        for gemm in rank.gemms.rows if rank.gemms is not None else ():
            phase = _PHASES.get(gemm.shape.transposed or (False, True))
            if gemm.shape.dtype not in _DTYPES or gemm.shape.batch != 1 or phase is None:
                left.add(gemm.shape)
                continue
            m, n, k = gemm.shape.m, gemm.shape.n, gemm.shape.k
            layer = {"forward": (m, n, k), "input_gradient": (m, k, n), "weight_gradient": (k, m, n)}[phase]
            times[gemm.shape.dtype, cast(Phase, phase)][layer].append(gemm)
    if left:
        notes.append(
            f"left out: {plural(len(left), 'shape')} in other precisions, in batches, or with both operands transposed"
        )
    for (dtype, phase), layers in sorted(times.items()):
        longest = sorted(layers, key=lambda layer: -sum(gemm.total_s for gemm in layers[layer]))
        if len(longest) > MOST_SHAPES:
            notes.append(
                f"GEMM {phase.replace('_', ' ')}, {dtype}: the {MOST_SHAPES} that took longest of {len(longest)} shapes"
            )
        seconds = {
            layer: float(np.median([gemm.median_s for gemm in layers[layer]])) for layer in sorted(longest[:MOST_SHAPES])
        }
        yield _Measured(cast(Literal["bf16", "fp16"], dtype), phase, seconds)


def _surface(each: _Measured, base: Hardware) -> GemmSurface:
    """The measured times on a grid with a border at which the device is as it was.

    A grid's times are multiplied by `gemm_scale` and `sustained_scale`, which stay; measured ones are divided by them here.
    """
    inner = [set(sizes) for sizes in zip(*each.seconds, strict=True)]
    axes = [tuple(sorted({max(1, min(sizes) - 1), *sizes, max(sizes) + 1})) for sizes in inner]
    layers = list(itertools.product(*axes))
    scale = base.value("gemm_scale") * base.value("sustained_scale")
    as_before = gemm_of_device_s(load_kernels(base), each.dtype, *np.array(layers).T, phase=each.phase)
    us = []
    for layer, seconds in zip(layers, as_before, strict=True):
        edge = any(size not in sizes for size, sizes in zip(layer, inner, strict=True))
        found = each.seconds.get(layer)
        us.append(float(f"{seconds * 1e6:.8g}") if edge else None if found is None else float(f"{found * 1e6 / scale:.6g}"))
    return GemmSurface(dtype=each.dtype, phase=each.phase, m=axes[0], n=axes[1], k=axes[2], us=tuple(us))


def _classes(each: _Measured, base: Hardware) -> Iterator[Class]:
    """Measured seconds over those of `base`, large GEMMs and small ones."""
    m, n, k = (np.array(sizes) for sizes in zip(*each.seconds, strict=True))
    of_base = gemm_s(load_kernels(base.model_copy(update={"surface": None})), each.dtype, m, n, k, phase=each.phase).seconds
    ratio = np.array(list(each.seconds.values())) / of_base
    return classes_of(f"GEMM {each.phase.replace('_', ' ')}, {each.dtype}", ratio, np.asarray(2.0 * m * n * k, float), _WORK)
