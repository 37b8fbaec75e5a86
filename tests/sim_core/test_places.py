"""Places where other users may have been first: nothing of theirs is loaded, no lock is followed or emptied."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sim_core import SpecError
from sim_core.places import folder_for_code, lock_file
from tests.conftest import ROOT, rest_long
from tests.other_users import OTHER, USER, needs_root, run_as

NAMED = f"training-plan-sweep-{os.geteuid()}"
KERNEL = """
from sim_core.compiled import jit, kept

@jit.kernel
def doubled(value):
    return 2 * value

print(doubled(3.0), kept.cache_dir())
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder for temporary files, the only place that there is for code."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o1777)
    return tmp_path


def refused(place: Path) -> bool:
    """Whether another folder is taken than `place`: a fresh one, closed to others, that processes started from here share."""
    taken = folder_for_code()
    if taken == place:
        return False
    assert stat.S_IMODE(taken.lstat().st_mode) == 0o700
    assert os.environ["NUMBA_CACHE_DIR"] == str(taken)
    assert list(taken.iterdir()) == []
    assert folder_for_code() == taken
    os.environ["NUMBA_CACHE_DIR"] = ""
    return True


def test_a_folder_among_the_temporary_files_is_ones_own(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = temporary / NAMED
    assert not refused(place)
    assert stat.S_IMODE(place.lstat().st_mode) == 0o700
    for mode, taken in ((0o755, True), (0o777, False), (0o770, False), (0o700, True), (0o500, False)):
        place.chmod(mode)
        if mode != 0o500 or os.geteuid() != 0:  # root can write everywhere
            assert refused(place) != taken, oct(mode)
    place.chmod(0o700)
    temporary.chmod(0o777)  # anyone could put another folder in its place
    assert refused(place)
    temporary.chmod(0o755)
    assert not refused(place)
    place.rename(temporary / "mine")
    place.symlink_to(temporary / "mine")
    assert refused(place)
    place.unlink()
    place.write_text("")
    assert refused(place)


def test_a_chosen_folder_that_everybody_may_write_to_is_passed_over(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = temporary / "chosen"
    chosen.mkdir()
    (temporary / "link").symlink_to(chosen)  # where a user's cache lies is the user's choice
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(temporary / "link"))
    assert folder_for_code() == temporary / "link"
    chosen.chmod(0o777)
    assert folder_for_code() == temporary / NAMED


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, and beside it the cache of its kernel as a hostile user would leave it: each pickle makes a file `ran`."""
    folder = tmp_path_factory.mktemp("planted")
    script, cache = folder / "script.py", folder / "cache"
    script.write_text(KERNEL)
    mine = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script)], env=mine, check=True, capture_output=True)

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch $TMPDIR/ran",)

    files = [path for path in cache.rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert len(files) == 2
    for path in files:
        path.write_bytes(pickle.dumps(Bomb()))
    return folder


@needs_root
@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
@pytest.mark.parametrize(
    ("name", "value", "place"),
    rest_long(
        [
            ("NUMBA_CACHE_DIR", "kernels", "kernels"),
            ("TMPDIR", ".", f"training-plan-sweep-{USER}"),
            ("XDG_CACHE_HOME", "xdg", "xdg/training-plan-sweep"),
            ("HOME", "home", "home/.cache/training-plan-sweep"),
        ],
        2,
    ),
)
def test_planted_machine_code_is_not_run(tmp_path: Path, planted: Path, name: str, value: str, place: str) -> None:
    tmp_path.chmod(0o1777)
    shutil.copytree(planted / "cache", tmp_path / place)
    for path in (tmp_path / place, *(tmp_path / place).rglob("*")):
        path.chmod(0o777)
        os.chown(path, OTHER, OTHER)
    variables = {"HOME": "/dev/null", "TMPDIR": tmp_path, "PYTHONPATH": ROOT, name: tmp_path / value}
    done = run_as(USER, [sys.executable, planted / "script.py"], folder=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    result, taken = done.stdout.split()
    assert (float(result), (tmp_path / "ran").exists()) == (6.0, False)
    assert Path(taken) != tmp_path / place
    assert Path(taken).lstat().st_uid == USER


def test_a_lock_is_not_emptied_and_follows_no_link(tmp_path: Path) -> None:
    lock, other = tmp_path / ".lock", tmp_path / "other"
    lock.write_text("kept")
    with lock_file(lock) as descriptor:
        assert not os.get_inheritable(descriptor)
    assert lock.read_text() == "kept"
    lock.unlink()
    lock.symlink_to(other)
    with pytest.raises(SpecError, match=r"\.lock: found a symbolic link, expected the file of a lock"), lock_file(lock):
        pass
    assert not other.exists()
