"""What a fact of a stack is: a value with unit, range and source; who uses it, and which run would tell it."""

from collections.abc import Mapping
from math import isclose
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from sim_core.errors import SpecError, shown
from sim_core.units import quantity, short

SWITCH = "true or false"
DEVICES = "devices"
CODE = "none: read it in the framework's code"


class Fact(NamedTuple):
    """One row of the page of facts: the annotation of a field of `Stack`.

    `unit`: `s`, `B`, `` for plain numbers, DEVICES for a list of them; of a field that is true or false SWITCH, of one with
    some words these, joined by " | " (`of`).
    """

    what: str
    used_by: str
    unit: str = ""
    told_by: str = CODE
    least: float = 0.0
    most: float = 1e15
    among: tuple[float, ...] = ()  # the only values, where few are meant
    by_device: bool = False  # one value, or one for each device
    several: bool = False  # a list of values
    pair: bool = False  # a value for the forward and one for the backward; `of` says so, and what follows
    optional: bool = False  # null: nothing is said

    def of(self, kind: Any) -> "Fact":
        """This fact as the field that it annotates has it, by the type of that field."""
        kinds = kind, *get_args(kind)
        words = next((" | ".join(get_args(each)) for each in kinds if get_origin(each) is Literal), self.unit)
        unit = SWITCH if bool in kinds else words
        return self._replace(unit=unit, pair=tuple[float, float] in kinds, optional=NoneType in kinds)

    def read(self, value: object) -> Any:
        """The value in SI. Raises SpecError: what was found, what was expected."""
        if value is None and self.optional:
            return None
        if self.unit == DEVICES:
            if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
                raise SpecError(f"found {shown(value)}, expected a list of devices")
            return tuple(value)
        if self.pair:
            if not isinstance(value, list | tuple) or len(value) != 2:
                raise SpecError(f"found {shown(value)}, expected two: of the forward and of the backward")
            return tuple(self._one(part) for part in value)
        if self.several:
            if not isinstance(value, list | tuple) or not value:
                raise SpecError(f"found {shown(value)}, expected a list of {self.unit.replace(' | ', ', ')}")
            return tuple(self._one(part) for part in value)
        if isinstance(value, Mapping) and self.by_device:
            if not value:
                raise SpecError(f"found {shown(value)}, expected a value, or one for each device")
            return {str(device): self._one(part) for device, part in value.items()}
        return self._one(value)

    def text(self, value: Any) -> str:
        """A value as it would be written."""
        if value is None:
            return "-"
        if isinstance(value, Mapping):
            return ", ".join(f"{device} {self.text(part)}" for device, part in value.items())
        if isinstance(value, tuple):
            return ", ".join(map(self.text, value)) or "-"
        if isinstance(value, bool):
            return str(value).lower()
        return value if isinstance(value, str) else short(value, self.unit)

    def devices(self, value: Any) -> tuple[str, ...]:
        """The devices that a value is stated for."""
        return tuple(value or ()) if self.unit == DEVICES or isinstance(value, Mapping) else ()

    def plain(self, value: Any) -> Any:
        """A value in SI as `read` takes it, as short as it can be without another meaning."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, Mapping):
            return {device: self.plain(part) for device, part in value.items()}
        if isinstance(value, tuple):
            return [self.plain(part) for part in value]
        if not self.unit:
            return value
        brief = short(value, self.unit)
        return brief if isclose(quantity(brief, self.unit), value, rel_tol=1e-12) else f"{value!r} {self.unit}"

    def _one(self, value: object) -> Any:
        if self.unit == SWITCH:
            if not isinstance(value, bool):
                raise SpecError(f"found {shown(value)}, expected true or false")
            return value
        if " | " in self.unit:
            if value not in self.unit.split(" | "):
                raise SpecError(f"found {shown(value)}, expected one of {self.unit.replace(' | ', ', ')}")
            return value
        number = quantity(value, self.unit)
        if self.among and number not in self.among:
            among = " or ".join(short(one, self.unit) for one in self.among)
            raise SpecError(f"found {shown(value)}, expected {among}")
        if not self.least <= number <= self.most:
            bounds = f"{short(self.least, self.unit)} to {short(self.most, self.unit)}"
            raise SpecError(f"found {shown(value)}, expected {bounds}")
        return number


def split_sources(page: Mapping[str, object]) -> tuple[dict[str, object], dict[str, str]]:
    """The values of a page, and the sources of those written as `{value, source}`. Raises SpecError."""
    values = {}
    sources = {}
    for name, value in page.items():
        if isinstance(value, Mapping) and "value" in value:
            if set(value) != {"value", "source"} or not isinstance(value["source"], str) or not value["source"].strip():
                raise SpecError(f"{name}: found keys {', '.join(map(str, value))}, expected value and source")
            value, sources[name] = value["value"], " ".join(value["source"].split())
        values[name] = value
    return values, sources
