"""What numba makes of vectors and of the functions in `vectors`; imported before the first kernel is compiled."""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import lower_builtin, models, register_model

from sim_core.compiled.vectors import LANES, any_above, larger, load, smaller, store, zeros

_LLVM = ir.VectorType(ir.DoubleType(), LANES)


class _Vector(types.Type):
    """The type of a vector in numba."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


_VECTOR = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _LLVM)  # type: ignore[no-untyped-call]


_ROWS = types.Array(types.float64, 2, "C")


def _row(context: Any, builder: Any, rows: Any, row: Any) -> Any:
    """Pointer to a row of an array."""
    first = builder.mul(row, ir.Constant(ir.IntType(64), LANES))
    data = context.make_array(_ROWS)(context, builder, rows).data
    return builder.bitcast(builder.gep(data, [first]), _LLVM.as_pointer())


def _load(context: Any, builder: Any, rows: Any, row: Any) -> Any:
    return builder.load(_row(context, builder, rows, row), align=8)


def _store(context: Any, builder: Any, rows: Any, row: Any, vector: Any) -> Any:
    builder.store(vector, _row(context, builder, rows, row), align=8)
    return context.get_dummy_value()


def _any_above(context: Any, builder: Any, a: Any, b: Any) -> Any:
    lanes = builder.bitcast(builder.fcmp_ordered(">", a, b), ir.IntType(LANES))
    return builder.icmp_unsigned("!=", lanes, ir.Constant(ir.IntType(LANES), 0))


def _declare(function: Any, build: Callable[..., Any], result: Any, *kinds: Any) -> None:
    """Tell numba the types of a function; `build` emits it from the context, the builder and the arguments."""
    infer_global(function)(type(f"Of{function.__name__}", (ConcreteTemplate,), {"key": function, "cases": [result(*kinds)]}))
    lower_builtin(function, *kinds)(lambda context, builder, signature, arguments: build(context, builder, *arguments))


_declare(load, _load, _VECTOR, _ROWS, types.int64)
_declare(store, _store, types.none, _ROWS, types.int64, _VECTOR)
_declare(zeros, lambda context, builder: ir.Constant(_LLVM, [0.0] * LANES), _VECTOR)
_declare(any_above, _any_above, types.boolean, _VECTOR, _VECTOR)
for _function, _build in {  # of two vectors; `larger` and `smaller` as numba makes `max` and `min`
    larger: lambda context, builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a),
    smaller: lambda context, builder, a, b: builder.select(builder.fcmp_ordered("<", b, a), b, a),
    operator.add: lambda context, builder, a, b: builder.fadd(a, b),
    operator.sub: lambda context, builder, a, b: builder.fsub(a, b),
    operator.mul: lambda context, builder, a, b: builder.fmul(a, b),
    operator.truediv: lambda context, builder, a, b: builder.fdiv(a, b),
}.items():
    _declare(_function, _build, _VECTOR, _VECTOR, _VECTOR)
