"""The inside of numba on which compiled code relies: each place is there and is called as before, and no other is used."""

from __future__ import annotations

import ast
import inspect
import os
import re
import tomllib
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from sim_core import Floats, SpecError
from sim_core.compiled import jit
from sim_core.compiled.numba_inside import RANGE, check_version
from sim_core.compiled.sources import ROOT
from tests.conftest import ROOT as PROJECT
from tests.sim_core.numba_places import PLACES, Place

numba: Any = import_module("numba")
compiled = pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
PROMISED = ("numba", "numba.extending", "numba.core", "numba.core.types")
"""Modules whose names numba documents."""


def found(place: Place) -> Any:
    """What numba has there, None if nothing."""
    value, parts = numba, place.name.split(".")[1:]
    for number, part in enumerate(parts):
        if inspect.ismodule(value) and not hasattr(value, part):
            try:
                import_module(".".join(["numba", *parts[: number + 1]]))
            except ImportError:
                return None
        value = getattr(value, part, None)
    return value


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_place_inside_numba_is_as_it_was(place: Place) -> None:
    value = found(place)
    changed = f"numba {numba.__version__}: {place.name}: {{}}; sim_core/compiled/{place.used}.py relies on it"
    assert value is not None, changed.format("is gone")
    if place.takes is None:
        return
    parameters = [one for one in inspect.signature(value).parameters.values() if one.name != "self"]
    expected = place.takes.split()
    assert [one.name for one in parameters[: len(expected)]] == expected, changed.format("takes other arguments")
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    asked = [one.name for one in parameters[len(expected) :] if one.default is one.empty and one.kind not in variable]
    assert not set(asked) - {"pipeline_class"}, changed.format(f"asks for {asked}, too")


def test_no_other_place_is_used() -> None:
    """By what the room imports from numba, and by which of its methods the room replaces."""
    known = {place.name for place in PLACES}
    methods, used = {name.rpartition(".")[2] for name in known}, set()
    for path in sorted((ROOT / "compiled").glob("*.py")):
        for code in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(code, ast.ImportFrom) and (code.module or "").startswith("numba") and code.module not in PROMISED:
                used |= {f"{code.module}.{name.name}" for name in code.names}
    assert {name for name in used if not any(f"{one}.".startswith(f"{name}.") for one in known)} == set()
    for name in ("inner_code", "reference_code", "sealed_code", "vector_code"):
        for kind in vars(import_module(f"sim_core.compiled.{name}")).values():
            if not inspect.isclass(kind) or kind.__module__ != f"sim_core.compiled.{name}":
                continue
            bases = [one for one in kind.__mro__ if one.__module__.startswith("numba.core.c")]  # compiler, codegen, caching
            replaced = {name for base in bases for name, value in vars(kind).items() if name in vars(base) and callable(value)}
            assert replaced <= methods, kind


def test_only_this_room_imports_numba() -> None:
    importing = re.compile(r"^\s*(?:from|import) (?:numba|llvmlite)\b", re.MULTILINE)
    others = [path for path in ROOT.rglob("*.py") if importing.search(path.read_text(encoding="utf-8"))]
    assert {path.parent.name for path in others} == {"compiled"}


def test_the_range_is_that_of_the_package() -> None:
    least, most = (".".join(map(str, end)) for end in RANGE)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"numba>={least},<{most}" in project["dependencies"]
    check_version(numba.__version__)
    check_version(f"{least}.0rc1")
    for version in ("0.60.2", f"{most}.0", "1.0.0dev0"):
        with pytest.raises(SpecError, match=rf"numba: found {version}, expected {least} or newer, below {most}; pip install"):
            check_version(version)


def halved(values: Floats) -> float:
    return float(values[0] / 2)


@compiled
def test_code_of_inner_kernels_is_what_callers_link() -> None:
    """What no signature tells: the process loads the environment of an inner kernel alone, by the name that numba gives it."""
    inner = jit.Kernel(halved, {"_nrt": False, "no_cfunc_wrapper": True}).inner
    inner._cache = import_module("numba.core.caching").NullCache()
    inner.compile((numba.float64[::1],))
    (made,) = inner.overloads.values()
    assert type(made.library).__name__ == "InnerLibrary"
    assert made.library._finalized
    final = made.library._final_module
    assert "define" not in str(final), f"numba {numba.__version__}: code of an inner kernel is loaded by itself"
    assert [one.name[:13] for one in final.global_variables] == ["_ZN08NumbaEnv"]
    assert "define" in str(made.library._get_module_for_linking())


@compiled
def test_a_kernel_without_allocations_has_the_lean_library() -> None:
    """A compiler has no library before its pipelines."""
    inner_code = import_module("sim_core.compiled.inner_code")
    seen: list[type] = []

    class Noting(inner_code.LeanCompiler):  # type: ignore[misc, name-defined]
        def define_pipelines(self) -> Any:
            assert self.state.library is None
            managers = super().define_pipelines()
            seen.append(type(self.state.library))
            return managers

    assert numba.njit(pipeline_class=Noting, _nrt=False)(halved)(np.array([3.0])) == 1.5
    assert seen == [inner_code.LeanLibrary]
