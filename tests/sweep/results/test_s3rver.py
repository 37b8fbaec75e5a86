"""A second S3 server, of another make (s3rver, Node.js): whole sweeps on it, and what it does to checksummed uploads.

Run where it is installed: `npm install --global s3rver`, or S3RVER names the program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.demo import free_ports
from sweep.results.store import Store
from tests.sweep.conftest import rows, spec_in
from tests.sweep.test_execution import command
from tests.waiting import PATIENCE_S, until

PROGRAM = os.environ.get("S3RVER") or shutil.which("s3rver")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="s3rver is not installed (npm install --global s3rver)")
SPELL = "AWS_REQUEST_CHECKSUM_CALCULATION"
AXES = {"tp": [1, 2, 4, 8], "pp": [1, 2, 3, 4], "all_gpus": {"range": [64, 512, 64]}, "ga": {"range": [1, 96, 1]}}
"""12,288 plans."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server: where a sweep stores its results, and the folder in which the server keeps its objects."""

    out: str
    folder: Path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    port, folder = free_ports(1)[0], tmp_path / "objects"
    folder.mkdir()
    line = [str(PROGRAM), "-d", str(folder), "-a", "127.0.0.1", "-p", str(port), "--configure-bucket", "bucket"]
    log = tmp_path / "server.log"
    with log.open("w") as file:  # no pipe: one that nobody reads would stop it
        legacy = {**os.environ, "NODE_OPTIONS": "--openssl-legacy-provider"}  # for its continuation tokens, since Node.js 17
        process = subprocess.Popen(line, env=legacy, stdout=file, stderr=subprocess.STDOUT)
    try:
        assert until(lambda: "S3rver listening" in log.read_text(), process), log.read_text()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "S3RVER")
        monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
        monkeypatch.delenv(SPELL, raising=False)
        out = f"s3://bucket/results?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        yield Server(out=out, folder=folder)
    finally:
        process.kill()
        process.wait()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_a_server_that_keeps_the_framing_is_found_and_the_advice_helps(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_in(tmp_path, axes=AXES, where=None)
    refused = run("run", spec, "--out", server.out, "--workers", 1, "--top", 0)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert f"other bytes than the 4,096 written; set {SPELL}=when_required" in refused.stderr
    assert not list(server.folder.rglob("*part-*")), "nothing is computed"

    monkeypatch.setenv(SPELL, "when_required")
    first = run("run", spec, "--out", server.out, "--workers", 1, "--top", 0)
    assert first.returncode == 0, first.stderr
    assert run("run", spec, "--out", tmp_path / "local", "--workers", 1, "--top", 0).returncode == 0
    assert rows(server.out).equals(rows(tmp_path / "local"))

    store = Store(directory=server.out)
    gone, spoiled = store.slices()[0], store.slices()[-1]
    store.folder.delete(gone.file_name)
    data = bytearray(store.folder.read_bytes(spoiled.file_name))
    data[len(data) // 2] ^= 4
    store.folder.write_bytes(spoiled.file_name, bytes(data))
    told = run("rank", server.out)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1), told.stderr
    assert spoiled.file_name in told.stderr
    assert "damaged; the same `sweep run` computes damaged slices again" in told.stderr
    again = run("run", spec, "--out", server.out, "--workers", 1, "--top", 3)
    assert "is damaged and will be recomputed" in again.stdout, again
    assert rows(server.out).equals(rows(tmp_path / "local"))
    assert run("compact", server.out).returncode == 0
    assert len(store.slices()) == 1
    assert rows(server.out).equals(rows(tmp_path / "local"))
