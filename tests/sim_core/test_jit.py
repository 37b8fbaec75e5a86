"""Compiled code: named by the sources that it came from, kept where one can write, compiled by one process at a time."""

from __future__ import annotations

import ast
import dis
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pytest

from sim_core import batch
from sim_core.arrays import Ints
from sim_core.compiled import jit, kept
from sim_core.compiled.references import call, reference
from sim_core.compiled.sources import ROOT, Symbol, files_in, function_hashes, made_of, names_in, read_modules
from sim_core.compiling import source_hash, source_hashes
from tests.conftest import rest_long


def test_the_version_of_the_model_is_the_hash_of_its_sources_presets_and_tables() -> None:
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in (".py", ".yaml", ".npz"))
    names = [path.relative_to(ROOT).as_posix() for path in files]
    assert "compiled/jit.py" in names
    assert {"hardware/presets/H100-SXM.yaml", "hardware/kernels/data/H100-SXM.npz"} < set(names)
    whole = b"".join(name.encode() + b"\0" + path.read_bytes() + b"\0" for name, path in zip(names, files, strict=True))
    assert source_hash() == hashlib.sha256(whole).hexdigest()[:16]
    each = {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in zip(names, files, strict=True)}
    assert source_hashes() == each


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for every place where compiled code may be kept, none of them there yet."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    return tmp_path


def chosen() -> Path:
    """The place that a new process would choose."""
    return kept.cache_dir.__wrapped__()


def test_compiled_code_is_kept_in_the_first_place_that_can_be_written(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == places / "xdg" / "training-plan-sweep"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    assert chosen() == places / "given"
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert chosen() == places / "home" / ".cache" / "training-plan-sweep"
    (places / "home2").write_text("")  # a home that is no folder
    monkeypatch.setenv("HOME", str(places / "home2"))
    assert chosen() == places / "temporary" / f"training-plan-sweep-{os.getuid()}"
    (places / "temporary" / f"training-plan-sweep-{os.getuid()}").rmdir()
    (places / "temporary" / f"training-plan-sweep-{os.getuid()}").write_text("")
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(places / f"{prefix}new"))
    assert chosen() == places / "training-plan-sweep-new"


def test_one_compiles_and_the_others_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_version_dir", lambda: tmp_path)
    monkeypatch.setattr(kept, "PLAIN_PYTHON", False)
    inside: list[str] = []
    begun, end = threading.Event(), threading.Event()

    def first() -> None:
        with kept.compiling_alone():
            begun.set()
            end.wait(30)
            inside.append("first")

    def second() -> None:
        with kept.compiling_alone():
            inside.append("second")

    assert not kept.is_compiled()
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    end.set()
    for thread in threads:
        thread.join(30)
    assert inside == ["first", "second"]
    assert kept.is_compiled()
    (tmp_path / ".lock").unlink()
    with kept.compiling_alone():
        assert not (tmp_path / ".lock").exists()


def test_plain_python_leaves_no_sign_that_kernels_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_version_dir", lambda: tmp_path)
    monkeypatch.setattr(kept, "PLAIN_PYTHON", True)
    with kept.compiling_alone():
        assert kept.is_compiled()
    assert list(tmp_path.iterdir()) == []


def test_kernels_lie_in_the_folder_of_what_they_are_made_of() -> None:
    hashes = function_hashes()
    for kernel in (vars(batch)["_finish"], vars(import_module("sim_core.step.lower"))["lower"]):
        folder = kept.KernelFolder(getattr(kernel, "py_func", kernel))
        own = hashes[f"{kernel.__module__}.{kernel.__name__}"]
        assert folder.get_cache_path() == str(kept.cache_dir() / "kernels" / own)
        assert folder.get_source_stamp() == own
    other = Path(kept.KernelFolder(test_kernels_lie_in_the_folder_of_what_they_are_made_of).get_cache_path())
    assert other.parent == kept.cache_dir() / source_hash()


def test_a_function_is_made_of_all_that_it_names() -> None:
    """Against what the functions name at run time, as numba looks it up."""
    modules = read_modules()
    named = names_in(modules)
    for name in modules:
        for value in list(vars(import_module(name)).values()):
            function = getattr(value, "py_func", value)
            if not isinstance(function, FunctionType) or function.__module__ != name or "." in function.__qualname__:
                continue
            if function.__name__ in ("__getattr__", "<lambda>"):  # of the module, below a condition; the last of a table's
                continue
            own = made_of(Symbol(name, function.__name__), named)
            for used in {one.argval for one in dis.get_instructions(function) if one.opname == "LOAD_GLOBAL"}:
                other = getattr(function.__globals__.get(used), "py_func", function.__globals__.get(used))
                if isinstance(other, FunctionType | type) and other.__module__ in modules:
                    made = "." in other.__qualname__  # by a call: the name that it was given counts
                    assert (Symbol(name, used) if made else Symbol(other.__module__, other.__name__)) in own


@pytest.fixture(scope="module")
def a_copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The package somewhere else, and the hash of a kernel there, which is the one here: to hash all takes a second."""
    copy = tmp_path_factory.mktemp("copy") / "sim_core"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    before = function_hashes(copy)["sim_core.batch.run_rows"]
    assert before == function_hashes()["sim_core.batch.run_rows"]
    return copy, before


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    rest_long(
        [
            ("engine/lanes.py", "times.first_s[cell] = lanes", "times.last_s[0, cell] = lanes", True),  # in what it calls
            ("compiled/vector_code.py", "builder.fadd(a, b)", "builder.fsub(a, b)", True),  # in what its vectors become
            ("planning/columns.py", "    tp: Whole", "    tp: Real", True),  # a field of an argument
            ("models/reading.py", "def ", "def other_", False),
            ("engine/schedules.py", "LOOP, V, BOTH_WAYS = 0, 1, 2", "LOOP, V, BOTH_WAYS = 0, 2, 1", True),  # a constant
            ("compiled/jit.py", "_nrt=False", "_nrt=True", True),  # in its decorator
            ("compiled/inner_code.py", "self._finalized = True", "self._finalized = False", True),  # in how it is compiled
            ("engine/codes.py", "import numpy as np\n", "import numpy as np\n\nnp.seterr()\n", True),  # in a module
            ("hardware/presets/H100-SXM.yaml", ":", ": ", False),
        ],
        4,
    ),
)
def test_the_hash_of_a_kernel_changes_with_what_it_is_made_of(
    a_copy: tuple[Path, str], file: str, old: str, new: str, changed: bool
) -> None:
    copy, before = a_copy
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new, 1))
    try:
        assert (function_hashes(copy)["sim_core.batch.run_rows"] != before) == changed
    finally:
        (copy / file).write_text(text)


def test_kernels_of_a_process_whose_sources_were_edited_do_not_count_as_those_of_the_new_ones(
    a_copy: tuple[Path, str], tmp_path: Path
) -> None:
    """They lie under the hash of all that it has loaded: else later processes would take the old machine code for the new."""
    copy, _ = a_copy
    source = copy / "engine" / "lanes.py"
    text = source.read_text()
    code = (
        "from pathlib import Path; from sim_core import batch; from sim_core.compiling import source_hash\n"
        "from sim_core.compiled.kept import KernelFolder, cache_dir\n"
        f"own = source_hash(); source = Path({str(source)!r}); source.write_text(source.read_text() + '# edited')\n"
        "folder = KernelFolder(getattr(batch.run_rows, 'py_func', batch.run_rows))\n"
        "print(folder.hash == own, [path.name for path in (cache_dir() / own).iterdir()])"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    try:
        line = [sys.executable, "-c", code]
        done = subprocess.run(line, cwd=copy.parent, env=environment, capture_output=True, text=True, check=True)
    finally:
        source.write_text(text)
    assert done.stdout == "True []\n"


FOR_KERNELS: Final = {"inner_kernel", "inlined_kernel"}


def decorators(function: ast.FunctionDef) -> set[str]:
    """The names of its plain decorators."""
    return {name.id for name in function.decorator_list if isinstance(name, ast.Name)}


def used_outside_kernels(code: ast.AST, names: set[str]) -> list[tuple[str, int]]:
    """Those of `names` that code read by Python uses, with their lines."""
    if isinstance(code, ast.FunctionDef) and decorators(code) & ({"kernel", "outer_kernel", "addressed_kernel"} | FOR_KERNELS):
        return []
    own = [(code.id, code.lineno)] if isinstance(code, ast.Name) and isinstance(code.ctx, ast.Load) and code.id in names else []
    return own + [use for child in ast.iter_child_nodes(code) for use in used_outside_kernels(child, names)]


def test_what_editors_put_beside_sources_is_no_source(tmp_path: Path) -> None:
    """Emacs marks a file that is being edited with a link that leads nowhere, `.#lanes.py`."""
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / ".#a.py").symlink_to("user@host.123:456")
    assert files_in(tmp_path, ".py") == [tmp_path / "a.py"]
    assert list(read_modules(tmp_path)) == [f"{tmp_path.name}.a"]


def test_only_kernels_call_inner_kernels() -> None:
    project = ROOT.parent
    paths = [path for folder in ("sim_core", "sweep", "tests", "benchmarks") for path in (project / folder).rglob("*.py")]
    texts = {".".join(path.relative_to(project).with_suffix("").parts): path.read_text() for path in paths}
    inner = {
        module: {one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and decorators(one) & FOR_KERNELS}
        for module, text in texts.items()
        if any(name in text for name in FOR_KERNELS)
    }
    assert {"case_at", "collective_of"} <= inner["sim_core.costing.case"]
    anyone = re.compile(rf"\b({'|'.join(set().union(*inner.values()))})\b")
    for module, code in ((module, ast.parse(text)) for module, text in texts.items() if anyone.search(text)):
        imports = [one for one in ast.walk(code) if isinstance(one, ast.ImportFrom)]
        names = {a.asname or a.name for one in imports for a in one.names if a.name in inner.get(one.module or "", ())}
        wanted = names | inner.get(module, set())
        assert not wanted or used_outside_kernels(code, wanted) == [], f"{module}: give it @outer_kernel"


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
def test_a_kernel_is_compiled_once_for_all_constants() -> None:
    one = cast(Any, allocated_sum)
    assert both(np.ones(3)) == 3 * 1 + 3 * 2
    cast(Any, both).dispatcher.recompile()  # an earlier run of the tests may have left it in the cache
    assert len(one.inner.signatures) == 1
    assert "dispatcher" not in vars(one)  # which Python would call


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
def test_a_kernel_is_compiled_when_it_is_first_called_unless_as_plain_python() -> None:
    one = cast(Any, jit.kernel(lambda value: 2 * value))
    with jit.in_plain_python():
        assert one(2) == 4
    assert "dispatcher" not in vars(one)
    with pytest.raises(ZeroDivisionError), jit.in_plain_python():
        raise ZeroDivisionError
    assert halved(3.0) == 1.5
    assert "dispatcher" in vars(halved)


class Inside(NamedTuple):
    values: npt.NDArray[np.float64]
    factor: float


class Whole(NamedTuple):
    number: int
    inside: Inside
    held: Inside


@jit.inner_kernel
def _summed(whole: Whole) -> float:
    total = float(whole.number)
    for value in whole.inside.values:
        total += value * whole.inside.factor * whole.held.factor
    return total


@jit.outer_kernel
def summed(inside: Inside, number: int) -> float:
    kept = reference(inside)
    return _summed(reference(Whole(number, inside, kept))) + _summed(reference(Whole(number, kept, inside)))


def test_named_tuples_by_reference_are_those_of_plain_python() -> None:
    inside = Inside(np.arange(5.0), 0.1)
    compiled = summed(inside, 3)
    with jit.in_plain_python():
        assert compiled == summed(inside, 3)


def test_little_work_runs_as_plain_python_until_it_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "kernels_in_use", lambda: False)
    monkeypatch.setattr(jit, "is_compiled", lambda: False)
    monkeypatch.setattr(jit, "_SPENT_S", ContextVar("spent_s", default=0.0))

    def plain(seconds: float) -> bool:
        with jit.quickest(seconds):
            return jit._PLAIN.get()

    assert not plain(jit.COMPILE_AFTER_S * 2)
    assert plain(jit.COMPILE_AFTER_S * 0.6)
    assert not plain(jit.COMPILE_AFTER_S * 0.6)
    assert plain(jit.COMPILE_AFTER_S * 0.3)
    monkeypatch.setattr(jit, "is_compiled", lambda: True)
    assert not plain(jit.LOAD_AFTER_S)
    monkeypatch.setattr(jit, "kernels_in_use", lambda: True)
    assert not plain(0.0)


@jit.inner_kernel
def _half(value: float) -> float:
    return value / 2


@jit.outer_kernel
def halved(value: float) -> float:
    return _half(value)


@jit.kernel
def allocated_sum(values: npt.NDArray[np.float64], times: int) -> float:
    return float(np.sum(values * times))


@jit.kernel
def both(values: npt.NDArray[np.float64]) -> float:
    return allocated_sum(values, 1) + allocated_sum(values, 2)


@jit.addressed_kernel
def _doubled(times: int, values: Ints) -> None:
    for k in range(len(values)):  # what is called by its address must not allocate
        values[k] *= 2 * times


@jit.addressed_kernel
def _increased(times: int, values: Ints) -> None:
    for k in range(len(values)):
        values[k] += times


@jit.outer_kernel
def written(kernels: jit.Addresses, number: int, values: Ints) -> None:
    call(kernels[number], 3, values)


def test_a_kernel_is_called_by_its_address_and_compiled_when_that_is_asked_for() -> None:
    both = _doubled, _increased

    def after(number: int) -> list[int]:
        values = np.arange(3)
        written(jit.addresses(both, np.array([number, number]), lambda: (0, values)), number, values)
        return values.tolist()

    for number, expected in enumerate(([0, 6, 12], [3, 4, 5])):
        if not kept.PLAIN_PYTHON:
            assert [bool(vars(one)["_address"]) for one in both] == [number > 0, False]
        with jit.in_plain_python():
            assert after(number) == expected
        assert after(number) == expected
    if not kept.PLAIN_PYTHON:
        assert len(cast(Any, written).dispatcher.signatures) == 1
