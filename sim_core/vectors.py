"""Vectors of LANES numbers in compiled code: one instruction for the same step of as many plans.

numba has no such type, and LLVM turns a loop into one only where it can prove that no arrays overlap. In compiled code a vector
is a value of LLVM's vector type, in as many registers as the processor needs (one with AVX-512, two with AVX2); with
`NUMBA_DISABLE_JIT=1` it is a NumPy array. Every operation rounds as that of plain floats.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import lower_builtin, models, register_model

Floats = npt.NDArray[np.float64]

LANES: Final = 8
_LLVM: Final = ir.VectorType(ir.DoubleType(), LANES)


def allocate_rows(rows: int) -> Floats:
    """Memory [rows, LANES]. Each row lies in one cache line: a vector across two of them takes twice as long to load."""
    line = LANES * 8  # bytes
    memory = np.empty(rows * LANES + LANES)
    first = -memory.ctypes.data % line // 8
    return memory[first : first + rows * LANES].reshape(rows, LANES)


class _Vector(types.Type):
    """The type of a vector in numba."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


_VECTOR: Final = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _LLVM)  # type: ignore[no-untyped-call]


def load(rows: Floats, row: int) -> Floats:
    """Row `row` of `rows[n, LANES]`, which must be C-contiguous, as a vector."""
    return np.array(rows[row])


def store(rows: Floats, row: int, vector: Floats) -> None:
    """Write a vector to a row of the same."""
    rows[row] = vector


def larger(a: Floats, b: Floats) -> Floats:
    """`max(a, b)` of each lane as Python defines it: `a` where the two are not in order."""
    return np.where(b > a, b, a)


def smaller(a: Floats, b: Floats) -> Floats:
    """`min(a, b)`, likewise."""
    return np.where(b < a, b, a)


def zeros() -> Floats:
    """A vector of zeros."""
    return np.zeros(LANES)


_ROWS: Final = types.Array(types.float64, 2, "C")


def _chosen(builder: Any, order: str, a: Any, b: Any) -> Any:
    """`b` in the lanes where it is in `order` to `a`, else `a`: what numba makes of `max` and `min`."""
    return builder.select(builder.fcmp_ordered(order, b, a), b, a)


def _row(context: Any, builder: Any, rows: Any, row: Any) -> Any:
    """Pointer to a row of an array."""
    first = builder.mul(row, ir.Constant(ir.IntType(64), LANES))
    data = context.make_array(_ROWS)(context, builder, rows).data
    return builder.bitcast(builder.gep(data, [first]), _LLVM.as_pointer())


def _declare(function: Any, *signatures: Any) -> None:
    """Tell numba the types of a function."""
    infer_global(function)(type(f"Of{function.__name__}", (ConcreteTemplate,), {"key": function, "cases": list(signatures)}))


def _declare_lanewise(function: Any, build: Callable[[Any, Any, Any], Any]) -> None:
    """Tell numba of a function of two vectors: `build` emits it."""
    _declare(function, _VECTOR(_VECTOR, _VECTOR))
    lower_builtin(function, _VECTOR, _VECTOR)(lambda context, builder, signature, arguments: build(builder, *arguments))


def _load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.load(_row(context, builder, *arguments), align=8)


def _store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    builder.store(arguments[2], _row(context, builder, *arguments[:2]), align=8)
    return context.get_dummy_value()


def _zeros(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return ir.Constant(_LLVM, [0.0] * LANES)


# statements of the module, not decorators: what a kernel is made of is found by the names in them (sources.py)
lower_builtin(load, _ROWS, types.int64)(_load)
lower_builtin(store, _ROWS, types.int64, _VECTOR)(_store)
lower_builtin(zeros)(_zeros)
_declare(load, _VECTOR(_ROWS, types.int64))
_declare(store, types.none(_ROWS, types.int64, _VECTOR))
_declare(zeros, _VECTOR())
_declare_lanewise(larger, lambda builder, a, b: _chosen(builder, ">", a, b))
_declare_lanewise(smaller, lambda builder, a, b: _chosen(builder, "<", a, b))
_declare_lanewise(operator.add, lambda builder, a, b: builder.fadd(a, b))
_declare_lanewise(operator.sub, lambda builder, a, b: builder.fsub(a, b))
