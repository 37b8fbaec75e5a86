"""Seconds of one collective by itself, of many sizes: what measurements of a network are held against."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.costing.collectives import collective_s
from sim_core.errors import SpecError, nearest
from sim_core.hardware.description import Hardware
from sim_core.hardware.table import HardwareColumns, device_at, hardware_table
from sim_core.jit import kernel
from sim_core.planning.placement import Placement
from sim_core.references import reference
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND_RECEIVE

Floats = npt.NDArray[np.float64]

OPERATIONS: Final = {
    "all_reduce": ALL_REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "all_to_all": ALL_TO_ALL,
    "send_receive": SEND_RECEIVE,
}


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
    return _seconds(hardware_table([hardware], None).columns, OPERATIONS[operation], np.asarray(sizes, np.float64), at)


@kernel
def _seconds(hardware: HardwareColumns, kind: int, sizes: Floats, at: Placement) -> Floats:
    links = reference(device_at(hardware, 0).links)
    found = np.empty(sizes.shape[0])
    for i in range(sizes.shape[0]):
        found[i] = collective_s(kind, sizes[i], at, links)
    return found
