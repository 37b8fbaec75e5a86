"""A slice that takes a node's memory: Ray's own monitor kills its worker, and the guilty plan is found all the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

from sweep.evaluation.preparation import Prepared
from sweep.executors import InlineExecutor
from sweep.executors.choice import Kind, opened
from sweep.results.folder import folder_at
from sweep.results.slice_file import Slice
from tests.sweep.conftest import rows, spec_in
from tests.sweep.executors.test_executors import check_failed, execute, legal_after
from tests.sweep.tasks import Swelling, run_with
from tests.sweep.test_execution import call, command
from tests.waiting import PATIENCE_S, until

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


LIMIT = 2**30
"""Bytes of a driver and its worker together: they need half of it."""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of the kernel with little memory; its killer ends the largest process of the group."""
    root = Path("/sys/fs/cgroup")
    first = root / "memory" if (root / "memory").is_dir() else root
    group = first / f"sweep-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs the right to make control groups")
    name = "memory.limit_in_bytes" if first != root else "memory.max"
    if not (group / name).exists():
        group.rmdir()
        pytest.skip("needs control of memory")
    (group / name).write_text(str(LIMIT))
    yield group
    until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.long
def test_a_worker_that_the_kernel_kills_for_its_memory(small_group: Path, tmp_path: Path) -> None:
    spec = spec_in(tmp_path, axes={"tp": [4], "pp": [1, 2], "all_gpus": [64], "ga": {"range": [1, 8, 1]}}, where=None)
    call("run", spec, "--out", tmp_path / "undisturbed", "--workers", 0, "--top", 0)
    undisturbed = rows(tmp_path / "undisturbed")
    guilty = legal_after(undisturbed, 3)
    line = command("run", spec, "--out", tmp_path / "out", "--workers", 1, "--top", 0)
    line[1:3] = ["-c", run_with("Swelling", position=guilty, most=4 * LIMIT)]
    joined = ["sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "sh", *line]
    done = subprocess.run(joined, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, "1 plan failed" in done.stdout + done.stderr) == (3, True), done.stdout + done.stderr
    check_failed(rows(tmp_path / "out"), undisturbed, (guilty,), "worker_lost")


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
