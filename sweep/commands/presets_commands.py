"""`sweep hardware`, `sweep stack`, `sweep model`, `sweep schema`: what ships, and the numbers of one with their sources."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel
from typer import Argument, Option

from sim_core import (
    Model,
    SpecError,
    hardware_yaml,
    model_document,
    model_names,
    model_yaml,
    parse_model,
    preset_names,
    read_hardware,
    read_model,
    read_stack,
    shown,
    stack_names,
)
from sim_core.documents import parse_yaml
from sweep.commands.shared import AsJson, needs, takes, tell
from sweep.options import OptionError, of_option, wrong
from sweep.show.inputs import (
    gemm_screen,
    hardware_lines,
    model_screen,
    model_values,
    models_screen,
    presets_screen,
    stack_lines,
    stacks_screen,
)
from sweep.spec.document import SCHEMAS

MOST = 10**9


def hardware_command(
    name: Annotated[
        str | None, Argument(help="Preset or YAML file; default: list the presets.", autocompletion=preset_names)
    ] = None,
    gemm: Annotated[str | None, Option("--gemm", metavar="M,N,K", help="Seconds of a GEMM on it, to compare.")] = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, Option("--yaml", help="Print a YAML file to edit and use.")] = False,
) -> None:
    """List the hardware presets, or the numbers of one with their sources."""
    needs("NAME", name, {"--gemm": gemm, "--yaml": as_yaml})
    if gemm is not None:
        takes("--gemm", {"--yaml": as_yaml, "--json": as_json}, "NAME")
    if as_json:
        takes("--json", {"--yaml": as_yaml}, "NAME")
    devices = [read_hardware(each) for each in ([name] if name else preset_names())]
    if as_yaml:
        sys.stdout.write(hardware_yaml(devices[0]))
        return
    screen = hardware_lines(devices[0]) if name else presets_screen(devices)
    if gemm is not None:
        sizes = [int(size) if size.strip().isascii() and size.strip().isdigit() else 0 for size in gemm.split(",")]
        if len(sizes) != 3 or not all(0 < size <= MOST for size in sizes):
            raise OptionError(
                f"--gemm: found {shown(gemm)}, expected three whole numbers from 1 to {MOST}, such as 8192,8192,8192"
            )
        screen = gemm_screen(devices[0], (sizes[0], sizes[1], sizes[2]))
    tell(_documents(devices, name), screen, as_json)


def stack_command(
    name: Annotated[str | None, Argument(help="Stack; default: list them.", autocompletion=stack_names)] = None,
    as_json: AsJson = False,
) -> None:
    """List the frameworks that can be simulated, or the facts of one with their sources."""
    stacks = [read_stack(each) for each in ([name] if name else stack_names())]
    tell(_documents(stacks, name), stack_lines(stacks[0]) if name else stacks_screen(stacks), as_json)


def model_command(
    name: Annotated[
        str | None,
        Argument(
            help="A model by name, a YAML file, a config.json, Megatron-LM arguments; default: list.",
            autocompletion=model_names,
        ),
    ] = None,
    sets: Annotated[list[str] | None, Option("--set", help="A number of the model: sequence=8192, experts.topk=4.")] = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, Option("--yaml", help="Print the numbers as YAML, to edit and use.")] = False,
) -> None:
    """List the models, or show the parameters and FLOPs of one, with its source."""
    needs("NAME", name, {"--set": sets, "--yaml": as_yaml})
    if as_json:
        takes("--json", {"--yaml": as_yaml}, "NAME and --set")
    models = [read_model(each) for each in ([name] if name else model_names())]
    with of_option("--set"):
        if name and sets:
            models = [_changed(models[0], read_model(name, dict(map(_assigned, sets))), sets)]
    if as_yaml:
        sys.stdout.write(model_yaml(models[0]))
        return
    values = [model_values(model) for model in models]
    tell(values[0] if name else values, model_screen(models[0]) if name else models_screen(models), as_json)


class Written(StrEnum):
    """Kinds of files that a user writes."""

    spec = "spec"
    nightly = "nightly"
    hardware = "hardware"
    stack = "stack"


def schema_command(kind: Annotated[Written, Argument(help="Whose schema.")]) -> None:
    """Print the JSON Schema of a kind of file, by which an editor completes and checks it while you write."""
    sys.stdout.write((SCHEMAS / f"{kind}.json").read_text(encoding="utf-8"))


def _documents(records: Sequence[BaseModel], name: str | None) -> object:
    """All records as plain values, or the one that has a name."""
    documents = [record.model_dump(mode="json") for record in records]
    return documents[0] if name else documents


def _changed(model: Model, then: Model, sets: list[str]) -> Model:
    """A model with other numbers, as its source says, and its name, if it is not just the sequence, unless these are set, too.

    A number that was not known before changes nothing.
    """
    before, after = model_document(model), model_document(then)
    changed = {key for key, value in before.items() if after.get(key) != value}
    own = {"source": f"{', '.join(sets)}; all else: {model.name}, {model.source}"} if changed else {}
    own |= {"name": f"{model.name}-changed"} if changed - {"sequence"} else {}
    return parse_model(after | {key: text for key, text in own.items() if key not in changed}, model.name)


def _assigned(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise wrong("--set", text, "NAME=VALUE, such as sequence=8192")
    try:
        return key.strip(), parse_yaml(value, "--set")[0]
    except SpecError:
        raise wrong("--set", text, "a value, such as sequence=8192") from None
