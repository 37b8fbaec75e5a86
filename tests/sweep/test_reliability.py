"""The cells of the fault matrix in docs/reliability.md: a fault, an executor, a store; long, besides those tested elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sweep.slice_file import Slice
from sweep.slices import FIRST_ROWS, MAX_ROWS, Receipt, SliceQueue
from tests.conftest import ROOT
from tests.sweep.conftest import rows, spec_in
from tests.sweep.fault_proxy import Faults, faulty
from tests.sweep.test_execution import call, command
from tests.waiting import PATIENCE_S

EXECUTORS = {
    "inline": ("--workers", 0),
    "local": ("--workers", 2),
    "ray, workers write": ("--executor", "ray", "--workers", 2, "--set", "store.writer=worker"),
    "ray, driver writes": ("--executor", "ray", "--workers", 2, "--set", "store.writer=driver"),
}
AXES = {
    "tp": {"powers_of_two": [1, 16]},
    "pp": [1, 2, 4, 8],
    "all_gpus": {"range": [64, 1024, 64]},
    "ga": {"range": [24, 768, 24]},
}
"""10,240 plans."""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=AXES, where=None, name="faults")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    call("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


@pytest.fixture
def store(bucket: str, s3_server: str) -> Iterator[tuple[str, Faults]]:
    with faulty(s3_server) as faults:
        yield f"{bucket}/results?endpoint_override={faults.address}&scheme=http&region=us-east-1", faults


def run(spec: Path, out: str, executor: str) -> subprocess.CompletedProcess[str]:
    """A run to its end, as users start it."""
    line = command("run", spec, "--out", out, "--top", 0, *EXECUTORS[executor])
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.long
@pytest.mark.parametrize("executor", EXECUTORS)
class TestStore:
    """Every executor on a store behind the proxy."""

    def test_a_slow_store(self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str) -> None:
        out, faults = store
        faults.delay_s = 0.4
        assert run(spec, out, executor).returncode == 0
        faults.delay_s = 0.0
        assert rows(out).equals(undisturbed)

    def test_a_store_that_fails_now_and_then(
        self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str
    ) -> None:
        out, faults = store
        faults.refused = 0.3
        assert run(spec, out, executor).returncode == 0
        faults.refused = 0.0
        assert rows(out).equals(undisturbed)

    def test_a_store_that_refuses(self, spec: Path, store: tuple[str, Faults], executor: str) -> None:
        out, faults = store
        faults.refused, faults.codes, faults.only = 1.0, (403,), "/part-"
        done = run(spec, out, executor)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "ACCESS_DENIED" in done.stderr
        assert "check the credentials" in done.stderr

    def test_a_store_that_spoils_what_it_is_given(
        self, spec: Path, undisturbed: pa.Table, store: tuple[str, Faults], executor: str
    ) -> None:
        out, faults = store
        faults.flips, faults.only = 1.0, "/part-"
        done = run(spec, out, executor)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "damaged; the same `sweep run` computes damaged slices again" in done.stderr
        faults.flips = 0.0
        assert run(spec, out, executor).returncode == 0
        assert rows(out).equals(undisturbed)


def test_a_slow_store_does_not_make_slices_small() -> None:
    """Their size follows the time of computing; where storing takes longer, they grow."""
    sizes = []
    for stored_s in (0.0, 0.5, 5.0):
        queue = SliceQueue(gaps=deque([Slice(0, 10**7)]), workers=2)
        for _ in range(10):
            queue.finished(Receipt(part=Slice(0, FIRST_ROWS), seconds=0.4, stored_s=stored_s))
        taken = queue.take()
        assert taken is not None
        sizes.append(taken[0].rows)
    assert sizes == [10_240, 10_240, MAX_ROWS]


def test_every_cell_of_the_matrix_names_its_test() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in sources and f"class {name}" not in sources} == set()
    cells = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| fault", "| ---"))]
    assert [line for line in cells if "`test_" not in line] == []
