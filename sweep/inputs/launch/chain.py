"""YAML laid over other files: `defaults` of Hydra and NeMo-RL, `extends` of Primus, followed where those lie beside it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sim_core import SpecError
from sim_core.documents import Fields, Values, parse_yaml
from sweep.inputs.text import head_of

ABSENT = "defaults"
"""The key under which a document keeps the names of those files that are not there."""
LISTS = (ABSENT, "extends", "includes")
SIGN = re.compile(rf"^(?:{'|'.join(LISTS)}):", re.MULTILINE)
SELF = "_self_"
GLOBAL = "@package _global_"
MOST_FILES = 100


def laid_over(document: Values, path: Path, files: list[Path], inside: tuple[Path, ...] = ()) -> tuple[Fields, list[str]]:
    """A document over those that it names, in their order, and the names of those that are not there.

    `files`: all that were read. `inside`: those that led here. Raises SpecError for a loop or a file that cannot be read.
    """
    here = path.resolve()
    if here in inside or len(files) > MOST_FILES:
        raise SpecError(f"{path}: found a loop of files that name one another, or more than {MOST_FILES}; expected an end")
    files.append(here)
    own = {key: value for key, value in document.items() if key not in LISTS}
    merged, absent, named = Fields(), list[str](), list(_named(document))
    for name, package in named if any(name == SELF for name, _ in named) else [*named, (SELF, "")]:
        if name == SELF:
            merged = over(merged, own)
            continue
        base = next((file for file in (path.parent / name, path.parent / f"{name}.yaml") if file.is_file()), None)
        if base is None:
            absent.append(name)
            continue
        below, is_global = read_mapping(base)
        below, more = laid_over(below, base, files, (*inside, here))
        absent += more
        for part in reversed([] if is_global else package.split("/") if package else []):
            below = {part: below}
        merged = over(merged, below)
    return merged, absent


def read_mapping(path: Path) -> tuple[Values, bool]:
    """The mapping in a file, and whether it lies at the top whatever names it. Raises SpecError, OSError."""
    text = head_of(path).decode("utf-8", "replace")
    found = parse_yaml(text, str(path), last_counts=True)[0]
    if not isinstance(found, Mapping | None):
        raise SpecError(f"{path}: found no keys, expected those of a launch file")
    return found or {}, GLOBAL in text


def over(below: Values, above: Values) -> Fields:
    """One mapping over another, section by section."""
    merged = dict(below)
    for key, value in above.items():
        there = merged.get(key)
        merged[key] = over(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return merged


def _named(document: Values) -> Iterator[tuple[str, str]]:
    """Files that a document names, without their ending, and the section in which each lies: `- model: llama` is
    model/llama.yaml in `model`."""
    for entry in (each for key in LISTS for each in _listed(document.get(key))):
        pairs = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for group, option in pairs:
            group, _, package = str(group).removeprefix("optional ").removeprefix("override ").partition("@")
            for name in _listed(option):
                if not group.startswith("hydra/") and isinstance(name, str):
                    own = "" if package == "_global_" else package.replace(".", "/") or group
                    yield f"{group}/{name}".lstrip("/") if group else name, own


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
