"""YAML laid over other files: `defaults` of Hydra and NeMo-RL, `extends` of Primus, followed where those lie beside it."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from sim_core import SpecError
from sim_core.documents import Fields, Values, parse_yaml
from sweep.inputs.text import head_of

ABSENT = "defaults"
"""The key under which a document keeps the names of those files that are not there."""
LISTS = (ABSENT, "extends", "includes")
SIGN = re.compile(rf"^(?:{'|'.join(LISTS)}):", re.MULTILINE)
SELF = "_self_"
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
    for name, group in named if (SELF, "") in named else [*named, (SELF, "")]:
        file = next((file for ending in ("", ".yaml") if (file := path.parent / f"{name}{ending}").is_file()), None)
        below = own
        if file is not None:
            found = parse_yaml(head_of(file).decode("utf-8", "replace"), str(file), last_counts=True)[0] or {}
            if not isinstance(found, Mapping):
                raise SpecError(f"{file}: found no keys, expected those of a launch file")
            below, more = laid_over(found, file, files, (*inside, here))
            below, absent = {group: below} if group else below, absent + more
        elif name != SELF:
            absent.append(Path(name).name if name.startswith("/") else name)
            continue
        merged = over(merged, below)
    return merged, absent


def over(below: Values, above: Values) -> Fields:
    """One mapping over another, section by section."""
    merged = dict(below)
    for key, value in above.items():
        there = merged.get(key)
        merged[key] = over(there, value) if isinstance(there, Mapping) and isinstance(value, Mapping) else value
    return merged


def _named(document: Values) -> Iterator[tuple[str, str]]:
    """Files that a document names, and the section in which each lies: of `- model: llama` it is model/llama in `model`."""
    listed = [each if isinstance(each, list) else [each] for key in LISTS if (each := document.get(key)) is not None]
    for entry in chain.from_iterable(listed):
        for group, name in entry.items() if isinstance(entry, Mapping) else [("", entry)]:
            if isinstance(name, str) and "hydra/" not in group:
                yield (f"{group}/{name}", group) if group else (name, "")
