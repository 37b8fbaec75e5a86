"""Collectives inside a node against what others measured: NCCL over NVLink, and a box whose GPUs meet over PCIe."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import hardware_table, read_hardware
from sim_core.costing.collectives import collective_s
from sim_core.costing.groups import group_plans, group_s
from sim_core.costing.one_collective import devices_by_node, one_node_factor
from sim_core.hardware.table import device_at
from sim_core.planning.placement import Placement
from sim_core.workloads.workload import ALL_GATHER, ALL_REDUCE, DP, REDUCE_SCATTER, TP
from tests.conftest import make_plans

VTRAIN = [
    *((2, 16_777_216, 131.9), (2, 134_217_728, 763.6), (2, 1_073_741_824, 5442.8)),
    *((3, 33_554_432, 266.5), (3, 268_435_456, 1786.0), (4, 16_777_216, 179.6), (4, 134_217_728, 998.6)),
    *((5, 67_108_864, 568.3), (6, 67_108_864, 565.7), (6, 536_870_912, 4020.6), (8, 8_388_608, 134.3)),
    *((8, 67_108_864, 579.9), (8, 268_435_456, 2162.3), (8, 1_073_741_824, 8193.0)),
]
"""GPUs, bytes and microseconds of all-reduces in one node of A100s: VIA-Research/vTrain f8dda84. Another cluster, another NCCL
than those of the tables (ai-dynamo/aiconfigurator)."""
H100_NODE = [(ALL_GATHER, 2**28, 323), (ALL_GATHER, 2**30, 346), (REDUCE_SCATTER, 2**28, 326), (REDUCE_SCATTER, 2**30, 343)]
"""Bytes and bus bandwidth in GB/s of 8 H100s of a node: nccl-tests logs of NVIDIA/dgxc-benchmarking."""
PCIE = [(8, 1, 1, 12.3), (4, 1, 2, 20.6), (2, 1, 4, 20.0), (4, 2, 1, 7.3), (2, 4, 1, 4.0)]
"""Ranks of a group, GPUs from one to the next, groups behind each other; bus bandwidth in GB/s of an all-gather on 8 A100s
over PCIe: MooreThreads/SimuMax 4dcaae5, configs/system/a100_pcie.json."""


def in_node_s(preset: str, kind: int, ranks: int, size: float) -> float:
    hardware = read_hardware(preset)
    links = device_at(hardware_table([hardware], None).columns, 0)
    modelled = collective_s(kind, size, Placement(ranks=ranks, nodes=1, fewest=ranks, most=ranks), links)
    return float(modelled * one_node_factor(hardware, kind, np.array([ranks]), np.array([size]))[0])


@pytest.mark.parametrize(("ranks", "size", "us"), VTRAIN)
def test_all_reduces_of_another_a100_cluster(ranks: int, size: int, us: float) -> None:
    assert in_node_s("A100-80G-SXM", ALL_REDUCE, ranks, float(size)) == pytest.approx(us * 1e-6, rel=0.1)


@pytest.mark.parametrize(("kind", "size", "bandwidth"), H100_NODE)
def test_gathers_of_another_h100_node(kind: int, size: int, bandwidth: float) -> None:
    assert in_node_s("H100-SXM", kind, 8, float(size)) == pytest.approx(7 / 8 * size / bandwidth / 1e9, rel=0.06)


def test_other_links_keep_what_they_change() -> None:
    """Half the NVLink bandwidth doubles the time of a large message: the factor does not move with the links."""
    size, ranks = np.array([2.0**29]), np.array([4])
    plain = read_hardware("A100-80G-SXM")
    halved = plain.with_values({"nvlink_bandwidth": "150 GB/s"})
    assert one_node_factor(plain, ALL_GATHER, ranks, size) == one_node_factor(halved, ALL_GATHER, ranks, size)
    assert one_node_factor(read_hardware("A100-80G-PCIe"), ALL_GATHER, ranks, size) == 1
    assert one_node_factor(read_hardware("V100-32G-SXM"), ALL_GATHER, ranks, size) == 1


def test_a_node_of_sockets_is_no_node_of_nvlink() -> None:
    """Two variants of one device in a batch, one with its GPUs behind two sockets: no factor of NVLink is that one's."""
    nvlink = read_hardware("A100-80G-SXM")
    box = {"gpus_per_socket": 4, "socket_bandwidth": "15 GB/s", "socket_bandwidth_one": "12 GB/s"}
    some = [nvlink, nvlink.with_values(box), nvlink.with_values({"memory_bandwidth": "1 TB/s"})]
    devices, of_variant = devices_by_node(hardware_table(some, None))
    assert of_variant.tolist() == [0, 1, 0]
    factors = [one_node_factor(device, ALL_REDUCE, np.array([2]), np.array([2.0**27]))[0] for device in devices]
    assert factors[0] != factors[1] == 1


@pytest.mark.parametrize(("ranks", "stride", "behind", "bandwidth"), PCIE)
def test_groups_of_a_pcie_box_share_what_is_between_its_sockets(ranks: int, stride: int, behind: int, bandwidth: float) -> None:
    table = hardware_table([read_hardware("A100-80G-PCIe")], None)
    tp, group = (ranks, TP) if stride == 1 else (stride, DP)
    groups = group_plans(table.columns, make_plans(tp=tp, pp=1, all_gpus=8), np.array([0]))
    assert groups.ranks[0, group] == ranks
    assert behind * ranks * stride == 8
    seconds = group_s(groups, 0, device_at(table.columns, 0), ALL_GATHER, group, 1e12)
    assert (ranks - 1) / ranks * 1e12 / seconds / 1e9 == pytest.approx(bandwidth, rel=0.06)
