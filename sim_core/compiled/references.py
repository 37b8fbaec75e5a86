"""Named tuples and kernels by reference in compiled code, where numba would copy all of them at every call."""

from typing import Any, TypeVar

import numpy as np

from sim_core.compiled.vectors import LANES

T = TypeVar("T")


def reference(fields: T) -> T:
    """The same named tuple by reference, for as long as the kernel runs that calls this; its fields cannot be replaced.

    In compiled code a call hands over one pointer in place of hundreds, those of all arrays and their lengths: quick to run,
    and far quicker to compile. A named tuple inside one by reference is by reference, too.
    """
    return fields


def row_at(columns: Any, row: int) -> Any:
    """Row `row` of all arrays in a named tuple, and in those inside it: a number, or an array with one axis fewer."""
    if isinstance(columns, tuple):
        return type(columns)(*(row_at(column, row) for column in columns))
    return columns[row] if isinstance(columns, np.ndarray) else columns


def for_lanes(fields: T) -> list[T]:
    """Room for LANES such named tuples by reference: `room[lane] = fields` keeps one there, and `room[lane]` is it."""
    return [fields] * LANES


def call(kernel: Any, *arguments: Any) -> None:
    """Call a kernel of which compiled code has the address (`jit.addresses`), plain Python the function itself."""
    kernel(*arguments)
