"""A Ray cluster that loses its head (kill -9): the run says what is kept and ends, and a new cluster completes the result."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.demo import ROOT, DemoCluster, demo_cluster
from sweep.executors import ClusterLost
from sweep.executors.ray_head import HEAD_S, Head
from tests.sweep.conftest import rows, spec_in
from tests.sweep.executors.test_cluster import QUIET, Run
from tests.sweep.test_execution import BIG_AXES, call, children, command, there
from tests.waiting import until

PROCESSES = ("gcs", "raylet", "agent")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=BIG_AXES, where=None, name="big")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    call("run", spec, "--out", out, "--workers", 2, "--top", 0)
    return rows(out)


def words(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def kill_of_head(cluster: DemoCluster, what: str) -> None:
    """Kill one process of the cluster's head."""
    started = children(cluster.nodes[0].pid)
    (raylet,) = (pid for pid in started if words(pid)[0].endswith("/raylet"))
    (gcs,) = (pid for pid in started if words(pid)[0].endswith("/gcs_server"))
    (agent,) = (pid for pid in children(raylet) if "DashboardAgent" in words(pid)[0] or "agent.py" in " ".join(words(pid)[:4]))
    os.kill({"gcs": gcs, "raylet": raylet, "agent": agent}[what], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("what", PROCESSES)
def test_loss_of_the_head(spec: Path, tmp_path: Path, undisturbed: pa.Table, what: str) -> None:
    out = tmp_path / "out"
    line = command("run", spec, "--out", out, "--executor", "ray", "--top", 0)
    with demo_cluster([1, 1]) as cluster, out.with_suffix(".log").open("w") as log:
        environment = {**os.environ, **QUIET, "RAY_ADDRESS": cluster.gcs}
        process = subprocess.Popen(line, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
        run = Run(process=process, log=out.with_suffix(".log"))
        assert until(lambda: there(out), process, run.log), run.log.read_text()
        kill_of_head(cluster, what)
        process.wait()
    told = run.log.read_text()
    errors = [line for line in told.splitlines() if line.startswith("error: ")]  # besides lines of Ray's own
    kept = there(out)
    assert process.returncode == 1, told
    assert len(errors) <= 1, told  # none where Ray itself ends the driver first (connection.cc: its object store is gone)
    for error in errors:
        assert error.startswith("error: Ray is lost: ")
        assert error.endswith(
            f"; {kept:,} of 61,440 plans are kept in {out}; start Ray again and run the same command to resume"
        )
    assert "Traceback" not in told
    assert 0 < kept < undisturbed.num_rows
    with demo_cluster([1]) as cluster:
        environment["RAY_ADDRESS"] = cluster.gcs
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"({kept:,} were already there)" in done.stdout
    assert rows(out).equals(undisturbed)


@pytest.mark.long
def test_a_job_whose_head_is_lost_is_resumed_by_the_next(spec: Path, tmp_path: Path, undisturbed: pa.Table) -> None:
    """The job's driver ends with its head, often before it can say a word; what it has stored is what counts.

    `ray job submit` then ends in a traceback of Ray's, whose last line is what the documentation quotes.
    """
    out = tmp_path / "out"
    entry = ["python", "-m", "sweep", "run", str(spec), "--executor", "ray", "--out", str(out), "--top", "0"]
    with demo_cluster([1, 1]) as cluster, out.with_suffix(".log").open("w") as log:
        line = cluster.job_command("submit", "--working-dir", str(ROOT), "--", *entry)
        submitted = subprocess.Popen(line, env=cluster.environment, stdout=log, stderr=subprocess.STDOUT)
        until(lambda: there(out), submitted)
        kill_of_head(cluster, "gcs")
        submitted.wait()
    told = out.with_suffix(".log").read_text()
    assert submitted.returncode == 1, told
    assert told.splitlines()[-1] == "RuntimeError: WebSocket connection closed unexpectedly with close code 1006"
    assert told.splitlines()[-1].partition(" with")[0] in (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    kept = there(out)
    assert 0 < kept < undisturbed.num_rows
    with demo_cluster([1, 1]) as cluster:
        done = cluster.submit(entry)
    assert done.returncode == 0, done.stdout
    assert "were already there" in done.stdout
    assert rows(out).equals(undisturbed)


def test_a_head_may_be_silent_for_a_while_a_raylet_may_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gcs, socket.create_server(("127.0.0.1", 0)) as raylet:
        addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in (gcs, raylet)]
        head = Head(gcs=addresses[0], raylet=addresses[1], patience_s=1000.0)
        head.check()
        full = OSError(errno.ENOSPC, "No space left on device")
        assert head.caused(full) is full
        gcs.close()
        head.check()
        assert vars(head)["silent_since"] is not None
        with socket.create_server(("127.0.0.1", int(addresses[0].rpartition(":")[2]))):
            head.check()
            assert vars(head)["silent_since"] is None
        for seconds, patient in ((0.1 * HEAD_S, True), (1.1 * HEAD_S, False)):
            waiting = Head(gcs=addresses[0], raylet=addresses[1], silent_since=time.monotonic() - seconds)
            with nullcontext() if patient else pytest.raises(ClusterLost, match=f"no answer from the head at {addresses[0]}"):
                waiting.check()
        with socket.create_server(("127.0.0.1", int(addresses[0].rpartition(":")[2]))):
            raylet.close()
            with pytest.raises(ClusterLost, match=f"Ray is lost: no answer from the raylet of this node at {addresses[1]}"):
                head.check()
    assert str(Head(gcs=addresses[0], raylet=addresses[0]).loss(BrokenPipeError())).startswith("Ray is lost: no answer")
    assert isinstance(Head(gcs=addresses[0], raylet=addresses[1]).caused(OSError("Broken pipe")), ClusterLost)  # Ray's own
    impatient = Head(gcs=addresses[0], raylet=addresses[1], patience_s=-1.0)
    with pytest.raises(ClusterLost, match=f"no answer from the head at {addresses[0]}"):
        impatient.check()
    with pytest.raises(ClusterLost, match="no answer from the head"):
        impatient.check()  # for the next sweep of a night as well
