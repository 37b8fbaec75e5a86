"""A sweep on a Ray cluster whose workers, nodes and drivers are killed (kill -9) at random moments; and as a submitted job.

Whatever dies, the table is in the end bit for bit that of an undisturbed local run: no row twice, none missing.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from ray.cluster_utils import Cluster
from ray.job_submission import JobSubmissionClient

from cluster.demo import DemoCluster, demo_cluster, free_ports
from sweep.results.store import Store
from tests.sweep.conftest import rows, spec_in
from tests.sweep.test_execution import BIG_AXES, children, command, here, there
from tests.waiting import until

ROOT = Path(__file__).parents[3]
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=BIG_AXES, where=None, name="big")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


class Nodes:
    """A head that only keeps the books, and nodes of one CPU each that may be killed, by the test or from outside."""

    def __init__(self, count: int) -> None:
        agent = free_ports(1)[0]  # the default is one port for all heads of a machine
        head = {"num_cpus": 0, "include_dashboard": False, "dashboard_agent_listen_port": agent}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self._added() for _ in range(count)]

    def _added(self) -> Any:
        return self.cluster.add_node(wait=False, num_cpus=1)  # a run waits for it, however long that takes

    def _raylet(self, node: Any) -> subprocess.Popen[bytes]:
        raylet: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
        return raylet

    def kill_node(self, rng: random.Random) -> None:
        """Kill a node's raylet, and give the cluster another node."""
        self._raylet(rng.choice(self.nodes)).kill()
        self.replace_lost()

    def replace_lost(self) -> None:
        """Give the cluster a node for each one that has died."""
        head: Any = self.cluster.head_node
        for what in ("gcs_server", "raylet"):
            ended = head.all_processes[what][0].process.poll()
            if ended is not None:
                pytest.fail(f"the head of the cluster has died, not by this test: {what} ended with {ended}")
        for node in [node for node in self.nodes if self._raylet(node).poll() is not None]:
            self.nodes.remove(node)
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(self._added())

    def kill_worker(self, rng: random.Random) -> bool:
        """Kill a process that runs a slice; False if there is none at the moment."""
        found = [pid for node in self.nodes for pid in children(self._raylet(node).pid) if is_slice(pid)]
        for pid in rng.sample(found, len(found)):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
                return True
        return False


def is_slice(pid: int) -> bool:
    """Whether a process runs a slice: Ray names it after the task."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::slice ")
    except OSError:
        return False


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        made = Nodes(2)
        yield made
        made.cluster.shutdown()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run in the background, and the file to which it writes: a pipe that nobody reads would stop it."""

    process: subprocess.Popen[str]
    log: Path

    def end(self, nodes: Nodes) -> str:
        """Wait for its end, with as many nodes as there were; returns what it printed."""
        until(nodes.replace_lost, self.process, self.log)
        return self.log.read_text(encoding="utf-8")


def started(spec: Path, out: Path, nodes: Nodes, writer: str) -> Run:
    log = out.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen(
            command("run", spec, "--out", out, "--executor", "ray", "--top", 0, "--set", f"store.writer={writer}"),
            env={**os.environ, **QUIET, "RAY_ADDRESS": nodes.cluster.address}, stdout=file, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    return Run(process=process, log=log)


def disturb(spec: Path, out: Path, undisturbed: pa.Table, nodes: Nodes, rounds: int, seed: int) -> int:
    """Each round kills one thing once a random number of rows has been added, and resumes; then all is compared.

    Returns the number of workers that it killed; none if a run ends too early.
    """
    rng = random.Random(seed)
    kinds = ["worker", "raylet", "driver"]
    workers_killed = 0
    for number in range(rounds):
        kind = kinds[(number + seed) % 3]
        left = undisturbed.num_rows - there(out)
        moment = there(out) + rng.randrange(max(int(0.7 * left), 1))
        run = started(spec, out, nodes, rng.choice(["driver", "worker"]))

        def is_there(moment: int = moment) -> bool:
            nodes.replace_lost()
            return there(out) >= moment

        until(is_there, run.process, run.log)
        if kind == "driver":
            run.process.kill()
            run.process.wait()
            continue
        if kind == "raylet":
            nodes.kill_node(rng)
        if kind == "worker":
            workers_killed += until(lambda: nodes.kill_worker(rng), run.process, run.log)
        told = run.end(nodes)
        assert run.process.returncode == 0, told
        assert rows(out).equals(undisturbed), told
        files = sorted(out.glob("part-*.parquet"))
        assert len(files) == len(Store(directory=out).slices()), "a row lies in two files"
        for path in rng.sample(files, len(files) - 1):
            path.unlink()
    here("run", spec, "--out", out, "--workers", 0, "--top", 0)
    assert rows(out).equals(undisturbed)
    assert len(list(out.glob("part-*.parquet"))) == len(Store(directory=out).slices())
    return workers_killed


def test_kill_9_on_a_cluster(spec: Path, tmp_path: Path, undisturbed: pa.Table, nodes: Nodes) -> None:
    disturb(spec, tmp_path / "out", undisturbed, nodes, rounds=2, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 2, 4, 6])
def test_kill_9_on_a_cluster_many_times(spec: Path, tmp_path: Path, undisturbed: pa.Table, nodes: Nodes, first: int) -> None:
    """24 rounds in all."""
    seeds = (first, first + 1)
    killed = [disturb(spec, tmp_path / f"out{seed}", undisturbed, nodes, rounds=3, seed=seed) for seed in seeds]
    assert sum(killed) > 0


@pytest.fixture(scope="module")
def jobs() -> Iterator[DemoCluster]:
    with demo_cluster([2]) as cluster:
        yield cluster


@pytest.mark.long  # half a minute; that Ray resumes what a kill left is tested above
def test_a_stopped_job_leaves_a_result_that_is_resumed(
    jobs: DemoCluster, spec: Path, tmp_path: Path, undisturbed: pa.Table
) -> None:
    out = tmp_path / "out"
    entry = ["python", "-m", "sweep", "run", str(spec), "--executor", "ray", "--out", str(out), "--top", "3"]
    patience = '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}'
    submitted = jobs.submit(entry, "--no-wait", "--submission-id", "stopped", "--runtime-env-json", patience)
    assert submitted.returncode == 0, submitted.stdout
    client = JobSubmissionClient(jobs.dashboard)
    until(lambda: there(out) or client.get_job_status("stopped").is_terminal())
    client.stop_job("stopped")  # at once
    assert jobs.job("stop", "stopped").returncode == 0  # waits for the end
    log = jobs.job("logs", "stopped").stdout
    assert "Interrupted. Finished slices are in" in log
    assert "Traceback" not in log
    assert 0 < there(out) < undisturbed.num_rows
    done = jobs.submit(entry, "--submission-id", "resumed")
    assert done.returncode == 0, done.stdout
    log = client.get_job_logs("resumed")
    assert "were already there" in log
    assert " plans in" in log
    assert "\x1b" not in log, "a log has no control codes"
    assert "\r" not in log
    assert rows(out).equals(undisturbed)
