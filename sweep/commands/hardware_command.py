"""`sweep hardware`: the presets, and the numbers of one with their sources."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sim_core import hardware_yaml, preset_names, read_hardware
from sweep.show.inputs import print_hardware, print_presets
from sweep.show.terminal import own_console


def command(
    name: Annotated[str | None, typer.Argument(help="Preset or YAML file; default: list the presets.")] = None,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print a YAML file to edit and use.")] = False,
) -> None:
    """List the hardware presets, or the numbers of one with their sources."""
    if name is None:
        print_presets([read_hardware(preset) for preset in preset_names()], own_console())
    elif as_yaml:
        sys.stdout.write(hardware_yaml(read_hardware(name)))
    else:
        print_hardware(read_hardware(name), own_console())
