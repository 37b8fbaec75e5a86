"""The `workload:` section of a spec, a file with facts or a model in numbers, and the workload that it means."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sim_core import (
    ASSUMED,
    Facts,
    Model,
    SimError,
    SpecError,
    Workload,
    parse_model,
    read_calibrated,
    read_hardware,
    read_model,
    read_workload,
    shown,
    workload_from_model,
)
from sim_core.documents import Document, Words
from sim_core.models.features import with_capacity
from sim_core.records import Record
from sim_core.workloads.facts import FACTS, NUMERIC_FACTS, Repeat, misfit
from sweep.spec.stacks import Framework, check_stack, framework_of

STORED = "stored"
"""The context in which the spec of a stored result is validated."""
MODEL_KEYS = ("model", "stack", "sequence_parallel")
"""Keys of `workload` that need a model."""
FILE_KEYS = tuple(name for name in FACTS if name != "sequence")
"""Keys of `workload` that need a file; `sequence` goes with both."""


class Section(Record):
    """A section of a spec: immutable, no unknown keys; the JSON that is stored of it reads back as the same section."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)


def from_text(key: str) -> Any:
    """A validator that takes a text as a mapping with this one key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _model(value: object) -> object:
    """The name or path of a model as a mapping. Raises ValueError."""
    if value is None or isinstance(value, Mapping):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError(f"found {shown(value)}, expected a name, a path, or a mapping of numbers")
    return {"preset": value}


def _within_bounds(value: object, info: ValidationInfo) -> object:
    """A fact, as a validator of its field. Raises ValueError."""
    if wrong := misfit(str(info.field_name), value):
        raise ValueError(wrong)
    return value


class RepeatSpec(Section):
    """Rows of an operator table that represent one of `times` equal layers."""

    first: str = Field(alias="from")
    last: str = Field(alias="to")
    times: int

    _bounds = field_validator("times", mode="before")(_within_bounds)


class WorkloadSpec(Section):
    """The workload: `path` (a file, a folder of rank traces or a glob) with facts that it does not contain, `model`, or both:
    a file calibrated by a model.

    A model is a name, a local file, a mapping of its numbers, or a `preset` (name or file) with some numbers changed.
    `sequence` is in tokens. Paths are relative to the spec.
    """

    path: str | None = Field(default=None, min_length=1)
    model: Annotated[Document | None, BeforeValidator(_model)] = None
    stack: Annotated[str | Document | None, BeforeValidator(check_stack)] = None
    sequence_parallel: Annotated[bool, Field(strict=True)] | None = None
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
    repeat: RepeatSpec | None = None
    bytes_per_element: int | None = None
    records: Document | None = None
    step: int | None = None

    _bounds = field_validator(*NUMERIC_FACTS, mode="before")(_within_bounds)

    @field_validator("model")
    @classmethod
    def _described(cls, model: Document | None) -> Document | None:
        """Check the numbers of a model that is written out."""
        if model is not None and "preset" not in model:
            try:
                parse_model({"name": "model", "source": "the spec"} | model, "")
            except SpecError as error:
                raise ValueError(str(error).removeprefix(": ")) from None
        return model

    @model_validator(mode="after")
    def _one_source(self) -> "WorkloadSpec":
        """A file or a model, each with its own keys, or both."""
        if self.path is None and self.model is None:
            raise ValueError("path or model: missing (a workload file, or a model: `sweep model` lists them)")
        if self.path is None:
            refused, why = FILE_KEYS, "is a fact about a file; a model has none (plans are set by axes and fixed)"
        elif self.model is None:
            refused, why = MODEL_KEYS, "needs workload.model"
        elif self.measured_on is None:
            raise ValueError("measured_on: missing; a file calibrated by a model needs the device of its times")
        else:
            return self
        for key in refused:
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: {why}; remove it")
        return self

    def facts(self) -> Facts:
        """These facts as the readers expect them."""
        facts = {name: getattr(self, name) for name in type(self).model_fields if name not in ("path", "repeat", *MODEL_KEYS)}
        return Facts(**facts, repeat=None if self.repeat is None else Repeat(**dict(self.repeat)))


class Unread(SpecError):
    """A reader of workloads refuses the file at `path`, which may be of another kind."""

    def __init__(self, path: Path, error: SimError) -> None:
        super().__init__(str(error))
        self.path = path


def workload_of(section: WorkloadSpec, base: Path, device: str = "") -> tuple[Workload, Words]:
    """The workload that a section means, its paths relative to `base`, and warnings; `device`: what its stack's recipes are
    for. Raises SpecError.
    """
    parallel = section.sequence_parallel
    if section.model is not None and section.path is None:
        model = _model_of(section, base)
        framework = _framework(section, base, model.name, device)
        model = with_capacity(model, framework.recipe)
        usual = framework.recipe.plan
        workload = workload_from_model(model, framework.stack, sequence_parallel=parallel is not False, usual=usual)
        assumed = (f"model {model.name}, {model.source}",) if ASSUMED in model.source else ()
        return replace(workload, notes=(*workload.notes, *framework.notes)), assumed
    stack = _framework(section, base).stack
    path = base / str(section.path)
    try:
        if section.model is None or section.measured_on is None:
            return read_workload(str(path), section.facts())
        model, recorded_on = _model_of(section, base), read_hardware(section.measured_on, base)
        return read_calibrated(str(path), section.facts(), model, stack, recorded_on, sequence_parallel=parallel)
    except SimError as error:
        raise Unread(path, error) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"workload.path: {getattr(error, 'strerror', None) or error}: {path}") from None


def _framework(section: WorkloadSpec, base: Path, model: str = "", device: str = "") -> Framework:
    try:
        return framework_of(section.stack, model, device, base)
    except SpecError as error:
        raise SpecError(f"workload.stack: {error}") from None


def _model_of(section: WorkloadSpec, base: Path) -> Model:
    """The model of a section, whose sequence is known. Raises SpecError."""
    try:
        model = _described_model(section, base)
    except (OSError, SpecError) as error:
        raise SpecError(f"workload.model: {getattr(error, 'strerror', None) or error}") from None
    if model.sequence is None:
        what = f"model {model.name} does not say how long its sequences were (set workload.sequence, in tokens)"
        raise SpecError(f"workload.model: {what}")
    return model


def _described_model(section: WorkloadSpec, base: Path) -> Model:
    document = dict(section.model or {})
    values = {} if section.sequence is None else {"sequence": section.sequence}
    if "preset" not in document:
        return parse_model({"name": "model", "source": "the spec"} | document | values, "of the spec")
    preset = document.pop("preset")
    if not isinstance(preset, str):
        raise SpecError(f"preset: found {shown(preset)}, expected the name of a model or a path")
    changes: Document = {}  # numbers inside sections by dotted names, so that those not given stay as they are
    for key, value in document.items():
        changes |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, Mapping) else {key: value}
    return read_model(preset, {**changes, **values}, base)
