"""Values as short text: cells with units, short names of columns, plans on one line; and records as plain values."""

from collections.abc import Mapping
from typing import Any

from sim_core import short
from sim_core.documents import Fields, Values as Values
from sweep.columns import PERCENT, SHORT_NAMES, SHORT_PARTS

SHORT_PART = {column: head for head, column in SHORT_PARTS.items()}
SHORT_COLUMN = {column: head for head, column in SHORT_NAMES.items()}
ROUNDING_S = 1e-12


def heading(name: str) -> str:
    """The short name of a column."""
    return SHORT_COLUMN.get(name, name)


def values_text(values: Values) -> str:
    """Columns with their values on one line: `tp 2, mbs 1`."""
    return ", ".join(f"{heading(name)} {cell(name, value)}" for name, value in values.items())


def span(low: str, high: str) -> str:
    """Two ends of a range as text, one where they are the same."""
    return low if low == high else f"{low} to {high}"


def cell(name: str, value: Any) -> str:
    """One value as short text, with the unit that its column name implies."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if name in PERCENT:
            return f"{value:.1%}"
        if name.endswith("_s") and not name.endswith("per_s"):
            return short(value, "s") if abs(value) >= ROUNDING_S else "0"
        for ending, unit in (("_bytes", "B"), ("bandwidth", "B/s"), ("latency", "s")):
            if name.endswith(ending):
                return short(value, unit)
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return word(value)


def word(value: object) -> str:
    """A value that needs no unit."""
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"


def plain_values(record: object, names: str) -> Fields:
    """Some fields of a record for JSON, lists and dicts in place of tuples and mappings; None: an empty text."""

    def plain(value: object) -> object:
        return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value

    return {name: None if (value := getattr(record, name)) == "" else plain(value) for name in names.split()}
