"""`sweep hardware`: the presets, and the numbers of one with their sources."""

import sys
from typing import Annotated, Final

import typer

from sim_core import hardware_yaml, preset_names, read_hardware, shown
from sweep.commands.shared import AsJson, needs, takes, write_json
from sweep.options import OptionError
from sweep.show.inputs import gemm_screen, hardware_lines, presets_screen
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console

MOST: Final = 10**9


def command(
    name: Annotated[str | None, typer.Argument(help="Preset or YAML file; default: list the presets.")] = None,
    gemm: Annotated[str | None, typer.Option("--gemm", metavar="M,N,K", help="Seconds of a GEMM on it, to compare.")] = None,
    as_json: AsJson = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print a YAML file to edit and use.")] = False,
) -> None:
    """List the hardware presets, or the numbers of one with their sources."""
    needs("NAME", name, {"--gemm": gemm, "--yaml": as_yaml})
    if gemm is not None:
        takes("--gemm", {"--yaml": as_yaml, "--json": as_json}, "NAME")
    if as_json:
        takes("--json", {"--yaml": as_yaml}, "NAME")
        documents = [read_hardware(each).model_dump(mode="json") for each in ([name] if name else preset_names())]
        write_json(documents[0] if name else documents)
        return
    if name is not None and gemm is not None:
        print_sections(gemm_screen(read_hardware(name), _sizes(gemm)), own_console())
    elif name is None:
        print_sections(presets_screen([read_hardware(preset) for preset in preset_names()]), own_console())
    elif as_yaml:
        sys.stdout.write(hardware_yaml(read_hardware(name)))
    else:
        print_sections(hardware_lines(read_hardware(name)), own_console())


def _sizes(option: str) -> tuple[int, int, int]:
    """`M,N,K` as numbers."""
    sizes = [int(size) if size.strip().isascii() and size.strip().isdigit() else 0 for size in option.split(",")]
    if len(sizes) != 3 or not all(0 < size <= MOST for size in sizes):
        raise OptionError(
            f"--gemm: found {shown(option)}, expected three whole numbers from 1 to {MOST}, such as 8192,8192,8192"
        )
    return sizes[0], sizes[1], sizes[2]
