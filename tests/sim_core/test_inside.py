"""Device inside a node: a mesh gives a group its own links, a torus those of its axes; closed forms and published figures."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from sim_core import Hardware, SpecError, read_hardware
from sim_core.costing.collectives import collective_s, send_s
from sim_core.costing.one_collective import collective_seconds
from sim_core.hardware.table import Device, device_at, hardware_table
from sim_core.planning.placement import Placement
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL

BIG = 1e13
LINK = 90e9
RCCL = {
    1024: 13.11, 16384: 13.54, 131072: 14.14, 262144: 16.87, 524288: 24.41, 1048576: 27.42, 2097152: 34.81, 4194304: 51.72,
    8388608: 83.68, 16777216: 148.8, 33554432: 244.1, 67108864: 429.1, 268435456: 1537.1, 1073741824: 5970.6,
    8589934592: 47278.0,
}  # fmt: skip
"""Microseconds of all-reduces of 8 MI300X by bytes: ROCm blog, Understanding RCCL Bandwidth and xGMI Performance (2025)."""


def links(hardware: Hardware) -> Device:
    return device_at(hardware_table([hardware], None).columns, 0)


def slice_of(name: str, chips: int) -> Device:
    return links(read_hardware(name).with_values({"gpus_per_node": chips, "nics_per_node": chips}))


def group(ranks: int, stride: int = 1, nodes: int = 1) -> Placement:
    return Placement(ranks=ranks, nodes=nodes, fewest=ranks // nodes, most=ranks // nodes, stride=stride)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_on_a_mesh_a_group_has_the_links_to_its_own_members(ranks: int) -> None:
    at, mesh = group(ranks), links(read_hardware("MI300X"))
    one = mesh.nvlink_bandwidth / 7
    own = one * (ranks - 1)
    assert collective_s(ALL_GATHER, BIG, at, mesh) == pytest.approx((ranks - 1) / ranks * BIG / own, rel=1e-3)
    assert collective_s(ALL_TO_ALL, BIG, at, mesh) == pytest.approx(BIG / ranks / one, rel=1e-3)  # each pair has its own link
    assert send_s(BIG, False, mesh) == pytest.approx(BIG / one, rel=1e-3)


def test_all_reduces_of_eight_mi300x_are_as_measured() -> None:
    """Nothing but the bandwidth of large messages was taken from this table."""
    sizes = np.array(list(RCCL), np.float64)
    ratio = collective_seconds("all_reduce", sizes, 8, 1, read_hardware("MI300X")) * 1e6 / np.array(list(RCCL.values()))
    assert median(abs(ratio - 1)) < 0.09
    assert (abs(ratio - 1) < 0.28).all()


@pytest.mark.parametrize(("name", "chips", "axes"), [("TPU-v6e", 256, 2), ("TPU-v5p", 512, 3), ("TPU-v7x", 64, 3)])
def test_a_torus_gathers_over_all_links_at_once(name: str, chips: int, axes: int) -> None:
    """jax-ml.github.io/scaling-book: V / (axes x both directions of a link); all-reduce twice; all-to-all by bisection."""
    torus, at, side = slice_of(name, chips), group(chips), round(chips ** (1 / axes))
    moved = BIG * (chips - 1) / chips
    assert collective_s(ALL_GATHER, BIG, at, torus) == pytest.approx(moved / (2 * axes * LINK), rel=1e-3)
    assert collective_s(ALL_REDUCE, BIG, at, torus) == pytest.approx(2 * moved / (2 * axes * LINK), rel=1e-3)
    crossing = chips / 2 * BIG / 2 / (2 * chips / side * LINK)  # bytes from one half to the other over the links between
    assert collective_s(ALL_TO_ALL, BIG, at, torus) == pytest.approx(crossing, rel=1e-3)
    assert collective_s(ALL_GATHER, 1.0, at, torus) == pytest.approx(axes * side / 2 * 1e-6, rel=1e-3)  # half way round


def test_a_pod_of_v6e_has_the_published_bisection() -> None:
    """3.2 TB/s (Google Cloud documentation), of links of 100 GB/s; 90 GB/s is what collectives are said to reach."""
    chips = 256
    seconds = collective_s(ALL_TO_ALL, BIG, group(chips), slice_of("TPU-v6e", chips))
    assert chips / 2 * BIG / 2 / seconds == pytest.approx(0.9 * 3.2e12, rel=1e-3)


def test_a_group_along_one_axis_has_the_links_of_that_axis() -> None:
    torus = slice_of("TPU-v5p", 512)
    for stride in (1, 8, 64):
        assert collective_s(ALL_GATHER, BIG, group(8, stride), torus) == pytest.approx(7 / 8 * BIG / (2 * LINK), rel=1e-3)
    assert collective_s(ALL_GATHER, BIG, group(64, 8), torus) == pytest.approx(63 / 64 * BIG / (4 * LINK), rel=1e-3)
    assert collective_s(ALL_GATHER, BIG, group(4), torus) == pytest.approx(3 / 4 * BIG / LINK, rel=1e-3)  # a line, no ring
    assert collective_s(ALL_TO_ALL, BIG, group(8), torus) == pytest.approx(BIG * 8 / (8 * LINK), rel=1e-3)
    assert collective_s(ALL_TO_ALL, BIG, group(4), torus) == pytest.approx(2 * BIG * 4 / (8 * LINK), rel=1e-3)
    assert send_s(BIG, False, torus) == pytest.approx(BIG / LINK, rel=1e-3)


def test_a_small_slice_of_v6e_does_not_go_round() -> None:
    open_, closed = slice_of("TPU-v6e", 64), slice_of("TPU-v6e", 256)
    assert collective_s(ALL_GATHER, BIG, group(64), open_) == pytest.approx(63 / 64 * BIG / (2 * LINK), rel=1e-3)
    assert collective_s(ALL_GATHER, BIG, group(256), closed) == pytest.approx(255 / 256 * BIG / (4 * LINK), rel=1e-3)


def test_slices_exchange_over_the_data_center_what_each_chip_holds() -> None:
    torus = slice_of("TPU-v6e", 256)
    seconds = collective_s(ALL_REDUCE, BIG, group(512, nodes=2), torus)
    inside, outside = 255 / 256 * BIG / (4 * LINK), BIG / 2 / (256 * 12.5e9)
    assert seconds == pytest.approx(2 * (inside + outside), rel=1e-3)


@pytest.mark.parametrize("slices", [2, 4, 8])
def test_a_short_message_hops_to_every_other_slice(slices: int) -> None:
    """One chip of each: a ring of n slices takes n - 1 steps, twice for an all-reduce (Patarasuk & Yuan 2009, section 3)."""
    torus = slice_of("TPU-v6e", 256)
    hops_s = (slices - 1) * torus.nic_latency
    assert collective_s(ALL_GATHER, 1.0, group(slices, nodes=slices), torus) == pytest.approx(hops_s, rel=1e-3)
    assert collective_s(ALL_REDUCE, 1.0, group(slices, nodes=slices), torus) == pytest.approx(2 * hops_s, rel=1e-3)


@pytest.mark.parametrize("axes", [7, 1.5])
def test_links_of_no_such_kind_are_refused(axes: float) -> None:
    with pytest.raises(SpecError, match=f"link_axes: found {axes:g}, expected a whole number up to 6"):
        read_hardware("MI300X").with_values({"link_axes": axes})
