"""Faults of Ray clusters as users meet them: plans that hang or raise, spot nodes, two clusters, tokens, little memory."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from cluster.demo import DemoCluster, demo_cluster
from sweep.results.store import Store
from tests.sweep.conftest import rows, spec_in
from tests.sweep.executors.test_cluster import Nodes, nodes, started  # noqa: F401 (a fixture)
from tests.sweep.executors.test_executors import check_failed, legal_after
from tests.sweep.tasks import run_with
from tests.sweep.test_execution import BIG_AXES, call, command, there
from tests.sweep.test_reliability import AXES
from tests.waiting import PATIENCE_S, until

LEAVES = int(os.environ.get("SPOT_LEAVES", "6"))
"""How often the spot node leaves: as soon as it has worked, whatever that takes. An hour of one every 30 s: 120."""
POSITION = 5000


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=AXES, where=None, name="ray")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    call("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


def on(cluster: DemoCluster, spec: Path, out: Path, *more: object) -> list[str]:
    """The words of a run on a cluster, which `environment_of` names."""
    return command("run", spec, "--out", out, "--executor", "ray", "--top", 0, *more)


def environment_of(cluster: DemoCluster, **more: str) -> dict[str, str]:
    return {**cluster.environment, "RAY_ADDRESS": cluster.gcs, **more}


def run(line: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert "Traceback" not in done.stderr or "a plan that nobody thought of" in done.stderr, done.stderr
    return done


@pytest.mark.long
def test_plans_that_hang_or_raise_on_a_cluster(spec: Path, undisturbed: pa.Table, tmp_path: Path) -> None:
    """From the command line, on two nodes, whoever writes: the run goes to its end, one plan is failed, the exit code is 3."""
    guilty = legal_after(undisturbed, POSITION)
    with demo_cluster([1, 1]) as cluster:
        for task, reason, writer in (("Raising", "simulation_raised", "driver"), ("Hanging", "timed_out", "worker")):
            out = tmp_path / task
            line = on(cluster, spec, out, "--slice-limit", "5", "--set", f"store.writer={writer}")
            line[1:3] = ["-c", run_with(task, position=guilty)]
            done = run(line, environment_of(cluster))
            assert done.returncode == 3, done.stderr
            assert "1 plan failed" in done.stdout + done.stderr
            check_failed(rows(out), undisturbed, (guilty,), reason)


@pytest.mark.long
def test_two_clusters(tmp_path: Path, spec: Path, undisturbed: pa.Table) -> None:
    """Two runs at once, each on its own; on one folder only one of them; a result begun on one is completed on the other."""
    with demo_cluster([1]) as first, demo_cluster([1]) as second:
        outs = [tmp_path / "first", tmp_path / "second"]
        both = [
            subprocess.Popen(
                on(c, spec, out), env=environment_of(c), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for c, out in zip((first, second), outs, strict=True)
        ]
        told = [process.communicate(timeout=PATIENCE_S)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], told
        for out in outs:
            assert rows(out).equals(undisturbed)
        for part in Store(directory=outs[0]).slices()[1:]:
            (outs[0] / part.file_name).unlink()
        kept = rows(outs[0]).num_rows
        done = run(on(second, spec, outs[0]), environment_of(second))
        assert (done.returncode, f"({kept:,} were already there)" in done.stdout) == (0, True), done.stderr
        assert rows(outs[0]).equals(undisturbed)
        gone = first.gcs
    done = run(on(first, spec, tmp_path / "none"), {**environment_of(first), "RAY_ADDRESS": gone})
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        f"error: no Ray cluster at RAY_ADDRESS={gone}: Connection refused",
    )


@pytest.fixture
def guarded() -> Iterator[DemoCluster]:
    """A cluster that asks for a token; submitters have an empty home."""
    with tempfile.TemporaryDirectory(prefix="home-") as home, pytest.MonkeyPatch.context() as patch:
        for name, value in {"HOME": home, "RAY_AUTH_TOKEN": "a" * 64}.items():
            patch.setenv(name, value)
        with demo_cluster([1], auth_mode="token") as cluster:
            yield cluster


@pytest.mark.long
def test_a_cluster_that_asks_for_a_token(guarded: DemoCluster, spec: Path, undisturbed: pa.Table, tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = on(guarded, spec, out)
    faults: tuple[dict[str, str], ...] = (
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "nowhere")},
    )
    for fault in faults:
        environment = environment_of(guarded)
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
            environment.pop(name)
        done = run(line, environment | fault)
        errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
        assert (done.returncode, len(errors)) == (1, 1), done.stderr
        assert f"RAY_ADDRESS={guarded.gcs}" in errors[0]
        assert errors[0].endswith(
            "set RAY_AUTH_MODE to the mode of its head, and for `token` RAY_AUTH_TOKEN_PATH to the head's token"
        )
        assert not list(out.glob("part-*"))
    done = run(line, environment_of(guarded))
    assert done.returncode == 0, done.stderr
    assert rows(out).equals(undisturbed)


@pytest.mark.long
def test_a_spot_node_that_leaves_again_and_again(tmp_path: Path, nodes: Nodes) -> None:  # noqa: F811
    """A node leaves as soon as another slice is stored, and another one joins: the run goes on with what is there."""
    spec = spec_in(tmp_path, axes=BIG_AXES, where=None, name="spot")
    expected, chance, left = tmp_path / "expected", random.Random(6), 0
    call("run", spec, "--out", expected, "--workers", 0, "--top", 0)
    whole = rows(expected)
    for number in range(LEAVES):  # a run may end before the node has left so often
        out = tmp_path / f"out{number}"
        process = started(spec, out, nodes, ("driver", "worker")[number % 2])
        stored = 0
        while left < LEAVES and until(partial(more_than, stored, out), process.process, process.log):
            nodes.kill_node(chance)
            left += 1
            stored = there(out)
        told = process.end(nodes)
        assert process.process.returncode == 0, told
        assert rows(out).equals(whole), told
        if left == LEAVES:
            break
    assert left == LEAVES


def more_than(rows_before: int, out: Path) -> bool:
    """Whether more rows are stored than before."""
    return there(out) > rows_before
