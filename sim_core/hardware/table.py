"""Hardware as columns: what the compiled code reads of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.hardware.description import Hardware
from sim_core.jit import inner_kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class HardwareTable(NamedTuple):
    """Columns over the hardware variants of a sweep, as the compiled code reads them (SI)."""

    compute_scale: Floats  # [n] compute time here / as recorded
    memory_bytes: Floats
    gpus_per_node: Ints
    nvlink_bandwidth: Floats  # reached by large collectives, per GPU and direction
    nvlink_latency: Floats
    nics_per_node: Ints
    nic_bandwidth: Floats  # reached, of one NIC
    nic_bandwidth_per_gpu: Floats  # reached, when all GPUs of a node send at once
    nic_latency: Floats
    ll128: Bools  # whether NCCL uses the protocol
    pat: Bools  # whether it uses the algorithm
    nvls: Bools
    nvls_tree: Bools
    nvls_efficiency: Floats  # part of nvlink_bandwidth
    ll_bandwidth_one_node: Floats  # that the protocol LL carries at most
    ll_bandwidth_two_nodes: Floats
    ll_bandwidth_more_nodes: Floats
    net_overhead: Floats


class Links(NamedTuple):
    """The network of one hardware, as its collectives see it: bytes/s that large messages reach, seconds of a hop; NCCL."""

    nvlink_bandwidth: float
    nvlink_latency: float
    nic_bandwidth: float  # of one GPU's share of its node's NICs
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


class Device(NamedTuple):
    """One row of the table: a GPU, the size of its node, its links."""

    compute_scale: float
    gpus_per_node: int
    links: Links


@inner_kernel
def device_at(table: HardwareTable, row: int) -> Device:
    """One hardware as scalars."""
    return Device(
        compute_scale=table.compute_scale[row],
        gpus_per_node=table.gpus_per_node[row],
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
        ),
    )


def hardware_table(variants: Sequence[Hardware], measured_on: Hardware | None, dtype: str = "bf16") -> HardwareTable:
    """Columns of `variants`. Compute times scale by the ratio of the peaks of `dtype` (bf16, fp32) to `measured_on`; unscaled
    where that is None."""

    def column(key: str) -> Floats:
        return np.array([variant.value(key) for variant in variants], np.float64)

    of_dtype = f"peak_flops_{dtype}"
    peak = column(of_dtype)
    gpus = column("gpus_per_node")
    return HardwareTable(
        compute_scale=np.ones(len(variants)) if measured_on is None else measured_on.value(of_dtype) / peak,
        memory_bytes=column("memory"),
        gpus_per_node=gpus.astype(np.int64),
        nvlink_bandwidth=column("nvlink_bandwidth") * column("nvlink_efficiency"),
        nvlink_latency=column("nvlink_latency"),
        nics_per_node=column("nics_per_node").astype(np.int64),
        nic_bandwidth=column("nic_bandwidth") * column("nic_efficiency"),
        nic_bandwidth_per_gpu=column("nic_bandwidth") * column("nic_efficiency") * column("nics_per_node") / gpus,
        nic_latency=column("nic_latency"),
        ll128=column("ll128") == 1,
        pat=column("pat") == 1,
        nvls=column("nvls") == 1,
        nvls_tree=column("nvls_tree") == 1,
        nvls_efficiency=column("nvls_efficiency"),
        ll_bandwidth_one_node=column("ll_bandwidth_one_node"),
        ll_bandwidth_two_nodes=column("ll_bandwidth_two_nodes"),
        ll_bandwidth_more_nodes=column("ll_bandwidth_more_nodes"),
        net_overhead=column("net_overhead"),
    )
