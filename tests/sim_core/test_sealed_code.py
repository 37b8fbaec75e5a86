"""Files of compiled kernels with faults: flipped bits, misplaced files, two that write at once. None is ever run."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim_core.compiled import jit, kept
from sim_core.compiled.sources import function_hashes
from sim_core.distinct import distinct_rows

pytestmark = pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
FLIPS = 150


@jit.kernel
def polynomial(values: npt.NDArray[np.float64]) -> float:
    total = 0.0
    for value in values:
        total += 1.25 * value * value - 3.5 * value + 0.125
    return total


def sealed_files(folder: Path, name: str, stamp: str) -> Any:
    """The files of a kernel in a folder."""
    module: Any = import_module("sim_core.compiled.sealed_code")  # which imports numba
    return module.SealedFiles(str(folder), name, stamp)


VALUES = np.arange(7.0)
FLOATS = np.arange(7.0, dtype=np.float32)


@pytest.fixture
def sealed(tmp_path: Path) -> Callable[[], Any]:
    """A function that makes the dispatcher of `polynomial` anew, as a new process would, with files in a folder of its own."""

    def made() -> Any:
        dispatcher = jit.Kernel(polynomial.py_func, {"nogil": True, "error_model": "numpy"}).dispatcher  # type: ignore[attr-defined]
        dispatcher._cache._cache_file = sealed_files(tmp_path, "polynomial", "stamp")
        return dispatcher

    made()(VALUES)
    return made


def loaded(dispatcher: Any) -> bool:
    """Whether a call took its code from the cache."""
    return bool(dispatcher.stats.cache_hits)


def flipped(data: bytes, bit: int) -> bytes:
    spoiled = bytearray(data)
    spoiled[bit // 8] ^= 1 << bit % 8
    return bytes(spoiled)


def test_code_with_a_flipped_bit_is_compiled_again(
    sealed: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, chance = polynomial.py_func(VALUES), random.Random(3)  # type: ignore[attr-defined]
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["polynomial.1.nbc", "polynomial.nbi"]
    for path in files:
        for _ in range(5):
            whole = path.read_bytes()
            path.write_bytes(flipped(whole, chance.randrange(8 * len(whole))))
            again = sealed()
            assert again(VALUES) == expected
            assert not loaded(again)
            assert capsys.readouterr().err == f"note: {path}: is damaged; what it held is compiled again\n"
            mended = sealed()
            assert mended(VALUES) == expected
            assert loaded(mended), "it was written anew"


@pytest.fixture
def indices() -> list[Path]:
    """The indices of all kernels of this version that this machine has compiled so far, of one at least."""
    jit.use_kernels()
    distinct_rows(np.zeros((1, 2), np.int64))
    folder = Path(kept.KernelFolder(distinct_rows.py_func).get_cache_path())  # type: ignore[attr-defined]
    known = set(function_hashes().values())
    found = sorted(path for path in folder.parent.glob("*/*.nbi") if path.parent.name in known)
    assert folder in {path.parent for path in found}
    return found


def test_every_file_of_this_version_is_sealed(indices: list[Path]) -> None:
    """Whatever numba writes, it writes through us: a file without its hash would be loaded as it is."""
    for folder in {path.parent for path in indices} | {path.parent for path in kept._version_dir().glob("*/*.nbi")}:
        for path in folder.glob("*.nb?"):
            data = path.read_bytes()
            assert hashlib.sha256(data[:-32]).digest() == data[-32:], path


def test_no_flipped_bit_of_any_kernel_is_loaded(tmp_path: Path, indices: list[Path]) -> None:
    chance = random.Random(4)
    for k in range(FLIPS):
        source = chance.choice(indices)
        folder = Path(shutil.copytree(source.parent, tmp_path / f"{k}"))
        files = sealed_files(folder, source.stem, source.parent.name)
        index = files._load_index()
        key = chance.choice(list(index))
        assert files.load(key) is not None
        path = folder / chance.choice([source.name, index[key], index[key]])
        path.write_bytes(flipped(path.read_bytes(), chance.randrange(8 * path.stat().st_size)))
        assert files.load(key) is None


def test_files_cut_short_or_of_another_kernel_are_not_loaded(sealed: Callable[[], Any], tmp_path: Path) -> None:
    whole = sealed_files(tmp_path, "polynomial", "stamp")
    (key,) = whole._load_index()
    assert whole.load(key) is not None
    assert sealed_files(tmp_path, "polynomial", "another").load(key) is None
    other = sealed_files(tmp_path, "other", "another")
    other.save(key, whole.load(key))
    shutil.copy(tmp_path / "other.1.nbc", tmp_path / "polynomial.1.nbc")
    assert whole.load(key) is None
    again = sealed()
    again(VALUES)
    assert not loaded(again)
    data = (tmp_path / "polynomial.1.nbc").read_bytes()
    for size in (0, 10, 40, len(data) - 1):
        (tmp_path / "polynomial.1.nbc").write_bytes(data[:size])
        assert whole.load(key) is None


def test_two_processes_that_compile_for_two_types_at_once(sealed: Callable[[], Any], tmp_path: Path) -> None:
    """Both find no index, and call their file by the same name: whoever loads it finds the types of the other."""
    for path in tmp_path.iterdir():
        path.unlink()
    first, second = sealed(), sealed()
    first(FLOATS)
    data = (tmp_path / "polynomial.1.nbc").read_bytes()
    for path in tmp_path.iterdir():
        path.unlink()
    second(VALUES)
    (tmp_path / "polynomial.1.nbc").write_bytes(data)  # the first stores its code last
    third = sealed()
    assert third(VALUES) == polynomial.py_func(VALUES)  # type: ignore[attr-defined]
    assert not loaded(third)


def test_a_damaged_list_of_hashes_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_version_dir", lambda: tmp_path)
    known = dict(kept._function_hashes())
    monkeypatch.setattr(kept, "function_hashes", lambda: known)  # it takes two seconds
    for spoiled in (b"", b"{", b'{"a"\xba "b"}'):
        (tmp_path / "functions.json").write_bytes(spoiled)
        assert kept._function_hashes.__wrapped__() == known
        assert (tmp_path / "functions.json").stat().st_size > 1000
