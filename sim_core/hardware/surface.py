"""Kernels that a user measured on a GPU of their own: seconds by shape, as they stand in a hardware file."""

import hashlib
import math
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sim_core.records import Record

MOST_SIZES = 64
Axis = Annotated[tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...], Field(min_length=2, max_length=MOST_SIZES)]
Dtype = Literal["bf16", "fp16", "fp8"]
Microseconds = tuple[Annotated[float, Field(gt=0, lt=1e9)] | None, ...]


class _Measured(Record):
    """Kernels on a grid of sizes; `us` row by row, the last axis fastest; null: not measured."""

    names: ClassVar[tuple[str, ...]]  # of the axes
    us: Microseconds

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of each axis, ascending."""
        return tuple(getattr(self, name) for name in self.names)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for axis in self.axes:
            if any(later <= before for before, later in pairwise(axis)):
                raise ValueError(f"found sizes {', '.join(map(str, axis))}, expected them to rise")
        wanted = math.prod(map(len, self.axes))
        if len(self.us) != wanted:
            raise ValueError(f"us: found {len(self.us)} times, expected {wanted}, one a shape")
        if all(us is None for us in self.us):
            raise ValueError("us: found no time, expected at least one")
        return self


class GemmSurface(_Measured):
    """GEMMs of a linear layer, [m, k] x [k, n]: m tokens from k to n channels, in one phase of its training."""

    names = ("m", "n", "k")
    dtype: Dtype
    phase: Literal["forward", "input_gradient", "weight_gradient"]
    m: Axis
    n: Axis
    k: Axis


class AttentionSurface(_Measured):
    """Causal attention with as many key-value heads as heads: batch x heads, tokens of a sequence."""

    names = ("heads", "sequence")
    dtype: Dtype
    phase: Literal["forward", "backward"]
    head_dim: Annotated[int, Field(ge=1, le=4096)]
    heads: Axis
    sequence: Axis


class Surface(Record):
    """What one run of the measuring script found, and where and when it ran."""

    source: Annotated[str, Field(min_length=1)]
    gemm: tuple[GemmSurface, ...] = ()
    attention: tuple[AttentionSurface, ...] = ()

    @property
    def digest(self) -> str:
        """A name for these very times."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]
