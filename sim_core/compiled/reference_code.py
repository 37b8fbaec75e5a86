"""What numba makes of `references`; imported before the first kernel is compiled."""

import hashlib
import operator
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


@infer_global(for_lanes)
class _OfRoom(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return Room(arguments[0])(*arguments)


@infer_global(operator.getitem)
class _OfItem(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return Reference(arguments[0].of)(arguments[0], types.int64) if isinstance(arguments[0], Room) else None


@infer_global(operator.setitem)
class _OfKept(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        room = arguments[0]
        return types.void(room, types.int64, room.of) if isinstance(room, Room) else None


@lower_builtin(for_lanes, types.BaseNamedTuple)  # type: ignore[untyped-decorator]
def _made(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return cgutils.alloca_once(builder, arguments[0].type, size=LANES)


@lower_builtin(operator.getitem, Room, types.int64)  # type: ignore[untyped-decorator]
def _item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.gep(arguments[0], [arguments[1]])


@lower_builtin(operator.setitem, Room, types.int64, types.BaseNamedTuple)  # type: ignore[untyped-decorator]
def _kept(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    builder.store(arguments[2], builder.gep(arguments[0], [arguments[1]]))
    return context.get_dummy_value()


@infer_global(reference)
class _OfReference(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return _by_reference(arguments[0])(*arguments)


@lower_builtin(reference, types.BaseNamedTuple)  # type: ignore[untyped-decorator]
def _stored(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return cgutils.alloca_once_value(builder, arguments[0])


@lower_builtin(reference, Reference)  # type: ignore[untyped-decorator]
def _same(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return arguments[0]


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


@infer_global(row_at)
class _OfRow(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        columns, row = arguments
        return _kind_of_row(columns)(columns, _passed(row))


def _kind_of_row(kind: Any) -> Any:
    if isinstance(kind, types.Array):
        return kind.copy(ndim=kind.ndim - 1) if kind.ndim > 1 else kind.dtype
    if not isinstance(kind, types.BaseNamedTuple | Reference):
        return kind
    named: Any = getattr(kind, "of", kind)
    return types.BaseTuple.from_types([_kind_of_row(one) for one in named.types], named.instance_class)


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


@infer_global(call)
class _OfCall(AbstractTemplate):
    def generic(self, arguments: Any, keywords: Any) -> Any:
        return types.none(*map(_passed, arguments))


@lower_builtin(call, types.VarArg(types.Any))  # type: ignore[untyped-decorator]
def _called(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kinds = [context.get_value_type(kind) for kind in signature.args[1:]]
    function = ir.FunctionType(context.get_value_type(signature.return_type), kinds)
    builder.call(builder.inttoptr(arguments[0], function.as_pointer()), arguments[1:])
    return context.get_dummy_value()
