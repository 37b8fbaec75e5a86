"""What the kernels of one GPU need: measured tables, factors on them, peaks for what was not measured; memory-bound kernels."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Bools, Floats
from sim_core.documents import Words
from sim_core.errors import SpecError, nearest
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.tables import Tables, read_tables
from sim_core.hardware.surface import Surface

Sizes = npt.NDArray[np.integer[Any]] | npt.NDArray[np.floating[Any]]


class Dtype(NamedTuple):
    """A precision of operands."""

    table: str  # name of its tables; none for fp32
    peak: str  # number of the hardware
    bytes: float  # of one element
    own: bool = True  # the tables are of this very precision
    also: Words = ()  # other peaks that a device must have

    @property
    def peaks(self) -> Words:
        """Numbers of the hardware that are above 0 where it has this precision."""
        return (*self.also, self.peak)


DTYPES = {
    "fp32": Dtype("", "peak_flops_fp32", 4),
    "bf16": Dtype("bf16", "peak_flops_bf16", 2),
    "fp16": Dtype("bf16", "peak_flops_bf16", 2),
    "fp8": Dtype("fp8", "peak_flops_fp8", 1),
    "fp8_block": Dtype("fp8_block", "peak_flops_fp8", 1),
    "mxfp8": Dtype("fp8", "peak_flops_fp8", 1, own=False, also=("peak_flops_fp4",)),
    "nvfp4": Dtype("nvfp4", "peak_flops_fp4", 0.5),
}
"""fp8 has one scale per tensor, fp8_block one per block. fp16 has the rates of bf16: the same tensor cores. mxfp8 was not
measured: it takes the rates of fp8; tensor cores that scale its blocks came with those of FP4."""


class Timed(NamedTuple):
    """Seconds of each kernel, and whether they rest on measured kernels of that very device, of its size and around it."""

    seconds: Floats
    measured: Bools


def unmeasured(seconds: Floats) -> Timed:
    """Seconds that rest on no measured kernel."""
    return Timed(seconds, np.zeros(len(seconds), bool))


class Kernels(NamedTuple):
    """One GPU. `numbers` are those of the hardware, in SI, by short name."""

    name: str
    tables: Tables | None
    own: bool  # the tables were measured on this very device, not on a near one
    numbers: dict[str, float]
    surface: Surface | None = None  # kernels that a user measured

    def peak(self, dtype: str) -> float:
        """Peak FLOP/s of a precision. Raises SpecError where the device has none, or the precision is unknown."""
        if dtype not in DTYPES:
            raise SpecError(f"precision {dtype!r}: unknown, {nearest(dtype, DTYPES)}")
        for number in DTYPES[dtype].peaks:
            if not self.numbers[number] > 0:
                raise SpecError(f"precision {dtype!r}: {self.name} does not have it ({number} is 0)")
        return self.numbers[DTYPES[dtype].peak]

    @property
    def hbm_bandwidth(self) -> float:
        """Bytes/s that memory-bound kernels reach."""
        return self.numbers["memory_bandwidth"] * self.numbers["hbm_efficiency"]


_NUMBERS = (
    *("peak_flops_fp32", "peak_flops_bf16", "peak_flops_fp8", "peak_flops_fp4", "memory_bandwidth", "hbm_efficiency"),
    *("kernel_overhead", "gemm_scale", "sustained_scale", "narrow_scale", "gemm_efficiency", "attention_efficiency"),
)


def load_kernels(hardware: Hardware) -> Kernels:
    """The kernels of a device: its tables, or those it borrows, read once per process."""
    stated = hardware.kernels
    tables = read_tables(stated.tables) if stated.tables else None
    return Kernels(hardware.name, tables, not stated.borrowed, {key: hardware.value(key) for key in _NUMBERS}, hardware.surface)


def precisions(kernels: Kernels) -> list[str]:
    """The precisions that a device has."""
    return [name for name, dtype in DTYPES.items() if all(kernels.numbers[peak] > 0 for peak in dtype.peaks)]


def has_precision(hardware: Hardware, name: str) -> bool:
    """Whether a device has tensor cores of a precision."""
    return all(hardware.value(peak) > 0 for peak in DTYPES[name].peaks)


def measured_kernels(kernels: Kernels) -> list[str]:
    """A line for each kind of kernel that the tables of a device hold: precisions and ranges of sizes."""
    if kernels.tables is None:
        return []
    lines = []
    attention = kernels.tables.attention
    heads = sorted({dim for by in attention.values() for dim in by})
    for kind, names, by_dtype, further in (
        ("GEMM", ("m", "n", "k"), kernels.tables.gemm, ()),
        (
            "attention",
            ("heads", "", "sequence", "batch"),
            {name: by[max(by)] for name, by in attention.items()},
            (f"head size {', '.join(map(str, heads))}",),
        ),
    ):
        axes = zip(names, next(iter(by_dtype.values())).axes, strict=True)
        ranges = [f"{name} {np.exp(axis[0]):.0f}-{np.exp(axis[-1]):.0f}" for name, axis in axes if name]
        lines.append(f"{kind} forward: {', '.join(by_dtype)}; {', '.join((*ranges, *further))}")
    return lines


def memory_s(kernels: Kernels, moved_bytes: Sizes, launched: Sizes) -> Timed:
    """`launched` kernels that read and write `moved_bytes` in all: norms, activations, residual adds, optimizer."""
    return unmeasured(moved_bytes / kernels.hbm_bandwidth + launched * kernels.numbers["kernel_overhead"])
