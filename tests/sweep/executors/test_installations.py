"""A Ray cluster whose nodes have installations of their own: one that differs from the driver's computes nothing."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.job_submission import JobSubmissionClient

from cluster.demo import DemoCluster, demo_cluster
from sweep.results.store import Store
from sweep.sources import ROOT
from tests.conftest import rest_long
from tests.sweep.conftest import rows, spec_in
from tests.sweep.executors.test_cluster import QUIET
from tests.sweep.test_execution import command, here

PROJECT = ROOT.parent
DIFFERING = {
    "a source of sweep": ("sweep/spec/budget.py", "CHANGED = 1"),
    "a package": ("numba-0.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: numba\nVersion: 0.1"),
    "a source of sim_core": ("sim_core/units.py", "CHANGED = 1"),
    "a table of sim_core": ("sim_core/hardware/presets/H100-SXM.yaml", "# changed"),
}
"""What is added to which file of the other installation."""
BOTH = """
import ray; from ray.util.placement_group import placement_group
ray.init(); ray.get(placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD").ready())
"""
"""Ends when two nodes with a CPU are there."""
NAMED = {
    "a table of sim_core": "sim_core with its presets: found ",
    "a source of sweep": "sweep/spec/budget.py: found ",
    "a package": "numba: found 0.1, expected ",
}


@dataclass(frozen=True, kw_only=True)
class Two:
    """A cluster with a node of one CPU that has an installation of its own, and the installation, a folder."""

    cluster: DemoCluster
    folder: Path

    def run(self, spec: Path, out: Path, writer: str, *more: object) -> subprocess.CompletedProcess[str]:
        """A run whose workers import what their node has: it starts elsewhere than in the folder of its sources."""
        line = command("run", spec, "--out", out, "--executor", "ray", "--top", 0, "--set", f"store.writer={writer}", *more)
        environment = {**os.environ, **QUIET, "RAY_ADDRESS": self.cluster.gcs, "PYTHONPATH": str(PROJECT)}
        return subprocess.run(line, cwd=spec.parent, env=environment, capture_output=True, text=True, check=False)

    def doctor(self, *more: object) -> tuple[int, list[dict[str, str]]]:
        """The exit code, and what was found on the nodes."""
        environment = {**os.environ, **QUIET, "RAY_ADDRESS": self.cluster.gcs, "PYTHONPATH": str(PROJECT)}
        line = command("doctor", *more, "--cluster", "--json")
        done = subprocess.run(line, cwd=self.folder.parent, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, [each for each in json.loads(done.stdout) if each["node"]]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("installation")
    for package in ("sim_core", "sweep"):
        shutil.copytree(PROJECT / package, folder / package)
    with demo_cluster([0]) as cluster:
        cluster.environment["PYTHONPATH"] = str(folder)
        cluster.start_node(1)
        yield Two(cluster=cluster, folder=folder)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"))


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    here("run", spec, "--out", spec.parent / "undisturbed", "--workers", 0, "--top", 0)
    return rows(spec.parent / "undisturbed")


@pytest.fixture
def differing(request: pytest.FixtureRequest, two: Two) -> Iterator[str]:
    """The other installation with a difference, until the end of the test."""
    file, line = DIFFERING[request.param]
    path = two.folder / file
    before = path.read_text(encoding="utf-8") if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{before}\n{line}\n" if before else line, encoding="utf-8")
    yield request.param
    if before is None:
        shutil.rmtree(path.parent)
    else:
        path.write_text(before, encoding="utf-8")


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line in which a run says why it ends."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stdout + done.stderr
    return lines[0]


@pytest.mark.parametrize("writer", rest_long(["worker", "driver"], 1))
def test_the_same_code_in_another_folder_runs(two: Two, spec: Path, undisturbed: pa.Table, tmp_path: Path, writer: str) -> None:
    done = two.run(spec, tmp_path / "out", writer)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "out").equals(undisturbed)


@pytest.mark.parametrize("writer", ["worker", pytest.param("driver", marks=pytest.mark.long)])
@pytest.mark.parametrize("differing", rest_long(DIFFERING, 2), indirect=True)
def test_a_node_with_another_version_ends_the_run(two: Two, spec: Path, differing: str, tmp_path: Path, writer: str) -> None:
    told = refused(two.run(spec, tmp_path / "out", writer))
    assert told.startswith("error: a worker on node ")
    differs = NAMED.get(differing, "sim_core: found ")
    assert f" ({socket.gethostname()}) has another version of the simulator than this run ({differs}" in told
    assert told.endswith("; use one version everywhere and run the same command again")
    assert Store(directory=tmp_path / "out").slices() == []


def test_a_node_with_a_version_that_knows_no_check_ends_the_run(two: Two, spec: Path, tmp_path: Path) -> None:
    file = two.folder / "sweep" / "sources.py"
    own = file.read_text(encoding="utf-8")
    file.write_text("""raise ModuleNotFoundError("No module named 'sweep.sources'")""", encoding="utf-8")
    try:
        told = refused(two.run(spec, tmp_path / "out", "worker"))
    finally:
        file.write_text(own, encoding="utf-8")
    assert told.startswith("error: a worker on node ")
    assert " cannot run slices, as with another version of the simulator: " in told
    assert told.endswith("No module named 'sweep.sources'")
    assert Store(directory=tmp_path / "out").slices() == []


def test_a_job_that_fails_says_why_in_its_last_lines(two: Two) -> None:
    entry = ["python", "-m", "sweep", "run", "examples/gpt7b.yaml", "--executor", "ray"]
    done = two.cluster.submit(entry, "--submission-id", "refused")
    assert done.returncode != 0
    log = JobSubmissionClient(two.cluster.dashboard).get_job_logs("refused")
    assert log.splitlines()[-1].startswith("error: --out: a job's working folder is deleted when the job ends")


@pytest.mark.long
@pytest.mark.parametrize("differing", ["a source of sweep"], indirect=True)
def test_a_job_brings_its_own_code(two: Two, spec: Path, undisturbed: pa.Table, differing: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    entry = ["python", "-m", "sweep", "run", str(spec), "--executor", "ray", "--out", str(out), "--top", "0"]
    done = two.cluster.submit(entry)
    assert done.returncode == 0, f"{differing}: {done.stdout}"
    assert rows(out).equals(undisturbed)


def test_the_doctor_finds_sound_nodes(two: Two, bucket: str, s3_server: str) -> None:
    """Nodes that were started without the credentials of the driver are not: a run could not write there."""
    code, found = two.doctor(f"{bucket}/x")
    assert (code, {each["what"] for each in found if each["advice"]}) == (2, {"store"})
    name = bucket.removeprefix("s3://")
    code, found = two.doctor(f"s3://test:test@{name}/x?endpoint_override={s3_server}&scheme=http&region=us-east-1")
    assert code == 0, found
    counted = Counter(each["what"] for each in found)
    nodes = counted["code"]
    assert nodes >= 2, "the head, the node, and those that other tests have started"
    assert {counted[what] for what in ("versions", "memory", "compiled code", "disk", "store")} == {nodes}
    assert counted["clock"] == 2 * nodes, "of the store, and of the node"
    assert {each["found"] for each in found if each["what"] == "code"} == {"as here"}


@pytest.mark.parametrize("differing", NAMED, indirect=True)
def test_the_doctor_names_a_node_that_differs(two: Two, differing: str) -> None:
    code, found = two.doctor()
    same, other = sorted({each["found"] for each in found if each["what"] == "code"})
    assert (code, same) == (2, "as here")
    assert other.startswith(NAMED[differing])
    assert sum(bool(each["advice"]) for each in found) == 1


def test_the_doctor_names_a_node_that_cannot_run(two: Two) -> None:
    source = two.folder / "sweep" / "doctor.py"
    text = source.read_text()
    source.unlink()
    try:
        code, found = two.doctor()
    finally:
        source.write_text(text)
    (wrong,) = [each for each in found if each["advice"]]
    assert (code, wrong["what"]) == (2, "code")
    assert re.search("sweep.doctor", wrong["found"])


@pytest.mark.parametrize("writer", ["driver", "worker"])
def test_a_cluster_tells_prometheus_and_the_log(two: Two, spec: Path, tmp_path: Path, writer: str) -> None:
    file = tmp_path / "sweep.prom"
    done = two.run(spec, tmp_path / "out", writer, "--metrics", file, "--log-json")
    first, *slices, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, first["event"], last["event"]) == (0, "run begins", "run ends")
    assert {(each["event"], each["node"]) for each in slices} == {("slice done", socket.gethostname())}
    families = text_string_to_metric_families(file.read_text())
    told = {sample.name: sample.value for family in families for sample in family.samples}
    assert (told["sweep_plans_done"], told["sweep_slices_done"]) == (last["plans"], len(slices))


@pytest.mark.parametrize("differing", ["a source of sweep"], indirect=True)
def test_a_node_with_another_version_is_left_out(
    two: Two, spec: Path, undisturbed: pa.Table, differing: str, tmp_path: Path
) -> None:
    """The others do its part; Ray would spread slices over it to the end."""
    two.cluster.environment["PYTHONPATH"] = str(PROJECT)
    two.cluster.start_node(1)
    environment = {**os.environ, **QUIET, "RAY_ADDRESS": two.cluster.gcs}
    subprocess.run([sys.executable, "-c", BOTH], env=environment, check=True)
    done = two.run(spec, tmp_path / "out", "worker")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("note: left out: a worker on node ") == 1
    assert "sweep/spec/budget.py: found " in done.stderr
    assert rows(tmp_path / "out").equals(undisturbed)
