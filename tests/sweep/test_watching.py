"""A run seen by others: followed to its end on a disk and on S3, as lines and as a page; few lines of its own in a log."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from sweep.evaluation.preparation import Prepared
from sweep.evaluation.slices import SliceTask
from sweep.execution import Progress, run_sweep
from sweep.executors import InlineExecutor
from sweep.metrics import progress_display
from sweep.results.folder import folder_at
from sweep.results.heartbeat import FILE, FRESH_S
from sweep.results.slice_file import Slice
from sweep.results.store import Store
from sweep.watching import following, telling
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, filled
from tests.waiting import until

HALF, WHOLE = Slice(0, 48), Slice(48, 96)


def quiet(progress: Progress) -> None:
    """Whoever looks on in the run itself."""


@pytest.fixture(params=["disk", "s3"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.getfixturevalue('bucket')}/run" if request.param == "s3" else str(tmp_path / "run")


class AtWork:
    """A run that writes while somebody sleeps, half of the plans each time, and ends when there is nothing left to write."""

    def __init__(self, out: str, job: Prepared, parts: list[Slice], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.parts, self.open = Store(directory=out), parts, ExitStack()
        self.task = SliceTask(
            sweep=job.sweep, directory=out, provenance=self.open.enter_context(self.store.opened(job.provenance))
        )
        monkeypatch.setattr("sweep.watching.BEAT_S", 0.001)
        self.watch = self.open.enter_context(telling(folder_at(out), quiet))
        self.progress = Progress(plans=96, resumed=0)
        self.progress.queue.losses = 3
        self.watch(self.progress)
        until(lambda: FILE in self.store.folder.names())
        monkeypatch.setattr("sweep.watching.time.sleep", self.goes_on)

    def goes_on(self, seconds: float) -> None:
        """Write the next part, or end."""
        if self.parts:
            part = self.parts.pop(0)
            self.task(part)
            self.progress.add(part.rows)
        else:
            self.open.close()


def test_a_run_is_followed_to_its_end(out: str, sliced_job: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    AtWork(out, sliced_job, [HALF, WHOLE], monkeypatch)
    seen = [(each.state, each.done, each.plan is not None) for each in following(folder_at(out))]
    assert seen[:2] == [("running", 0, False), ("running", 48, True)]
    assert seen[-1] == ("complete", 96, True)


def test_lines_of_json_and_the_page_end_with_the_run(
    out: str, sliced_job: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, pages = tmp_path / "live.html", []
    run = AtWork(out, sliced_job, [HALF, WHOLE], monkeypatch)

    def goes_on(seconds: float) -> None:
        pages.append(page.read_text())
        run.goes_on(seconds)

    monkeypatch.setattr("sweep.watching.time.sleep", goes_on)
    done = sweep("status", out, "--watch", "--json", "--page", page)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["done"] for line in lines][:2] == [0, 48]
    last = lines[-1]
    assert (last["state"], last["done"], last["total"], last["run"]["slices_lost"]) == ("complete", 96, 96, 3)
    assert last["step_s"] > 0
    assert all('http-equiv="refresh"' in text for text in pages)
    assert "48 of 96 plans (50%)" in pages[1]
    assert "best so far: plan" in pages[1]
    assert "3 lost slices" in pages[1]
    ended = page.read_text()
    assert 'http-equiv="refresh"' not in ended
    assert "Where the step goes" in ended, "the page of `sweep report`"


def test_a_run_that_stops_early_is_told_by_the_exit_code(
    out: str, sliced_job: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AtWork(out, sliced_job, [HALF], monkeypatch)
    done = sweep("status", out, "--page", tmp_path / "live.html")
    assert (done.returncode, done.stderr) == (6, "")
    assert "incomplete" in done.stdout
    assert "48 of 96 plans (50%)" in done.stdout
    assert "48 plans are not computed yet" in (tmp_path / "live.html").read_text()


def test_a_driver_that_is_killed_on_s3_falls_silent(bucket: str, sliced_job: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    run = AtWork(f"{bucket}/run", sliced_job, [HALF], monkeypatch)
    run.goes_on(0)
    assert run.store.is_running()
    assert ", running\n" in sweep("status", f"{bucket}/run").stdout
    now = time.time()
    monkeypatch.setattr("sweep.results.heartbeat.time.time", lambda: now + 2 * FRESH_S)
    assert not run.store.is_running()
    monkeypatch.undo()
    run.open.close()


def test_a_run_tells_what_it_has_done(out: str, sliced_job: Prepared) -> None:
    store = Store(directory=out)
    with telling(store.folder, quiet) as watch:
        run_sweep(sliced_job, store, InlineExecutor(), watch=watch)
    told = json.loads(store.folder.read_bytes(FILE))
    assert (told["ended"], told["slices_done"], told["slices_lost"], told["store_errors"]) == (True, 1, 0, 0)
    assert told["memory_bytes"] > 2**20
    assert not store.is_running()
    store.discard()
    assert not store.folder.names()


@pytest.mark.parametrize(
    "forged",
    ["{", "[]", '{"host": 1}', '{"host": "x", "plans_per_second": "\\u001b[31m"}', '{"plans_per_second": 1e999}', "\x00\xff"],
)
def test_a_forged_report_is_passed_over(forged: str, sliced_job: Prepared, tmp_path: Path) -> None:
    filled(tmp_path / "out", sliced_job)
    (tmp_path / "out" / FILE).write_text(forged, encoding="latin-1")
    done = sweep("status", tmp_path / "out", "--json")
    assert (done.returncode, json.loads(done.stdout)["run"]) == (0, {})


def test_the_report_of_an_earlier_run_is_not_that_of_this_one(sliced_job: Prepared, tmp_path: Path) -> None:
    store = filled(tmp_path / "out", sliced_job)
    told = {"host": "x\x1b[31m", "memory_bytes": 1, "seconds": 1, "plans_per_second": 1, "eta_s": 9, "slices_done": 1}
    told |= {"slices_lost": 5, "retries": 0, "store_errors": 0, "ended": False}
    (tmp_path / "out" / FILE).write_text(json.dumps(told))
    text = sweep("status", tmp_path / "out").stdout
    assert "5 lost slices" in text
    assert "\x1b" not in text
    os.utime(tmp_path / "out" / FILE, (1, 1))
    assert "lost slices" not in sweep("status", store.folder).stdout


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time that a run sees."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, 1000.0 + seconds)


def test_progress_in_a_pipe_is_a_line_a_minute(clock: Callable[[float], None]) -> None:
    """A search of three minutes printed 60."""
    text = io.StringIO()
    progress = Progress(plans=1000, resumed=0, begun=1000.0)
    with progress_display(Console(file=text, force_terminal=False, width=200)) as watch:
        for second in range(180):
            clock(second)
            progress.add(1)
            watch(progress)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("61 of 1,000 plans, 1 plans/s, ")


def test_progress_on_a_terminal_is_one_line(clock: Callable[[float], None]) -> None:
    text = io.StringIO()
    progress = Progress(plans=1000, resumed=0, begun=1000.0)
    with progress_display(Console(file=text, force_terminal=True, width=200, color_system=None)) as watch:
        for second in range(180):
            clock(second)
            progress.add(1)
            watch(progress)
    assert text.getvalue().count("\n") <= 1


def test_options_of_status_that_cannot_be(write_spec: SpecWriter, sliced: Path, tmp_path: Path) -> None:
    done = sweep("status", sliced, "--page", tmp_path / "no" / "live.html")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: --page: found ")
