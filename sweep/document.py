"""Read a YAML document, so that every error names file, line, key and value; apply `--set key=value` to it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError

from sim_core import SpecError, shown
from sweep.faults import meant, told

Document = dict[str, Any]
OPEN_SECTIONS: Final = ("axes", "fixed")
"""Sections whose keys may themselves contain dots (`axes.hardware.nic_bandwidth`)."""

ITS_OWN: Final = ("hardware.", "workload.", "model.", "budget.", "failures.", "stragglers.")
"""Sections that `--set` of one plan names; all other keys are those of the plan."""
SHORT: Final = {"hardware": "preset", "workload": "path", "model": "preset", "budget": "tokens"}
"""Sections that may be given as a text, and the key that it means."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that rejects a duplicate key; YAML would silently keep the last one."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[object] = set()
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


_plain_numbers(_Loader)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_document(path: Path, keys: str = "workload, hardware, axes") -> tuple[Document, dict[tuple[str, ...], int]]:
    """The mapping in a YAML file, and the line of each key path; messages give `keys` as examples. Raises SpecError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        for token in yaml.scan(text):
            if isinstance(token, yaml.AliasToken):
                raise SpecError(f"{path}:{token.start_mark.line + 1}: aliases (*{token.value}) are not supported")
        document = yaml.load(text, _Loader)
        node = yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    except (yaml.YAMLError, ValueError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())[:200]
        raise SpecError(f"{path}{f':{mark.line + 1}' if mark else ''}: not valid YAML: {problem}") from None
    if document is None:
        raise SpecError(f"{path}: the file is empty, expected keys such as {keys}")
    if not isinstance(document, dict):
        raise SpecError(f"{path}: found {shown(document)}, expected keys such as {keys}")
    lines: dict[tuple[str, ...], int] = {}
    _note_lines(node, (), lines)
    return document, lines


def _note_lines(node: yaml.Node | None, at: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            lines[(*at, str(key.value))] = key.start_mark.line + 1
            _note_lines(value, (*at, str(key.value)), lines)
    elif isinstance(node, yaml.SequenceNode):
        for k, value in enumerate(node.value):
            lines[(*at, str(k))] = value.start_mark.line + 1
            _note_lines(value, (*at, str(k)), lines)


def apply_sets(document: Document, assignments: Sequence[str], within: str = "") -> Document:
    """Apply `key.key=value` assignments to the document; values are YAML. Raises SpecError.

    With `within`, keys are those of that section, except those of ITS_OWN.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise SpecError(f"--set {assignment}: expected key=value, such as {'tp=8' if within else 'axes.tp=[1,2,4]'}")
        try:
            value = yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, AttributeError):
            raise SpecError(f"--set {assignment}: the value is not valid YAML") from None
        parts = key.strip().split(".")
        if within and not key.strip().startswith(ITS_OWN):
            parts = [within, key.strip()]
        elif parts[0] in OPEN_SECTIONS:
            parts = [parts[0], ".".join(parts[1:])] if len(parts) > 1 else parts
        given = document.get("workload")  # which may hold the model
        if parts[0] == "model" and isinstance(given, dict) and "model" in given:
            parts = ["workload", *parts]
        elif parts[:2] == ["workload", "model"] and "model" in document:
            parts = parts[1:]
        _put(document, parts, value)
    return document


def _put(document: Document, parts: Sequence[str], value: object) -> None:
    """Set one value, in copies of the sections around it; a section given as a text is one key of itself."""
    section = document
    for part in parts[:-1]:
        inner = section.get(part)
        if part in SHORT and isinstance(inner, str):
            inner = {SHORT[part]: inner}
        section[part] = dict(inner) if isinstance(inner, dict) else {}
        section = section[part]
    section[parts[-1]] = value


def first_error(error: ValidationError, where: str, lines: Mapping[tuple[str, ...], int], model: type[BaseModel]) -> SpecError:
    """The first error of a document in one line: file, line, key, problem, value, nearest valid name."""
    faults = error.errors()
    unknown = (fault for fault in faults if fault["type"] == "extra_forbidden")
    first = faults[0] if faults[0]["type"] != "missing" else next(unknown, faults[0])  # the likely cause of a missing key
    at = tuple(str(part) for part in first["loc"] if part != "[key]")
    line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), None)
    location = f"{where}:{line}" if line else where
    key = ".".join(at)
    if first["type"] == "extra_forbidden":
        return SpecError(f"{location}: {key}: unknown key, {meant(at[-1], _fields(model, at[:-1]))}")
    if first["type"] == "missing":
        return SpecError(f"{location}: {key}: missing")
    if first["type"] == "value_error":
        return SpecError(f"{location}: {f'{key}: ' if key else ''}{first['msg'].removeprefix('Value error, ')}")
    return SpecError(f"{location}: {key}: {told(first, _fields(model, at))}")


def _fields(model: type[BaseModel], path: tuple[str, ...]) -> list[str]:
    """Names of the fields of the model at `path` inside `model`."""
    for part in path:
        if part.isdigit():  # an entry of a list has the model of the list
            continue
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return [*model.model_fields, *getattr(model, "short_forms", ())]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names, directly or inside a tuple or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
