"""A user whom the machine does not know, without a home, as containers with arbitrary user ids have: every command works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sim_core.compiling import cache_dir
from tests.conftest import ROOT
from tests.other_users import USER, as_user, needs_root, run_as
from tests.sweep.conftest import SpecWriter

pytestmark = needs_root

WORKLOAD = "w.txt"
"""Named from within the test's folder: whether a named file may be read is asked without the user's capabilities, so that no
file below a folder of mode 0700 (a home that the checkout lies in, pytest's own folder) passes."""


@pytest.fixture
def folder(tmp_path: Path, write_spec: SpecWriter) -> Path:
    """A folder that everybody may write to, with a small spec."""
    write_spec(axes={"tp": [4, 8]}, where=None)
    tmp_path.chmod(0o1777)
    return tmp_path


@pytest.mark.parametrize("variables", [{}, {"NUMBA_CACHE_DIR": "kernels"}])
def test_commands_need_no_home(folder: Path, variables: dict[str, str]) -> None:
    known = {name: folder / value for name, value in variables.items()} | {"TMPDIR": folder, "PYTHONPATH": ROOT}
    sweep = [sys.executable, "-m", "sweep"]
    told = run_as(USER, [*sweep, "--version"], folder=folder, **known)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"{version('training-plan-sweep')}, model ")
    told = run_as(USER, [*sweep, "simulate", WORKLOAD], folder=folder, **known)
    assert (told.returncode, told.stderr) == (0, ""), told.stderr
    taken = folder / variables.get("NUMBA_CACHE_DIR", f"training-plan-sweep-{USER}")
    assert taken.lstat().st_uid == USER


@pytest.mark.long  # the engine is compiled anew
def test_nothing_but_the_temporary_folder_need_be_writable(folder: Path) -> None:
    """The root of a container may be read-only: here every file system but a fresh one at $TMPDIR."""
    place = folder / "t"
    place.mkdir()
    closed = f"mount -t tmpfs -o mode=1777 none {place} && mount -o remount,ro,bind / && ! touch {folder}/x && exec $0 $@"
    inside = ["env", "-u", "HOME", "-u", "NUMBA_CACHE_DIR", "-u", "XDG_CACHE_HOME", f"TMPDIR={place}", f"PYTHONPATH={ROOT}"]
    for command in (["--version"], ["simulate", WORKLOAD], ["run", "small.yaml", "--dry-run"]):
        line = [*as_user(), *inside, sys.executable, "-B", "-m", "sweep", *map(str, command)]
        mounted = ["unshare", "--mount", "sh", "-c", closed, *line]
        told = subprocess.run(mounted, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
        assert told.returncode == 0, told.stderr


@pytest.mark.long  # compiles anew
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_run_needs_no_home(folder: Path, workers: int) -> None:
    kernels = folder / "kernels"
    shutil.copytree(cache_dir(), kernels, ignore=shutil.ignore_patterns(".lock"))  # compiled by the tests: it takes a minute
    for path in (kernels, *kernels.rglob("*")):
        os.chown(path, USER, USER)
    command = [sys.executable, "-m", "sweep", "run", "small.yaml", "--workers", workers, "--out", folder / "out"]
    told = run_as(USER, command, folder=folder, NUMBA_CACHE_DIR=kernels, TMPDIR=folder, PYTHONPATH=ROOT)
    assert (told.returncode, told.stderr) == (0, ""), told.stderr
    assert "2 plans" in told.stdout
    assert (folder / "out" / ".lock").lstat().st_uid == USER
