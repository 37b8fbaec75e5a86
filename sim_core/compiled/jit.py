"""Kernels: what decorates a function that numba compiles, when it is compiled, and when plain Python is quicker.

numba is imported when the first kernel is called: commands that only read results do without it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property, update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.kept import PLAIN_PYTHON, is_compiled
from sim_core.compiled.numba_inside import check_version

F = TypeVar("F", bound=Callable[..., object])
Addresses = Ints | Sequence[Callable[..., object]]
"""Kernels for `references.call`."""


def kernel(function: F) -> F:
    """Compile `function` without Python objects; with `NUMBA_DISABLE_JIT=1` it stays plain Python."""
    return _compiled(function)


def outer_kernel(function: F) -> F:
    """The same without reference counting of arrays, for a function that allocates nothing.

    A `Case` holds about 60 arrays; counting references to them at every call took half the time of a small plan. A kernel
    without it may return a tuple of arrays only to another one. numba refuses to compile one that allocates.
    """
    return _compiled(function, _nrt=False)


inner_kernel = outer_kernel
"""An outer kernel that only kernels may call.

It has no wrapper for Python, and is optimised and made machine code in its callers alone (inner_code.py).
"""
addressed_kernel = outer_kernel
"""An outer kernel that others call by its address (`references.call`); it returns nothing.

It is no part of its callers: compiled once for all of them, and only when its address is asked for.
"""


def inlined_kernel(function: F) -> F:
    """An inner kernel that becomes part of each kernel that calls it.

    For what runs for each event of a pipeline, and for one that returns many arrays, which a call would copy. What takes named
    tuples takes them by reference (references.py) instead: inlining a whole step tripled the time of compilation.
    """
    return _compiled(function, _nrt=False, forceinline=True)


_PLAIN = ContextVar("plain", default=False)


@contextmanager
def in_plain_python() -> Iterator[None]:
    """Let kernels that Python calls run as plain Python, which compiles nothing."""
    before = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(before)


LOAD_AFTER_S = 1.0
COMPILE_AFTER_S = 10.0
"""Seconds of plain Python, in all, after which a process loads kernels from the cache, or compiles them first."""


_SPENT_S = ContextVar("spent_s", default=0.0)
"""What was spent on kernels as plain Python."""


@contextmanager
def quickest(seconds: float) -> Iterator[None]:
    """Let kernels run as plain Python, which takes about `seconds`, where that is quicker than to load or compile them.

    A process that has loaded kernels stays with them; one that asks for a little, time and again, loads them in the end.
    """
    enough_s = LOAD_AFTER_S if is_compiled() else COMPILE_AFTER_S
    if kernels_in_use() or _PLAIN.get() or _SPENT_S.get() + seconds > enough_s:
        yield
        return
    _SPENT_S.set(_SPENT_S.get() + seconds)
    with in_plain_python():
        yield


def use_kernels() -> None:
    """Let this process use compiled kernels from now on, however little it has to do."""
    if not PLAIN_PYTHON:
        _numba()


def kernels_in_use() -> bool:
    """Whether this process compiles kernels, or has loaded some."""
    return _numba.cache_info().currsize > 0


class Kernel:
    """A function that numba compiles, or loads from the cache, when it is first called by Python or by another kernel."""

    def __init__(self, function: Callable[..., object], options: dict[str, Any]) -> None:
        self.py_func = function
        self._options = options
        self._address = 0
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self.py_func if _PLAIN.get() else self.dispatcher)(*arguments)

    @cached_property
    def dispatcher(self) -> Any:
        """The same function in numba, as Python calls it."""
        return self._dispatcher(inner=False)

    @cached_property
    def inner(self) -> Any:
        """The same as kernels call it: optimised and made machine code in its callers alone (inner_code.py)."""
        return self._dispatcher(inner=True)

    def _dispatcher(self, inner: bool) -> Any:
        numba, options = _numba(), dict(self._options)
        from sim_core.compiled.inner_code import InnerCompiler, LeanCompiler
        from sim_core.compiled.sealed_code import SealedCache

        if inner:
            options |= {"no_cpython_wrapper": True, "pipeline_class": InnerCompiler}
        elif "_nrt" in options:
            options["pipeline_class"] = LeanCompiler
        dispatcher = numba.njit(**options)(self.py_func)
        dispatcher._cache = SealedCache(self.py_func, "-inner" if inner else "")
        return _one_per_type(dispatcher)

    def address(self, examples: Callable[[], Sequence[Any]]) -> int:
        """Where compiled code calls it with arguments of the types of `examples`, always the same; tuples by reference."""
        if self._address:
            return self._address
        numba = _numba()
        from numba.core.ccallback import CFunc

        from sim_core.compiled.inner_code import LeanCompiler
        from sim_core.compiled.reference_code import kind_of_example
        from sim_core.compiled.sealed_code import SealedCache

        options = {name: value for name, value in self._options.items() if name != "no_cfunc_wrapper"}
        kinds = tuple(map(kind_of_example, examples()))
        made: Any = CFunc(self.py_func, (kinds, numba.void), {}, options, pipeline_class=LeanCompiler)
        made._cache = SealedCache(self.py_func)
        made.compile()
        self._address = int(made.address)
        return self._address

    @property
    def _numba_type_(self) -> Any:
        """What a kernel that names this one finds in its place."""
        return self.inner._numba_type_


def addresses(kernels: Sequence[Callable[..., object]], needed: Ints, examples: Callable[[], Sequence[Any]]) -> Addresses:
    """What `references.call` calls, by number: of the kernels numbered in `needed`, which are compiled or loaded now.

    `examples` makes arguments of the types that they are called with.
    """
    if PLAIN_PYTHON or _PLAIN.get():
        return kernels
    at = np.zeros(len(kernels), np.int64)
    for number in np.flatnonzero(np.bincount(needed)).tolist():
        at[number] = cast(Kernel, kernels[number]).address(examples)
    return at


@cache
def _numba() -> Any:
    """numba, told of references and vectors. Raises SpecError for a version that is not tested."""
    import numba

    check_version(numba.__version__)
    import sim_core.compiled.reference_code
    import sim_core.compiled.vector_code  # noqa: F401 (what they say to numba)

    return numba


def _compiled(function: F, **options: Any) -> F:
    if PLAIN_PYTHON:
        return function
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
    return cast(F, Kernel(function, options))


def _one_per_type(dispatcher: Any) -> Any:
    """Let kernels call it by the types of its arguments alone: numba compiles it once more for each constant otherwise."""
    by_type, kind_of = dispatcher.get_call_template, _numba().types.unliteral

    def get_call_template(args: Any, kws: Any) -> Any:
        return by_type(tuple(map(kind_of, args)), {name: kind_of(kind) for name, kind in kws.items()})

    dispatcher.get_call_template = get_call_template
    return dispatcher
