"""The code that makes rows, as this process has loaded it: sources that a worker imports, packages that can move a bit."""

import hashlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from sim_core.compiling import kept_hashes, meaning, source_hash

Code = Mapping[str, str]
"""What each part is: a hash (16 hex digits) of a source of sweep or of what computes in sim_core, the version of a package."""
ROOT = Path(__file__).parent
WORKER = "sweep.evaluation.slices"
"""The module whose imports make the rows of a sweep."""
DATA = "sim_core with its presets"
"""What a worker may read besides: it has to be the same, and is in the identity of a sweep by what is used of it."""
PACKAGES = ("numba", "llvmlite", "numpy", "pyarrow", "duckdb")
_IMPORTED = re.compile(r"^ *(?:from|import) (sweep[\w.]*)(?: import (\([^)]*\)|.*))?", re.MULTILINE)
_MOST_NAMED = 3


def hashes_of(root: Path = ROOT) -> dict[str, str]:
    """A hash of what each source of the package in `root` does, by its path, and of what computes in sim_core.

    They are kept by the hash of the whole text.
    """
    paths = sorted(root.rglob("[!.]*.py"))  # without what editors put beside them
    texts = {path.relative_to(root.parent).as_posix(): path.read_text(encoding="utf-8") for path in paths}

    def made() -> dict[str, str]:
        return {"sim_core": source_hash(computes=True), **{name: _hash(meaning(text)) for name, text in texts.items()}}

    return kept_hashes(f"sources-{_hash(chr(0).join([*texts, *texts.values()]))}.json", made) or made()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_SOURCES = {**hashes_of(), DATA: source_hash()}
"""Now, as they are imported: a source that is edited later is not what this process runs."""


@cache
def loaded() -> Code:
    """All that this process could make rows with."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {**_SOURCES, "python": python, **{name: version(name) for name in PACKAGES}}


@cache
def row_code(entry: str = WORKER) -> Code:
    """What makes the rows of a worker that imports `entry`, a module of sweep."""
    own = loaded()
    return {part: own[part] for part in ("sim_core", *sources_of(entry), "python", *PACKAGES)}


def sources_of(entry: str) -> list[str]:
    """Paths of the modules that `entry` imports, directly or not, by the text of their sources.

    What `sweep/__init__.py` names for users is imported when they ask for it: no worker does.
    """
    known, waiting = {"sweep": "sweep/__init__.py"}, [entry]
    while waiting:
        module = waiting.pop()
        if module in known:
            continue
        path = ROOT.parent / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not path.exists():  # a name that its module defines
            continue
        known[module] = path.relative_to(ROOT.parent).as_posix()
        waiting.append(module.rpartition(".")[0])
        for package, names in _IMPORTED.findall(path.read_text(encoding="utf-8")):
            waiting += [package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))]
    return sorted(known.values())


def differences(expected: Code, found: Code) -> str:
    """Where `found` is not the expected code, in words; empty if it is."""
    others = [
        f"{part}: found {found.get(part, 'none')}, expected {own}" for part, own in expected.items() if own != found.get(part)
    ]
    more = len(others) - _MOST_NAMED
    return "; ".join(others[:_MOST_NAMED] + [f"and {more} more"] * (more > 0))
