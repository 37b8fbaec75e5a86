"""What several commands share: exit codes, the default folder of results, an option, preparing a spec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from sim_core import LARGEST, STEP, SpecError, cache_dir, is_compiled, short, shown
from sweep.executors.choice import Kind
from sweep.folder import Folder, folder_at
from sweep.preparation import Prepared, prepare
from sweep.show.checks import print_checks
from sweep.show.terminal import signals_end_at_once
from sweep.spec import SweepSpec
from sweep.warming import warm_up

RESULTS: Final = Path("results")

FactSets = Annotated[list[str] | None, typer.Option("--set", help="A fact that the file does not state: pp=4, ep=2, layers=8.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Step = Annotated[
    int | None, typer.Option("--step", min=1, max=LARGEST["step"], help="Which of several steps in the files; else the median.")
]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, max=LARGEST["micro_batch"], help="Micro-batch that the file was made with.")
]
Records = Annotated[
    list[str] | None,
    typer.Option(
        "--record", help="A value in place of the file's: embedding_layer='0.05 ms', layernorm='0 B', NAME=keep, NAME=model."
    ),
]


Out = Annotated[str | None, typer.Option(help="Folder for the results, a path or URI. Default: results/NAME-HASH.")]
Executing = Annotated[
    Kind, typer.Option(help="Processes on this machine, or Ray: the cluster in RAY_ADDRESS, else one started here.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Worker processes; 0: none, run in this process. Default: all cores, but none to run less than 2 s of plans."
        " A cluster sets its own.",
    ),
]
SliceLimit = Annotated[float, typer.Option(min=1, help="Seconds after which a slice of plans counts as hanging.")]
SpecSets = Annotated[list[str] | None, typer.Option("--set", help="Override a key of the spec: axes.tp=[1,2].")]
Fresh = Annotated[bool, typer.Option(help="Delete what the folder holds, instead of resuming.")]


def results_folder(out: str | None, default: str) -> Folder:
    """The folder of `--out`, or one under results/. Raises SpecError."""
    if out is not None and not out.strip():
        raise SpecError(f"--out: found {shown(out)}, expected a folder or a URI")
    return folder_at(out or RESULTS / default)


def record_sets(records: Sequence[str] | None) -> list[str]:
    """`--record NAME=VALUE` as assignments to `workload.records`. Raises SpecError."""
    for given in records or ():
        if "=" not in given:
            raise SpecError(f"--record {given}: expected NAME=VALUE, such as embedding_layer='0.05 ms'")
    return [f"records.{given}" for given in records or ()]


def prepared_spec(spec: SweepSpec, path: Path) -> Prepared:
    """Prepare the spec that was read from `path`. Raises SpecError that names the file."""
    try:
        return prepare(spec, path.parent)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def print_warnings(warnings: Sequence[str], console: Console) -> None:
    """Print each warning on a line of its own."""
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)


def introduce(spec: SweepSpec, prepared: Prepared, console: Console) -> None:
    """What will be simulated: the space, what is held, notes and doubts."""
    space = prepared.sweep.space
    print_warnings(prepared.warnings, console)
    axes = " x ".join(f"{key} {len(values)}" for key, values in spec.axes.items())
    plans = f"{space.size:,} plan{'s' * (space.size != 1)}" + (f" ({axes})" if axes else "")
    sampled = f", of which {space.count:,} are drawn" if space.sample else ""
    console.print(f"{spec.name}: {plans}{sampled}", soft_wrap=True)
    console.print(f"  held: {'; '.join(space.defaults)}", soft_wrap=True)
    for note in prepared.notes:
        console.print(f"  note: {note}", soft_wrap=True)
    print_checks(prepared.sweep.workload.checks, console)


def say_if_compiling(console: Console, what: str = STEP) -> None:
    """Print that the engine will be compiled, if it will be."""
    if not is_compiled(what):
        console.print(f"Compiling the engine: once per version, about a minute; cached in {cache_dir()}", soft_wrap=True)


def make_ready(prepared: Prepared, console: Console, what: str = STEP) -> None:
    """Compile or load the engine for STEP or BOUNDS."""
    with nullcontext() if is_compiled(what) else signals_end_at_once():
        say_if_compiling(console, what)
        seconds = warm_up(prepared.sweep, what)
    console.print(f"Engine ready in {short(seconds, 's')}.")
