"""Facts that users give about a workload's file, each within its bounds: specs take both from here."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from sim_core.errors import SpecError, shown
from sim_core.limits import LARGEST, whole_number


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The rows of an operator table from one operator to another, inclusive, are one of `times` equal layers."""

    first: str
    last: str
    times: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a workload that its file does not hold; None: unknown.

    `micro_batch` (sequences) and `sequence` (tokens) are those of the recording, `measured_on` is the hardware preset of its
    compute times; tp .. layers are the plan of the recording, for kinds of file without it; `ffn` is the width of the MLP,
    `experts` are those of a layer, `heads` those of attention. `records`: values in place of the file's, `{name: value}`
    (docs/aicb.md).
    `step` is one of several in a trace, counted from 1. Raises SpecError for a value that a fact cannot have.
    """

    micro_batch: int | None = None
    sequence: int | None = None
    measured_on: str | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    all_gpus: int | None = None
    layers: int | None = None
    ffn: int | None = None
    experts: int | None = None
    heads: int | None = None
    repeat: Repeat | None = None
    bytes_per_element: int | None = None
    records: Mapping[str, object] | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(f"workload.{field.name}", field.name, getattr(self, field.name))
        if self.repeat:
            _check("workload.repeat.times", "times", self.repeat.times)


FACTS = tuple(field.name for field in fields(Facts))


def misfit(name: str, value: object) -> str:
    """What is wrong with the value of a fact, or with `times` of a `Repeat`; empty if nothing is. None is a fact unknown."""
    if name in _TYPES:
        kind, expected = _TYPES[name]
        fits = isinstance(value, kind)
    else:
        allowed = _WIDTHS if name == "bytes_per_element" else range(1, _MOST[name] + 1)
        expected = "1, 2, 4 or 8" if allowed == _WIDTHS else whole_number(1, _MOST[name])
        fits = type(value) is int and value in allowed
    return "" if value is None or fits else f"found {shown(value)}, expected {expected}"


def _check(key: str, name: str, value: object) -> None:
    if wrong := misfit(name, value):
        raise SpecError(f"{key}: {wrong}")


_TYPES: Mapping[str, tuple[type, str]] = {
    "measured_on": (str, "the name of a hardware preset"),
    "repeat": (Repeat, "a Repeat"),
    "records": (Mapping, "a mapping of names to values"),
}
_WIDTHS = (1, 2, 4, 8)
_MOST = {**LARGEST, **dict.fromkeys(("layers", "times"), 100_000), "pp": 4096}  # stages of a trace all meet: seconds
NUMERIC_FACTS = tuple(name for name in FACTS if name not in _TYPES)
"""Facts that are whole numbers."""
