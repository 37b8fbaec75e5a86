"""The wheel: what an installation without this checkout holds; and the hooks and commands that the Makefile offers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from tests.conftest import ROOT

PACKAGES = ("sim_core", "sweep")


def built(tmp_path_factory: pytest.TempPathFactory, how: str) -> Path:
    """A wheel from a copy of the sources, made by a hook of the setuptools of this environment."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    code = f"import sys; from setuptools.build_meta import {how}; {how}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory, "build_wheel")


def test_an_editable_installation_is_a_path_which_type_checkers_follow(tmp_path_factory: pytest.TempPathFactory) -> None:
    archive = ZipFile(built(tmp_path_factory, "build_editable"))
    (path,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".pth"))
    assert (Path(path.strip()) / "sweep" / "py.typed").exists()


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    """Sources, type markers, presets, tables: a new kind of file must be named in pyproject.toml."""
    files = [
        path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    expected = {path.relative_to(ROOT).as_posix() for path in files}
    assert {"sim_core/py.typed", "sweep/py.typed"} < expected
    assert {path.rpartition(".")[2] for path in expected} == {
        "py",
        "pyi",
        "typed",
        "yaml",
        "npz",
        "csv",
        "json",
        "css",
        "js",
        "txt",
    }
    found = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected


@pytest.mark.long
def test_the_wheel_works_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    """A spec written and tried by the code of the wheel, in an empty folder."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    ZipFile(wheel).extractall(site)
    for arguments in (["init", "llama3-8b", "--gpus", "16"], ["run", "llama3-8b.yaml", "--dry-run"]):
        code = (
            f"import sys, sweep; assert sweep.__file__.startswith({str(site)!r}); "
            f"sys.argv[1:] = {arguments!r}; from sweep.cli import main; main()"
        )
        environment = {**os.environ, "PYTHONPATH": str(site)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=work, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "Nothing was stored." in done.stdout


def test_the_wheel_names_its_license(wheel: Path) -> None:
    archive = ZipFile(wheel)
    folder = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    for name in ("LICENSE", "NOTICE"):
        assert archive.read(f"{folder}/licenses/{name}") == (ROOT / name).read_bytes()


def commands() -> dict[str, str]:
    """The targets that plain `make` lists, with their descriptions."""
    told = subprocess.run(
        ["make", "-s", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return dict(line.removeprefix("make ").split(None, 1) for line in told.splitlines())


def test_plain_make_lists_every_command() -> None:
    listed = commands()
    declared = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == {name for line in declared for name in line.split()}
    assert all(listed.values())


def test_hooks_run_what_ci_runs() -> None:
    path = ROOT / ".pre-commit-config.yaml"
    valid = [sys.executable, "-m", "pre_commit", "validate-config", str(path)]
    assert subprocess.run(valid, capture_output=True, timeout=60, check=False).returncode == 0
    hooks = [hook for repo in yaml.safe_load(path.read_text(encoding="utf-8"))["repos"] for hook in repo["hooks"]]
    in_ci = re.findall(r"^make .+$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert [hook["entry"] for hook in hooks] == in_ci
