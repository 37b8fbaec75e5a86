"""`sweep model`: the models that ship, and the numbers of one."""

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from sim_core import Model, SpecError, model_document, model_names, model_yaml, parse_model, read_model
from sim_core.documents import parse_yaml
from sweep.commands.shared import AsJson, needs, takes, write_json
from sweep.options import of_option, wrong
from sweep.show.inputs import model_screen, model_values, models_screen
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console


def command(
    name: Annotated[
        str | None, typer.Argument(help="A model by name, a YAML file, a config.json, Megatron-LM arguments; default: list.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A number of the model: sequence=8192, experts.topk=4.")
    ] = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print the numbers as YAML, to edit and use.")] = False,
) -> None:
    """List the models, or show the parameters and FLOPs of one, with its source."""
    needs("NAME", name, {"--set": sets, "--yaml": as_yaml})
    if as_json:
        takes("--json", {"--yaml": as_yaml}, "NAME and --set")
    if name is None:
        models = [read_model(each) for each in model_names()]
        if as_json:
            write_json([model_values(model) for model in models])
        else:
            print_sections(models_screen(models), own_console())
        return
    with of_option("--set") if sets else nullcontext():
        model = read_model(name)  # what is wrong without `sets` is no fault of theirs
        if sets:
            model = _changed(model, read_model(name, dict(map(_assigned, sets))), sets)
    if as_json:
        write_json(model_values(model))
    elif as_yaml:
        sys.stdout.write(model_yaml(model))
    else:
        print_sections(model_screen(model), own_console())


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
