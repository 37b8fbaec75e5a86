"""Hardware as columns, for the compiled code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.jit import outer_kernel
from sim_core.compiled.references import row_at
from sim_core.documents import Fields
from sim_core.hardware.description import KEYS, Hardware
from sim_core.units import SWITCH

HOST_UPDATE = 0.46
"""Part of the host's peak memory bandwidth that Adam on the host reaches: 10^10 weights of 30 bytes in 2.57 s on a DGX-2, whose
12 channels of DDR4-2666 have 256 GB/s (ZeRO-Offload, arXiv 2101.06840, table 4: 0.257 s for 10^9, of 1 to 10 x 10^9 alike)."""
Real = TypeVar("Real")
Whole = TypeVar("Whole")
Truth = TypeVar("Truth")


class HardwareNumbers(NamedTuple, Generic[Real, Whole, Truth]):
    """Numbers of hardware in SI: columns with a row for each variant of a sweep, or those of one variant."""

    compute_scale: Real  # compute time here / recorded compute time
    memory_bytes: Real
    gpus_per_node: Whole
    nvlink_bandwidth: Real  # that large collectives reach, per GPU and direction
    nvlink_latency: Real
    nics_per_node: Whole
    one_nic_bandwidth: Real  # that one NIC reaches
    nic_bandwidth: Real  # that a GPU reaches when all GPUs of its node send at once: its share of the NICs
    nic_latency: Real
    ll128: Truth  # whether NCCL uses the protocol
    pat: Truth  # whether it uses the algorithm
    nvls: Truth
    nvls_tree: Truth
    nvls_efficiency: Real  # part of nvlink_bandwidth
    ll_bandwidth_one_node: Real  # upper limit of the protocol LL
    ll_bandwidth_two_nodes: Real
    ll_bandwidth_more_nodes: Real
    net_overhead: Real
    hbm_bandwidth: Real  # that memory-bound kernels reach
    gpus_per_socket: Whole  # 0: every GPU reaches every other of its node alike
    socket_bandwidth: Real  # between sockets, shared by all groups that cross
    socket_bandwidth_one: Real  # that one of them reaches
    link_axes: Whole  # 0: switches, 1: a link to each GPU of the node, else a torus of so many axes
    fabric_efficiency: Real  # part of nic_bandwidth that each GPU of a full node reaches
    gpus_per_leaf: Whole  # 0: no leaves
    leaf_oversubscription: Real
    gpus_per_pod: Whole  # 0: no pods
    pod_oversubscription: Real
    rails: Truth  # whether NIC k of every node is on leaf switch k
    pxn: Truth
    shared_nics: Truth  # whether groups that send at the same time share their NICs
    step_overhead: Real  # seconds of a step besides its work
    host_bandwidth: Real  # of a GPU and direction when all of its link copy; 0: unknown
    host_bytes: Real  # of a node
    update_bandwidth: Real  # of a GPU's share of the host's memory, as an update on the host reaches it


HardwareColumns = HardwareNumbers[Floats, Ints, Bools]
Device = HardwareNumbers[float, int, bool]


@dataclass(frozen=True)
class HardwareTable:
    """The hardware variants of a sweep: their numbers for the compiled code, and where their kernels come from."""

    columns: HardwareColumns
    variants: tuple[Hardware, ...]
    measured_on: Hardware | None = None  # what recorded times are of; None: unknown

    def __len__(self) -> int:
        return len(self.variants)


def recorded_on(hardware: HardwareTable) -> Hardware:
    """The hardware of recorded times: as given, else the first of the sweep."""
    return hardware.measured_on or hardware.variants[0]


@outer_kernel
def device_at(table: HardwareColumns, row: int) -> Device:
    """One variant as scalars."""
    device: Device = row_at(table, row)
    return device


def hardware_table(variants: Sequence[Hardware], measured_on: Hardware | None, dtype: str = "bf16") -> HardwareTable:
    """Columns of `variants`. Compute times scale by the peak of `dtype` (bf16, fp32) of `measured_on` over that of the variant.

    Without `measured_on` they do not scale.
    """

    def column(key: str) -> Floats:
        return np.array([variant.value(key) for variant in variants], float)

    of_dtype = f"peak_flops_{dtype}"
    gpus, of_nic = column("gpus_per_node"), column("nic_bandwidth") * column("nic_efficiency")
    numbers: Fields = {
        "compute_scale": np.ones(len(variants)) if measured_on is None else measured_on.value(of_dtype) / column(of_dtype),
        "memory_bytes": column("memory"),
        "nvlink_bandwidth": column("nvlink_bandwidth") * column("nvlink_efficiency"),
        "one_nic_bandwidth": of_nic,
        "nic_bandwidth": of_nic * column("nics_per_node") / gpus,
        "hbm_bandwidth": column("memory_bandwidth") * column("hbm_efficiency"),
        "host_bandwidth": column("host_bandwidth") / column("gpus_per_host_link"),
        "host_bytes": column("host_memory"),
        "update_bandwidth": HOST_UPDATE * column("host_memory_bandwidth") / gpus,
        "gpus_per_leaf": (column("nodes_per_leaf") * gpus).astype(int),
        "gpus_per_pod": (column("nodes_per_pod") * gpus).astype(int),
        **{key: column(key).astype(int) for key in ("gpus_per_node", "nics_per_node", "gpus_per_socket", "link_axes")},
    }
    for key in HardwareNumbers._fields:
        if key not in numbers:  # as stated
            numbers[key] = column(key) == 1 if KEYS[key][1] == SWITCH else column(key)
    return HardwareTable(HardwareColumns(**numbers), tuple(variants), measured_on)
