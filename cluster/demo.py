"""`make cluster-demo`: a Ray cluster of three nodes on this machine, the example as a job on it, its ranked table.

It uses free ports and its own folder for Ray's files, so that it does not interfere with another Ray on this machine.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
STOP_S = 20.0
PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Distinct ports that are free now, below those that Linux gives to connections: nobody gets them by chance."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as one, suppress(OSError):
            one.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            break
    return found


@dataclass(kw_only=True)
class DemoCluster:
    """Ray nodes on one machine, each a `ray start` in the foreground."""

    folder: Path
    environment: dict[str, str]
    nodes: list[subprocess.Popen[str]] = field(default_factory=list)
    gcs: str = ""
    dashboard: str = ""

    def start_head(self, cpus: int) -> None:
        """Start the head, which schedules, takes jobs and, with `cpus`, also runs slices."""
        gcs, dashboard, client = free_ports(3)
        self.gcs, self.dashboard = f"{HOST}:{gcs}", f"http://{HOST}:{dashboard}"
        self._start(
            ["--head", f"--port={gcs}", f"--dashboard-host={HOST}", f"--dashboard-port={dashboard}",
             f"--ray-client-server-port={client}"], cpus
        )  # fmt: skip

    def start_node(self, cpus: int) -> None:
        """Start one more worker node."""
        self._start([f"--address={self.gcs}"], cpus)

    def _start(self, options: Sequence[str], cpus: int) -> None:
        agent = free_ports(1)[0]
        folder = self.folder / str(len(self.nodes))  # one per node: in a shared folder, nodes overwrite each other's job files
        command = [
            str(BIN / "ray"), "start", "--block", f"--node-ip-address={HOST}", f"--num-cpus={cpus}", "--min-worker-port=0",
            "--max-worker-port=0", f"--dashboard-agent-listen-port={agent}", "--object-store-memory=200000000",
            f"--temp-dir={folder}", *options,
        ]  # fmt: skip
        node = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.nodes.append(node)
        told = ""
        for line in node.stdout or ():
            told += line
            if "Ray runtime started" in line:
                return
        raise SystemExit(f"a node did not start:\n{told}")

    def submit(self, entrypoint: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
        """Run `ray job submit` of this checkout to its end; `stdout` has its output."""
        return self.job("submit", "--working-dir", str(ROOT), *options, "--", *entrypoint)

    def job(self, action: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `ray job` command to its end."""
        return subprocess.run(
            self.job_command(action, *arguments),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def job_command(self, action: str, *arguments: str) -> list[str]:
        """The words of a `ray job` command."""
        return [str(BIN / "ray"), "job", action, "--address", self.dashboard, *arguments]

    def stop(self) -> None:
        """End the nodes, the head last, and all processes that they started."""
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                node.wait(STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            if node.stdout:
                node.stdout.close()
            node.wait()


@contextmanager
def demo_cluster(cpus: Sequence[int], auth_mode: str = "disabled") -> Iterator[DemoCluster]:
    """A cluster with a head of `cpus[0]` CPUs and a node for each further number, until the end of the block.

    It may do without tokens, because everything listens on the loopback interface only.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the path of a socket may have 107 characters
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",  # `python` of a job is the first on the head's PATH
        "RAY_AUTH_MODE": auth_mode,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_task_oom_retries": "3",
        "PYTHONUNBUFFERED": "1",  # else a piped `ray job submit` prints the job's log at its end, after Ray's own lines
    }
    environment.pop("RAY_ADDRESS", None)
    cluster = DemoCluster(folder=folder, environment=environment)
    try:
        cluster.start_head(cpus[0])
        for count in cpus[1:]:
            cluster.start_node(count)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the demonstration; the exit code is that of the job."""
    with tempfile.TemporaryDirectory() as out, demo_cluster([1, 1, 1]) as cluster:
        print(f"A head and two nodes, one CPU each: {cluster.gcs}, dashboard {cluster.dashboard}", flush=True)
        job = [
            "python",
            "-m",
            "sweep",
            "run",
            "examples/gpt7b.yaml",
            "--executor",
            "ray",
            "--out",
            f"{out}/gpt7b",
            "--top",
            "0",
        ]
        print(f"ray job submit --address {cluster.dashboard} --working-dir . -- {' '.join(job)}", flush=True)
        done = cluster.submit(job)
        print(done.stdout, flush=True)
        if done.returncode == 0:
            subprocess.run([str(BIN / "sweep"), "rank", f"{out}/gpt7b", "--top", "5", "--per", ""], check=True)
    print("The cluster is stopped.")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
