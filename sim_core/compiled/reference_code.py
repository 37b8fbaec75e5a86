"""What numba makes of `references`; imported before the first kernel is compiled."""

import hashlib
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_getattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global
from numba.extending import models, register_model

from sim_core.compiled.references import call, for_lanes, reference, row_at
from sim_core.compiled.vectors import LANES


class Reference(types.Type):
    """The type of a named tuple by reference: a pointer to its fields."""

    def __init__(self, of: Any) -> None:
        self.of = of
        digest = hashlib.sha256(of.name.encode()).hexdigest()[:12]  # the name of the type goes into that of each function
        super().__init__(name=f"{type(self).__name__}_{of.instance_class.__name__}_{digest}")

    def field(self, name: str) -> Any:
        """The type of a field."""
        return self.of.types[self.of.fields.index(name)]


class Room(Reference):
    """The type of room for LANES of them: a pointer to the first."""


def _by_reference(kind: Any) -> Any:
    """The type as it goes from kernel to kernel: a named tuple by reference."""
    return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


@register_model(Reference)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        fields = manager.lookup(kind.of).get_value_type()
        super().__init__(manager, kind, fields.as_pointer())  # type: ignore[no-untyped-call]


register_model(Room)(_Model)


def _typed(function: Any, types_of: Callable[..., Any]) -> None:
    """Tell numba the types of a call of a function by those of its arguments; None: the call is none of ours."""
    template = {"generic": lambda self, arguments, keywords: types_of(*arguments)}
    infer_global(function)(type(f"Of{function.__name__}", (AbstractTemplate,), template))


def _built(function: Any, build: Callable[..., Any], *kinds: Any) -> None:
    """Tell numba how a call of a function is emitted for arguments of some kinds: from the context, the builder and these."""
    lower_builtin(function, *kinds)(lambda context, builder, signature, arguments: build(context, builder, *arguments))


def _kept(context: Any, builder: Any, room: Any, at: Any, value: Any) -> Any:
    builder.store(value, builder.gep(room, [at]))
    return context.get_dummy_value()


_typed(for_lanes, lambda kind: Room(kind)(kind))
_built(for_lanes, lambda context, builder, one: cgutils.alloca_once(builder, one.type, size=LANES), types.BaseNamedTuple)
_typed(operator.getitem, lambda room, at: Reference(room.of)(room, types.int64) if isinstance(room, Room) else None)
_built(operator.getitem, lambda context, builder, room, at: builder.gep(room, [at]), Room, types.int64)
_typed(operator.setitem, lambda room, *_: types.void(room, types.int64, room.of) if isinstance(room, Room) else None)
_built(operator.setitem, _kept, Room, types.int64, types.BaseNamedTuple)
_typed(reference, lambda kind: _by_reference(kind)(kind))
_built(reference, lambda context, builder, value: cgutils.alloca_once_value(builder, value), types.BaseNamedTuple)
_built(reference, lambda context, builder, value: value, Reference)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        if name not in kind.of.fields:
            return None
        return _by_reference(kind.field(name))


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    pointer = cgutils.gep_inbounds(builder, value, 0, kind.of.fields.index(name))
    field = kind.field(name)
    if isinstance(field, types.BaseNamedTuple):
        return pointer
    return impl_ret_borrowed(context, builder, field, builder.load(pointer))


def _kind_of_row(kind: Any) -> Any:
    if isinstance(kind, types.Array):
        return kind.copy(ndim=kind.ndim - 1) if kind.ndim > 1 else kind.dtype
    if not isinstance(kind, types.BaseNamedTuple | Reference):
        return kind
    named: Any = getattr(kind, "of", kind)
    return types.BaseTuple.from_types([_kind_of_row(one) for one in named.types], named.instance_class)


_typed(row_at, lambda columns, row: _kind_of_row(columns)(columns, _passed(row)))


@lower_builtin(row_at, types.Any, types.int64)  # type: ignore[untyped-decorator]
def _taken(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return _row(context, builder, signature.args[0], *arguments)


def _row(context: Any, builder: Any, kind: Any, value: Any, row: Any) -> Any:
    if isinstance(kind, types.Array):
        return context.get_function(operator.getitem, _kind_of_row(kind)(kind, types.int64))(builder, (value, row))
    if isinstance(kind, types.BaseNamedTuple):
        kind, value = Reference(kind), cgutils.alloca_once_value(builder, value)
    if not isinstance(kind, Reference):
        return value
    fields = [(_by_reference(kind.field(name)), _field(context, builder, kind, value, name)) for name in kind.of.fields]
    return context.make_tuple(builder, _kind_of_row(kind), [_row(context, builder, *field, row) for field in fields])


def kind_of_example(value: Any) -> Any:
    """The type of an argument of a kernel that is called by its address; a named tuple goes by reference."""
    return _by_reference(_passed(typeof(value)))


def _passed(kind: Any) -> Any:
    """Whole numbers of any width as 64 bits."""
    return types.int64 if isinstance(kind, types.Integer) else types.unliteral(kind)


_typed(call, lambda *arguments: types.none(*map(_passed, arguments)))


@lower_builtin(call, types.VarArg(types.Any))  # type: ignore[untyped-decorator]
def _called(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
    function = ir.FunctionType(context.get_value_type(signature.return_type), kinds)
    builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
    return context.get_dummy_value()
