"""The machine of a run, as its log names it: the device, its memory, the GPUs of a node. No host, user or job."""

import re

from sweep.inputs.logs.found import Taker

TABLE = re.compile(r"\|\s+\d+\s+(?:NVIDIA\s|Tesla\s)?\s*([A-Z]{1,2}\d{2,3}[^|]{0,24}?)\s+(?:On|Off)\s")
TABLE_MEMORY = re.compile(r"MiB\s*/\s*(\d{4,6})MiB\s*\|")
NAMED = re.compile(r"\b(?:NVIDIA|Tesla) ((?:GB|GH|[ABHVL]|RTX )\d{1,4}[A-Z]?\b[-\w ]{0,20})")
PER_NODE = re.compile(r"(?:nproc[-_]per[-_]node|GPUS_PER_NODE|\"gpu_count\":)[ =](\d{1,3})\b")
CHIP = re.compile(r"\b(GB|GH|[ABHVL])(\d{1,3}[A-Z]?)\b")
FORM = re.compile(r"\b(SXM|PCIE|NVL)(\d{1,2})?\b")
SIZE = re.compile(r"\b(\d{2,3})\s?GB\b")
HBM = "HBM"
"""In the name of a Hopper of 80 GB it tells SXM from PCIe (`NVIDIA H100 80GB HBM3`, `NVIDIA H100 PCIe`)."""


class Machine(Taker):
    """What the lines tell of the machine; the first that does counts."""

    KEYS = (b"NVIDIA ", b"Tesla ", b"MiB / ", b"per_node", b"per-node", b"GPUS_PER_NODE", b"gpu_count")

    _name = ""
    _memory_gb: int | None = None
    gpus_per_node: int | None = None

    def take(self, line: str) -> None:
        """Read a line that contains one of KEYS."""
        if not self._name and (match := TABLE.search(line) or NAMED.search(line)):
            self._name = match[1]
        if self._memory_gb is None and (match := TABLE_MEMORY.search(line)):
            self._memory_gb = round(int(match[1]) / 1024)
        if self.gpus_per_node is None and (match := PER_NODE.search(line)):
            self.gpus_per_node = int(match[1]) or None

    def device(self) -> str:
        """Chip, form and memory, such as `V100-SXM-32GB`; empty if no line names a device."""
        return device_of(self._name, self._memory_gb)


def device_of(name: str, memory_gb: int | None = None) -> str:
    """A device's name as drivers print it, as tables of runs write it: chip, form, memory."""
    upper = name.upper().replace("...", " ")
    chip, form, size = CHIP.search(upper), FORM.search(upper), SIZE.search(upper)
    if chip is None:
        return ""
    gigabytes = int(size[1]) if size else memory_gb
    words = (chip[1] + chip[2], form[1] if form else "SXM" if HBM in upper else "", f"{gigabytes}GB" if gigabytes else "")
    return "-".join(filter(None, words))
