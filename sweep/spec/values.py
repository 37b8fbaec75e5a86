"""The values of axes and fixed fields: by the row of each field, what it takes, and the error that says so."""

from typing import Any

from sim_core import HARDWARE_KEYS, PLAN_FIELDS, SWITCH, PlanField, SpecError, nearest, quantity, shown
from sim_core.limits import whole_number
from sweep.spec.other_names import value_meant
from sweep.spec.stacks import check_stack

FIELDS = {name: field for name, field in PLAN_FIELDS.items() if field.is_set}
"""What an axis or a fixed value may set, besides `hardware` and `hardware.<number>`."""
ALIASES = {alias: name for name, field in FIELDS.items() for alias in field.aliases}
"""Other names of plan fields: those of the SimAI header that differ from ours, and common long and short forms."""
STACK_AXIS = "stack"
"""An axis over software stacks: names, or presets with facts of your own, as `workload.stack` takes them."""
_SWITCHES = {f"hardware.{key}" for key, (_, unit) in HARDWARE_KEYS.items() if unit == SWITCH}

Value = int | float | str | bool


def check_value(name: str, value: object, where: str) -> Any:
    """`value` as the field `name` takes it. Raises ValueError naming `where`."""
    if name in FIELDS:
        return _field_value(FIELDS[name], value, where)
    if name == STACK_AXIS:
        if value is None:
            raise ValueError(f"{where}: found null, expected the name of a stack, or a preset and facts")
        try:
            return check_stack(value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if name in _SWITCHES:
        return _switch(value, where)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{where}: found {shown(value)}, expected a name or a number")
    return value


def _field_value(field: PlanField, value: Any, where: str) -> Value:
    """`value` as a field of plans takes it. Raises ValueError naming `where`."""
    if (ours := value_meant(field.name, value)) and value not in field.words:
        raise ValueError(f"{where}: found {shown(value)}, expected {ours}")
    if field.kind == "switch":
        return _switch(value, where)
    if field.words:
        if value not in field.words:
            raise ValueError(f"{where}: found {shown(value)}, {nearest(str(value), field.words)}")
        return str(value)
    try:
        if field.label:
            text = field.label.text(value)
            field.label.codes([text])
            return text
        if field.unit and isinstance(value, str):
            value = int(quantity(value, field.unit))
    except SpecError as error:
        told = str(error).replace(field.name, where, 1) if field.label else f"{where}: {error}"
        raise ValueError(told) from None
    number = isinstance(value, int | float if field.is_real else int) and not isinstance(value, bool)
    if not number or not field.least <= value <= field.most:
        if field.kind == "number":
            expected = whole_number(int(field.least), int(field.most))
        else:
            least = "above 0" if 0 < field.least < 1e-6 else f"from {field.least:g}"
            expected = f"a number {least} to {field.most:g}"
        raise ValueError(f"{where}: found {shown(value)}, expected {expected}")
    return float(value) if field.is_real else value


def _switch(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: found {shown(value)}, expected true or false")
    return value
