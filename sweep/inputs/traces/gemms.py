"""The GEMMs of a rank by shape: how many, the middle of their times, and the share of kernel time that was read."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from sim_core import Bools, Floats
from sweep.inputs.traces.events import NONE, Events, Shaped
from sweep.inputs.traces.kinds import Kind

MICRO = 1e-6

_OPERANDS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
"""Which operands are multiplied. These are leaves; aten::linear and aten::matmul call them."""
_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64"}


class Shape(NamedTuple):
    """[batch] x [m, k] x [k, n]; `transposed`: whether an operand lies so in memory; None where the file has no strides."""

    operator: str
    dtype: str
    batch: int
    m: int
    n: int
    k: int
    transposed: tuple[bool, bool] | None
    strides: tuple[tuple[int, ...], ...] | None = None

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k


class Gemm(NamedTuple):
    """GEMMs of one shape; seconds of their kernels, memsets apart, and of both together."""

    shape: Shape
    number: int
    median_s: float
    minimum_s: float
    total_s: float
    memset_s: float
    with_memsets_median_s: float


class Gemms(NamedTuple):
    """All GEMMs, those that took longest first; shares of the time of compute kernels: read, and GEMM by name but not read."""

    rows: tuple[Gemm, ...]
    read_share: float
    unread_share: float


def gemms(events: Events, chosen: Bools) -> Gemms:
    """The GEMMs among the chosen GPU events, where the file has shapes of operators."""
    compute = chosen & (events.kind == Kind.COMPUTE)
    kernels, fills = _seconds(events, compute), _seconds(events, chosen & (events.kind == Kind.MEMORY))
    times = defaultdict(list)
    read = 0.0
    for row, shaped in events.shapes.items():
        shape = shape_of(events.names[events.ops.name[row]], shaped)
        if shape is not None and kernels[row]:
            times[shape].append((kernels[row], fills[row]))
            read += kernels[row]
    rows = []
    for each, seconds in times.items():
        of_kernels, of_fills = np.array(seconds).T
        both = np.median(of_kernels), of_kernels.min(), of_kernels.sum(), of_fills.sum(), np.median(of_kernels + of_fills)
        rows.append(Gemm(each, len(seconds), *map(float, both)))
    rows.sort(key=lambda gemm: -gemm.total_s)
    by_name = np.array(["gemm" in name.lower() or name.startswith("Cijk_") for name in events.names], bool)
    named, whole = (float(events.gpu.dur_us[mask].sum()) * MICRO for mask in (compute & by_name[events.gpu.name], compute))
    return Gemms(tuple(rows), read / whole if whole else 0.0, max(0.0, named - read) / whole if whole else 0.0)


def shape_of(operator: str, shaped: Shaped) -> Shape | None:
    """The shape of an operator by its operands; None where they are not those of a GEMM."""
    operands = _OPERANDS.get(operator)
    if operands is None or len(shaped.dims) <= operands[1]:
        return None
    a, b = (shaped.dims[each] for each in operands)
    rank = 3 if operator in ("aten::bmm", "aten::baddbmm") else 2
    if len(a) != rank or len(b) != rank or a[-1] != b[-2] or 0 in a + b or (rank == 3 and a[0] != b[0]):
        return None
    types = [shaped.types[each] if len(shaped.types) > each else "" for each in operands]
    dtype = _DTYPES.get(types[0], "other") if types[0] == types[1] else "mixed"
    lying = strides = None
    if all(len(shaped.strides) > each and len(shaped.strides[each]) == rank for each in operands):
        strides = shaped.strides[operands[0]], shaped.strides[operands[1]]
        lying = _transposed(strides[0]), _transposed(strides[1])
    return Shape(operator, dtype, a[0] if rank == 3 else 1, a[-2], b[-1], a[-1], lying, strides)


def _transposed(strides: tuple[int, ...]) -> bool:
    return strides[-2] < strides[-1] or (strides[-2] == 1 and strides[-1] != 1)


def _seconds(events: Events, chosen: Bools) -> Floats:
    """Seconds of the chosen GPU events by operator."""
    seconds = np.zeros(len(events.ops.us))
    linked = chosen & (events.operator != NONE)
    np.add.at(seconds, events.operator[linked], events.gpu.dur_us[linked] * MICRO)
    return seconds
