"""The `workload:` section of a spec, a file with facts or a model in numbers, and the workload that it means."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sim_core import (
    STACK_FACTS,
    Facts,
    Model,
    SimError,
    SpecError,
    Stack,
    Workload,
    is_page,
    measured_devices,
    nearest,
    parse_model,
    read_calibrated,
    read_hardware,
    read_model,
    read_stack,
    read_workload,
    shown,
    stack_names,
    workload_from_model,
)
from sim_core.models.features import Recipe, read_features, split_features, with_capacity
from sim_core.models.releases import release_defaults
from sim_core.records import Record
from sim_core.workloads.facts import FACTS, NUMERIC_FACTS, Repeat, misfit
from sweep.frameworks.stacks import assumed, nearest_stack

STACK: Final = "megatron-core"
"""The stack of a model that names none."""
LONGEST_NAME: Final = 60
StackSpec = str | Mapping[str, Any]
"""A name, or a mapping of `preset` or `framework` and facts."""
STORED: Final = "stored"
"""The context in which the spec of a stored result is validated."""
MODEL_KEYS: Final = ("model", "stack", "sequence_parallel")
"""Keys of `workload` that need a model."""
FILE_KEYS: Final = tuple(name for name in FACTS if name != "sequence")
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


def check_stack(value: object) -> Any:
    """The name of a stack, or a mapping of a preset and facts, checked. Raises ValueError."""
    if value is not None and not isinstance(value, str | Mapping):
        raise ValueError(f"found {shown(value)}, expected the name of a stack, or a preset and facts: `sweep stack` lists them")
    try:
        preset, facts, _ = _stated(value)
        framework_of({**facts, "preset": STACK if is_page(preset) else preset})  # a page is read where the spec lies
    except SpecError as error:
        raise ValueError(str(error)) from None
    return value


class Framework(NamedTuple):
    """What `workload.stack` means: facts, what plans and capacities usually are, and what a user should know of it."""

    stack: Stack
    recipe: Recipe
    notes: tuple[str, ...] = ()


def framework_of(stated: StackSpec | None, model: str = "", device: str = "", base: Path | None = None) -> Framework:
    """What `workload.stack` means for a model on a device (names): a preset or a page (a file, relative to `base`), STACK where
    it names none; what its `release` sets, in place of that its `features`, in place of both its facts. A `framework` without a
    page has the nearest one.

    Raises SpecError.
    """
    preset, facts, framework = _stated(stated)
    release, features = facts.pop("release", None), facts.pop("features", None)
    stack = read_stack(preset, base)
    if framework:
        stack = stack.model_copy(update={"name": assumed(framework, preset)})
    usual: dict[str, object] = {}
    notes: tuple[str, ...] = ()
    if release is not None:
        if not isinstance(release, str):
            raise SpecError(f"release: found {shown(release)}, expected a text such as '26.04', in quotes")
        defaults = release_defaults(preset, release, model, device)
        usual, notes = dict(defaults.features), (f"stack {preset}: {defaults.note(release)}",)
    if features is not None and not isinstance(features, str | Mapping):
        raise SpecError(f"features: found {shown(features)}, expected key=value; ..., or a mapping")
    own = split_features(features) if isinstance(features, str) else dict(features or {})
    recipe = read_features({**usual, **own})
    plain = {name: STACK_FACTS[name].plain(value) for name, value in recipe.facts.items()}
    sources = {name: {"value": value, "source": "its release and features"} for name, value in plain.items()}
    stack = stack.with_facts({**sources, **facts})
    _check_devices(stack)
    return Framework(stack, recipe, notes)


def _check_devices(stack: Stack) -> None:
    """Raise SpecError where a fact is stated for a device without measured kernels: by those it would find none."""
    for name, fact in STACK_FACTS.items():
        for device in fact.devices(getattr(stack, name)):
            if device not in measured_devices():
                raise SpecError(f"{name}: found device {shown(device)}, {nearest(device, measured_devices())}")


def page_of(stated: StackSpec | None) -> str | None:
    """The file of a stack's page, None of a preset."""
    preset = _stated(stated)[0]
    return preset if is_page(preset) else None


def unmet(stated: StackSpec | None) -> str | None:
    """The framework that has no page and what it is simulated as, None of one that has."""
    preset, _, framework = _stated(stated)
    return assumed(framework, preset) if framework else None


def stack_name(stated: StackSpec | None) -> str:
    """How a stack is called of which more than a name is stated: in brackets, or "framework as page". Raises SpecError."""
    preset, facts, framework = _stated(stated)
    name = assumed(framework, preset) if framework else preset
    values = {key: value["value"] if isinstance(value, Mapping) and "value" in value else value for key, value in facts.items()}
    told = [key if isinstance(value, Mapping | list) else f"{key} {value}" for key, value in values.items()]
    return f"{name} ({', '.join(told)})" if told else name


def _stated(stated: StackSpec | None) -> tuple[str, dict[str, Any], str]:
    """The preset or file that is named, facts in place of its own, and a framework without a page. Raises SpecError."""
    facts = {"preset": stated} if isinstance(stated, str) else dict(stated or {})
    framework = facts.pop("framework", None)
    if framework is not None:
        if not isinstance(framework, str) or not framework.strip() or len(framework) > LONGEST_NAME:
            raise SpecError(f"framework: found {shown(framework)}, expected the name of a framework without a page")
        if framework in stack_names():
            raise SpecError(f"framework: {framework} has a page: say preset: {framework}")
        facts.setdefault("preset", nearest_stack(str(facts.get("sharding", ""))))
    preset = facts.pop("preset", STACK)
    if not isinstance(preset, str):
        raise SpecError(f"found {shown(preset)}, expected the name of a stack, such as {STACK}")
    return preset, facts, " ".join((framework or "").split())


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
    stack: Annotated[str | dict[str, Any] | None, BeforeValidator(check_stack)] = None
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
    records: dict[str, Any] | None = None
    step: int | None = None

    _bounds = field_validator(*NUMERIC_FACTS, mode="before")(_within_bounds)

    @field_validator("model")
    @classmethod
    def _described(cls, model: dict[str, Any] | None) -> dict[str, Any] | None:
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
        if self.path is not None and self.model is not None:
            if self.measured_on is None:
                raise ValueError("measured_on: missing; a file calibrated by a model needs the device of its times")
            return self
        why = "needs workload.model"
        if self.model is not None:
            why = "is a fact about a file; a model has none (plans are set by axes and fixed)"
        for key in MODEL_KEYS if self.model is None else FILE_KEYS:
            if getattr(self, key) is not None:
                raise ValueError(f"{key}: {why}; remove it")
        return self

    def facts(self) -> Facts:
        """These facts as the readers expect them."""
        facts = {name: getattr(self, name) for name in type(self).model_fields if name not in ("path", "repeat", *MODEL_KEYS)}
        return Facts(**facts, repeat=None if self.repeat is None else self.repeat.rows())


def by_stack(section: WorkloadSpec, stacks: Sequence[StackSpec]) -> list[WorkloadSpec]:
    """The same section with each of several stacks; without any the section itself."""
    return [section.model_copy(update={"stack": stack}) for stack in stacks] or [section]


class Unread(SpecError):
    """A reader of workloads refuses the file at `path`, which may be of another kind."""

    def __init__(self, path: Path, error: SimError) -> None:
        super().__init__(str(error))
        self.path = path


def workload_of(section: WorkloadSpec, base: Path, device: str = "") -> tuple[Workload, tuple[str, ...]]:
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
        return replace(workload, notes=(*workload.notes, *framework.notes)), ()
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
    return read_model(preset, {**_dotted(document), **values}, base)


def _dotted(document: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers inside sections by dotted names, so that those not given stay as they are."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat
