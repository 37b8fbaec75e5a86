"""YAML and JSON documents as mappings, with the line of every key: one reader for whatever a user writes.

No key is given twice: the readers of both languages would silently keep the last value. Numbers are what they look like.
"""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from sim_core.errors import SpecError, named, shown
from sim_core.places import read_input

Values = Mapping[str, Any]
"""Values by name, to be read."""
Fields = dict[str, Any]
"""Values by name, to be filled in or handed on."""
Words = tuple[str, ...]
"""Names or texts, in order."""
Document = Fields
"""What is written, or was read, as YAML or JSON."""
Lines = dict[tuple[str, ...], int]
"""The line of each key, by the keys that lead to it; entries of lists count from 0."""

PACKAGE = Path(__file__).parent
MOST_CHARACTERS = 2**19
"""Of a text in YAML: more take seconds to read."""
_LONG = 2**16
"""Characters of YAML from which on C reads it first, then Python what C refuses."""
_ALIAS = re.compile(r"\*\S")
_FOREIGN = re.compile(r"[:$*!@=;|<>]")
"""What no key of ours has, but lines of other files: of passwords, of shells."""
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|\n')
_FAULTS = (yaml.YAMLError, ValueError, AttributeError, RecursionError)


class _Loader(yaml.SafeLoader):
    """SafeLoader with plain numbers, without aliases and without keys given twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise SpecError(f"{self.name}:{event.start_mark.line + 1}: aliases (*{event.anchor}) are not supported")
        return super().compose_node(parent, index)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, Hashable) or key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {shown(key)} is given twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _plain_numbers(loader: type[yaml.SafeLoader]) -> None:
    """Read numbers as they look: no 010 = 8, no 1:30 = 90, no dates; and 1e9 is a number."""
    kept = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in kept]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    digits = list("-+0123456789.")
    loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})\Z"), digits)
    number = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]{1,4})?\Z"
    loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(number), digits)


class _LastCounts(_Loader):
    """Of a key that is given twice the last value counts, as PyYAML has it."""


class _Shipped(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in C, where PyYAML has it: ten times as fast. For files of this package: it neither refuses aliases nor says in
    the same words what is wrong."""


for _loader in (_Loader, _Shipped):
    _plain_numbers(_loader)
    _loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_LastCounts.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, partial(yaml.SafeLoader.construct_mapping, deep=True)
)


@cache
def shipped_names(folder: Path, suffix: str = ".yaml") -> Words:
    """Names of the files of this package in a folder, without their suffix, sorted."""
    return tuple(sorted(path.stem for path in folder.glob(f"*{suffix}")))


def shipped_document(path: Path) -> Any:
    """What a file in YAML of this package holds."""
    return _parsed(path.read_text(encoding="utf-8"), str(path), _Shipped)[0]


def read_document(path: Path, keys: str) -> tuple[Document, Lines]:
    """The mapping in a file, JSON by its suffix, else YAML; messages give `keys` as examples. Raises SpecError, OSError."""
    try:
        text = read_input(path, 4 * MOST_CHARACTERS if path.suffix != ".json" else 2**26).decode("utf-8-sig")
        if "\0" in text:
            raise ValueError
    except ValueError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    if path.suffix == ".json":
        document, lines = parse_json(text, str(path))
    else:
        own = path.is_relative_to(PACKAGE)
        document, lines = _parsed(text, str(path), _Shipped) if own else parse_yaml(text, str(path))
    if document is None:
        raise SpecError(f"{path}: the file is empty, expected keys such as {keys}")
    if not isinstance(document, dict):
        raise SpecError(
            f"{path}: found a {'text' if isinstance(document, str) else 'list or a number'}, expected keys such as {keys}"
        )
    return document, lines


def parse_yaml(text: str, where: str, *, last_counts: bool = False) -> tuple[Any, Lines]:
    """What a text in YAML holds; with `last_counts` a key may be given twice, as in files that others read.

    Raises SpecError with the line of `where`.
    """
    if len(text) > MOST_CHARACTERS:
        raise SpecError(f"{where}: found {len(text):,} characters of YAML, expected at most {MOST_CHARACTERS:,}")
    if len(text) > _LONG and not last_counts and not _ALIAS.search(text):
        with suppress(SpecError):
            return _parsed(text, where, _Shipped)
    return _parsed(text, where, _LastCounts if last_counts else _Loader)


def _parsed(text: str, where: str, kind: type[Any]) -> tuple[Any, Lines]:
    lines: Lines = {}
    try:
        loader = kind(text)
        loader.name = where
        node = loader.get_single_node()
        if node is None:
            return None, lines
        _note_lines(node, (), lines)
        return loader.construct_document(node), lines
    except _FAULTS as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or ""
        if "given twice" not in problem:
            problem = "look at the colons, indentation, brackets and quotes of this line and the one before"
        raise SpecError(f"{where}{f':{mark.line + 1}' if mark else ''}: not valid YAML: {problem}") from None


def _note_lines(node: yaml.Node, at: tuple[str, ...], lines: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        inside = [(str(key.value), key, value) for key, value in node.value]
    else:
        inside = [(str(k), value, value) for k, value in enumerate(node.value)] if isinstance(node, yaml.SequenceNode) else []
    for name, begin, value in inside:
        lines[(*at, name)] = begin.start_mark.line + 1
        _note_lines(value, (*at, name), lines)


def parse_json(text: str, where: str, first: int = 1) -> tuple[Any, Lines]:
    """What a text in JSON holds; its first line is number `first` of `where`. Raises SpecError with the line."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{where}:{first + error.lineno - 1}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # a number of too many digits is a ValueError
        raise SpecError(f"{where}: not JSON: {str(error).partition(';')[0]}") from None
    return document, _json_lines(text, where, first)


def _json_lines(text: str, where: str, line: int) -> Lines:
    """The line of each key of a valid text. Raises SpecError for a key given twice."""
    lines = {}
    at = []  # the keys that lead to the place
    entries = []  # of each list around it the entry, -1 for an object
    word, word_line = "", line
    for match in _JSON_TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token in "[{":
            entries.append(0 if token == "[" else -1)
            at.append("0" if token == "[" else "")
        elif token in "]}":
            entries.pop()
            at.pop()
        elif token == "," and entries[-1] >= 0:
            entries[-1] += 1
            at[-1] = str(entries[-1])
        elif token == ":":
            at[-1] = json.loads(word)
            if tuple(at) in lines:
                raise SpecError(f"{where}:{word_line}: key {shown(at[-1])} is given twice")
            lines[tuple(at)] = word_line
        elif token != ",":
            word, word_line = token, line
    return lines


def located(error: SpecError, where: str, lines: Lines) -> SpecError:
    """An error `where: key: what` with the line of the key, or of the section around it; others as they are."""
    key, colon, _ = str(error).removeprefix(f"{where}: ").partition(": ")
    if not colon or not str(error).startswith(f"{where}: "):
        return error
    ends = {key_path(at): number for at, number in lines.items()}
    above = [path for path in ends if key == path or key.startswith(f"{path}.")]
    line = ends[max(above, key=len)] if above else None
    if line is None:  # a number by its short name
        line = next((number for at, number in lines.items() if at[-1] == key), None)
    return SpecError(f"{where}:{line}: {str(error).removeprefix(f'{where}: ')}") if line else error


def key_path(at: Sequence[object]) -> str:
    """The keys that lead to a place, with dots between them, for a message. One that looks like the line of a file of another
    kind, which may not be for the eyes of who named it, is '...'."""
    return ".".join("'...'" if _FOREIGN.search(str(each)) else named(each) for each in at)
