"""A cell of a table of runs: what a plan field reads of it, what it should hold, and how a value is written."""

import json
from collections.abc import Mapping

import yaml

from sim_core import PLAN_FIELDS
from sim_core.limits import whole_number


def value_in(name: str, text: str) -> object:
    """A cell as the value of a plan field."""
    kind = PLAN_FIELDS[name].kind
    if kind == "switch":
        return text == "true"
    if kind in ("number", "ratio", "factor"):
        return int(text) if kind == "number" else float(text)
    return json.loads(text) if text.startswith("[") else text


def misfit(name: str, text: str) -> str:
    """What is expected of a plan field whose cell does not hold it; empty if it does."""
    field = PLAN_FIELDS[name]
    if field.kind == "switch":
        return "" if text in ("true", "false") else "true or false"
    if field.words:
        return "" if text in field.words else "one of " + ", ".join(field.words)
    if field.kind in ("number", "ratio", "factor"):
        fits = field.least <= number_in(text) <= field.most and (field.kind != "number" or text.isdigit())
        least, most = field.least, field.most
        return "" if fits else whole_number(int(least), int(most)) if field.kind == "number" else f"{least:g} to {most:g}"
    return ""


def cell_of(value: object) -> str:
    """A value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return yaml.safe_dump(dict(value), sort_keys=False, width=10**6, default_flow_style=True).rstrip()
    return json.dumps(value) if isinstance(value, bool | list) else str(value)


def number_in(text: str) -> float:
    """The number in a cell; NaN if it holds none."""
    try:
        return float(text) if text.isascii() and "_" not in text and len(text) <= 40 else float("nan")
    except ValueError:
        return float("nan")
