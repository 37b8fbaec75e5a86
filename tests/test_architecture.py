"""The import contracts cover every module: each is in one layer, an upward import is found; constants are set once."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

PACKAGES = ("sweep", "sim_core")
RESERVED = ("run", "load", "plans")  # functions of the Python API
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+\Z")


def contracts(kind: str) -> list[dict[str, Any]]:
    """The import contracts of a kind."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["importlinter"]
    return [contract for contract in settings["contracts"] if contract["type"] == kind]


def layered() -> list[str]:
    """Full names of all modules that a layer names, as often as it does."""
    return [
        f"{container}.{name.strip(' ()')}"
        for contract in contracts("layers")
        for container in contract["containers"]
        for layer in contract["layers"]
        for name in re.split(r"[|:]", layer)
    ]


def modules() -> list[str]:
    """Full names of all modules and packages below the root packages."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name != package:
                found.append(name)
    return sorted(found)


def layers_of(module: str, named: list[str]) -> list[str]:
    """The names among `named` of the module or, if it has none of its own, of the packages that it is in."""
    own = [name for name in named if name == module]
    return own or [name for name in named if module.startswith(f"{name}.")]


def test_every_module_is_in_exactly_one_layer() -> None:
    named = layered()
    assert {name: layers for name in modules() if len(layers := layers_of(name, named)) != 1} == {}
    assert sorted(set(named) - set(modules())) == [], "a layer without a module"


def test_every_contract_is_exhaustive_and_every_package_has_one() -> None:
    layers = contracts("layers")
    assert [contract["name"] for contract in layers if not contract.get("exhaustive")] == []
    containers = {container for contract in layers for container in contract["containers"]}
    packages = {name for name in modules() if (ROOT / name.replace(".", "/")).is_dir()}
    assert {*PACKAGES, *packages} - containers == set()


def test_no_module_takes_a_name_of_the_python_api() -> None:
    assert [name for name in modules() if name.rpartition(".")[2] in RESERVED] == []


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their contracts, to be broken."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """`lint-imports` on the packages in `folder`, not on the installed ones."""
    code = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_contracts_are_kept(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_upward_import_in_any_module_of_sweep_breaks_a_contract(copy: Path) -> None:
    """`sweep.cli` is above all; every module below it gets an import of it, and each of these is reported."""
    planted = []
    for path in sorted((copy / "sweep").rglob("*.py")):
        name = ".".join(path.relative_to(copy).with_suffix("").parts)
        is_script = path.parent.name == "data"  # for another machine, no module
        if path.name not in ("__init__.py", "__main__.py", "cli.py") and not is_script:
            with path.open("a", encoding="utf-8") as file:
                file.write("\nimport sweep.cli\n")
            planted.append(name)
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [name for name in planted if not re.search(rf"\b{re.escape(name)} -> sweep\.cli\b", done.stdout)] == []


@pytest.mark.parametrize("folder", ["sweep", "sweep/show", "sim_core"])
def test_a_new_module_needs_a_layer(copy: Path, folder: str) -> None:
    (copy / folder / "unplanned.py").write_text('"""A module that no layer names."""\n', encoding="utf-8")
    done = lint(copy)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "unplanned" in done.stdout + done.stderr


def test_a_name_in_capitals_is_set_once() -> None:
    """A constant: no second assignment in its module, none from another one or inside a function."""
    again = []
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        stored = (node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del))
        names = Counter(node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in stored)
        shared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        again += [f"{path}: {name}" for name in names if CONSTANT.match(name) and (names[name] > 1 or name in shared)]
    assert again == []
