"""Compiled code: named by the sources that it came from, kept where one can write, compiled by one process at a time."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

import sim_core.jit as jit
from sim_core import source_hash, source_hashes

ROOT = Path(jit.__file__).parent


def test_the_version_of_the_model_is_the_hash_of_its_sources_presets_and_tables() -> None:
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in (".py", ".yaml", ".npz"))
    names = [path.relative_to(ROOT).as_posix() for path in files]
    assert "jit.py" in names
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
    return jit.cache_dir.__wrapped__()


def test_compiled_code_is_kept_in_the_first_place_that_can_be_written(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = source_hash()
    assert chosen() == places / "xdg" / "training-plan-sweep" / here
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "given"))
    assert chosen() == places / "given" / here
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert chosen() == places / "home" / ".cache" / "training-plan-sweep" / here
    (places / "home2").write_text("")  # a home that is no folder
    monkeypatch.setenv("HOME", str(places / "home2"))
    assert chosen() == places / "temporary" / f"training-plan-sweep-{os.getuid()}" / here
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert chosen().name.startswith("training-plan-sweep-")
    assert chosen() != chosen()
    assert chosen().is_dir()


def test_one_compiles_and_the_others_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_dir", lambda: tmp_path)
    inside: list[str] = []
    begun, end = threading.Event(), threading.Event()

    def first() -> None:
        with jit.compiling_alone():
            begun.set()
            end.wait(30)
            inside.append("first")

    def second() -> None:
        with jit.compiling_alone():
            inside.append("second")

    assert not jit.is_compiled()
    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    end.set()
    for thread in threads:
        thread.join(30)
    assert inside == ["first", "second"]
    assert jit.is_compiled()
    (tmp_path / ".lock").unlink()
    with jit.compiling_alone():
        assert not (tmp_path / ".lock").exists()


def test_kernels_lie_in_the_folder_of_their_sources() -> None:
    def kernel() -> None:
        """Stands for one."""

    locator = jit.KernelLocator.from_function(kernel, str(ROOT / "simulator.py"))
    assert locator is not None
    assert locator.get_cache_path() == str(jit.cache_dir())
    assert locator.get_source_stamp() == source_hash()
    assert locator.get_disambiguator() == str(kernel.__code__.co_firstlineno)
    assert jit.KernelLocator.from_function(kernel, "/elsewhere/simulator.py") is None
