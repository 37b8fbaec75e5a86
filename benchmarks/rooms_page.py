"""Print what every file is for, from its first line: `make rooms`.

Files stand in the order of the import contracts of pyproject.toml: each may import only what is below it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
HEAD: Final = """# Rooms

The first line of each file. A file may import only what stands below it: the order is that of the import contracts in
`pyproject.toml`. docs/architecture.md says how the rooms work together, docs/recipes.md what to change for an extension.
"""


def page() -> str:
    """All of it: a table for each package, the packages in the order of their contracts."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = {
        contract["containers"][0]: [name for layer in contract["layers"] for name in re.findall(r"\w+", layer)]
        for contract in contracts
        if contract["type"] == "layers"
    }
    return "\n".join([HEAD, *(line for package in sorted(layers) for line in _room(package, layers[package]))])


def _room(package: str, names: list[str]) -> Iterator[str]:
    folder = ROOT / package.replace(".", "/")
    yield f"## {folder.relative_to(ROOT)}/\n{_first_line(folder / '__init__.py')}\n"
    yield "| file | what it is for |\n|---|---|"
    for name in names:
        inner = folder / name
        shown, path = (f"{name}/", inner / "__init__.py") if inner.is_dir() else (f"{name}.py", folder / f"{name}.py")
        yield f"| `{shown}` | {_first_line(path)} |"
    yield ""


def _first_line(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
