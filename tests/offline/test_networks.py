"""What a row's `interconnect` says of the NICs between nodes: cells as system descriptions, papers and clouds write them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.importing.networks import Network, read_network
from sweep.runs.table import NotSimulated

STATED = [
    # as benchmark submissions write them: a list of NICs by purpose
    ("NVSwitch + 8x400G IB (reference arch.)", 8, 3200),
    ("Cluster: NVLink + 4x OmniPath 100 Gb/s per node", 8, 400),
    ("NVLink hybrid cube mesh + 1x EDR 100 Gb/s per node", 8, 100),
    ("Selene: 8x HDR200 IB per node, fat tree", 8, 1600),
    ("NVLINK Gen4 900 GB/s | Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, Ma", 8, 3200),
    ("NVLINK | Management: 1x Bluefield-2 DPU Ethernet 100Gb/Sec, Compute: 8x ConnectX-7 InfiniBand NDR 400Gb/Sec", 8, 3200),
    ("NVSWITCH Gen3 | Compute: 8x BlueField-3 200Gb/s, Management: 2x100Gb/s Ethernet NIC", 8, 1600),
    ("NVSWITCH Gen3 | Storage&Compute: 4x ConnectX-7 IB NDR 400Gb/s, Management: 25Gb/s Ethernet NIC", 8, 1600),
    ("NVLINK 4.0 |  1x Ethernet 100Gb/Sec, 8x NVIDIA Quantum-2 CX7 InfiniBand (400Gb/s)", 8, 3200),
    ("18x 5th Gen NVLink, 14.4 TB/s aggregated bandwidth | 8x ConnectX-8 IB XDR 800Gb/s + 400Gb/s Ethernet NIC", 8, 6400),
    ("NVLINK Gen5 1800 GB/s + NVSWITCH Gen5 | 4x ConnectX-7 IB NDR 400 Gb/s", 4, 1600),
    ("8x ConnectX-7 NDR InfiniBand (compute), 2x ConnectX-6 Dx 100GbE (storage), 1x I350 1GbE (BMC)", 8, 3200),
    ("Frontend: 2x200GbE BlueField-3; Backend: 8x400GbE RoCEv2 ConnectX-7", 8, 3200),
    ("East-West: 8x BF-3 SuperNIC 400Gb/s; North-South: 2x BF-3 DPU 200Gb/s", 8, 3200),
    ("scale-out 8 x 400 GbE, front-end 2 x 200 GbE", 8, 3200),
    ("8x 400Gb/s ConnectX-7 (PCIe Gen5 x16) + 2x 25GbE in-band management", 8, 3200),
    ("GPU network: 8\u00d7 400 Gbit/s NDR; in-band: 2\u00d7 100 Gbit/s", 8, 3200),
    ("XGMI | 8x Broadcom Thor2 400G RoCE, 2x Intel E810 100GbE (storage)", 8, 3200),
    ("Dell XE9680 (8x CX7 400G compute, 2x CX7 200G storage)", 8, 3200),
    ("8x ConnectX-7 400Gb/s, 2x ConnectX-6 100Gb/s", 8, 3200),
    ("NVLink | 4x ConnectX-8 XDR 800Gb/s", 4, 3200),
    # as papers and documents write them
    ("Grand Teton, 400 Gb/s RDMA per GPU", 8, 3200),
    ("NVSwitch; inter-node 800 Gb/s (config inter_node_bandwidth)", 8, 800),
    ("NVSwitch; 3200 Gb/s per node (EFA, AWS p5)", 8, 3200),
    ("1600 Gb/s RoCE per node", 8, 1600),
    ("four HPE Slingshot-11 NICs", 4, 800),
    ("4x Slingshot 11, 25 GB/s each", 4, 800),
    ("Slingshot-11, 4 Cassini NICs, 200 Gb/s per NIC", 4, 800),
    ("HPE Slingshot, 2x 200 Gbps per node", 4, 400),
    ("dual-rail EDR InfiniBand", 6, 200),
    ("2x Mellanox EDR, 12.5 GB/s each", 6, 200),
    ("8-rail NDR400, non-blocking", 8, 3200),
    ("NDR InfiniBand 400 Gb/s, 8 NICs per node", 8, 3200),
    ("one NDR400 HCA per GPU, rail-optimized", 8, 3200),
    ("1x HDR 200 Gb/s NIC per 2 GPUs", 8, 800),
    ("50 GB/s per GPU InfiniBand", 8, 3200),
    ("NVLink 600 GB/s, InfiniBand 100 GB/s bidirectional per node", 8, 400),
    ("200 Gb/s x8 RoCE v2, 2:1 oversubscribed", 8, 1600),
    ("2x OPA100", 4, 200),
    ("Omni-Path 100 Series, 4 adapters", 4, 400),
    ("8 x 400 Gb/s (3.2 Tb/s) Quantum-2", 8, 3200),
    # as clouds name them
    ("AWS p4d.24xlarge, EFA", 8, 400),
    ("EFA 3,200 Gbps", 8, 3200),
    ("EFAv2 32x100G", 8, 3200),
    ("Azure Standard_ND96isr_H100_v5", 8, 3200),
    ("OCI BM.GPU.H100.8 cluster network, 8x2x200 Gb/s RDMA", 8, 3200),
    ("GCP a3-megagpu-8g (GPUDirect-TCPXO)", 8, 1600),
    ("3.2 Tbps InfiniBand", 8, 3200),
    ("RDMA 400 Gbps per GPU + 100 Gbps VPC Ethernet", 8, 3200),
]  # fmt: skip
"""A cell, GPUs of a node, and Gb/s that all of a node's NICs between nodes have in one direction."""

NOT_STATED = [
    "",
    "NVL72",
    " | ",
    "NVLINK Gen5 1800 GB/s + NVSWITCH Gen5 | 1x Intel X710 10GbE Ethernet",
    "18x 5th Gen NVLink, 14.4 TB/s aggregated | InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 GB/s",
    "18x 5th Gen NVLink, 14.4 TB/s aggregated bandwidth | InfiniBand; Data bandwidth for GPU-PCIe: 504 GB/s; PCIe-NIC: 500 G",
    "8x 4th Gen NVLink, 900GB/s | Infiniband, Ethernet",
    "XGMI | 2 x Broadcom Inc. and subsidiaries, 4 x I350 Gigabit Network Connection",
    "XGMI | 2 x MT2894 Family [ConnectX-6 Lx], 2 x MT2910 Family [ConnectX-7]",
    "NVSWITCH Gen3 | ConnectX-6 25Gb/s Ethernet",
    "6 x BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb Ethernet, 2 x Ethernet Controller X710 for 10GBASE-T,",
    "PCIe gen4 x16 (system config a100_pcie.json)",
    "NVSwitch node + IB/RoCE",
    "Compute: 8x ConnectX-7, Storage: 2x 100Gb/s",
    "Storage: 2x HDR 200Gb/s; Management: 1x 10GbE",
    "8x H100 80GB, NVLink 900 GB/s",
    "ICI torus in a slice; DCN between slices",
]

AMBIGUOUS = [
    ("8x ConnectX-7 400Gb/s, 8x ConnectX-6 200Gb/s", "several networks"),
    ("4x NDR 400Gb/s + 4x HDR 200Gb/s, RoCE 100Gb/s x4", "several networks"),
    ("Compute: 4x NDR 400Gb/s, 4x HDR 200Gb/s", "no stated purpose"),
    ("8x 400 GB/s InfiniBand", "no NIC has 3200 Gb/s"),
    ("4x dual-port ConnectX-6 100Gb/s InfiniBand", "of each port, or of all"),
    ("2x 100GbE", "or for management"),
    ("1x HDR 200Gb/s InfiniBand, 8x 400GbE", "a faster network"),
]  # fmt: skip


@pytest.mark.parametrize(("cell", "gpus", "gigabits"), STATED)
def test_the_nics_between_nodes_are_found(cell: str, gpus: int, gigabits: float) -> None:
    assert read_network(cell, gpus) == Network(node=gigabits)


@pytest.mark.parametrize("cell", NOT_STATED)
def test_what_a_cell_does_not_say_is_not_made_up(cell: str) -> None:
    assert read_network(cell, 8) == Network()


@pytest.mark.parametrize(("cell", "why"), AMBIGUOUS)
def test_a_cell_that_can_be_read_in_two_ways_is_refused(cell: str, why: str) -> None:
    with pytest.raises(NotSimulated, match="interconnect ambiguous") as refused:
        read_network(cell, 8)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("cell", "nic"), [("NVLink + OmniPath 100G", 100), ("InfiniBand HDR", 200), ("RoCE, 400 Gb/s NICs", 400)]
)
def test_nics_of_no_stated_number(cell: str, nic: float) -> None:
    assert read_network(cell, 8) == Network(nic=nic)


WORDS = [
    "8x", "x8", "400", "Gb/s", "GB/s", "NDR", "HDR200", "IB", "Ethernet", "RoCE", "per GPU", "per 2 GPUs", "per node",
    "PCIe Gen5 x16", "Storage:", "Compute:", "|", ",", "+", "(", ")", "ConnectX-7", "BlueField-3", "two", "NICs", "3.2 Tbps",
    "0x", "*", "dual-port", "99x99x99x", "p5.48xlarge", "\u00b2", "\u0663x", "EFA", "Slingshot-11", "each", "bidirectional",
    "NVLink", "\n", "and 8",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.integers(1, 72))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_any_cell_is_read_or_refused(words: list[str], gpus: int) -> None:
    try:
        found = read_network(" ".join(words), gpus)
    except NotSimulated as refused:
        assert str(refused).startswith("interconnect ambiguous")
    else:
        assert found.node is None or found.nic is None
        assert (found.node or 0) >= 0
