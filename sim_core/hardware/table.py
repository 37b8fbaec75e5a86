"""Hardware as columns, for the compiled code."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.jit import outer_kernel
from sim_core.hardware.description import KEYS, Hardware
from sim_core.units import SWITCH


class HardwareColumns(NamedTuple):
    """One row per hardware variant of a sweep, in SI."""

    compute_scale: Floats  # [n] compute time here / recorded compute time
    memory_bytes: Floats
    gpus_per_node: Ints
    nvlink_bandwidth: Floats  # that large collectives reach, per GPU and direction
    nvlink_latency: Floats
    nics_per_node: Ints
    nic_bandwidth: Floats  # that one NIC reaches
    nic_bandwidth_per_gpu: Floats  # that a GPU reaches when all GPUs of its node send at once
    nic_latency: Floats
    ll128: Bools  # whether NCCL uses the protocol
    pat: Bools  # whether it uses the algorithm
    nvls: Bools
    nvls_tree: Bools
    nvls_efficiency: Floats  # part of nvlink_bandwidth
    ll_bandwidth_one_node: Floats  # upper limit of the protocol LL
    ll_bandwidth_two_nodes: Floats
    ll_bandwidth_more_nodes: Floats
    net_overhead: Floats
    hbm_bandwidth: Floats  # that memory-bound kernels reach
    gpus_per_socket: Ints  # 0: no sockets
    socket_bandwidth: Floats
    socket_bandwidth_one: Floats
    link_axes: Ints  # 0: switches, 1: a mesh, else a torus of so many axes
    fabric_efficiency: Floats  # part of nic_bandwidth_per_gpu that a full node reaches
    gpus_per_leaf: Ints  # 0: no leaves
    leaf_oversubscription: Floats
    gpus_per_pod: Ints  # 0: no pods
    pod_oversubscription: Floats
    rails: Bools  # whether NIC k of every node is on leaf switch k
    pxn: Bools
    shared_nics: Bools  # whether groups that send at the same time share their NICs
    step_overhead: Floats  # seconds of a step besides its work


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


class Links(NamedTuple):
    """The network numbers of one hardware: bytes/s that large messages reach, seconds per hop, NCCL's switches and limits."""

    nvlink_bandwidth: float
    nvlink_latency: float
    nic_bandwidth: float  # one GPU's share of its node's NICs
    nic_latency: float
    ll128: bool
    pat: bool
    nvls: bool
    nvls_tree: bool
    nvls_efficiency: float
    ll_bandwidth_one_node: float
    ll_bandwidth_two_nodes: float
    ll_bandwidth_more_nodes: float
    net_overhead: float
    gpus_per_socket: int = 0  # 0: every GPU reaches every other of its node alike
    socket_bandwidth: float = np.inf  # between sockets, shared by all groups that cross
    socket_bandwidth_one: float = np.inf  # that one of them reaches
    link_axes: int = 0  # switches; 1: a link to each GPU of the node; else axes of a torus
    fabric_efficiency: float = 1.0  # part of its share that each GPU of a full node reaches
    gpus_per_node: int = 1
    leaf_oversubscription: float = 1.0
    pod_oversubscription: float = 1.0
    shared_nics: bool = False
    rails: bool = False
    pxn: bool = True


class Device(NamedTuple):
    """One row of the table: GPU, size of its node, links."""

    compute_scale: float
    gpus_per_node: int
    hbm_bandwidth: float
    step_overhead: float
    links: Links
    gpus_per_leaf: int
    gpus_per_pod: int


@outer_kernel
def device_at(table: HardwareColumns, row: int) -> Device:
    """Row `row` as scalars."""
    return Device(
        compute_scale=table.compute_scale[row],
        gpus_per_node=table.gpus_per_node[row],
        hbm_bandwidth=table.hbm_bandwidth[row],
        step_overhead=table.step_overhead[row],
        links=Links(
            nvlink_bandwidth=table.nvlink_bandwidth[row],
            nvlink_latency=table.nvlink_latency[row],
            nic_bandwidth=table.nic_bandwidth_per_gpu[row],
            nic_latency=table.nic_latency[row],
            ll128=table.ll128[row],
            pat=table.pat[row],
            nvls=table.nvls[row],
            nvls_tree=table.nvls_tree[row],
            nvls_efficiency=table.nvls_efficiency[row],
            ll_bandwidth_one_node=table.ll_bandwidth_one_node[row],
            ll_bandwidth_two_nodes=table.ll_bandwidth_two_nodes[row],
            ll_bandwidth_more_nodes=table.ll_bandwidth_more_nodes[row],
            net_overhead=table.net_overhead[row],
            gpus_per_socket=table.gpus_per_socket[row],
            socket_bandwidth=table.socket_bandwidth[row],
            socket_bandwidth_one=table.socket_bandwidth_one[row],
            link_axes=table.link_axes[row],
            fabric_efficiency=table.fabric_efficiency[row],
            gpus_per_node=table.gpus_per_node[row],
            leaf_oversubscription=table.leaf_oversubscription[row],
            pod_oversubscription=table.pod_oversubscription[row],
            shared_nics=table.shared_nics[row],
            rails=table.rails[row],
            pxn=table.pxn[row],
        ),
        gpus_per_leaf=table.gpus_per_leaf[row],
        gpus_per_pod=table.gpus_per_pod[row],
    )


def hardware_table(variants: Sequence[Hardware], measured_on: Hardware | None, dtype: str = "bf16") -> HardwareTable:
    """Columns of `variants`. Compute times scale by the peak of `dtype` (bf16, fp32) of `measured_on` over that of the variant.

    Without `measured_on` they do not scale.
    """

    def column(key: str) -> Floats:
        return np.array([variant.value(key) for variant in variants], np.float64)

    of_dtype = f"peak_flops_{dtype}"
    gpus, of_nic = column("gpus_per_node"), column("nic_bandwidth") * column("nic_efficiency")
    derived: dict[str, Floats | Ints] = {
        "compute_scale": np.ones(len(variants)) if measured_on is None else measured_on.value(of_dtype) / column(of_dtype),
        "memory_bytes": column("memory"),
        "nvlink_bandwidth": column("nvlink_bandwidth") * column("nvlink_efficiency"),
        "nic_bandwidth": of_nic,
        "nic_bandwidth_per_gpu": of_nic * column("nics_per_node") / gpus,
        "hbm_bandwidth": column("memory_bandwidth") * column("hbm_efficiency"),
        "gpus_per_leaf": (column("nodes_per_leaf") * gpus).astype(np.int64),
        "gpus_per_pod": (column("nodes_per_pod") * gpus).astype(np.int64),
        **{key: column(key).astype(np.int64) for key in ("gpus_per_node", "nics_per_node", "gpus_per_socket", "link_axes")},
    }
    stated: dict[str, Floats | Bools] = {
        key: column(key) == 1 if KEYS[key][1] == SWITCH else column(key)
        for key in HardwareColumns._fields
        if key not in derived
    }
    columns = HardwareColumns(**derived, **stated)  # type: ignore[arg-type]  # by name, as the fields are annotated
    return HardwareTable(columns, tuple(variants), measured_on)
