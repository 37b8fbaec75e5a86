"""`workload.stack`: the software stack that a model runs on, as a spec states it, and what that means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sim_core import STACK_FACTS, SpecError, Stack, is_page, measured_devices, nearest, read_stack, shown, stack_names
from sim_core.documents import Fields, Values, Words
from sim_core.models.features import Recipe, read_features, split_features
from sim_core.models.releases import release_defaults
from sweep.frameworks.stacks import assumed, nearest_stack

STACK = "megatron-core"
"""The stack of a model that names none."""
LONGEST_NAME = 60
StackSpec = str | Values
"""A name, or a mapping of `preset` or `framework` and facts."""


class Stated(NamedTuple):
    """What a spec states: a preset or a page (a file), facts in place of its own, and a framework that has no page."""

    preset: str
    facts: Fields
    framework: str

    @property
    def page(self) -> str | None:
        """The file of its page, None of a preset."""
        return self.preset if is_page(self.preset) else None

    @property
    def name(self) -> str:
        """What results call it: "framework as page" where the framework has none."""
        return assumed(self.framework, self.preset) if self.framework else self.preset


def stated_stack(stack: StackSpec | None) -> Stated:
    """What `workload.stack` states; STACK where it names none, the nearest page for a `framework`. Raises SpecError."""
    facts = {"preset": stack} if isinstance(stack, str) else dict(stack or {})
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
    return Stated(preset, facts, " ".join((framework or "").split()))


def stack_name(stack: StackSpec | None) -> str:
    """The name of a stack, with the facts that are stated of it in brackets. Raises SpecError."""
    stated = stated_stack(stack)
    values = {key: value.get("value", value) if isinstance(value, Mapping) else value for key, value in stated.facts.items()}
    told = [key if isinstance(value, Mapping | list) else f"{key} {value}" for key, value in values.items()]
    return f"{stated.name} ({', '.join(told)})" if told else stated.name


def check_stack(value: object) -> Any:
    """The name of a stack, or a mapping of a preset and facts, checked. Raises ValueError."""
    if value is not None and not isinstance(value, str | Mapping):
        raise ValueError(f"found {shown(value)}, expected the name of a stack, or a preset and facts: `sweep stack` lists them")
    try:
        stated = stated_stack(value)
        framework_of({**stated.facts, "preset": STACK if stated.page else stated.preset})  # a page is read where the spec lies
    except SpecError as error:
        raise ValueError(str(error)) from None
    return value


class Framework(NamedTuple):
    """What `workload.stack` means: facts, what plans and capacities usually are, and what a user should know of it."""

    stack: Stack
    recipe: Recipe
    notes: Words = ()


def framework_of(stated: StackSpec | None, model: str = "", device: str = "", base: Path | None = None) -> Framework:
    """What `workload.stack` means for a model on a device (names): a preset or a page (a file, relative to `base`), changed by
    its `release`, then by its `features`, then by its facts.

    Raises SpecError.
    """
    preset, facts, framework = stated_stack(stated)
    release, features = facts.pop("release", None), facts.pop("features", None)
    stack = read_stack(preset, base)
    if framework:
        stack = stack.model_copy(update={"name": assumed(framework, preset)})
    usual, notes = Fields(), Words()
    if release is not None:
        if not isinstance(release, str):
            raise SpecError(f"release: found {shown(release)}, expected a text such as '26.04', in quotes")
        defaults = release_defaults(preset, release, model, device)
        usual, notes = dict(defaults.features), (f"stack {preset}: {defaults.note(release)}",)
    if features is not None and not isinstance(features, str | Mapping):
        raise SpecError(f"features: found {shown(features)}, expected key=value; ..., or a mapping")
    recipe = read_features({**usual, **(split_features(features) if isinstance(features, str) else features or {})})
    source = {"source": "its release and features"}
    of_recipe = {name: {"value": STACK_FACTS[name].plain(value), **source} for name, value in recipe.facts.items()}
    stack = stack.with_facts({**of_recipe, **facts})
    for name, fact in STACK_FACTS.items():
        for device in fact.devices(getattr(stack, name)):
            if device not in measured_devices():  # a fact of a device goes with the kernels measured on it
                raise SpecError(f"{name}: found device {shown(device)}, {nearest(device, measured_devices())}")
    return Framework(stack, recipe, notes)
