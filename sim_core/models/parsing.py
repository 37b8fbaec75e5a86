"""Models from and to mappings as read from YAML, each error in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import yaml
from pydantic import ValidationError

from sim_core.documents import key_path
from sim_core.errors import SpecError, named, nearest, shown
from sim_core.models.description import Activation, Checked, Experts, Mla, Model, Norm, Position, Window

SECTIONS: Final[dict[str, type[Checked]]] = {"mla": Mla, "experts": Experts, "window": Window}


def put(document: dict[str, Any], key: str, value: object, where: str) -> None:
    """Set a value by its dotted name. Raises SpecError on an unknown name."""
    section, _, name = key.rpartition(".")
    names = SECTIONS[section].model_fields if section in SECTIONS else Model.model_fields
    if (section and section not in SECTIONS) or name not in names:
        known = [*Model.model_fields, *(f"{s}.{n}" for s, kind in SECTIONS.items() for n in kind.model_fields)]
        raise SpecError(f"{where}: {named(key)}: unknown key, {nearest(key, known)}")
    if section:
        inside = document.get(section)
        document[section] = {**(inside if isinstance(inside, Mapping) else {}), name: value}
    else:
        document[name] = value


def parse_model(document: object, where: str) -> Model:
    """A model from a mapping as read from YAML. Raises SpecError that names `where`, the key and the value."""
    if not isinstance(document, Mapping):
        raise SpecError(f"{where}: found {shown(document)}, expected a mapping with layers, hidden, heads, ...")
    try:
        return Model.model_validate(dict(document))
    except ValidationError as error:
        raise SpecError(f"{where}: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    """The first fault in one line. An unknown key comes first: it is the likely cause of a missing one."""
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    path = [str(part) for part in fault["loc"] if not str(part).startswith(("literal[", "tuple[", "constrained-"))]
    key = key_path(path)
    if fault["type"] == "extra_forbidden":
        parent = SECTIONS.get(path[0], Model) if len(path) > 1 else Model
        return f"{key}: unknown key, {nearest(path[-1], parent.model_fields)}"
    if fault["type"] == "missing":
        return f"{key}: missing"
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    if fault["type"] == "literal_error" and path:
        return f"{key}: found {shown(fault['input'])}, {nearest(str(fault['input']), _literals(path))}"
    return f"{key}: found {shown(fault['input'])}, expected {_expected(fault['type'], fault['msg'])}"


def _literals(path: list[str]) -> list[str]:
    words = {"activation": Activation, "norm": Norm, "position": Position}
    return list(get_args(words[path[-1]])) if path[-1] in words else ["all", "even", "odd", "a list of layers"]


def _expected(kind: str, message: str) -> str:
    """What pydantic expected, in the words of this program."""
    if kind.startswith(("int_", "tuple_")):
        return "a whole number or a list of layers" if kind.startswith("tuple_") else "a whole number"
    words = {"bool_type": "true or false", "float_type": "a number", "string_type": "text", "model_type": "a mapping"}
    return words.get(kind, message.removeprefix("Input should be "))


def model_document(model: Model) -> dict[str, Any]:
    """The numbers that differ from their defaults, as a mapping that `parse_model` reads back."""
    document = model.model_dump(mode="json", exclude_defaults=True)
    if model.mla is not None or model.kv_heads == model.heads:
        del document["kv_heads"]
    if model.mla is not None or model.head_dim * model.heads == model.hidden:
        del document["head_dim"]
    return document


def model_yaml(model: Model, comments: Mapping[str, str] | None = None) -> str:
    """The `model:` block of a spec, a number per line, some with a comment; as a file it is read back."""
    comments = comments or {}
    lines = []
    for key, value in model_document(model).items():
        flow = None if isinstance(value, dict) else False
        line = yaml.safe_dump({key: value}, sort_keys=False, width=10**6, default_flow_style=flow).rstrip("\n")
        lines.append(f"  {line}  # {comments[key]}\n" if comments.get(key) else f"  {line}\n")
    return "model:\n" + "".join(lines)


def with_values(model: Model, values: Mapping[str, object]) -> Model:
    """A copy with some numbers replaced, inside a section by a dotted name such as `experts.topk`. Raises SpecError."""
    document = model_document(model)
    for key, value in values.items():
        put(document, key, value, f"model {model.name}")
    return parse_model(document, f"model {model.name}")
