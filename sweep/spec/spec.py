"""The spec of a sweep: a YAML file, validated as it is read, as an immutable `SweepSpec`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from sim_core import ALTERNATIVES, HARDWARE_KEYS, SpecError, named, nearest, shown
from sim_core.documents import Document, Lines, Values, Words
from sweep.spec.budget import Budget
from sweep.spec.document import apply_sets, bare_size, read_spec, validated, with_line
from sweep.spec.failures import Failures
from sweep.spec.other_names import elsewhere, meant
from sweep.spec.values import ALIASES, FIELDS, STACK_AXIS, Value, check_value
from sweep.spec.workloads import STORED, Section, WorkloadSpec, from_text

MAX_AXIS_VALUES = 100_000
_OF_PRESET = BeforeValidator(lambda it: {} if it is None else {"preset": it} if isinstance(it, str) else it)
"""A hardware's name or path as a mapping; empty if an axis names the hardware."""
_Texts = Annotated[Words, BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class Sample(Section):
    """Simulate `n` plans, drawn without replacement, instead of all."""

    n: int = Field(ge=1)
    seed: int = Field(default=0, ge=0)


class StoreSpec(Section):
    """Who writes the slices of a run on a cluster; `auto`: the workers, if all of them can reach `--out`."""

    writer: Literal["auto", "driver", "worker"] = "auto"


class Running(Section):
    """A job that runs: fields of its plan by name, seconds of its step and GiB of a GPU (None: not measured yet), the spread of
    its steps."""

    plan: dict[str, bool | int | float | str] = Field(min_length=1)
    step_time_s: Annotated[float, Field(gt=0, le=1e6, strict=True)] | None = None
    peak_memory_gib: Annotated[float, Field(gt=0, le=1e5, strict=True)] | None = None
    spread: Annotated[float, Field(ge=0, le=10, strict=True)] = 0.0


class Objective(Section):
    """A result column to rank by."""

    short_forms: ClassVar = ("minimize", "maximize")

    column: str
    direction: Literal["minimize", "maximize"]


def _objective(value: object) -> object:
    if isinstance(value, Mapping) and len(value) == 1:
        ((direction, column),) = value.items()
        return {"column": column, "direction": direction}
    return value


class SweepSpec(Section):
    """A whole spec. `axes` maps a field (or several, comma-separated, which are zipped) to its values, slowest axis first.

    The result is ranked by `objectives` (ties by the next one) within each group of `per`.
    """

    short_forms: ClassVar = ("model", "fidelity")
    """Keys that stand for one inside a section: `workload.model`, `fixed.fidelity` or `axes.fidelity`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    workload: Annotated[WorkloadSpec, from_text("path")]
    hardware: Annotated[Document, _OF_PRESET] = Field(default_factory=dict)
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    fixed: Document = Field(default_factory=dict)
    where: _Texts = ()
    objectives: Annotated[tuple[Annotated[Objective, BeforeValidator(_objective)], ...], Field(min_length=1)] = (
        Objective(column="gpu_s_per_sample", direction="minimize"),
    )
    per: _Texts = ()
    sample: Sample | None = None
    store: StoreSpec = StoreSpec()
    budget: Annotated[Budget | None, from_text("tokens")] = None
    failures: Failures | None = None
    running: Running | None = None

    @property
    def named(self) -> set[str]:
        """Fields that are an axis, alone or zipped with others, or have a fixed value."""
        return {*",".join(self.axes).split(","), *self.fixed} - {""}

    def values_of(self, name: str) -> list[Any]:
        """The values that an axis, alone or zipped with others, gives a field; empty without one."""
        for key, rows in self.axes.items():
            names = key.split(",")
            if name in names:
                return [row[names.index(name)] for row in rows] if len(names) > 1 else rows
        return []

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, document: Any) -> Any:
        """Replace aliases by our names and ladders by lists; check every value against its field."""
        if not isinstance(document, Mapping):
            return document
        expanded = dict(document)
        if expanded.pop("stragglers", None) is not None:  # earlier versions stored null
            raise ValueError("stragglers: is no section any more, expected the axes straggler_factor and straggler_stage")
        if "model" in expanded and not isinstance(expanded.get("workload") or {}, Mapping):
            expanded["workload"] = {"path": expanded["workload"]}
        fidelities = "axes" if isinstance(expanded.get("fidelity"), list) else "fixed"
        for key, section in zip(cls.short_forms, ("workload", fidelities), strict=True):
            inside = expanded.get(section) or {}
            if key not in expanded:
                continue
            value = expanded.pop(key)
            if isinstance(inside, Mapping):
                if key in inside:
                    raise ValueError(f"{key}: is given at the top level and under {section}; remove one")
                expanded[section] = {**inside, key: value}
        if expanded.get("workload") is None and set(expanded) <= {*cls.model_fields, *cls.short_forms}:
            raise ValueError("workload or model: missing (a workload file, or a model: `sweep model` lists them)")
        for section, checked in (("axes", _axes), ("fixed", _fixed)):
            if isinstance(expanded.get(section), Mapping):
                expanded[section] = checked(expanded[section])
        return expanded

    @model_validator(mode="after")
    def _consistent(self) -> "SweepSpec":
        named = self.named
        for name in ",".join(self.axes).split(","):
            if name in self.fixed:
                raise ValueError(f"fixed.{name}: is also an axis; remove one")
        for a, b in ALTERNATIVES:
            if {a, b} <= named:
                raise ValueError(f"{a} and {b} are both given, but one follows from the other")
        for name, value in self.running.plan.items() if self.running else ():
            check_value(_field_name(name, "running.plan"), value, f"running.plan.{name}")
        if STACK_AXIS in named and self.workload.model is None:
            raise ValueError("axes.stack: needs workload.model; a file's times hold those of its stack")
        if STACK_AXIS in named and self.workload.stack is not None:
            raise ValueError("workload.stack: is also an axis; remove one")
        if not self.hardware and "hardware" not in named:
            raise ValueError("hardware: missing (a preset name, a path, or numbers)")
        return self


def _field_name(key: object, section: str) -> str:
    """Our name of an axis or fixed value."""
    name = ALIASES.get(str(key), str(key))
    known = (*FIELDS, STACK_AXIS, "hardware", *(f"hardware.{k}" for k in HARDWARE_KEYS))
    if name not in known:
        wrong = f"unknown name, {elsewhere(name) or meant(name, (*known, *ALIASES))}"
    elif section == "fixed" and name.startswith("hardware"):
        wrong = "fixed hardware belongs under `hardware:`"
    elif section == "fixed" and name == STACK_AXIS:
        wrong = "a fixed stack belongs under `workload:`"
    else:
        return name
    raise ValueError(f"{section}.{named(key)}: {wrong}")


def _fixed(section: Mapping[object, object]) -> dict[str, Value]:
    fixed = {}
    for key, value in section.items():
        name = _field_name(key, "fixed")
        if name in fixed:
            raise ValueError(f"fixed.{key}: {name} is given twice")
        fixed[name] = check_value(name, value, f"fixed.{key}")
    return fixed


def _axes(section: Mapping[object, object]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for key, values in section.items():
        names = [_field_name(part.strip(), "axes") for part in str(key).split(",")]
        listed = _ladder(key, values)
        if names == ["layer_split"] and all(isinstance(value, int) for value in listed):
            expected = f"a list of splits; for one list of layers per virtual stage: [{listed}]"
            raise ValueError(f"axes.{key}: found {shown(listed)}, expected {expected}")
        for name in names:
            if name in ",".join(axes).split(","):
                raise ValueError(f"axes.{key}: {name} is given in two axes")
        checked = []
        for row in listed if len(names) > 1 else [[value] for value in listed]:
            if not isinstance(row, list) or len(row) != len(names):
                expected = f"{len(names)} values per row, one for each name of the axis"
                raise ValueError(f"axes.{key}: found {shown(row)}, expected {expected}")
            values_of_row = [check_value(name, value, f"axes.{key}") for name, value in zip(names, row, strict=True)]
            checked.append(values_of_row if len(names) > 1 else values_of_row[0])
        if len({repr(value) for value in checked}) < len(checked):
            raise ValueError(f"axes.{key}: a value is given twice in {shown(checked)}")
        axes[",".join(names)] = checked
    return axes


def _ladder(key: object, values: object) -> list[Any]:
    """`[a, b]`, `{range: [first, last, step]}` (last included) or `{powers_of_two: [first, last]}` as a list."""
    if isinstance(values, list):
        if 0 < len(values) <= MAX_AXIS_VALUES:
            return values
        found = f"found {len(values):,} values, expected at most {MAX_AXIS_VALUES:,}"
        raise ValueError(f"axes.{key}: {found if values else 'an empty list, expected at least one value'}")
    if isinstance(values, Mapping) and len(values) == 1:
        ((kind, bounds),) = values.items()
        whole = isinstance(bounds, list) and all(isinstance(b, int) and not isinstance(b, bool) for b in bounds)
        if kind not in ("range", "powers_of_two"):
            raise ValueError(f"axes.{key}: unknown ladder, {nearest(str(kind), ('range', 'powers_of_two'))}")
        if kind == "range" and whole and len(bounds) in (2, 3):
            first, last, step = (*bounds, 1)[:3]
            if step < 1 or last < first or (last - first) // step >= MAX_AXIS_VALUES:
                expected = f"first <= last, step >= 1, at most {MAX_AXIS_VALUES:,} values"
                raise ValueError(f"axes.{key}: range {bounds}: expected {expected}")
            return list(range(first, last + 1, step))
        if kind == "powers_of_two" and whole and len(bounds) == 2 and 1 <= bounds[0] <= bounds[1] <= 2**40:
            if powers := [2**k for k in range(bounds[1].bit_length()) if 2**k >= bounds[0]]:
                return powers
            raise ValueError(f"axes.{key}: no power of two is within {bounds}")
        raise ValueError(f"axes.{key}: found {shown(bounds)}, expected {{{kind}: [first, last{', step' * (kind == 'range')}]}}")
    of_field = key in FIELDS and not isinstance(values, Mapping)
    if of_field and "," not in str(values):
        check_value(str(key), values, f"axes.{key}")
    such = f", such as [{values}]" * of_field
    raise ValueError(f"axes.{key}: found {shown(values)}, expected a list{such}, a range or powers_of_two")


def load_spec(path: Path, sets: Sequence[str] = ()) -> SweepSpec:
    """The spec at `path` with `--set` assignments. Raises SpecError with file, line, key and value."""
    document, lines = read_spec(path)
    if not {*SweepSpec.model_fields} & {*document} and {"hidden_size", "model_type"} & {*document}:
        raise SpecError(f"{path}: is a model, not a sweep; `sweep init {path}` writes one for it")
    lines |= {("workload", *key): line for key, line in lines.items() if key[0] == "model"}
    return checked_spec(apply_sets(document, sets), str(path), lines, sets)


def checked_spec(document: Values, where: str, lines: Lines | None = None, sets: Sequence[str] = ()) -> SweepSpec:
    """A user's document as a spec. Raises SpecError, which begins with `where` and the line of its key, or the --set."""
    spec = validated(SweepSpec, document, where, lines or {}, sets)
    if problem := bare_size(document):
        raise with_line(SpecError(f"{where}: {problem}"), where, lines or {}, sets)
    return spec


def stored_spec(stored: object) -> SweepSpec:
    """The spec that a result holds, as this version stores it or an earlier one did. Raises ValidationError."""
    return SweepSpec.model_validate(stored, context=STORED)
