"""Two runs of one sweep on an object store, which has no locks: whatever one deletes as double, no row is lost."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import Receipt, SliceQueue, SliceTask
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.results.slice_file import Slice
from sweep.results.store import Store
from tests.sweep.conftest import rows, spec_in
from tests.sweep.fault_proxy import Faults, faulty
from tests.sweep.test_execution import call, command
from tests.sweep.test_reliability import AXES
from tests.waiting import PATIENCE_S

COUNT = 11_520
CUTS = (3000, 1000)
"""Where each run cuts the sweep: the last slice of the second is the larger one, so it counts once it is there."""


@dataclass
class Cutting(InlineExecutor):
    """Cuts the sweep as it is told, and what is missing after that as any executor."""

    cuts: list[Slice] = field(default_factory=list)
    workers: int = 1

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        """See `Executor`."""
        if self.cuts:
            queue.gaps.clear()
        while self.cuts:
            yield task(self.cuts.pop(0))
        yield from InlineExecutor.run(self, task, queue)


def places(bucket: str, proxies: list[Faults]) -> list[str]:
    """The same folder, through each of the proxies."""
    return [f"{bucket}/results?endpoint_override={one.address}&scheme=http&region=us-east-1" for one in proxies]


def test_two_runs_that_end_at_once(bucket: str, s3_server: str, prepared: Prepared) -> None:
    """The first lists what is there, then the second stores its last slice and lists, then both delete."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(faulty(s3_server)) for _ in CUTS]
        outs = places(bucket, proxies)
        deleting = [threading.Event() for _ in CUTS]

        def meet(own: int, method: str, path: str) -> None:
            if method == "PUT" and path.endswith(f"-{COUNT:012d}.parquet") and own == 1:
                assert deleting[0].wait(PATIENCE_S)
            if method == "DELETE" and "/part-" in path:
                deleting[own].set()
                deleting[1].wait(PATIENCE_S)

        outcomes: list[object] = [None, None]

        def work(own: int) -> None:
            cuts = [Slice(0, CUTS[own]), Slice(CUTS[own], COUNT)]
            try:
                outcomes[own] = run_sweep(prepared, Store(directory=outs[own]), Cutting(cuts=cuts)).done
            except Exception as error:  # noqa: BLE001 (told by the assertion)
                outcomes[own] = error
            deleting[own].set()

        for own, proxy in enumerate(proxies):
            proxy.before = partial(meet, own)
        threads = [threading.Thread(target=work, args=(own,)) for own in range(len(CUTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        store = Store(directory=outs[0])
        assert outcomes == [COUNT, COUNT]
        assert store.missing(COUNT) == []
        assert rows(outs[0])["plan"].to_pylist() == list(range(COUNT))
        files = [name for name in store.folder.names() if name.startswith("part-")]
        assert len(files) == len(store.slices()), "no row lies in two files"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spec_in(tmp_path_factory.mktemp("spec"), axes=AXES, where=None, name="two")


@pytest.fixture(scope="module")
def undisturbed(spec: Path) -> pa.Table:
    out = spec.parent / "undisturbed"
    call("run", spec, "--out", out, "--workers", 0, "--top", 0)
    return rows(out)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_two_runs_at_once(bucket: str, s3_server: str, spec: Path, undisturbed: pa.Table, tmp_path: Path, seed: int) -> None:
    """As users start them, with other slices each; the store is slow, so that they end in the middle of each other."""
    with faulty(s3_server) as faults:
        faults.delay_s = 0.02 * seed
        (out,) = places(bucket, [faults])
        logs = [tmp_path / f"log{k}" for k in range(2)]
        processes = []
        for log, workers in zip(logs, (0, seed % 3), strict=True):
            with log.open("w") as file:
                line = command("run", spec, "--out", out, "--workers", workers, "--top", 0)
                processes.append(subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT))
        for process in processes:
            process.wait(PATIENCE_S)
        told = [log.read_text() for log in logs]
        assert [process.returncode for process in processes] == [0, 0], told
        assert rows(out).equals(undisturbed), told
        store = Store(directory=out)
        files = [name for name in store.folder.names() if name.startswith("part-")]
        assert len(files) == len(store.slices()), "no row lies in two files"
