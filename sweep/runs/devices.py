"""Devices by the names that tables, logs and drivers give them: the presets that they may mean."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sim_core import Fields, Hardware, Words, preset_names, read_hardware
from sim_core.documents import shipped_document
from sweep.frameworks.stacks import assumed
from sweep.runs.table import NotSimulated

FORMS = ("SXM", "PCIE", "NVL", "NVL72")
WRITTEN = {"TPUV": "TPU V", "TPU7": "TPU V7", "TRILLIUM": "V6E", "IRONWOOD": "V7X", "NVL72": " NVL72"}
"""What some call a device, in the words of presets."""
USUAL_FORM = "SXM"
"""What a name without a form means where a preset has that form; racks are known by their GPU."""
SMALLER = {("V100", 16): ("V100-32G-SXM", "15.77 GiB")}
"""The same chip and bandwidth with less memory (NVIDIA V100 datasheet: 16 and 32 GB at 900 GB/s), as CUDA reports it."""
CAPACITY = 0.1
"""How far a stated memory may be from that of a preset whose name has none: vendors round (H200-141GB, B200-180GB)."""
RACK = 64
"""GPUs of a rack of 72 that a job of a power of two takes, so that its groups stay inside racks. No published run states it."""
STAND_INS: Mapping[str, tuple[str, Fields]] = shipped_document(Path(__file__).with_name("stand_ins.yaml"))
"""By chip and form: the nearest preset of devices without one, and what their data sheets have otherwise."""
HardwareCell = str | Fields
"""What the `hardware` of a spec takes: a preset, or a mapping of a preset and numbers."""

_MEMORY = re.compile(r"^(\d+)GI?B?$")
_CHIP = re.compile(r"^(GB|GH|[ABHVLT]|MI|RTX|TPU)\d+[A-Z]*$")


class Name:
    """What a device's name says: chip, memory in GB, form."""

    def __init__(self, text: str) -> None:
        text = text.upper()
        for written, plain in WRITTEN.items():
            text = text.replace(written, plain)
        words = [word for word in re.split(r"[^A-Z0-9]+", text) if word]
        self.chip = next((word for word in words if _CHIP.match(word)), "")
        self.memory = next((int(size[1]) for word in words if (size := _MEMORY.match(word))), None)
        self.form = next((word for word in words if word in FORMS), "")


@cache
def presets_of(name: str) -> Words:
    """The presets of a device as a table names it (`A100-80GB-SXM`, `GB200`), the smallest memory first. Raises NotSimulated.

    The chip has to be the same; so do memory and form where both names state them; a name without a form means SXM. There are
    several where the name does not tell between sizes of memory (`A100-SXM`).
    """
    wanted = Name(name)
    if not name.strip():
        raise NotSimulated("device not stated")
    fitting = []
    for preset in preset_names():
        other = Name(preset)
        if not wanted.chip or other.chip != wanted.chip:
            continue
        if (wanted.form or USUAL_FORM) != (other.form or USUAL_FORM) and not (other.form == "NVL72" and not wanted.form):
            continue
        if wanted.memory and other.memory and wanted.memory != other.memory:
            continue
        capacity = read_preset(preset).value("memory") / 1e9
        off = abs(capacity - wanted.memory) / capacity if wanted.memory else 0.0
        if off > CAPACITY:
            continue
        fitting.append(((bool(other.memory) != bool(wanted.memory), other.form != USUAL_FORM, off), capacity, preset))
    if not fitting and wanted.form in ("", USUAL_FORM) and (wanted.chip, wanted.memory) in SMALLER:
        return (SMALLER[wanted.chip, int(wanted.memory or 0)][0],)
    if not fitting and (near := nearest_to(name)) is not None:
        return (near[0],)
    if not fitting:
        same = [preset for preset in preset_names() if "+" not in preset and Name(preset).chip == wanted.chip]
        raise NotSimulated(f"no preset of device {name[:40]}" + (f", nearest: {', '.join(same)}" if same else ""))
    best = min(fitting)[0]
    return tuple(preset for rank, _, preset in sorted(fitting, key=lambda fit: fit[1]) if rank == best)


def preset_of(name: str) -> str:
    """The only preset of a device. Raises NotSimulated."""
    presets = presets_of(name)
    if len(presets) > 1:
        raise NotSimulated(f"device ambiguous: {name[:40]} may be {' or '.join(presets)}")
    return presets[0]


@cache
def read_preset(preset: str) -> Hardware:
    """A preset that is read once: tables name few devices in many rows."""
    return read_hardware(preset)


def hardware_cell(device: str, gpus_per_node: int | None = None, used: float = 0.0, fabric: str = "") -> HardwareCell:
    """A device by name, as the `hardware` of a spec: its preset, with the memory and the node where they are others.

    Of a name that does not tell how much memory its GPUs have, the only one with `used` bytes or more. Raises NotSimulated.
    """
    names = presets_of(device)
    large = [name for name in names if read_preset(name).value("memory") >= used] or names[-1:]
    preset = (large[0] if len(large) == 1 else preset_of(device)) + fabric  # preset_of raises: the device is ambiguous
    hardware, values = read_preset(preset), Fields()
    name = Name(device)
    if (smaller := SMALLER.get((name.chip, name.memory or 0))) is not None:
        values["memory"] = smaller[1]
    if (near := nearest_to(device)) is not None and near[0] == preset:
        values |= near[1]
    usual, nics = hardware.value("gpus_per_node"), hardware.value("nics_per_node")
    if usual > RACK and not hardware.value("link_axes") > 1:  # a run counts the GPUs and NICs of a tray; of a torus, of a slice
        values |= {"gpus_per_node": RACK, "nics_per_node": RACK}
    elif gpus_per_node not in (None, usual):
        values |= {"gpus_per_node": gpus_per_node, "nics_per_node": max(1, round(nics * (gpus_per_node or usual) / usual))}
    return {"preset": preset, **values} if values else preset


def nearest_to(device: str) -> tuple[str, Fields] | None:
    """The preset that stands for a device without one, and what its data sheet has otherwise; None of others."""
    name = Name(device)
    return STAND_INS.get(f"{name.chip} {name.form}".strip())


def stand_in(device: str) -> str:
    """ "device as preset" of a device without a preset, which the nearest stands for; else empty."""
    near = nearest_to(device)
    return assumed(device[:40], near[0]) if near else ""
