"""Print what every file is for, from its first line: `make rooms`.

Files stand in the order of the import contracts of pyproject.toml: each may import only what is below it.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
HEAD: Final = """# Rooms

The first line of each file. A file may import only what stands below it: the order is that of the import contracts in
`pyproject.toml`. docs/architecture.md says how the rooms work together, docs/recipes.md what to change for an extension.
"""


def page() -> str:
    """All of it: a table for each package, the packages in the order of their contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    lines = [HEAD]
    for contract in sorted((each for each in contracts if each["type"] == "layers"), key=lambda each: each["containers"][0]):
        folder = ROOT / contract["containers"][0].replace(".", "/")
        lines += [f"## {folder.relative_to(ROOT)}/", _first_line(folder / "__init__.py"), ""]
        lines += ["| file | what it is for |", "|---|---|"]
        for name in re.findall(r"\w+", " ".join(contract["layers"])):
            is_folder = (folder / name).is_dir()
            first = _first_line(folder / name / "__init__.py" if is_folder else folder / f"{name}.py")
            lines.append(f"| `{name}{'/' if is_folder else '.py'}` | {first} |")
        lines.append("")
    return "\n".join(lines)


def _first_line(path: Path) -> str:
    """The first paragraph of a file's docstring, on one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
