"""Three nights in a row as jobs of a real Ray head, one of them killed in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sweep.conftest import rows
from tests.sweep.nightly.conftest import Sandbox
from tests.waiting import until

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
BIG = {"tp": [1, 2, 4, 8, 16], "pp": [1, 2, 3, 4, 6], "all_gpus": {"range": [64, 1024, 64]}, "ga": {"range": [12, 768, 12]}}


@dataclass(kw_only=True)
class Head:
    """A Ray head of our own on free ports of loopback."""

    dashboard: str
    environment: dict[str, str]

    def submit(self, sandbox: Sandbox, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """One night as a job, to its end."""
        command = [
            str(BIN / "ray"), "job", "submit", "--address", self.dashboard, "--submission-id", name, *options, "--",
            *sandbox.command("executor=ray"),
        ]  # fmt: skip
        return subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False
        )


@pytest.fixture
def head() -> Iterator[Head]:
    with socket.socket() as one, socket.socket() as two, socket.socket() as three, socket.socket() as four:
        sockets = (one, two, three, four)
        for each in sockets:
            each.bind((HOST, 0))
        gcs, dashboard, client, agent = (each.getsockname()[1] for each in sockets)
    folder = tempfile.mkdtemp(prefix="ray-")  # short: the path of a socket has 107 characters
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    environment.pop("RAY_ADDRESS", None)
    ports = f"--port={gcs} --dashboard-port={dashboard} --ray-client-server-port={client} --dashboard-agent-listen-port={agent}"
    hosts = f"--node-ip-address={HOST} --dashboard-host={HOST} --min-worker-port=0 --max-worker-port=0"
    options = f"--head --block --num-cpus=2 --object-store-memory=200000000 --temp-dir={folder} {hosts} {ports}"
    command = [str(BIN / "ray"), "start", *options.split()]
    node = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert node.stdout is not None
    told = ""
    for line in node.stdout:
        told += line
        if "Ray runtime started" in line:
            break
    else:
        pytest.fail(f"Ray did not start:\n{told}")
    yield Head(dashboard=f"http://{HOST}:{dashboard}", environment=environment)
    node.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        node.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.stdout.close()
    node.wait()
    shutil.rmtree(folder, ignore_errors=True)


def drivers(file: Path) -> list[int]:
    """Processes that run a night of `file`."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = line.read_bytes().split(b"\0")
            if b"python" in words[0] and b"nightly" in words and str(file).encode() in words and b"submit" not in words:
                found.append(int(line.parent.name))
    return found


@pytest.mark.long
def test_three_nights_as_jobs(sandbox: Sandbox, head: Head, tmp_path: Path) -> None:
    sandbox.write_sweep("a", hardware="h100.yaml", axes=BIG)
    sandbox.write(workers=None)
    first = head.submit(sandbox, "night-1")
    assert first.returncode == 0, first.stdout
    assert "a: 25,600 plans, 25,600 of them simulated tonight" in first.stdout
    again = head.submit(sandbox, "night-1-again")
    assert again.returncode == 0, again.stdout
    assert "Nothing to do: the inputs are those of night" in again.stdout

    sandbox.change_network("2 GB/s")
    before = set((tmp_path / "root" / "results").iterdir())
    head.submit(sandbox, "night-2-killed", "--no-wait")
    results = tmp_path / "root" / "results"
    until(lambda: [part for new in {*results.iterdir()} - before for part in new.glob("part-*.parquet")])
    killed = drivers(sandbox.file)
    assert killed
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    second = head.submit(sandbox, "night-2")
    assert second.returncode == 1, second.stdout
    assert "was interrupted: resuming it" in second.stdout
    night = sandbox.nights.read()[-1]
    a, b = night.sweeps
    assert (night.code, b.computed) == (1, 0)
    assert 0 < a.computed < a.rows, "what the killed night had done is not done again"
    assert a.changes[0] == "hardware H100-SXM nic_bandwidth: 50 GB/s -> 2 GB/s"
    assert a.changes[0] in night.summary
    assert rows(sandbox.nights.results(a.results)).num_rows == a.rows

    sandbox.break_workload()
    third = head.submit(sandbox, "night-3")
    assert third.returncode == 1, "Ray knows success and failure only"
    night = sandbox.nights.read()[-1]
    assert (night.code, [sweep.status for sweep in night.sweeps]) == (2, ["done", "failed"])
    assert "b.txt:42: layer lines: found 40, expected 80" in third.stdout
    assert rows(sandbox.nights.results(night.sweeps[0].results)).num_rows == night.sweeps[0].rows
