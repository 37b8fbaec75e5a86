"""Leaves and pods: bandwidths against rings and all-to-alls counted GPU by GPU over the links that leave a leaf."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    SpecError,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    slice_plans,
    workload_from_model,
)
from sim_core.compiled.jit import kernel
from sim_core.costing.collectives import collective_s
from sim_core.costing.fabric import crowded_send, crowding, nic_s
from sim_core.costing.groups import Groups, group_plans, placement_at
from sim_core.hardware.table import Device, HardwareTable, device_at
from sim_core.planning.placement import Placement
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, DP, DP_EP, EP, SEND_RECEIVE, TP
from tests.conftest import make_plans
from tests.oracle.groups import Grid

GPUS = 4
"""Of a node."""


def table(**values: object) -> HardwareTable:
    small = {"gpus_per_node": GPUS, "nics_per_node": GPUS, "memory": "100 TB"}
    return hardware_table([read_hardware("H100-SXM").with_values({**small, **values})], None)


def most_loaded(groups: list[tuple[int, ...]], per_leaf: int) -> float:
    """Shares of NICs that leave a leaf while every group runs a ring, over all of the leaf's; the fullest leaf.

    The ring of a group leaves a node by the NICs that its members have there.
    """
    leaving = dict.fromkeys(range(10_000), 0.0)
    for ranks in groups:
        nodes = [node for node, _ in itertools.groupby(rank // GPUS for rank in ranks)]
        if len(nodes) == 1:
            continue
        for node, after in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
            here, there = (each // (per_leaf // GPUS) for each in (node, after))
            if here != there:
                leaving[here] += sum(1 for rank in ranks if rank // GPUS == node)
    return max(leaving.values()) / per_leaf


SHAPES = [
    (4, 1, 1, 16),
    (2, 1, 1, 16),
    (4, 2, 1, 16),
    (1, 1, 8, 64),
    (2, 1, 8, 32),
    (4, 1, 8, 32),
    (1, 4, 16, 32),
    (2, 2, 4, 8),
]
"""tp, pp, ep, dp."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("over", [2, 7])
def test_rings_share_the_links_of_a_leaf(shape: tuple[int, int, int, int], nodes: int, over: int) -> None:
    tp, pp, ep, dp = shape
    columns = table(nodes_per_leaf=nodes, leaf_oversubscription=over).columns
    plan = make_plans(tp=tp, pp=pp, ep=ep, all_gpus=tp * pp * dp)
    groups, links = group_plans(columns, plan, np.zeros(1, np.int64)), device_at(columns, 0)
    for kind in (TP, EP, DP, DP_EP):
        counted = most_loaded(Grid(tp, pp, ep, dp).groups(kind), nodes * GPUS)
        at = [placement_at(groups, 0, kind, k) for k in range(groups.first[0, kind], groups.end[0, kind])]
        assert max(crowding(each, links) for each in at) == pytest.approx(max(1.0, over * counted)), kind


@pytest.mark.parametrize("level", ["leaf", "pod"])
def test_an_all_to_all_waits_for_what_leaves_its_leaf_or_pod(level: str) -> None:
    """64 ranks on 16 nodes, leaves of 4 nodes with a link for every second NIC: 48 of 64 parts leave by half of the NICs."""
    levels = {f"nodes_per_{level}": 4, f"{level}_oversubscription": 2}
    links = device_at(table(**levels, fabric_efficiency=1).columns, 0)
    at = Placement(ranks=64, nodes=16, fewest=4, most=4)
    size = 1e12
    nic = links.nic_bandwidth
    assert collective_s(ALL_TO_ALL, size, at, links) == pytest.approx(size * 60 / 64 / nic, rel=1e-3)
    inside = at._replace(**{f"per_{level}": 16})
    assert collective_s(ALL_TO_ALL, size, inside, links) == pytest.approx(2 * size * 48 / 64 / nic, rel=1e-3)


@kernel
def carried_s(kind: int, size: float, at: Placement, links: Device) -> float:
    """Seconds of the NICs, as kernels call it."""
    return nic_s(kind, size, at, links)


@pytest.mark.parametrize(("nodes", "times"), [(2, 1), (3, 2), (8, 2)])
def test_nics_carry_an_all_reduce_of_two_nodes_once(nodes: int, times: int) -> None:
    """Two nodes exchange their sums; among more, each part goes round once to be summed and once to be told."""
    links = device_at(table(fabric_efficiency=1).columns, 0)
    at = Placement(ranks=GPUS * nodes, nodes=nodes, fewest=GPUS, most=GPUS)
    assert carried_s(ALL_REDUCE, 1e12, at, links) == pytest.approx(times * carried_s(ALL_GATHER, 1e12, at, links))


def most_off_leaf(nodes: int, per_unit: int, *, pxn: bool) -> float:
    """Messages that leave a leaf by the switch of a place, over its NICs, while each GPU sends one to each other; the fullest.

    The GPU of the sender's node that sends is itself, or with PXN the one at the receiver's place.
    """
    leaving: dict[tuple[int, int], int] = {}
    ranks = [divmod(rank, GPUS) for rank in range(nodes * GPUS)]
    for (node, place), (other, there) in itertools.product(ranks, ranks):
        by = there if pxn else place
        if node != other and (node // per_unit, by) != (other // per_unit, there):
            leaving[node // per_unit, by] = leaving.get((node // per_unit, by), 0) + 1
    return max(leaving.values(), default=0) / per_unit


@pytest.mark.parametrize("pxn", [True, False])
@pytest.mark.parametrize(("nodes", "per_unit"), [(8, 4), (8, 8), (16, 4)])
def test_rails_keep_equal_places_on_one_leaf(nodes: int, per_unit: int, pxn: bool) -> None:
    """Of an all-to-all over all GPUs, with links that leave as slow as to count alone."""
    columns = table(nodes_per_leaf=per_unit, leaf_oversubscription=50, rails=True, pxn=pxn, fabric_efficiency=1).columns
    ranks = nodes * GPUS
    plan = make_plans(tp=1, ep=ranks, all_gpus=ranks)
    groups, links = group_plans(columns, plan, np.zeros(1, np.int64)), device_at(columns, 0)
    at = placement_at(groups, 0, EP, int(groups.first[0, EP]))
    size = 1e12
    counted_s = 50 * most_off_leaf(nodes, per_unit, pxn=pxn) * size / ranks / links.nic_bandwidth
    inside_s = size * (ranks - GPUS) / ranks / links.nic_bandwidth
    assert collective_s(ALL_TO_ALL, size, at, links) == pytest.approx(max(counted_s, inside_s), rel=1e-3)
    if per_unit == nodes:
        assert (counted_s == 0) == pxn, "inside a unit PXN keeps all off the spine"


@pytest.mark.parametrize(("pp", "stage"), [(4, 6), (3, 8)])
def test_a_send_to_another_place_leaves_its_leaf_without_pxn(pp: int, stage: int) -> None:
    """Stages of 6 GPUs on nodes of 4 send two places on; stages of 8 to the same place."""
    seconds = []
    for pxn in (True, False):
        device = device_at(table(nodes_per_leaf=8, leaf_oversubscription=3, rails=True, pxn=pxn).columns, 0)
        places = {rank % GPUS - (rank + stage) % GPUS for rank in range(stage)}
        assert (places == {0}) == (stage % GPUS == 0)
        seconds.append(crowded_send(0, pp, pp * stage, device))
    assert seconds == [1.0, 3.0 if stage == 6 else 1.0]


@pytest.mark.parametrize(("stage_gpus", "nodes", "pp"), [(4, 2, 4), (8, 2, 3), (16, 2, 2), (4, 4, 4), (8, 4, 4)])
def test_sends_of_a_stage_leave_its_leaf_where_their_receivers_are_on_another(stage_gpus: int, nodes: int, pp: int) -> None:
    """Of each stage, the last one sending to the first: the GPUs of a leaf whose message leaves it, over the leaf's NICs."""
    device = device_at(table(nodes_per_leaf=nodes, leaf_oversubscription=7).columns, 0)
    leaf, gpus = nodes * GPUS, pp * stage_gpus
    for stage in range(pp):
        leaving = Counter(
            rank // leaf
            for rank in range(stage * stage_gpus, (stage + 1) * stage_gpus)
            if rank // leaf != (rank + stage_gpus) % gpus // leaf
        )
        expected = max(1.0, 7 * max(leaving.values(), default=0) / leaf)
        assert crowded_send(stage, pp, gpus, device) == pytest.approx(expected), stage


@pytest.mark.parametrize("kind", [ALL_REDUCE, ALL_GATHER, SEND_RECEIVE])
def test_one_rank_in_each_leaf_has_its_part_of_the_links(kind: int) -> None:
    links = device_at(table(nodes_per_leaf=4, leaf_oversubscription=7, fabric_efficiency=1, pat=False).columns, 0)
    at = Placement(ranks=16, nodes=16, fewest=1, most=1)
    one, seven = (collective_s(kind, 1e13, each, links) for each in (at, at._replace(per_leaf=1)))
    assert seven == pytest.approx(7 * one, rel=1e-3)
    assert collective_s(kind, 1e13, at._replace(per_leaf=8), links) == one  # one of eight NICs sends to another leaf


MODEL = workload_from_model(read_model("llama3-8b", {"layers": 8}), read_stack("megatron-core"), sequence_parallel=True)
PLANS: dict[str, Any] = {"tp": [4, 4, 1], "pp": [1, 4, 1], "all_gpus": 64, "ga": 4, "overlap_grad": 1}


def step_s(**values: object) -> np.ndarray[Any, Any]:
    """Seconds of the step, of sends and of gradients, each message with NICs of its own: of how levels cost alone."""
    found = simulate(MODEL, table(shared_nics=False, **values), plans(MODEL, **PLANS))
    assert not found.reason.any()
    return np.stack([found.metrics[METRICS.index(name)] for name in ("step_time_s", "pp_total_s", "dp_total_s")])


def test_groups_of_a_batch_are_those_of_each_plan_alone() -> None:
    columns = table(nodes_per_leaf=2, leaf_oversubscription=2, nodes_per_pod=4).columns
    tp, pp, ep, dp = np.array(SHAPES).T
    together = make_plans(tp=tp, pp=pp, ep=ep, all_gpus=tp * pp * dp)
    batch = group_plans(columns, together, np.arange(len(SHAPES)))
    for row, shape in enumerate(SHAPES):
        alone = group_plans(columns, slice_plans(together, slice(row, row + 1)), np.zeros(1, np.int64))
        for kind in (TP, EP, DP, DP_EP):
            assert _placed(batch, int(batch.key[row]), kind) == _placed(alone, 0, kind), (shape, kind)


def _placed(groups: Groups, row: int, kind: int) -> list[Placement]:
    return [placement_at(groups, row, kind, k) for k in range(groups.first[row, kind], groups.end[row, kind])]


def test_a_whole_step_on_leaves_and_pods() -> None:
    flat = step_s()
    assert step_s(nodes_per_leaf=4, leaf_oversubscription=1).tobytes() == flat.tobytes()
    assert step_s(nodes_per_leaf=16, leaf_oversubscription=9).tobytes() == flat.tobytes()  # one leaf holds all
    leaves = step_s(nodes_per_leaf=4, leaf_oversubscription=8)
    assert step_s(nodes_per_leaf=2, nodes_per_pod=4, pod_oversubscription=8).tobytes() == leaves.tobytes()
    assert leaves[2, 0] > 1.5 * flat[2, 0]  # a gradient ring: 1 of 4 nodes sends to the next leaf, which has 1/8 of the links
    assert leaves[1, 1] > 4 * flat[1, 1]  # a stage is a leaf: all of its sends leave
    assert leaves[2, 1] == flat[2, 1]  # and no gradient does
    assert (leaves[0] > flat[0]).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"leaf_oversubscription": 2}, "leaf_oversubscription: found 2, expected nodes_per_leaf with it"),
        ({"nodes_per_leaf": 4, "leaf_oversubscription": 0.5}, "leaf_oversubscription: found 0.5, expected 1 to 1000"),
        ({"nodes_per_leaf": 2.5}, "nodes_per_leaf: found 2.5, expected a whole number up to 16777216"),
        ({"nodes_per_leaf": 8, "nodes_per_pod": 4}, "nodes_per_pod: found 4, expected at least the 8 of a leaf"),
        ({"rails": True}, "rails: found true, expected nodes_per_leaf with it"),
        ({"shared_nics": 2}, "fabric.shared_nics: found '2', expected true or false"),
    ],
)
def test_levels_that_cannot_be_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        table(**values)


def test_a_rack_is_one_nvlink_domain() -> None:
    """72 GPUs; a group of 64 that begins with the rack needs no NIC, one of 128 does."""
    rack = hardware_table([read_hardware("GB200-NVL72")], None)
    assert device_at(rack.columns, 0).gpus_per_node == 72
    plan = make_plans(tp=1, ep=[64, 64], all_gpus=[64, 128])
    groups = group_plans(rack.columns, plan, np.arange(2))
    nodes = [placement_at(groups, int(groups.key[row]), EP, int(groups.end[groups.key[row], EP]) - 1).nodes for row in range(2)]
    assert nodes == [1, 2]  # of 128, the second group of 64 lies on both racks: say gpus_per_node 64 if jobs leave 8 free
    links = device_at(rack.columns, 0)
    inside = collective_s(ALL_TO_ALL, 1e9, Placement(ranks=64, nodes=1, fewest=64, most=64), links)
    assert inside < 1e9 / links.nic_bandwidth


def test_trees_of_two_nodes_are_not_carried_to_more() -> None:
    """nccl-tests of H100s, 8 x NDR, all-reduces of 8 GB (NVIDIA/nccl-tests issue 309): 468 GB/s of the bus over two nodes,
    which is 1.17 times their NICs; 365 over four."""
    links = device_at(hardware_table([read_hardware("H100-SXM")], None).columns, 0)
    for nodes, measured in ((2, 468e9), (4, 365e9), (16, 367e9)):
        ranks = 8 * nodes
        seconds = collective_s(ALL_REDUCE, 8e9, Placement(ranks=ranks, nodes=nodes, fewest=8, most=8), links)
        bus = 8e9 * 2 * (ranks - 1) / ranks / seconds
        assert bus == pytest.approx(measured, rel=0.08)
        assert (bus > 400e9) == (nodes == 2)
