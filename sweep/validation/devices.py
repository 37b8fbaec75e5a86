"""The hardware of a measured run: its device by name, its network as the row states it."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from sim_core import Hardware, preset_names, read_hardware
from sweep.validation.reasons import NotSimulated
from sweep.validation.table import Row

FORMS: Final = ("SXM", "PCIE", "NVL", "NVL72")
USUAL_FORM: Final = "SXM"
"""What a name without a form means where a preset has that form; racks are known by their GPU."""
SMALLER: Final = {("V100", 16): ("V100-32G-SXM", "15.77 GiB")}
"""The same chip and bandwidth with less memory (NVIDIA V100 datasheet: 16 and 32 GB at 900 GB/s), as CUDA reports it."""
CAPACITY: Final = 0.1
"""How far a stated memory may be from that of a preset whose name has none: vendors round (H200-141GB, B200-180GB)."""
RACK: Final = 64
"""GPUs of a rack of 72 that a job of a power of two takes, so that its groups stay inside racks. No published run states it."""

_MEMORY = re.compile(r"^(\d+)GI?B?$")
_CHIP = re.compile(r"^(GB|GH|[ABHVLT]|MI|RTX|TPU)\d+[A-Z]*$")
_SIZE = r"(\d+(?:\.\d+)?)"
_PER_GPU = re.compile(rf"{_SIZE}\s*Gb(?:/s|ps)?[^,;+|]*per GPU", re.IGNORECASE)
_NICS = re.compile(
    rf"(\d+)\s*x\s*[A-Za-z0-9\- ]*?{_SIZE}\s*G(?:b|bit)?(?:/s|ps)?\b|(\d+)\s*x\s*(?:HDR|NDR|XDR|EDR)\s*{_SIZE}", re.IGNORECASE
)
_NODE = re.compile(rf"(?:inter-node\s*{_SIZE}\s*Gb|{_SIZE}\s*Gb(?:/s|ps)?[^,;+|]*per node)", re.IGNORECASE)
"""Network of a node: `400 Gb/s per GPU`; `8x400G`, `4x OmniPath 100 Gb/s`, `8x HDR200`; `1600 Gb/s per node`."""


class _Name:
    """What a device's name says: chip, memory in GB, form."""

    def __init__(self, text: str) -> None:
        words = [word for word in re.split(r"[^A-Z0-9]+", text.upper()) if word]
        self.chip = next((word for word in words if _CHIP.match(word)), "")
        self.memory = next((int(found[1]) for word in words if (found := _MEMORY.match(word))), None)
        self.form = next((word for word in words if word in FORMS), "")


@cache
def preset_of(name: str) -> str:
    """The preset of a device as a table names it (`A100-80GB-SXM`, `V100-32GB`, `GB200`). Raises NotSimulated.

    The chip has to be the same. Memory and form have to be where both say them; a name without a form is SXM.
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
        capacity = read_hardware(preset).value("memory") / 1e9
        off = abs(capacity - wanted.memory) / capacity if wanted.memory else 0.0
        if off > CAPACITY:
            continue
        fitting.append((bool(other.memory) != bool(wanted.memory), other.form != USUAL_FORM, off, preset))
    if not fitting and wanted.form in ("", USUAL_FORM) and (wanted.chip, wanted.memory) in SMALLER:
        return SMALLER[wanted.chip, int(wanted.memory or 0)][0]
    if not fitting:
        raise NotSimulated(f"no preset of device {name[:40]}")
    return min(fitting)[-1]


def node_bandwidth(interconnect: str, gpus_per_node: int) -> float | None:
    """Gb/s of all NICs of a node in one direction, or None if the text does not say."""
    if found := _PER_GPU.search(interconnect):
        return float(found[1]) * gpus_per_node
    if found := _NICS.search(interconnect):
        count, speed = (found[1], found[2]) if found[1] else (found[3], found[4])
        return float(count) * float(speed)
    if found := _NODE.search(interconnect):
        return float(found[1] or found[2])
    return None


def hardware_of(row: Row) -> Hardware:
    """The preset of a row's device, with the row's node and network. Raises NotSimulated."""
    hardware = read_hardware(preset_of(row.text("hw")))
    name = _Name(row.text("hw"))
    smaller = SMALLER.get((name.chip, name.memory or 0))
    if smaller is not None:
        hardware = hardware.with_values({"memory": smaller[1]})
    if hardware.value("gpus_per_node") > RACK:
        return hardware.with_values({"gpus_per_node": RACK, "nics_per_node": RACK})
    gpus = row.count("gpus_per_node", int(hardware.value("gpus_per_node")))
    bandwidth = node_bandwidth(row.text("interconnect"), gpus)
    source = f"stated by the run: {row.text('interconnect')[:80]}"
    values: dict[str, object] = {}
    if gpus != hardware.value("gpus_per_node"):
        nics = max(1, round(hardware.value("nics_per_node") * gpus / hardware.value("gpus_per_node")))
        values |= {"gpus_per_node": gpus, "nics_per_node": nics}
    if bandwidth is not None:
        nics = int(hardware.with_values(values).value("nics_per_node"))
        values["nic_bandwidth"] = {"value": f"{bandwidth / nics} Gb/s", "source": source}
    return hardware.with_values(values)
