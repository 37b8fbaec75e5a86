"""The machine that collectives were measured on: the preset to start from, and the nodes of each table."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sim_core import Hardware, SpecError, preset_names, read_hardware
from sweep.calibration.links import Placed
from sweep.calibration.nccl_text import Table
from sweep.options import wrong
from sweep.runs.devices import preset_of
from sweep.runs.table import NotSimulated

KNOWN: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_receive")
MOST_OF_HOST: Final = 16
"""GPUs of a host at most; a node of more is a rack, whose hosts share NVLink."""


def named_preset(gpu: str, where: str, valid: str) -> str:
    """The preset of a GPU as it calls itself. Raises SpecError."""
    try:
        return preset_of(gpu)
    except NotSimulated as error:
        raise SpecError(f"{where}: {error}: say --device, {valid}{', '.join(preset_names())}") from None


def machine_of(device: str | None, tables: Sequence[Table], nics: str | None, gpus: int | None) -> Hardware:
    """What to start from: the preset named, or that of the GPU in the logs, with GPUs and NICs of the node as stated.

    Raises SpecError, also where the hosts of the logs may have more GPUs than they list.
    """
    if device is None:
        names = sorted({table.gpu for table in tables if table.gpu})
        if len(names) != 1:
            why = f"found {', '.join(names)}" if names else "the logs do not name the GPU"
            raise SpecError(f"calibrate nccl: {why}: say --device, valid: {', '.join(preset_names())}")
        device = named_preset(names[0], "calibrate nccl", "valid: ")
    hardware = read_hardware(device)
    if gpus is not None:
        share = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        hardware = hardware.with_values({"gpus_per_node": gpus, "nics_per_node": share})
    if nics is not None:
        hardware = hardware.with_values(nics_of(nics))
    if gpus is None:
        _check_node(tables, hardware)
    return hardware


def nics_of(text: str) -> dict[str, int | str]:
    """The numbers of a node's NICs, of `--nics 8x400G`. Raises OptionError."""
    count, times, speed = text.lower().partition("x")
    number = speed.rstrip("g")
    if not (times and count.isascii() and count.isdigit() and int(count[:6]) > 0 and number.replace(".", "", 1).isdigit()):
        raise wrong("--nics", text, "a number of NICs and Gb/s, such as 8x400G")
    return {"nics_per_node": int(count), "nic_bandwidth": f"{float(number)} Gb/s"}


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


def place(path: Path, table: Table, hardware: Hardware) -> Placed | str:
    """A table with the nodes of its ranks; or why it cannot be used."""
    most = int(hardware.value("gpus_per_node"))
    nodes = table.nodes if table.nodes is not None and most <= MOST_OF_HOST else math.ceil(table.ranks / most)
    if table.operation not in KNOWN:
        return f"{path}:{table.line}: {table.operation} is not modelled"
    if not nodes <= table.ranks <= nodes * most:
        return f"{path}:{table.line}: {table.ranks} ranks on {nodes} nodes, but {hardware.name} has {most} GPUs a node"
    return Placed(str(path), table, nodes)
