"""What numba makes of vectors and of the functions in `vectors`; imported before the first kernel is compiled."""

import operator
from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import ConcreteTemplate, infer_global
from numba.extending import lower_builtin, models, register_model

from sim_core.compiled.vectors import LANES, any_above, larger, load, smaller, store, zeros

_LLVM: Final = ir.VectorType(ir.DoubleType(), LANES)


class _Vector(types.Type):
    """The type of a vector in numba."""

    def __init__(self) -> None:
        super().__init__(name=f"Vector{LANES}")


_VECTOR: Final = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _LLVM)  # type: ignore[no-untyped-call]


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


def _any_above(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    lanes = builder.bitcast(builder.fcmp_ordered(">", *arguments), ir.IntType(LANES))
    return builder.icmp_unsigned("!=", lanes, ir.Constant(ir.IntType(LANES), 0))


lower_builtin(load, _ROWS, types.int64)(_load)
lower_builtin(store, _ROWS, types.int64, _VECTOR)(_store)
lower_builtin(zeros)(_zeros)
lower_builtin(any_above, _VECTOR, _VECTOR)(_any_above)
_declare(load, _VECTOR(_ROWS, types.int64))
_declare(store, types.none(_ROWS, types.int64, _VECTOR))
_declare(zeros, _VECTOR())
_declare(any_above, types.boolean(_VECTOR, _VECTOR))
_declare_lanewise(larger, lambda builder, a, b: _chosen(builder, ">", a, b))
_declare_lanewise(smaller, lambda builder, a, b: _chosen(builder, "<", a, b))
_declare_lanewise(operator.add, lambda builder, a, b: builder.fadd(a, b))
_declare_lanewise(operator.sub, lambda builder, a, b: builder.fsub(a, b))
_declare_lanewise(operator.mul, lambda builder, a, b: builder.fmul(a, b))
_declare_lanewise(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))
