"""The hardware of a measured run: its device by name, its network as the row states it; as the cell of a table of runs."""

import math
from typing import Final

from benchmarks.importing.networks import read_network
from benchmarks.importing.table import Row
from sim_core import Hardware
from sweep.runs.devices import HardwareCell, hardware_cell, read_preset
from sweep.runs.table import NotSimulated

AWS_P5: Final = "EFA, AWS p5"
"""In a row's `interconnect`: its fabric is the second version of EFA."""


def hardware_of(row: Row) -> HardwareCell:
    """The preset of a row's device, with the row's memory, node and network where they are others. Raises NotSimulated."""
    stated, fabric = row.count("gpus_per_node") or None, "+EFA-v2" if AWS_P5 in row.text("interconnect") else ""
    cell = hardware_cell(row.text("hw"), stated, (row.number("mem_gib") or 0.0) * 2**30, fabric)
    values = dict(cell) if isinstance(cell, dict) else {"preset": cell}
    hardware = read_preset(str(values["preset"]))
    gpus = stated or int(hardware.value("gpus_per_node"))
    hardware = hardware.with_values({key: value for key, value in values.items() if key != "preset"})
    try:
        network = _network(row.text("interconnect"), gpus, hardware)
    except NotSimulated:
        if row.count("gpus") > hardware.value("gpus_per_node"):
            raise
        network = None  # no message leaves the node
    if network is None:
        return cell
    node = network * hardware.value("gpus_per_node") / gpus
    return {**values, "nic_bandwidth": f"{node / hardware.value('nics_per_node')} Gb/s"}


def _network(cell: str, gpus: int, hardware: Hardware) -> float | None:
    """Gb/s of a node of `gpus` GPUs; None if the cell does not say. Raises NotSimulated."""
    network = read_network(cell, gpus)
    if network.nic is None:
        return network.node
    own = hardware.value("nic_bandwidth") * 8 / 1e9
    if not math.isclose(network.nic, own):
        raise NotSimulated(f"interconnect ambiguous (how many NICs of {network.nic:g} Gb/s): {cell.strip()[:60]}")
    return own * hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")
