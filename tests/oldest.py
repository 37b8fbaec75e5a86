"""Constraints for pip: the lowest version of each dependency that pyproject.toml allows (`make oldest`).

python -m tests.oldest > lowest.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
_NEEDS = re.compile(r"([A-Za-z0-9._-]+)(?:\[[a-z0-9,]+\])?>=([0-9.]+)(?:,<[0-9.]+)?\Z")


def lowest(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Name and lowest version of what an installation needs, with Ray. Raises ValueError for one without a lower bound."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    versions = {}
    for needed in [*project["dependencies"], *project["optional-dependencies"]["ray"]]:
        match = _NEEDS.match(needed)
        if match is None:
            raise ValueError(f"{pyproject}: found the dependency {needed!r}, expected NAME>=VERSION or NAME>=VERSION,<VERSION")
        versions[match[1]] = match[2]
    return versions


if __name__ == "__main__":
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in lowest().items())
