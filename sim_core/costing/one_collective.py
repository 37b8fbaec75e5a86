"""Collectives by themselves: seconds of many sizes, to hold measurements against; and NCCL's measured over modelled ones."""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.costing.collectives import collective_s
from sim_core.distinct import distinct
from sim_core.documents import shipped_document
from sim_core.errors import SpecError, nearest
from sim_core.hardware.description import KERNEL_DIR, Hardware, read_hardware
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at, hardware_table
from sim_core.planning.placement import Placement
from sim_core.terms import kinds_by

OPERATIONS = kinds_by("operation")


def collective_seconds(operation: str, sizes: npt.ArrayLike, ranks: int, nodes: int, hardware: Hardware) -> Floats:
    """Seconds of a collective of `sizes` bytes (the whole group's tensor), [n], over `ranks` GPUs on `nodes` nodes.

    The group is alone: the first GPUs of each node, as many on each as can be. Raises SpecError.
    """
    if operation not in OPERATIONS:
        raise SpecError(f"operation {operation!r}: {nearest(operation, OPERATIONS)}")
    if not 1 <= nodes <= ranks <= nodes * hardware.value("gpus_per_node"):
        most = f"{hardware.value('gpus_per_node'):g}"
        raise SpecError(f"{ranks} ranks on {nodes} nodes: expected 1 to {most} on each")
    at = Placement(ranks=ranks, nodes=nodes, fewest=ranks // nodes, most=-(-ranks // nodes), stride=1)
    return _seconds(hardware_table([hardware], None).columns, OPERATIONS[operation], np.asarray(sizes, float), at)


@kernel
def _seconds(hardware: HardwareColumns, kind: int, sizes: Floats, at: Placement) -> Floats:
    links = reference(device_at(hardware, 0))
    seconds = np.empty(sizes.shape[0])
    for i in range(sizes.shape[0]):
        seconds[i] = collective_s(kind, sizes[i], at, links)
    return seconds


def devices_by_node(hardware: HardwareTable) -> tuple[list[Hardware], Ints]:
    """The variants whose nodes are unlike for `one_node_factor`, and the one of each variant."""
    first, of_variant = distinct([(one.kernels.tables, one.value("gpus_per_socket") > 0) for one in hardware.variants])
    return [hardware.variants[at] for at in first], of_variant


def one_node_factor(hardware: Hardware, kind: int, ranks: Ints, size: Floats) -> Floats:
    """Measured over modelled seconds of collectives of `size` bytes among `ranks` GPUs of one node, [n].

    Between measured sizes and ranks by their logarithms; outside, that of the nearest. 1 where nothing was measured: without
    NVLink, on devices without tables. A ratio, so that other links keep what they change.
    """
    measured = _factors(hardware.kernels.tables, kind)
    if measured is None or hardware.value("gpus_per_socket"):
        return np.ones(len(size))
    sizes, counts, factors = measured
    at = np.log2(np.maximum(size, 1.0))
    of_count = np.stack([np.interp(at, sizes, row) for row in factors])
    place = np.interp(np.log2(np.maximum(ranks, 1)), np.log2(counts), np.arange(len(counts)))
    below = np.minimum(place.astype(int), len(counts) - 2)
    share, column = place - below, np.arange(len(size))
    mixed: Floats = of_count[below, column] * (1 - share) + of_count[below + 1, column] * share
    return mixed


@cache
def _factors(device: str, kind: int) -> tuple[Floats, Ints, Floats] | None:
    """log2 of the bytes, [s]; ranks, [r]; measured over modelled seconds, [r, s]."""
    document = _document()
    measured = document["devices"].get(device, {})
    name = next((name for name, known in OPERATIONS.items() if known == kind), "")
    if name not in measured:
        return None
    sizes = np.array(document["bytes"], float)
    counts = sorted(measured[name])
    seconds = np.array([measured[name][n] for n in counts]) * 1e-6
    columns = hardware_table([read_hardware(measured["preset"])], None).columns
    groups = [Placement(ranks=n, nodes=1, fewest=n, most=n, stride=1) for n in counts]
    modelled_s = np.stack([_seconds(columns, kind, sizes, at) for at in groups])
    return np.log2(sizes), np.array(counts, int), seconds / modelled_s


@cache
def _document() -> Any:
    return shipped_document(KERNEL_DIR / "one_node.yaml")
