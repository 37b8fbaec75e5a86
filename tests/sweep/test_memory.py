"""A slice that takes a node's memory: Ray's own monitor kills its worker, and the guilty plan is found all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from sweep.executors import InlineExecutor
from sweep.executors.choice import Kind, opened
from sweep.folder import folder_at
from sweep.preparation import Prepared
from sweep.slice_file import Slice
from tests.sweep.tasks import Swelling
from tests.sweep.test_executors import execute

ROOM = 2**31
"""Bytes beyond what the machine uses now, at which the monitor of the test's cluster kills."""


def memory_bytes(name: str) -> int:
    line = next(line for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


@pytest.fixture
def address() -> Iterator[str]:
    """A cluster that was started by somebody who knows nothing of us, but for a monitor that kills early."""
    total = memory_bytes("MemTotal")
    threshold = (total - memory_bytes("MemAvailable") + ROOM) / total
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_memory_usage_threshold", f"{threshold:.3f}")
        patch.setenv("RAY_memory_monitor_refresh_ms", "100")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster.address
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.long
def test_a_plan_that_takes_the_memory_of_a_node_is_found(address: str, prepared: Prepared, tmp_path: Path) -> None:
    part = Slice(100, 104)
    undisturbed = execute(InlineExecutor(), prepared, tmp_path / "undisturbed", part=part)
    legal = [k for k, row in enumerate(undisturbed.to_pylist()) if row["status"] == "ok"]
    guilty = legal[0]
    with opened(Kind.ray, None, 120.0, "driver", folder_at(tmp_path / "out")) as executor:
        found = execute(executor, prepared, tmp_path / "out", Swelling, part, position=part.start + guilty, most=3 * ROOM)
    for k, (row, expected) in enumerate(zip(found.to_pylist(), undisturbed.to_pylist(), strict=True)):
        if k == guilty:
            assert (row["status"], row["reason"]) == ("failed", "out_of_memory")
        else:
            assert row == expected
