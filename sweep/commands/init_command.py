"""`sweep init`: a commented spec to start from."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sim_core import LARGEST, read_hardware
from sweep.commands.shared import check_output, prepared_spec
from sweep.options import of_option
from sweep.show.terminal import own_console
from sweep.spec import load_spec
from sweep.starter import starter, starter_name, suited


def command(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|FILE",
            help="A model by name (`sweep model`), a config.json, Megatron-LM arguments (.sh, .yaml); or a workload file.",
        ),
    ],
    hardware: Annotated[str, typer.Option(help="Preset or YAML file.")] = "H100-SXM",
    gpus: Annotated[int, typer.Option(min=1, max=LARGEST["all_gpus"], help="GPUs of the job.")] = 64,
    sequence: Annotated[
        int | None, typer.Option(min=1, max=LARGEST["sequence"], help="Tokens of a sequence. Default: the model's.")
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, max=LARGEST["micro_batch"], help="Micro-batch that a file was made with.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: NAME.yaml here.")] = None,
) -> None:
    """Write a commented spec for a model or a workload file, ready to run and to change."""
    path = output or Path(f"{starter_name(workload)}.yaml")
    check_output(path, new=True)
    with of_option("--hardware"):
        read_hardware(hardware)
    text = starter(workload, hardware, gpus, path.parent, sequence=sequence, micro_batch=micro_batch)
    if str(path) == "-":
        sys.stdout.write(text)
        return
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        prepared = prepared_spec(load_spec(path), path)
    except BaseException:
        path.unlink()
        raise
    size = prepared.sweep.space.size
    best = " --best 20" if suited(size) == "search" else ""
    own_console().print(f"{path}: {size:,} plans. Next: sweep {suited(size)} {path}{best}")
