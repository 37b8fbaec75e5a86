"""Make from the rows of specs, plans, presets and stacks what is shipped in sweep/spec/schemas: JSON Schemas for editors.

`make reference` runs it; a test holds the files to the rows, and holds all examples and presets to the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

from sim_core import (
    HARDWARE_KEYS,
    STACK_FACTS,
    SWITCH,
    Hardware,
    Model,
    SpecError,
    Stack,
    model_names,
    preset_names,
    quantity,
    stack_names,
)
from sim_core.hardware.description import _PARTS, _POSITIVE, _SECTIONS, fabric_names
from sim_core.models.features import ALIASES as FEATURE_NAMES, FEATURES
from sim_core.models.recompute import OFFLOAD_MODULES, RECOMPUTE_MODULES
from sim_core.planning.columns import CHECKPOINTING, LISTED, MODULES, SPLITS
from sim_core.planning.fields import Field
from sim_core.planning.labels import IMBALANCES
from sim_core.units import _DIMENSIONS, _USUAL
from sim_core.workloads.facts import _MOST, _WIDTHS, NUMERIC_FACTS
from sweep.columns import MEASURES, NOT_STORED, SHORT_NAMES, SHORT_PARTS, UNITS
from sweep.nightly.spec import NightlySpec
from sweep.spec.spec import MAX_AXIS_VALUES, SweepSpec
from sweep.spec.values import ALIASES, FIELDS, STACK_AXIS

ROOT: Final = Path(__file__).parent.parent.parent
FOLDER: Final = ROOT / "sweep" / "spec" / "schemas"
Schema = dict[str, Any]
NUMBER: Final = r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
FILE: Final = r"\.ya?ml$"
UNIT_OF: Final = {"s": "10 us", "B": "80 GB", "B/s": "400 Gb/s", "FLOP/s": "989 TFLOP/s", "W": "700 W"}
"""Units, with an example of each."""
LIST: Final[Schema] = {"type": "array", "minItems": 1, "maxItems": MAX_AXIS_VALUES, "uniqueItems": True}
_PAIR: Final[Schema] = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
LADDER: Final[Schema] = {
    "type": "object",
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {"range": {**_PAIR, "maxItems": 3}, "powers_of_two": {**_PAIR, "items": {"type": "integer", "minimum": 1}}},
    "description": "{range: [first, last, step]}, the last one included, or {powers_of_two: [first, last]}",
}


def main() -> None:
    """Write all schemas anew."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """The text of each schema, by the name of its file."""
    made = {"spec": spec(), "nightly": nightly(), "hardware": hardware(), "stack": stack()}
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}  # what editors know best
    return {
        f"{name}.json": json.dumps(head | _plain(schema), indent=1, ensure_ascii=False) + "\n" for name, schema in made.items()
    }


def spec() -> Schema:
    """Of the spec of a sweep."""
    made, fields = SweepSpec.model_json_schema(), {name: _field(field) for name, field in FIELDS.items()}
    definitions, top = made["$defs"], made["properties"]
    model, of_hardware, of_stack = Model.model_json_schema(), _hardware_value(), _stack_value()
    definitions |= _units() | {name: _without(each, "required") for name, each in model["$defs"].items()}
    definitions |= {f"field_{name}": schema for name, schema in fields.items()} | {"ladder": LADDER}
    definitions["hardware"] = {"anyOf": [_ref("hardware_name"), *of_hardware]}
    definitions["stack"] = {
        "anyOf": [_name(stack_names(), FILE, "a stack (`sweep stack` lists them) or a YAML page"), *of_stack]
    }
    definitions["model"] = {
        "anyOf": [
            _name(
                model_names(), r"/|\.(json|ya?ml|txt|sh|slurm)$", "a model (`sweep model` lists them), or a path with a / in it"
            ),
            _section(model["properties"] | {"preset": {"type": "string"}}, model["description"]),
        ]
    }
    named = {name: _ref(f"field_{ALIASES.get(name, name)}") for name in (*FIELDS, *ALIASES)}
    of_axes = named | {STACK_AXIS: _ref("stack"), "hardware": _ref("hardware_name")}
    of_axes |= {f"hardware.{name}": _of_unit(unit) for name, (_, unit) in HARDWARE_KEYS.items()}
    one = "|".join(map(re.escape, of_axes))
    definitions["axes"] = {
        **_section(
            {name: {"anyOf": [{**LIST, "items": value}, _ref("ladder")]} for name, value in of_axes.items()},
            "Values of fields.",
        ),
        "patternProperties": {rf"^\s*({one})(\s*,\s*({one}))+\s*$": {**LIST, "items": {"type": "array", "minItems": 2}}},
    }
    definitions["fixed"] = _section(named, "One value of a field for all plans.")
    workload = definitions["WorkloadSpec"]["properties"]
    for name in NUMERIC_FACTS:
        workload[name] = _count(1, _MOST[name]) if name in _MOST else {"enum": [*_WIDTHS]}
    workload |= {"stack": _ref("stack"), "model": _ref("model"), "measured_on": _ref("hardware_name")}
    definitions["RepeatSpec"]["properties"]["times"] = _count(1, _MOST["times"])
    definitions["Running"]["properties"]["plan"] = _ref("fixed")
    definitions["Budget"]["properties"]["tokens"] = _tokens()
    failing = definitions["Failures"]["properties"]
    failing |= {name: _of_unit("B/s" if "bandwidth" in name else "s") for name in failing if name != "per_gpu_hour"}
    definitions |= {"column": _columns(), "hardware_name": _hardware_name()}
    columns = _ref("column")
    wishes = [_section({each: columns}, "", [each]) for each in ("minimize", "maximize")]
    top |= {
        "model": _ref("model"),
        "workload": _or(_ref("WorkloadSpec"), {"type": "string", "minLength": 1}),
        "hardware": _ref("hardware"),
        "axes": _ref("axes"),
        "fixed": _ref("fixed"),
        "fidelity": _or(_ref("field_fidelity"), {**LIST, "items": _ref("field_fidelity")}),
        "where": _texts(),
        "per": _or(columns, {"type": "array", "items": columns}),
        "objectives": {"type": "array", "minItems": 1, "items": {"anyOf": [*wishes, _ref("Objective")]}},
        "budget": _or(_ref("Budget"), _tokens()["anyOf"][0]),
    }
    definitions["Objective"]["properties"]["column"] = columns
    return _without(made, "required") | {"required": ["name"], "anyOf": [{"required": ["workload"]}, {"required": ["model"]}]}


def nightly() -> Schema:
    """Of a nightly file."""
    made = NightlySpec.model_json_schema()
    definitions, top = made["$defs"], made["properties"]
    definitions["SweepEntry"]["properties"]["set"] = _texts()
    for name in ("best", "median_step"):
        part = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
        definitions["Thresholds"]["properties"][name] = _or(
            part, _text(r"^([0-9]+\.?[0-9]*|\.[0-9]+)\s*%$", "such as 1 %"), {"type": "null"}
        )
    definitions["Notify"]["properties"]["timeout"] = _text(r"^([0-9]+\.?[0-9]*|\.[0-9]+)\s*s$", "seconds, such as 10 s")
    top["sweeps"]["items"] = _or(_ref("SweepEntry"), {"type": "string", "minLength": 1})
    top["notify"] = _or(_ref("Notify"), {"type": "array", "items": _ref("Notify")})
    top["heartbeat"] = {"type": "string"}
    return made


def hardware() -> Schema:
    """Of a hardware file."""
    made = Hardware.model_json_schema()
    made["$defs"] |= _units() | {"Told": made["$defs"]["Told"]}
    for name, record in _SECTIONS.items():
        section = made["$defs"][record.__name__]["properties"]
        section |= {key: _sourced(key) for key, (of, _) in HARDWARE_KEYS.items() if of == name}
    return made


def stack() -> Schema:
    """Of the page of a stack."""
    made = Stack.model_json_schema()
    made["$defs"] = _units()
    made["properties"] |= {name: _fact(name) for name in STACK_FACTS}
    return made


def _field(field: Field) -> Schema:
    """A value of a field of plans."""
    made: Schema
    if field.kind == "switch":
        made = {"type": "boolean"}
    elif field.words:
        made = {"enum": [*field.words]}
    elif field.label:
        made = LABELS[field.name]
    elif field.unit:
        made = _of_unit(field.unit)
    else:
        kind = "number" if field.is_real else "integer"
        made = {"type": kind, "minimum": field.least, "maximum": field.most}
    return made | {"description": field.doc}


def _modules(words: Iterable[str]) -> str:
    one = "|".join(words)
    return rf"({one})(\+({one}))*"


LABELS: Final[Mapping[str, Schema]] = {
    "checkpointing": {
        "anyOf": [
            {"enum": [word for word in CHECKPOINTING[:MODULES] if word not in ("every", "block")]},
            {
                "type": "string",
                "pattern": rf"^((every|block):0*[1-9][0-9]{{0,5}}|{_modules(RECOMPUTE_MODULES)})$",
                "patternErrorMessage": "none, file, full, selective, every:K, block:K, or modules joined by +",
            },
        ]
    },
    "layer_split": {
        "anyOf": [
            {"enum": [*SPLITS[:LISTED]]},
            {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 999_999}},
            {"type": "string", "pattern": r"^\s*[0-9]{1,6}\s*(,\s*[0-9]{1,6}\s*)*$", "patternErrorMessage": "as 8,10,10,8"},
        ]
    },
    "expert_imbalance": {
        "anyOf": [
            {"enum": [*IMBALANCES]},
            {"type": "number", "minimum": 1, "maximum": 65_536},
            {"type": "string", "pattern": rf"^(zipf:)?{NUMBER}$", "patternErrorMessage": "a factor from 1, or zipf:1.0"},
        ]
    },
    "activation_offload": {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": 1},
            {
                "type": "string",
                "pattern": rf"^({NUMBER}|{_modules(OFFLOAD_MODULES)})$",
                "patternErrorMessage": "a share from 0 to 1, or modules joined by +",
            },
        ]
    },
}  # fmt: skip
"""Of the fields whose values are texts with numbers in them (sim_core/planning/labels.py)."""


def _units() -> dict[str, Schema]:
    """A number with its unit, for each unit: every spelling that is read."""
    return {_unit_name(unit): _quantity(unit) for unit in UNIT_OF}


def _unit_name(unit: str) -> str:
    return f"number_in_{unit.replace('/s', '_per_s')}"


def _quantity(unit: str) -> Schema:
    usual = ((each, word.removesuffix(each)) for each in _USUAL[unit] for word in _DIMENSIONS[unit] if word.endswith(each))
    spelled = {*_DIMENSIONS[unit]} | {start + word for each, start in usual for word in (each, *_USUAL[unit][each].split())}
    cased = {each for word in spelled for each in (word, word.lower(), word[0].lower() + word[1:], word[0].upper() + word[1:])}
    micro = {mark + word[1:] for word, mark in product(cased, "\u00b5\u03bc") if word[0] == "u"}
    read = sorted(filter(lambda word: _reads(word, unit), cased | micro), key=lambda word: (-len(word), word))
    expected = f"a number with its unit, such as {UNIT_OF[unit]}"
    text = {"type": "string", "pattern": rf"^\s*{NUMBER}\s*({'|'.join(read)})\s*$", "patternErrorMessage": expected}
    return {"anyOf": [text, {"const": 0}], "description": expected.capitalize() + "."}


def _reads(word: str, unit: str) -> bool:
    try:
        return quantity(f"1 {word}", unit) > 0
    except SpecError:
        return False


def _of_unit(unit: str) -> Schema:
    """A number of a unit, plain if it has none, or true or false."""
    if unit == SWITCH:
        return {"type": "boolean"}
    return _ref(_unit_name(unit)) if unit else {"anyOf": [{"type": "number", "minimum": 0}, _text(rf"^{NUMBER}$", "a number")]}


def _sourced(key: str) -> Schema:
    """A number of a hardware file: bare, or with its source."""
    unit = HARDWARE_KEYS[key][1]
    value = _of_unit(unit)
    if not unit and key in (*_POSITIVE, *_PARTS):
        value = {"type": "number", "exclusiveMinimum": 0, **({"maximum": 1} if key in _PARTS else {})}
    inside = {"value": value, "source": {"type": "string", "minLength": 1}, "told": _ref("Told")}
    return {"anyOf": [value, _section(inside, "", ["value", "source"])]}


def _fact(name: str) -> Schema:
    """A fact of a stack: bare, or with its source."""
    fact = STACK_FACTS[name]
    one: Schema
    if fact.unit in ("true or false", "devices"):
        one = {"type": "boolean"} if fact.unit == "true or false" else {"type": "array", "items": {"type": "string"}}
    elif " | " in fact.unit:
        one = {"enum": fact.unit.split(" | ")}
    elif fact.unit:
        one = _of_unit(fact.unit)
    else:
        one = {"type": "number", "minimum": fact.least, "maximum": fact.most}
    if fact.pair or fact.several:
        one = {"type": "array", "items": one, "minItems": 2 if fact.pair else 1, **({"maxItems": 2} if fact.pair else {})}
    if fact.by_device:
        one = _or(one, {"type": "object", "minProperties": 1, "additionalProperties": one})
    if fact.optional:
        one = _or(one, {"type": "null"})
    inside = {"value": one, "source": {"type": "string", "minLength": 1}}
    return _or(one, _section(inside, "", ["value", "source"])) | {"description": fact.what}


def _hardware_name() -> Schema:
    one, fabric = "|".join(map(re.escape, preset_names())), "|".join(map(re.escape, fabric_names()))
    expected = "a preset (`sweep hardware` lists them), PRESET+FABRIC, or a YAML file"
    return _name(preset_names(), rf"^({one})\+({fabric})$|{FILE}", expected)


def _hardware_value() -> list[Schema]:
    """Hardware of a spec: a preset with other numbers, or written out."""
    numbers = {key: _of_unit(unit) for key, (_, unit) in HARDWARE_KEYS.items()}
    written = {name: {"type": "object"} for name in _SECTIONS} | {"name": {"type": "string"}}
    return [_section({"preset": _ref("hardware_name")} | numbers | written, "A preset with other numbers."), {"type": "null"}]


def _stack_value() -> list[Schema]:
    """Stack of a spec: a preset with other facts."""
    words = (*FEATURES, *FEATURE_NAMES)
    own = {
        "preset": {"type": "string"},
        "framework": {"type": "string", "minLength": 1, "maxLength": 60},
        "release": {"type": "string"},
        "features": _or({"type": "string"}, _section({name: {} for name in words}, "")),
    }
    return [_section(own | {name: _fact(name) for name in STACK_FACTS}, "A preset with other facts."), {"type": "null"}]


def _columns() -> Schema:
    """Names of columns, as they are written where one is asked for."""
    names = [*MEASURES, *FIELDS, *HARDWARE_KEYS, *SHORT_NAMES, *SHORT_PARTS, "hardware", STACK_AXIS, "status", "reason", "plan"]
    bare = [name.removesuffix(unit) for name in names for unit in UNITS if name.endswith(unit)]
    return {"enum": sorted({*names, *(f"hardware.{key}" for key in HARDWARE_KEYS), *bare} - {*NOT_STORED})}


def _name(words: Iterable[str], pattern: str, expected: str) -> Schema:
    """One of some names, or a text of a form."""
    return {"anyOf": [{"enum": [*words]}, _text(pattern, expected)], "description": expected}


def _text(pattern: str, expected: str) -> Schema:
    return {"type": "string", "pattern": pattern, "patternErrorMessage": expected}


def _texts() -> Schema:
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}


def _tokens() -> Schema:
    above = {"type": "number", "exclusiveMinimum": 0}
    return {"anyOf": [_text(rf"^\s*{NUMBER}\s*[kKMBGT]?\s*$", "a number of tokens, such as 15T"), above]}


def _count(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _or(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def _section(properties: Schema, what: str, required: Iterable[str] = ()) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return made | ({"description": what} if what else {}) | ({"required": [*required]} if required else {})


def _without(schema: Schema, key: str) -> Schema:
    return {name: value for name, value in schema.items() if name != key}


def _plain(value: Any) -> Any:
    """Without the titles that pydantic makes of names, and with descriptions on one line."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return " ".join(value.split()) if isinstance(value, str) and "\n" in value else value
    return {key: _plain(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}


if __name__ == "__main__":
    main()
