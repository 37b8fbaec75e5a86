"""What pydantic finds wrong with a value, in our words: `found ..., expected ...`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sim_core import shown

_EXPECTED: Final = {
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
}
_KINDS: Final = {"int": "a whole number", "float": "a number"}
_BOUNDS: Final = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of at most {}"),
}


def told(fault: Mapping[str, Any], fields: Sequence[str]) -> str:
    """The value and what was expected, from an entry of `ValidationError.errors()`; `fields` of a section, where it is one."""
    return f"found {shown(fault['input'])}, expected {_expected(fault, fields)}"


def _expected(fault: Mapping[str, Any], fields: Sequence[str]) -> str:
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        bound = context[name]
        return text.format(f"{bound:,}" if isinstance(bound, int) else f"{bound:g}")
    if kind.partition("_")[0] in _KINDS:  # int_type, int_parsing, int_from_float, ...
        return _KINDS[kind.partition("_")[0]]
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "too_short":
        return f"at least {context['min_length']} value{'s' * (context['min_length'] != 1)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"a section with keys such as {', '.join(fields[:3])}"
    return f"another value ({fault['msg']})"
