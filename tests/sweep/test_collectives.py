"""`sweep validate --collectives`: published nccl-tests tables against the cost model."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim_core import SpecError, collective_seconds, read_hardware
from sweep.validation.collectives import BAR_PERCENT, compare, published, summary
from tests.sweep.commands import sweep

KNOWN_FAR = {
    "aws_p5_n2_eks_allreduce",  # an older plugin: half as fast as the same machines in other tables
    "dstack_lambda_b200_n2_allreduce",  # 1 MB
    "gcp_dws_queued_allgather",  # below 64 kB: 54 us, where NCCL's constants give 23
    "h100_xxrjun_N10_G8-1",  # 16 MB
    "h100_xxrjun_N10_G8-5",  # sends of one GPU a node
    "h100_xxrjun_single_c01_G8-5",  # sends of 16 MB inside a node
}
"""Tables with sizes that are off by more than a factor of 2, told in docs/network.md."""


def test_the_cost_model_is_within_the_bars_on_stated_fabrics() -> None:
    found = summary(compare(published()))
    assert found.rows["large"] > 400
    assert found.rows["small"] > 200
    for name, bar in BAR_PERCENT.items():
        assert found.median[name] <= bar, name
    assert set(found.beyond_two) <= KNOWN_FAR


def test_every_published_table_has_a_source_and_rises_with_size() -> None:
    tables = published()
    assert len({table.name for table in tables}) == len(tables)
    for table in tables:
        assert "@" in table.source or "NVIDIA/nccl-tests/issues" in table.source or "docs page" in table.source, table.name
        assert table.sizes
        assert min(table.seconds) > 0
        assert np.all(np.diff(table.sizes) > 0), table.name


def test_both_forms_are_printed() -> None:
    told = sweep("validate", "--collectives").stdout
    assert "Messages of 16 MB and more: median error" in told
    rows = json.loads(sweep("validate", "--collectives", "--format", "json").stdout)
    assert {"operation", "nodes", "bytes_from", "median_error", "fabric"} <= set(rows[0])
    assert "--collectives takes only --format" in sweep("validate", "--collectives", "--rows").stderr


def test_one_collective_by_itself() -> None:
    """An all-gather of 4 GB over two nodes: 15/16 of it by the slower of NVLink and eight NICs."""
    hardware = read_hardware("H100-SXM")
    (seconds,) = collective_seconds("all_gather", [4e9], 16, 2, hardware)
    slowest = min(450e9 * 0.8, 8 * 50e9 * 0.97 * 0.9)
    assert seconds == pytest.approx(4e9 * 15 / 16 / slowest, rel=0.02)
    for operation, ranks, nodes in (("gather", 8, 1), ("all_gather", 17, 2), ("all_gather", 2, 3), ("all_gather", 1, 0)):
        with pytest.raises(SpecError):
            collective_seconds(operation, [1.0], ranks, nodes, hardware)
