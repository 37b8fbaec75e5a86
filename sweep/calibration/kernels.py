"""The kernels that measure_kernels.py measured, made into a hardware file, and how far they are from those of the preset."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from sim_core import Floats, Hardware, SpecError
from sim_core.documents import Words
from sim_core.hardware.kernels.attention import attention_s
from sim_core.hardware.kernels.device import load_kernels, precisions
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.surface import AttentionSurface, GemmSurface, Surface
from sweep.calibration.kernel_lines import Kernel, Measured, Shape

OTHER_KERNEL = 1.3
"""Attention slower than the preset by this factor is another kernel (FlashAttention-2, where the tables hold a later one)."""
WORK = (("below 0.1 TFLOP", 0.0, 1e11), ("0.1 to 1 TFLOP", 1e11, 1e12), ("1 TFLOP and more", 1e12, np.inf))
DRIFT = 3.0
MEMORY_OFF = 0.15


class Class(NamedTuple):
    """Kernels of one class: measured seconds over those of the preset, as quantiles, and of how many shapes."""

    name: str
    shapes: int
    low: float  # 10th percentile
    middle: float
    high: float  # 90th


class KernelFit(NamedTuple):
    """The hardware, the classes, and what a user should know."""

    hardware: Hardware
    classes: tuple[Class, ...]
    notes: Words


class _Part(NamedTuple):
    """A surface and its measured shapes: seconds measured, and of the preset."""

    surface: GemmSurface | AttentionSurface
    name: str
    measured_s: Floats
    preset_s: Floats
    flops: Floats


def fit_kernels(measured: Measured, base: Hardware, name: str) -> KernelFit:
    """`base` with the kernels of a file. Raises SpecError if none can be used."""
    notes = list(_notes(measured, base))
    scales = ("gemm_scale", "sustained_scale", "narrow_scale")
    bare = base.model_copy(update={"surface": None}).with_values(dict.fromkeys(scales, 1))
    gemm, attention = list(_gemm_parts(measured, bare, notes)), list(_attention_parts(measured, bare, notes))
    if not gemm:
        raise SpecError(f"{measured.path}: nothing to use: found no GEMM of two sizes or more on every axis")
    words = [measured.text("device"), *(f"{key} {text}" for key in ("driver", "cuda", "hip") if (text := measured.text(key)))]
    under = f"after {measured.text('warm_up_s')} s at full load"
    source = ", ".join((*words, f"PyTorch {measured.text('torch')}", measured.text("date"), under, measured.path))
    surface = Surface(
        source=source,
        gemm=tuple(cast(GemmSurface, part.surface) for part in gemm),
        attention=tuple(cast(AttentionSurface, part.surface) for part in attention),
    )
    under_load = {"value": 1, "source": f"the kernels of this file were measured under sustained load: {source}"}
    values = dict.fromkeys(scales, under_load)
    memory = _memory(measured, base, notes)
    if memory is not None:
        values["hbm_efficiency"] = {
            "value": round(memory, 4),
            "source": f"bytes over seconds of element-wise kernels: {source}",
        }
    hardware = base.with_values(values).model_copy(update={"surface": surface, "name": name})
    parts = gemm + attention
    classes = tuple(each for part in parts for each in _classes_of(part.name, part.measured_s / part.preset_s, part.flops))
    return KernelFit(hardware, classes, tuple(notes))


def _notes(measured: Measured, base: Hardware) -> Iterator[str]:
    if not measured.complete:
        yield "the script was stopped before its end: what it had measured is used"
    if measured.header.get("quick") or measured.text("type") == "cpu":
        yield "measured on a CPU or with --quick: a try of the script, not kernels of a GPU"
    if len(measured.references) > 1:
        drift = (measured.references[-1] / measured.references[0] - 1) * 100
        if abs(drift) > DRIFT:
            yield f"the same GEMM took {drift:+.1f} % at the end: not in equilibrium (a longer --warm-up), or the GPU not idle"
    memory = measured.header.get("memory_bytes")
    if isinstance(memory, int) and memory > 0 and abs(memory / base.value("memory") - 1) > MEMORY_OFF:
        yield f"the GPU has {memory / 1e9:.0f} GB, {base.name} {base.value('memory') / 1e9:.0f} GB: is it this device?"
    for (kind, why), count in Counter(measured.skipped).most_common(6):
        yield f"not measured: {count} x {kind}: {why}"


def _gemm_parts(measured: Measured, bare: Hardware, notes: list[str]) -> Iterator[_Part]:
    kernels = load_kernels(bare)
    for (dtype, phase), rows in _grouped(measured.kernels["gemm"]).items():
        what = f"GEMM {phase.replace('_', ' ')}, {dtype}"
        best = _settled(rows, what, notes)
        if dtype not in precisions(kernels):
            notes.append(f"{what}: left out, {bare.name} has no peak of {dtype}")
            continue
        axes, us, seconds = _on_grid(best)
        if not us:
            notes.append(f"{what}: left out, fewer than two sizes on an axis")
            continue
        surface = GemmSurface(dtype=dtype, phase=phase, m=axes[0], n=axes[1], k=axes[2], us=us)
        m, n, k = np.array(list(best)).T
        yield _Part(surface, what, seconds, gemm_s(kernels, dtype, m, n, k, phase=surface.phase).seconds, 2.0 * m * n * k)


def _attention_parts(measured: Measured, bare: Hardware, notes: list[str]) -> Iterator[_Part]:
    kernels = load_kernels(bare)
    for (dtype, phase), rows in _grouped(measured.kernels["attention"]).items():
        for dim in sorted({row.sizes[2] for row in rows}):
            what = f"attention {phase}, {dtype}, heads of {dim}"
            of_dim = [row._replace(sizes=row.sizes[:2]) for row in rows if row.sizes[2] == dim]
            best = _settled(of_dim, what, notes)
            axes, us, seconds = _on_grid(best)
            if not us or dtype not in precisions(kernels):
                notes.append(f"{what}: left out, fewer than two sizes on an axis, or no peak of {dtype}")
                continue
            surface = AttentionSurface(dtype=dtype, phase=phase, head_dim=dim, heads=axes[0], sequence=axes[1], us=us)
            heads, s = np.array(list(best)).T
            operations, sizes = 2.0 if phase == "forward" else 5.0, (np.ones_like(s), s, heads, heads, np.full(len(s), dim))
            preset_s = attention_s(kernels, dtype, *sizes, phase=phase).seconds
            slower = float(np.median(seconds / preset_s))
            fastest = Counter(row.words[-1] for row in _best(of_dim).values()).most_common(1)[0][0]
            if slower > OTHER_KERNEL and bare.kernels.tables:
                notes.append(
                    f"{what}: left out, {slower:.2f} x the preset: {fastest} of this PyTorch is another kernel than "
                    "that of the tables; which one a job runs is a matter of its stack"
                )
                continue
            notes.append(f"{what}: mostly {fastest}")
            yield _Part(surface, what, seconds, preset_s, operations * heads * s.astype(float) ** 2 * dim)


def _grouped(rows: Sequence[Kernel]) -> Mapping[tuple[Any, ...], list[Kernel]]:
    """Kernels by dtype and phase."""
    groups: dict[tuple[Any, ...], list[Kernel]] = {}
    for row in rows:
        groups.setdefault(row.words[:2], []).append(row)
    return groups


def _best(rows: Iterable[Kernel]) -> dict[Shape, Kernel]:
    """The fastest kernel of each shape."""
    best: dict[Shape, Kernel] = {}
    for row in rows:
        if row.sizes not in best or row.us < best[row.sizes].us:
            best[row.sizes] = row
    return best


def _settled(rows: Sequence[Kernel], what: str, notes: list[str]) -> dict[Shape, float]:
    """Microseconds by shape, of the fastest kernel; those that waited for their launch are left out."""
    best = _best(row for row in rows if not row.launch_bound)
    if waited := {row.sizes for row in rows} - best.keys():
        notes.append(f"{what}: {len(waited)} shapes left out, the host took as long to launch them as the GPU to run them")
    return {sizes: best[sizes].us for sizes in sorted(best)}


def _on_grid(best: Mapping[Shape, float]) -> tuple[list[Shape], tuple[float | None, ...], Floats]:
    """Axes, and times row by row, none where an axis has one size; seconds by shape."""
    axes = [tuple(sorted(set(sizes))) for sizes in zip(*best, strict=True)]
    shapes = itertools.product(*axes) if best and all(len(axis) > 1 for axis in axes) else ()
    us = tuple(float(f"{best[shape]:.5g}") if shape in best else None for shape in shapes)
    return axes, us, np.array(list(best.values())) * 1e-6


def _memory(measured: Measured, base: Hardware, notes: list[str]) -> float | None:
    """Part of the memory bandwidth that element-wise kernels reach: all bytes over all seconds of the larger arrays."""
    largest: dict[str, Kernel] = {}
    for row in measured.kernels["memory"]:
        if not row.launch_bound and (row.words[0] not in largest or row.sizes > largest[row.words[0]].sizes):
            largest[row.words[0]] = row
    if not largest:
        return None
    bandwidth = base.value("memory_bandwidth")
    reached = (f"{name} {row.sizes[0] / (row.us * 1e-6) / bandwidth:.2f}" for name, row in largest.items())
    notes.append(f"part of the memory bandwidth: {', '.join(reached)}")
    part = sum(row.sizes[0] for row in largest.values()) / sum(row.us for row in largest.values()) * 1e6 / bandwidth
    if not 0.1 <= part <= 1:
        notes.append(f"hbm_efficiency: left at {base.value('hbm_efficiency'):g}, {part:.2f} of the bandwidth of {base.name}")
        return None
    return float(part)


def _classes_of(name: str, ratio: Floats, flops: Floats) -> Iterator[Class]:
    """Measured seconds over those of the preset by the work of a kernel."""
    for words, least, most in WORK:
        rows = ratio[(flops >= least) & (flops < most)]
        if len(rows):
            yield Class(f"{name}, {words}", len(rows), *np.quantile(rows, (0.1, 0.5, 0.9)).tolist())
