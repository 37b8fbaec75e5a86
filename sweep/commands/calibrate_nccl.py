"""`sweep calibrate nccl`: links of a hardware file from nccl-tests output, with a report of the fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from sim_core import Hardware, SimError, SpecError, hardware_yaml, preset_names, read_hardware
from sweep.calibration.links import AT_BOUND, Fit, Placed, fit
from sweep.calibration.nccl_text import Table, read_nccl
from sweep.validation.devices import preset_of
from sweep.validation.table import NotSimulated

KNOWN: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive")
MOST_FAR: Final = 8
EXIT_BOUND: Final = 5
MOST_OF_HOST: Final = 16
"""GPUs of a host at most; a node of more is a rack, whose hosts share NVLink."""


def nccl(
    logs: Annotated[
        list[Path], typer.Argument(help="The output of nccl-tests (text, or the JSON of -J), one file or several.")
    ],
    device: Annotated[
        str | None, typer.Option(help="Preset or YAML to start from. Default: the GPU that the logs name.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. Default: standard output.")] = None,
    ranks: Annotated[int | None, typer.Option(min=2, help="GPUs, where a log does not say.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="Where logs list no hosts, or some GPUs of theirs.")] = None,
    nics: Annotated[str | None, typer.Option(help="The NICs of a node, as 8x400G; default: the preset's.")] = None,
) -> None:
    """Make a hardware file of your own from nccl-tests output, and print how well it fits."""
    read: list[tuple[Path, Table]] = []
    for path in logs:
        try:
            read += [(path, table) for table in read_nccl(path, ranks)]
        except (SimError, OSError) as error:
            sys.stderr.write(f"refused: {error if isinstance(error, SimError) else f'{path}: {error.strerror}'}\n")
    if not read:
        raise SpecError(f"calibrate nccl: no table in {len(logs)} {'file' if len(logs) == 1 else 'files'}")
    hardware = _hardware(device, [table for _, table in read], nics, gpus_per_node)
    if gpus_per_node is None:
        _check_node([table for _, table in read], hardware)
    placed = []
    for path, table in read:
        one = _placed(path, table, hardware)
        if one is not None:
            placed.append(one)
    names = ", ".join(sorted({path.name for path in logs}))
    done = fit(hardware, placed, f"fitted to nccl-tests: {names[:200]}")
    text = hardware_yaml(done.hardware)
    if output is None:
        sys.stdout.write(text)
        _report(done, sys.stderr)
    else:
        output.write_text(text, encoding="utf-8")
        _report(done, sys.stdout)
        sys.stdout.write(f"{output}: a hardware file; use it as `hardware: {output}`\n")
    bound = [number.key for number in done.numbers if number.left.startswith(AT_BOUND)]
    if bound:
        sys.stderr.write(
            f"at its bound: {', '.join(bound)}: the GPUs, NICs or NVLink are not those of {hardware.name}: "
            "say --gpus-per-node, --nics\n"
        )
        raise typer.Exit(EXIT_BOUND)


def _hardware(device: str | None, tables: Sequence[Table], nics: str | None, gpus: int | None) -> Hardware:
    """What to start from: the preset named, or that of the GPU in the logs, with the node as given."""
    if device is None:
        named = sorted({table.gpu for table in tables if table.gpu})
        if len(named) != 1:
            found = f"found {', '.join(named)}" if named else "the logs do not name the GPU"
            raise SpecError(f"calibrate nccl: {found}: say --device, valid: {', '.join(preset_names())}")
        try:
            device = preset_of(named[0])
        except NotSimulated as error:
            raise SpecError(f"calibrate nccl: {error}: say --device, valid: {', '.join(preset_names())}") from None
    hardware = read_hardware(device)
    if gpus is not None:
        share = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        hardware = hardware.with_values({"gpus_per_node": gpus, "nics_per_node": share})
    if nics is None:
        return hardware
    count, found, speed = nics.lower().partition("x")
    if not (
        found and count.isascii() and count.isdigit() and int(count[:6]) > 0 and speed.rstrip("g").replace(".", "", 1).isdigit()
    ):
        raise SpecError(f"--nics {nics}: expected a number of NICs and Gb/s, such as 8x400G")
    return hardware.with_values({"nics_per_node": int(count), "nic_bandwidth": f"{float(speed.rstrip('g'))} Gb/s"})


def _check_node(tables: Sequence[Table], hardware: Hardware) -> None:
    """Raise SpecError where hosts list several ranks, but fewer than the preset's node has: they say nothing of the other GPUs.

    One rank on each tells of a NIC alone, whatever the node.
    """
    listed = max((math.ceil(table.ranks / table.nodes) for table in tables if table.nodes), default=0)
    most = int(hardware.value("gpus_per_node"))
    if 1 < listed < most <= MOST_OF_HOST:
        raise SpecError(
            f"calibrate nccl: the logs list {listed} ranks on a host, {hardware.name} has {most} GPUs a node: "
            f"say --gpus-per-node {listed} if these are all of them (and --nics), or {most}"
        )


def _placed(path: Path, table: Table, hardware: Hardware) -> Placed | None:
    """The nodes of a table; None, and a line that says why, if it cannot be used."""
    most = int(hardware.value("gpus_per_node"))
    nodes = table.nodes if table.nodes is not None and most <= MOST_OF_HOST else math.ceil(table.ranks / most)
    why = ""
    if table.operation not in KNOWN:
        why = f"{table.operation} is not modelled"
    elif not nodes <= table.ranks <= nodes * most:
        why = f"{table.ranks} ranks on {nodes} nodes, but {hardware.name} has {most} GPUs a node"
    if why:
        sys.stderr.write(f"left out: {path}:{table.line}: {why}\n")
        return None
    return Placed(str(path), table, nodes)


def _report(done: Fit, out: TextIO) -> None:
    """What was fitted, how well, and what is still far off."""
    for number in done.numbers:
        kept = f": {number.left}, left as it was" if number.left else ""
        out.write(f"{number.key}: {number.before:.4g} -> {number.value:.4g} ({number.sizes} sizes){kept}\n")
    for one, before, after in done.errors:
        table = one.table
        what = f"{table.operation}, {one.nodes} x {table.ranks / one.nodes:g} GPUs, {len(table.rows)} sizes"
        left = f", {table.left_out} rows left out" if table.left_out else ""
        out.write(f"{one.path}:{table.line}: {what}{left}: median error {before:.1f} -> {after:.1f} %\n")
    for one, size, ratio in done.far[:MOST_FAR]:
        out.write(f"still far: {one.path}: {one.table.operation} of {size:,} bytes: {ratio:.2f} of the measured time\n")
    if len(done.far) > MOST_FAR:
        out.write(f"still far: {len(done.far) - MOST_FAR} sizes more\n")
