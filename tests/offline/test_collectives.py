"""Published nccl-tests tables against the cost model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.collectives import BAR_PERCENT, Measured, as_json, as_markdown, compare, published, summary
from sim_core import SpecError, collective_seconds, read_hardware

KNOWN_FAR = {
    "aws_p5_n2_eks_allreduce",  # an older plugin: half as fast as the same machines in other tables
    "h100_xxrjun_N10_G8-5",  # sends of one GPU a node
    "h100_xxrjun_single_c01_G8-5",  # sends of 16 MB inside a node
}
"""Tables with sizes that are off by more than a factor of 2, told in docs/network.md."""


@pytest.fixture(scope="module")
def compared() -> list[Measured]:
    """All published tables with what they take here."""
    return compare(published())


def test_the_cost_model_is_within_the_bars_on_stated_fabrics(compared: list[Measured]) -> None:
    found = summary(compared)
    assert found.rows["large"] > 400
    assert found.rows["small"] > 200
    for name, bar in BAR_PERCENT.items():
        assert found.median[name] <= bar, name
    assert set(found.beyond_two) <= KNOWN_FAR


SMALL = 1.01 * 2**20
"""Bytes up to which latency decides."""


@pytest.mark.parametrize(
    ("fabric", "operation", "off"),
    [
        ("InfiniBand", "all_reduce", 0.15),
        ("InfiniBand", "all_gather", 0.15),
        ("InfiniBand", "all_to_all", 0.15),
        ("RoCE", "all_gather", 0.15),
        ("EFA v1", "all_reduce", 0.15),
        ("EFA v2", "all_reduce", 0.15),
        ("TCPX", "all_reduce", 0.15),
        ("TCPX", "all_gather", 0.15),
        ("Slingshot", "all_reduce", 0.15),
        ("Slingshot", "all_gather", 0.15),
        ("not stated", "all_reduce", 0.2),  # of A100s on 2 to 16 nodes: nothing was fitted to them
    ],
)
def test_small_messages_between_nodes_take_as_long_as_measured(
    compared: list[Measured], fabric: str, operation: str, off: float
) -> None:
    """Up to 1 MB the presets were 20 to 55 % too fast: the median over the sizes of all tables of a fabric and operation."""
    ratios = [
        ratio
        for one in compared
        if one.fabric == fabric and one.operation == operation and one.nodes > 1 and one.quality == "ok"
        for size, ratio in zip(one.sizes, one.ratios, strict=True)
        if size <= SMALL
    ]
    assert len(ratios) > 10
    assert abs(np.median(ratios) - 1) < off


def test_every_published_table_has_a_source_and_rises_with_size() -> None:
    tables = published()
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert "@" in table.source or "NVIDIA/nccl-tests/issues" in table.source or "docs page" in table.source, table.name
        assert table.sizes
        assert min(table.seconds) > 0
        assert np.all(np.diff(table.sizes) > 0), table.name


def test_both_forms_are_printed(compared: list[Measured]) -> None:
    assert "Messages of 16 MB and more: median error" in as_markdown(compared)
    assert {"operation", "nodes", "bytes_from", "median_error", "fabric"} <= set(json.loads(as_json(compared))[0])


def test_one_collective_by_itself() -> None:
    """An all-gather of 4 GB over two nodes: 15/16 of it by the slower of NVLink and eight NICs."""
    hardware = read_hardware("H100-SXM")
    (seconds,) = collective_seconds("all_gather", [4e9], 16, 2, hardware)
    slowest = min(450e9 * 0.8, 8 * 50e9 * 0.97 * 0.9)
    assert seconds == pytest.approx(4e9 * 15 / 16 / slowest, rel=0.02)
    for operation, ranks, nodes in (("gather", 8, 1), ("all_gather", 17, 2), ("all_gather", 2, 3), ("all_gather", 1, 0)):
        with pytest.raises(SpecError):
            collective_seconds(operation, [1.0], ranks, nodes, hardware)
