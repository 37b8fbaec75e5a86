"""Documents and tables of a user as checked data: every error names file, line, key and value; `--set key=value`."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from sim_core import PLAN_FIELDS, FormatError, SpecError, shown
from sim_core.documents import Document, Lines, Values, Words, key_path, parse_yaml, read_document
from sim_core.masking import masked
from sim_core.places import read_input
from sweep.options import OptionError, wrong
from sweep.spec.other_names import SEQUENCE, elsewhere, meant, our_name

Checked = TypeVar("Checked", bound=BaseModel)
SCHEMAS = Path(__file__).parent / "schemas"
"""JSON Schemas of what users write, for their editors; made by docs/made/schemas.py."""
_OPEN = ("axes", "fixed")
"""Sections whose keys may themselves contain dots (`axes.hardware.nic_bandwidth`)."""
_ITS_OWN = ("hardware", "workload", "model", "budget", "failures")
"""Sections that `--set` of one plan names; all other keys are those of the plan."""
_SHORT = {"hardware": "preset", "workload": "path", "model": "preset", "stack": "preset", "budget": "tokens"}
"""Sections that may be given as a text, and the key that it means."""
_EXPECTED = {
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "letters, digits and _.-, up to 64, the first one a letter or digit",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a section of keys and values",
    "tuple_type": "a list",
    "list_type": "a list",
    "invalid_key": "a text as the key",
    "finite_number": "a finite number",
    "int": "a whole number",
    "float": "a number",
}
"""By pydantic's type of an error, or its first word."""
_BOUNDS = {
    "greater_than": "a number above",
    "greater_than_equal": "a number of at least",
    "less_than": "a number below",
    "less_than_equal": "a number of at most",
}
_SIZES = tuple(name for name, field in PLAN_FIELDS.items() if field.unit)
"""Fields of plans that have a unit."""


def read_spec(path: Path, keys: str = "workload, hardware, axes") -> tuple[Document, dict[Words, int]]:
    """The mapping in a file, and the line of each key; messages give `keys` as examples. Raises SpecError."""
    try:
        return read_document(path, keys)
    except OSError as error:
        raise SpecError(f"{masked(path)}: {error.strerror}") from None


def read_csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line and the cells, stripped, of each row of a table; empty rows are passed over.

    Raises FormatError (`path:line: what`).
    """
    name, raw = str(path), read_input(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise FormatError(name, line, "not UTF-8", f"byte 0x{raw[error.start]:02x}", "a CSV table") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise FormatError(name, line, "not text", "a null byte", "a CSV table")
    reader, start = csv.reader(io.StringIO(text, newline=""), strict=True), 1
    try:
        for row in reader:
            if any(cells := [cell.strip() for cell in row]):
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise FormatError(name, start, "not a CSV row", str(error)) from None


def cells_by_column(path: Path, line: int, columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """The cells of a row by the columns of the heading. Raises FormatError if there are more or fewer."""
    if len(cells) != len(columns):
        raise FormatError(str(path), line, "cells", str(len(cells)), f"{len(columns)} as in the heading")
    return dict(zip(columns, cells, strict=True))


def apply_sets(document: Document, assignments: Sequence[str], within: str = "", example: str = "axes.tp=[1,2,4]") -> Document:
    """Apply `key.key=value` assignments to the document; values are YAML. Raises SpecError.

    With `within`, keys are those of that section, except those of _ITS_OWN. `example`: of what is expected.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise wrong("--set", assignment, f"key=value, such as {example}")
        try:
            value, _ = parse_yaml(text, "--set")
        except SpecError:
            raise OptionError(f"--set {assignment}: the value is not valid YAML") from None
        parts = key.strip().split(".")
        if within and parts[0] not in _ITS_OWN:
            parts = [within, key.strip()]
        elif parts[0] in _OPEN:
            parts = key.strip().split(".", 1)
        workload = document.get("workload")  # which may hold the model
        if parts[0] == "model" and isinstance(workload, dict) and "model" in workload:
            parts = ["workload", *parts]
        elif parts[:2] == ["workload", "model"] and "model" in document:
            parts = parts[1:]
        _put(document, parts, value)
    return document


def _put(document: Document, parts: Sequence[str], value: object) -> None:
    """Set one value, in copies of the sections around it; a section given as a text is one key of itself.

    No value takes an axis or a fixed value away.
    """
    section = document
    for part in parts[:-1]:
        inner = section.get(part)
        if part in _SHORT and isinstance(inner, str):
            inner = {_SHORT[part]: inner}
        section[part] = dict(inner) if isinstance(inner, dict) else {}
        section = section[part]
    if value is None and parts[0] in _OPEN:
        section.pop(parts[-1], None)
    else:
        section[parts[-1]] = value


def first_error(error: ValidationError, where: str, lines: Lines, model: type[BaseModel]) -> SpecError:
    """The first error of a document in one line: file, line, key, problem, value, nearest valid name."""
    faults = error.errors()
    unknown = (fault for fault in faults if fault["type"] == "extra_forbidden")
    first = faults[0] if faults[0]["type"] != "missing" else next(unknown, faults[0])  # the likely cause of a missing key
    at = tuple(str(part) for part in first["loc"] if part != "[key]")
    line = next((lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in lines), None)
    location = f"{where}:{line}" if line else where
    key = key_path(at)
    if first["type"] == "extra_forbidden":
        ours = our_name(at[-1]) or at[-1]
        inside = [name for name in model.model_fields if len(at) == 1 and ours in _fields(model, (name,))]
        if len(at) == 1 and ours in PLAN_FIELDS and ours != SEQUENCE:
            hint = f"expected axes.{ours} or fixed.{ours}"
        elif inside:
            hint = f"expected {inside[0]}.{ours}"
        else:
            hint = (len(at) == 1 and elsewhere(ours)) or meant(at[-1], _fields(model, at[:-1]))
        wrong_with = f"unknown key, {hint}"
    elif first["type"] == "value_error":
        wrong_with = first["msg"].removeprefix("Value error, ")
    else:
        wrong_with = "missing" if first["type"] == "missing" else told(first, _fields(model, at))
    return SpecError(": ".join(part for part in (location, key, wrong_with) if part))


def with_line(error: SpecError, where: str, lines: Lines, sets: Sequence[str]) -> SpecError:
    """Add to a message the line of the key that it begins with, or the --set that it is about, if the check had no line."""
    text = re.sub(rf"^{re.escape(where)}(:[0-9]+)?: ", "", str(error))
    at = text.partition(":")[0]
    for assignment in reversed(sets):  # the last one of a key counts
        key = assignment.partition("=")[0].strip()
        if at == key or at.startswith(f"{key}."):
            return OptionError(f"--set {assignment}: {text}")
    if text != str(error).removeprefix(f"{where}: "):
        return error  # it names its line already
    section, _, rest = at.partition(".")
    line = lines.get((section, rest), lines.get((section,)))
    return SpecError(f"{where}:{line}: {text}") if line and text != str(error) else error


def validated(model: type[Checked], document: object, where: str, lines: Lines, sets: Sequence[str] = ()) -> Checked:
    """A document as checked data. Raises SpecError: the first error in one line, with the line of its key, or the --set."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise with_line(first_error(error, where, lines, model), where, lines, sets) from None


def _fields(model: type[BaseModel], path: Words) -> list[str]:
    """Names of the fields of the model at `path` inside `model`."""
    for part in path:
        if part.isdigit():  # an entry of a list has the model of the list
            continue
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return [*getattr(model, "short_forms", ()), *model.model_fields]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation names, directly or inside a tuple or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def bare_size(document: Values) -> str:
    """What is wrong with a size in a document of a user, a gradient bucket say: without a unit it may mean bytes or MB."""
    fixed, axes = document.get("fixed"), document.get("axes")
    places = [(f"fixed.{name}", fixed.get(name)) for name in _SIZES] if isinstance(fixed, Mapping) else []
    for key, values in axes.items() if isinstance(axes, Mapping) else ():
        names = [name.strip() for name in str(key).split(",")]
        for k in (k for k, name in enumerate(names) if name in _SIZES):
            rows = values if isinstance(values, list) else [bound for bounds in values.values() for bound in bounds]
            apart = isinstance(values, list) and len(names) > 1
            places += [(f"axes.{key}", row[k] if apart else row) for row in rows]
    bare = next(((where, value) for where, value in places if isinstance(value, int) and value > 0), None)
    return f"{bare[0]}: found {shown(bare[1])}, expected a size with its unit, such as '100 MB' (or 0)" if bare else ""


def told(fault: Values, fields: Sequence[str]) -> str:
    """The value and what was expected, from an entry of `ValidationError.errors()`; `fields` of a section, where it is one."""
    kind, context = str(fault["type"]), fault.get("ctx", {})
    number = kind.partition("_")[0]  # int_type, int_parsing, int_from_float, ...
    if kind in _EXPECTED or number in _EXPECTED:
        expected = _EXPECTED.get(kind) or _EXPECTED[number]
    elif kind in _BOUNDS:
        text, bound = _BOUNDS[kind], next(iter(context.values()))
        expected = f"{text} {bound:,}" if isinstance(bound, int) else f"{text} {bound:g}"
    elif kind == "literal_error":
        expected = str(context["expected"])
    elif kind == "too_short":
        expected = f"at least {context['min_length']} value{'s' * (context['min_length'] != 1)}"
    elif kind in ("model_type", "model_attributes_type"):
        expected = f"a section with keys such as {', '.join(fields[:3])}"
    else:
        expected = f"another value ({fault['msg']})"
    return f"found {shown(fault['input'])}, expected {expected}"
