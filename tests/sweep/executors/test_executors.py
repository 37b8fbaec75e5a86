"""The contract of executors, run on each: all rows once, even if workers die; only the plan at fault has failed."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sim_core import SimError, SpecError
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.slices import SliceQueue, SliceTask
from sweep.executors import Executor, InlineExecutor, OtherCode
from sweep.executors.choice import Kind, opened
from sweep.executors.local import LocalExecutor
from sweep.executors.ray import RayExecutor
from sweep.log import log_lines
from sweep.results.folder import folder_at
from sweep.results.slice_file import Slice
from sweep.sources import row_code
from sweep.spec.spec import load_spec
from tests.conftest import rest_long
from tests.sweep.conftest import MODEL, SpecWriter, rows, spec_in
from tests.sweep.tasks import (
    DiskFull,
    Greedy,
    Hanging,
    KilledOnce,
    KilledWhileStoring,
    Poisoned,
    Raising,
    StoppedOnce,
    Writable,
)


def execute(
    executor: Executor,
    prepared: Prepared,
    directory: Path,
    kind: type[SliceTask] = SliceTask,
    part: Slice | None = None,
    **more: Any,
) -> pa.Table:
    """Run a task over the whole job, or a part of it; returns all rows."""
    directory.mkdir(exist_ok=True)
    part = part or Slice(0, prepared.sweep.space.count)
    task = kind(sweep=prepared.sweep, directory=directory, provenance=json.dumps(prepared.provenance).encode(), **more)
    queue = SliceQueue(gaps=deque([part]), workers=executor.workers)
    done = sum(receipt.part.rows for receipt in executor.run(task, queue))
    assert done == part.rows
    return rows(directory)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The small sweep, once for all tests: none of them changes it."""
    path = spec_in(tmp_path_factory.mktemp("spec"))
    return prepare(load_spec(path), path.parent)


@pytest.fixture(scope="module")
def undisturbed(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    return execute(InlineExecutor(), prepared, tmp_path_factory.mktemp("undisturbed"))


Make = Callable[..., Executor]


@pytest.fixture(scope="module")
def own_ray() -> Iterator[Executor]:
    """A Ray of this machine, for the tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with opened(Kind.ray, 2, 120.0, "auto", folder_at("results")) as executor:
            yield executor


def maker(request: pytest.FixtureRequest) -> Make:
    """How to make the executor that a parameter names; keywords go to its constructor."""
    kind, _, rest = request.param.partition("-")
    if kind == "inline":
        return InlineExecutor
    if kind == "local":
        return partial(LocalExecutor, int(rest))
    request.getfixturevalue("own_ray")
    return partial(RayExecutor, at_driver=rest == "driver")


@pytest.fixture(params=["inline", "local-1", "ray-driver", "ray-worker"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return maker(request)()


@pytest.fixture(params=["local-2", "ray-driver", "ray-worker"])
def make(request: pytest.FixtureRequest) -> Make:
    return maker(request)


one_to_many = pytest.mark.parametrize("executor", ["inline", "local-2", "ray-driver", "ray-worker"], indirect=True)
loses_late = pytest.mark.parametrize(
    "make", ["local-2", "ray-driver", pytest.param("ray-worker", marks=pytest.mark.long)], indirect=True
)
"""What halves a slice is the same code whoever stores: the second Ray is long, since each loss costs a process."""


class TestContract:
    """What any executor does."""

    @one_to_many
    def test_every_row_once_and_bit_for_bit_the_same(
        self, executor: Executor, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
    ) -> None:
        table = execute(executor, prepared, tmp_path / "out")
        assert table["plan"].to_pylist() == list(range(prepared.sweep.space.count))
        assert table.equals(undisturbed)

    def test_a_model_is_costed_alike(self, executor: Executor, tmp_path: Path) -> None:
        path = spec_in(tmp_path, **MODEL)
        prepared = prepare(load_spec(path), path.parent)
        alone = execute(InlineExecutor(), prepared, tmp_path / "alone")
        assert "ok" in alone["status"].to_pylist()
        assert execute(executor, prepared, tmp_path / "out").equals(alone)

    def test_workers_run_the_kernels_that_the_driver_compiled(
        self, executor: Executor, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
    ) -> None:
        assert execute(executor, prepared, tmp_path / "out", Writable).equals(undisturbed)

    def test_an_empty_queue_is_done_at_once(self, executor: Executor, prepared: Prepared, tmp_path: Path) -> None:
        task = SliceTask(sweep=prepared.sweep, directory=tmp_path, provenance=b"{}")
        assert list(executor.run(task, SliceQueue(gaps=deque(), workers=executor.workers))) == []

    def test_a_full_disk_ends_the_run_with_its_error(self, executor: Executor, prepared: Prepared, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No space left"):
            execute(executor, prepared, tmp_path / "out", DiskFull)

    def test_closing_it_stops_what_it_started(self, executor: Executor, prepared: Prepared, tmp_path: Path) -> None:
        task = SliceTask(sweep=prepared.sweep, directory=tmp_path, provenance=b"{}")
        count = prepared.sweep.space.count
        receipts: Iterator[object] = executor.run(task, SliceQueue(gaps=deque([Slice(0, count)]), workers=executor.workers))
        next(receipts)
        receipts.close()  # type: ignore[attr-defined]
        assert multiprocessing.active_children() == []


class TestCaughtLosses:
    """What any executor does with a plan that raises: it alone is failed, and the run goes to its end."""

    def test_a_plan_that_raises_is_found_and_logged(
        self, executor: Executor, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        log_lines()
        guilty = legal_after(undisturbed, 5000)
        table = execute(executor, prepared, tmp_path / "out", Raising, position=guilty)
        check_failed(table, undisturbed, (guilty,), "simulation_raised")
        assert "a plan that nobody thought of" in capfd.readouterr().err

    def test_a_plan_that_wants_too_much_memory_is_found(
        self, executor: Executor, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
    ) -> None:
        guilty = legal_after(undisturbed, 9000)
        table = execute(executor, prepared, tmp_path / "out", Greedy, position=guilty)
        check_failed(table, undisturbed, (guilty,), "out_of_memory")


class TestOtherCode:
    """What an executor with worker processes does where they have other code than the driver."""

    @pytest.mark.parametrize("part", rest_long(["sim_core", "sweep/spec/budget.py", "numba"], 1))
    def test_a_worker_with_other_code_ends_the_run_before_it_computes(
        self, make: Make, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
    ) -> None:
        monkeypatch.setattr("sweep.evaluation.slices.row_code", lambda entry: {**row_code(entry), part: "that of the driver"})
        differing = re.escape(f"({part}: found {row_code()[part]}, expected that of the driver)")
        with pytest.raises(OtherCode, match=f"a worker .* has another version of the simulator than this run {differing}; use"):
            execute(make(), prepared, tmp_path / "out")
        assert not list((tmp_path / "out").iterdir())
        assert multiprocessing.active_children() == []


class TestLosses:
    """What an executor with worker processes does when they die or hang."""

    @loses_late
    def test_the_guilty_plans_alone_are_failed(
        self, make: Make, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
    ) -> None:
        part, poison = Slice(7776, 7778), (7777,)  # each loss costs a process: more of them are lost on the queue below
        assert undisturbed["status"][7777].as_py() == "ok"
        table = execute(make(), prepared, tmp_path / "out", Poisoned, part, poison=poison)
        check_failed(table, undisturbed.slice(part.start, part.rows), poison, "worker_lost")

    @loses_late
    @pytest.mark.parametrize("busy", [False, pytest.param(True, marks=pytest.mark.long)])
    def test_a_plan_that_hangs_is_found(
        self, make: Make, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path, busy: bool
    ) -> None:
        """Of a few plans only: each halving takes the time limit."""
        guilty = legal_after(undisturbed, 5000)
        few = Slice(guilty - 1, guilty + 1)
        table = execute(make(limit_s=2.0), prepared, tmp_path / "out", Hanging, few, position=guilty, busy=busy)
        check_failed(table, undisturbed.slice(few.start, few.rows), (guilty,), "timed_out")

    @pytest.mark.long
    def test_a_worker_that_answers_no_more_costs_nothing(
        self, make: Make, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
    ) -> None:
        table = execute(make(limit_s=5.0, start_s=20.0), prepared, tmp_path / "out", StoppedOnce, position=9000, marks=tmp_path)
        assert table.equals(undisturbed)
        with suppress(ProcessLookupError):  # where it still lives, its CPU is lost to the tests that follow
            os.kill(int((tmp_path / "stopped").read_text()), signal.SIGKILL)

    @pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.long)])
    def test_a_worker_killed_from_outside_costs_nothing(
        self, make: Make, prepared: Prepared, undisturbed: pa.Table, tmp_path: Path, times: int
    ) -> None:
        (tmp_path / "marks").mkdir()
        table = execute(make(), prepared, tmp_path / "out", KilledOnce, marks=tmp_path / "marks", times=times)
        assert table.equals(undisturbed)


def test_a_worker_killed_while_it_stores_and_computes_loses_neither_slice(
    prepared: Prepared, undisturbed: pa.Table, tmp_path: Path
) -> None:
    table = execute(LocalExecutor(1), prepared, tmp_path / "out", KilledWhileStoring, marks=tmp_path)
    assert (tmp_path / "killed").exists()
    assert table.equals(undisturbed)


def legal_after(table: pa.Table, position: int) -> int:
    """The first plan from `position` on that has a result."""
    return next(k for k, status in enumerate(table["status"].to_pylist()) if status == "ok" and k >= position)


def check_failed(table: pa.Table, undisturbed: pa.Table, guilty: tuple[int, ...], reason: str) -> None:
    """Of an undisturbed run's rows, those of the guilty plans alone are failed; the others are the same."""
    assert table["plan"].to_pylist() == undisturbed["plan"].to_pylist()
    for plain, found in zip(undisturbed.to_pylist(), table.to_pylist(), strict=True):
        if plain["plan"] in guilty and plain["status"] == "ok":
            assert (found["status"], found["reason"], found["step_time_s"]) == ("failed", reason, None)
        else:
            assert found == plain


def test_workers_that_cannot_start_end_the_run(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that ends at once, as with a broken installation: no endless respawning, no rows made up."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif '--multiprocessing-fork' in sys.argv: os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    large = replace(prepared, provenance={**prepared.provenance, "notes": ["x" * 10**6]})  # more than a pipe holds
    for one in (prepared, large):
        with pytest.raises(SimError, match=r"worker processes exit before they can work \(exit code 7\)"):
            execute(LocalExecutor(2), one, tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_constraint_that_fails_on_a_later_plan_ends_the_run_in_one_line(write_spec: SpecWriter, tmp_path: Path) -> None:
    path = write_spec(where=["cast(substr(checkpointing, 7) as int) > 2 or checkpointing = 'none'"])
    for executor in (InlineExecutor(), LocalExecutor(1)):
        with pytest.raises(SpecError, match=r"where: .*found the text .* beside a column of numbers"):
            execute(executor, prepare(load_spec(path), path.parent), tmp_path / "out")


def test_the_queue_covers_every_position_once_whatever_is_lost() -> None:
    """Losses at random: what is finished or given up tiles the range, and only single plans are given up."""
    import random

    rng = random.Random(7)
    for _ in range(50):
        queue = SliceQueue(gaps=deque([Slice(0, 5000), Slice(6000, 9001)]), workers=rng.randint(1, 5))
        guilty = {rng.randrange(0, 5000) for _ in range(3)}
        covered: list[int] = []
        while (taken := queue.take()) is not None:
            part, losses = taken
            held = set(range(part.start, part.stop)) & guilty
            if (held or rng.random() < 0.1) and queue.lost(part, losses):
                continue
            assert not held or part.rows == 1
            covered.extend(range(part.start, part.stop))
        assert sorted(covered) == [*range(5000), *range(6000, 9001)]
