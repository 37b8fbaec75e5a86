"""The hardware of a measured run: its device by name, its network as the row states it."""

import math
import re
from functools import cache
from typing import Final

from sim_core import Hardware, preset_names, read_hardware
from sweep.validation.networks import read_network
from sweep.validation.table import NotSimulated, Row

FORMS: Final = ("SXM", "PCIE", "NVL", "NVL72")
USUAL_FORM: Final = "SXM"
"""What a name without a form means where a preset has that form; racks are known by their GPU."""
SMALLER: Final = {("V100", 16): ("V100-32G-SXM", "15.77 GiB")}
"""The same chip and bandwidth with less memory (NVIDIA V100 datasheet: 16 and 32 GB at 900 GB/s), as CUDA reports it."""
CAPACITY: Final = 0.1
"""How far a stated memory may be from that of a preset whose name has none: vendors round (H200-141GB, B200-180GB)."""
RACK: Final = 64
"""GPUs of a rack of 72 that a job of a power of two takes, so that its groups stay inside racks. No published run states it."""
STATED: Final = "stated by the run: "
"""What the source of a row's own network begins with."""

FABRICS: Final = (("EFA, AWS p5", "+EFA-v2"),)
"""Words of a row's `interconnect`, and the fabric that they mean."""

_MEMORY = re.compile(r"^(\d+)GI?B?$")
_CHIP = re.compile(r"^(GB|GH|[ABHVLT]|MI|RTX|TPU)\d+[A-Z]*$")


class _Name:
    """What a device's name says: chip, memory in GB, form."""

    def __init__(self, text: str) -> None:
        words = [word for word in re.split(r"[^A-Z0-9]+", text.upper()) if word]
        self.chip = next((word for word in words if _CHIP.match(word)), "")
        self.memory = next((int(size[1]) for word in words if (size := _MEMORY.match(word))), None)
        self.form = next((word for word in words if word in FORMS), "")


@cache
def presets_of(name: str) -> tuple[str, ...]:
    """The presets of a device as a table names it (`A100-80GB-SXM`, `GB200`), the smallest memory first. Raises NotSimulated.

    The chip has to be the same; so do memory and form where both names state them; a name without a form means SXM. There are
    several where the name does not tell between sizes of memory (`A100-SXM`).
    """
    wanted = _Name(name)
    if not name.strip():
        raise NotSimulated("device not stated")
    fitting = []
    for preset in preset_names():
        other = _Name(preset)
        if not wanted.chip or other.chip != wanted.chip:
            continue
        if (wanted.form or USUAL_FORM) != (other.form or USUAL_FORM) and not (other.form == "NVL72" and not wanted.form):
            continue
        if wanted.memory and other.memory and wanted.memory != other.memory:
            continue
        capacity = _read(preset).value("memory") / 1e9
        off = abs(capacity - wanted.memory) / capacity if wanted.memory else 0.0
        if off > CAPACITY:
            continue
        fitting.append(((bool(other.memory) != bool(wanted.memory), other.form != USUAL_FORM, off), capacity, preset))
    if not fitting and wanted.form in ("", USUAL_FORM) and (wanted.chip, wanted.memory) in SMALLER:
        return (SMALLER[wanted.chip, int(wanted.memory or 0)][0],)
    if not fitting:
        raise NotSimulated(f"no preset of device {name[:40]}")
    best = min(fitting)[0]
    return tuple(preset for rank, _, preset in sorted(fitting, key=lambda fit: fit[1]) if rank == best)


def preset_of(name: str) -> str:
    """The only preset of a device. Raises NotSimulated."""
    presets = presets_of(name)
    if len(presets) > 1:
        raise NotSimulated(f"device ambiguous: {name[:40]} may be {' or '.join(presets)}")
    return presets[0]


def candidates(row: Row) -> list[Hardware]:
    """The hardware that a row may mean, the smallest memory first. Raises NotSimulated.

    There are several where nothing says how much memory its GPUs have: not less than was measured to be in use.
    """
    used = (row.number("mem_gib") or 0.0) * 2**30
    stated = [_stated(row, preset) for preset in presets_of(row.text("hw"))]
    return [hardware for hardware in stated if hardware.value("memory") >= used] or stated[-1:]


def hardware_of(row: Row) -> Hardware:
    """The preset of a row's device, with the row's node and network. Raises NotSimulated."""
    possible = candidates(row)
    if len(possible) > 1:
        preset_of(row.text("hw"))  # raises: the device is ambiguous
    return possible[0]


def network_of(hardware: Hardware) -> tuple[float, bool]:
    """Gb/s of all NICs of a node in one direction, and whether the run's row states it (else it is the preset's)."""
    node = hardware.value("nic_bandwidth") * hardware.value("nics_per_node") * 8 / 1e9
    return node, hardware.fabric.nic_bandwidth.source.startswith(STATED)


@cache
def _read(preset: str) -> Hardware:
    """A preset that is read once: tables name few devices in many rows."""
    return read_hardware(preset)


def _stated(row: Row, preset: str) -> Hardware:
    """A preset with the row's memory, node and network."""
    fabric = next((fabric for words, fabric in FABRICS if words in row.text("interconnect")), "")
    hardware = _read(preset + fabric)
    name = _Name(row.text("hw"))
    smaller = SMALLER.get((name.chip, name.memory or 0))
    if smaller is not None:
        hardware = hardware.with_values({"memory": smaller[1]})
    gpus = row.count("gpus_per_node", int(hardware.value("gpus_per_node")))
    values: dict[str, object] = {}
    torus = hardware.value("link_axes") > 1  # a row counts the chips of a slice
    if hardware.value("gpus_per_node") > RACK and not torus:  # a row counts the GPUs and NICs of a tray
        values |= {"gpus_per_node": RACK, "nics_per_node": RACK}
    elif gpus != hardware.value("gpus_per_node"):
        nics = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        values |= {"gpus_per_node": gpus, "nics_per_node": nics}
    hardware = hardware.with_values(values)
    try:
        network = _network(row.text("interconnect"), gpus, hardware)
    except NotSimulated:
        if row.count("gpus") > hardware.value("gpus_per_node"):
            raise
        return hardware  # no message leaves the node
    if network is None:
        return hardware
    node = network * hardware.value("gpus_per_node") / gpus
    source = f"{STATED}{row.text('interconnect')[:80]}"
    return hardware.with_values(
        {"nic_bandwidth": {"value": f"{node / hardware.value('nics_per_node')} Gb/s", "source": source}}
    )


def _network(cell: str, gpus: int, hardware: Hardware) -> float | None:
    """Gb/s of a node of `gpus` GPUs; None if the cell does not say. Raises NotSimulated."""
    network = read_network(cell, gpus)
    if network.nic is None:
        return network.node
    own = hardware.value("nic_bandwidth") * 8 / 1e9
    if not math.isclose(network.nic, own):
        raise NotSimulated(f"interconnect ambiguous (how many NICs of {network.nic:g} Gb/s): {cell.strip()[:60]}")
    return own * hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")
