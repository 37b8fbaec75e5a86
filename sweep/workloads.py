"""The `workload:` section of a spec, a file with facts or a model in numbers, and the workload that it means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sim_core import (
    LARGEST,
    Facts,
    Model,
    Repeat,
    SpecError,
    Workload,
    parse_model,
    read_calibrated,
    read_hardware,
    read_model,
    read_stack,
    read_workload,
    shown,
    whole_number,
    workload_from_model,
)

STACK: Final = "megatron-core"
"""The stack of a model that names none."""


class Section(BaseModel):
    """A section of a spec: immutable, and no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def from_text(key: str) -> Any:
    """A validator that takes a text as a mapping with this one key."""
    return BeforeValidator(lambda given: {key: given} if isinstance(given, str) else given)


MODEL_KEYS: Final = ("model", "stack", "sequence_parallel")
"""Keys of `workload` that need a model."""
FILE_KEYS: Final = (
    *("micro_batch", "measured_on", "tp", "pp", "vpp", "ep", "all_gpus", "layers", "ffn", "experts", "heads"),
    *("repeat", "bytes_per_element", "records", "step"),
)
"""Keys of `workload` that need a file; `sequence` goes with both."""


def _model(given: object) -> object:
    """The name or path of a model as a mapping. Raises ValueError."""
    if given is None or isinstance(given, Mapping):
        return given
    if not isinstance(given, str) or not given:
        raise ValueError(f"found {shown(given)}, expected a name, a path, or a mapping of numbers")
    return {"preset": given}


class RepeatSpec(Section):
    """Rows of an operator table that represent one of `times` equal layers."""

    first: str = Field(alias="from")
    last: str = Field(alias="to")
    times: int = Field(ge=1, le=100_000)

    def rows(self) -> Repeat:
        """These rows as the reader expects them."""
        return Repeat(first=self.first, last=self.last, times=self.times)


class WorkloadSpec(Section):
    """The workload: `path` (a file, a folder of rank traces or a glob) with facts that it does not contain, `model`, or both:
    a file calibrated by a model.

    A model is a name, a local file, a mapping of its numbers, or a `preset` (name or file) with some numbers changed.
    `sequence` is in tokens. Paths are relative to the spec.
    """

    path: str | None = Field(default=None, min_length=1)
    model: Annotated[dict[str, Any] | None, BeforeValidator(_model)] = None
    stack: str | None = None
    sequence_parallel: Annotated[bool, Field(strict=True)] | None = None
    micro_batch: int | None = None
    sequence: int | None = None
    measured_on: str | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    ep: int | None = None
    all_gpus: int | None = None
    layers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    ffn: int | None = None
    experts: int | None = None
    heads: int | None = None
    repeat: RepeatSpec | None = None
    bytes_per_element: Literal[1, 2, 4, 8] | None = None
    records: dict[str, Any] | None = None
    step: int | None = None

    @field_validator(
        *("micro_batch", "sequence", "tp", "pp", "vpp", "ep", "all_gpus", "ffn", "experts", "heads", "step"), mode="before"
    )
    @classmethod
    def _within_bounds(cls, given: object, info: ValidationInfo) -> object:
        most = LARGEST[str(info.field_name)]
        if given is None or (isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= most):
            return given
        raise ValueError(f"found {shown(given)}, expected {whole_number(1, most)}")

    @field_validator("model")
    @classmethod
    def _described(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check the numbers of a model that is written out."""
        if given is not None and "preset" not in given:
            try:
                parse_model({"name": "model", "source": "the spec"} | given, "")
            except SpecError as error:
                raise ValueError(str(error).removeprefix(": ")) from None
        return given

    @field_validator("stack")
    @classmethod
    def _known(cls, given: str | None) -> str | None:
        if given is not None:
            try:
                read_stack(given)
            except SpecError as error:
                raise ValueError(str(error)) from None
        return given

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        """A file or a model, each with its own keys, or both."""
        if self.path is None and self.model is None:
            raise ValueError("path or model: missing (a workload file, or a model: `sweep model` lists them)")
        if self.path is not None and self.model is not None:
            if self.measured_on is None:
                raise ValueError("measured_on: missing; a file calibrated by a model needs the device of its times")
            return self
        of_others = FILE_KEYS if self.model is not None else MODEL_KEYS
        for key in of_others:
            if getattr(self, key) is not None:
                why = "is a fact about a file; a model has none (plans are set by axes and fixed)"
                raise ValueError(f"{key}: {why if self.model is not None else 'needs workload.model'}; remove it")
        return self

    def facts(self) -> Facts:
        """These facts as the readers expect them."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name not in ("path", "repeat", *MODEL_KEYS)}
        return Facts(**given, repeat=None if self.repeat is None else self.repeat.rows())


def workload_of(given: WorkloadSpec, base: Path) -> tuple[Workload, tuple[str, ...]]:
    """The workload that a section means, its paths relative to `base`, and warnings. Raises SpecError."""
    if given.model is not None and given.path is None:
        return _of_model(given, base, given.sequence_parallel is not False), ()
    path = base / str(given.path)
    try:
        if given.model is None or given.measured_on is None:
            return read_workload(str(path), given.facts())
        model, device = _model_of(given, base), read_hardware(given.measured_on, base)
        stack = read_stack(given.stack or STACK)
        return read_calibrated(str(path), given.facts(), model, stack, device, sequence_parallel=given.sequence_parallel)
    except (OSError, ValueError) as error:
        raise SpecError(f"workload.path: {getattr(error, 'strerror', None) or error}: {path}") from None


def _of_model(given: WorkloadSpec, base: Path, parallel: bool) -> Workload:
    return workload_from_model(_model_of(given, base), read_stack(given.stack or STACK), sequence_parallel=parallel)


def _model_of(given: WorkloadSpec, base: Path) -> Model:
    """The model of a section, whose sequence is known. Raises SpecError."""
    try:
        model = model_of(given, base)
    except (OSError, SpecError) as error:
        raise SpecError(f"workload.model: {getattr(error, 'strerror', None) or error}") from None
    if model.sequence is None:
        raise SpecError(
            f"workload.model: model {model.name} does not say how long its sequences were (set workload.sequence, in tokens)"
        )
    return model


def model_of(given: WorkloadSpec, base: Path) -> Model:
    """The model of a section, with its sequence. Raises SpecError."""
    document = dict(given.model or {})
    values = {} if given.sequence is None else {"sequence": given.sequence}
    if "preset" not in document:
        return parse_model({"name": "model", "source": "the spec"} | document | values, "of the spec")
    preset = document.pop("preset")
    if not isinstance(preset, str):
        raise SpecError(f"preset: found {shown(preset)}, expected the name of a model or a path")
    return read_model(preset, {**_dotted(document), **values}, base)


def _dotted(document: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers inside sections by dotted names, so that those not given stay as they are."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat
