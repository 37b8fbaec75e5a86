"""Nights in a row: what is recomputed, what is said, what is deleted, on a local disk and on a real S3 server."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sim_core import SpecError
from sweep.compare.comparison import compare
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.nightly.lock import locked
from sweep.nightly.nights import Night, SweepRecord, expired
from sweep.nightly.spec import Keep
from sweep.results.folder import Folder
from sweep.results.store import Store
from sweep.sources import row_code
from sweep.spec.spec import load_spec
from tests.conftest import rest_long
from tests.sweep.commands import sweep
from tests.sweep.conftest import rows
from tests.sweep.fault_proxy import faulty
from tests.sweep.nightly.conftest import AXES, Sandbox, SandboxMaker, once_on_s3
from tests.waiting import until

ALONE = ("unshare", "--user", "--map-root-user", "--mount")
"""Runs a command that may mount disks which nobody else sees."""
NETWORK = "hardware H100-SXM nic_bandwidth: 50 GB/s -> 10 GB/s"


def test_three_nights_in_a_row(anywhere: Sandbox) -> None:
    """Unchanged, a changed preset, a broken workload; then mended."""
    first = anywhere.night()
    assert (first.code, first.did_nothing) == (0, False)
    assert first.night == "20261122T023000Z-" + anywhere.record(first).inputs[:8]
    assert [sweep.computed for sweep in anywhere.record(first).sweeps] == [48, 48]

    again = anywhere.night()
    assert (again.code, again.did_nothing, again.night) == (0, True, first.night)
    assert again.summary.startswith(f"Nothing to do: the inputs are those of night {first.night}")
    assert len(anywhere.nights.read()) == 1

    anywhere.change_network()
    second = anywhere.night()
    a, b = anywhere.record(second).sweeps
    assert second.code == 1
    assert (a.computed, b.computed) == (48, 0), "only what changed is simulated again"
    assert a.regressions
    assert a.changes[0] == NETWORK
    assert (b.regressions, b.changes) == ([], [])
    assert NETWORK in second.summary
    assert second.summary.startswith("3 regressions: a: gpus 64: best gpu-s/sample ")
    assert "a: median step time +" in second.summary
    assert (a.baseline, b.baseline) == (first.night, first.night)
    assert anywhere.ack().returncode == 0

    anywhere.break_workload()
    third = anywhere.night()
    a, b = anywhere.record(third).sweeps
    assert third.code == 2
    assert (a.status, a.computed, b.status) == ("done", 0, "failed")
    assert "b.txt:42: layer lines: found 40, expected 80 (line 2)" in third.summary
    assert rows(anywhere.nights.results(a.results)).num_rows == 48

    anywhere.mend_workload()
    fourth = anywhere.night()
    assert fourth.code == 0
    a, b = anywhere.record(fourth).sweeps
    assert (a.baseline, b.baseline) == (third.night, second.night), "each with the last night in which it was done"
    assert (a.computed, b.computed) == (0, 0)


def test_a_night_after_a_change_of_the_code_is_a_new_one_and_says_what_changed(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.write(sweeps=["a.yaml"])
    first = sandbox.night()
    assert sandbox.night().did_nothing
    monkeypatch.setattr("sweep.evaluation.preparation.row_code", lambda: {**row_code(), "sweep/spec/failures.py": "changed"})
    second = sandbox.night()
    assert (second.code, second.did_nothing) == (0, False)
    assert "changed: code sweep/spec/failures.py: " in second.summary
    (a,) = sandbox.record(second).sweeps
    assert (a.computed, a.baseline) == (a.rows, first.night)


def test_a_broken_sweep_is_tried_again(sandbox: Sandbox) -> None:
    sandbox.break_workload()
    first, second = sandbox.night(), sandbox.night()
    assert (first.code, second.code, second.did_nothing) == (2, 2, False)
    assert first.night != second.night
    third = sandbox.night(hours=0)
    assert third.night not in (first.night, second.night), "a name of its own, also in the same second"


def test_a_night_of_other_plans_says_that_none_is_compared(sandbox: Sandbox) -> None:
    """Medians and plans that can no longer run are of plans on both sides: without any these thresholds see nothing."""
    sandbox.night()
    sandbox.write_sweep("b", axes=AXES | {"all_gpus": [256]})
    done = sandbox.record(sandbox.night())
    told = done.sweep("b")
    assert told is not None
    assert told.changes[-1] == "no plan is on both sides, so only the best plans are compared"


def test_reports_lie_beside_the_record(anywhere: Sandbox) -> None:
    anywhere.night()
    anywhere.change_network()
    outcome = anywhere.night()
    assert outcome.folder.names() == ["night.json", "report.html", "report.json", "report.md"]
    text = outcome.folder.read_bytes("report.md").decode()
    assert "hardware H100-SXM nic\\_bandwidth: 50 GB/s -\\> 10 GB/s" in text
    data = json.loads(outcome.folder.read_bytes("report.json"))
    assert (data["code"], [found["name"] for found in data["comparisons"]]) == (1, ["a", "b"])


def test_a_page_by_hand_shows_the_line_of_nights(sandbox: Sandbox, tmp_path: Path) -> None:
    results = []
    sandbox.write(sweeps=["a.yaml"])
    for rate in ("50 GB/s", "40 GB/s", "30 GB/s", "20 GB/s"):
        sandbox.change_network(rate)
        results.append(sandbox.nights.results(sandbox.record(sandbox.night()).sweeps[0].results))
    command = ("compare", results[1], results[2], "-o", tmp_path / "page.html", "--nights")
    assert sweep(*command, sandbox.root, "--last", 2).returncode == 0
    page = (tmp_path / "page.html").read_text()
    figures = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert figures[0]["x"]["names"] == ["2026-11-23 02:30", "2026-11-24 02:30"], "the last two up to the new one"
    refused = sweep(*command, tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: --nights {tmp_path}: no night there has the result a-")


def test_the_verdict_is_that_of_the_comparison(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["a.yaml"])
    sandbox.night()
    old = sandbox.nights.results(sandbox.nights.read()[0].sweeps[0].results)
    sandbox.change_network()
    record = sandbox.record(sandbox.night()).sweeps[0]
    found = compare(old, sandbox.nights.results(record.results))
    worse = [group for group in found.groups if group.worse is not None and group.worse > 0.01]
    median = dict(found.steps.quantiles)[0.5]
    assert len(record.regressions) == len(worse) + (median > 0.01) > 0
    assert record.feasible == found.new_feasible
    assert set(record.best_step_s) == {"gpus 64", "gpus 128"}


@pytest.mark.parametrize(
    ("thresholds", "told"),
    [
        ({"best": None, "median_step": None, "infeasible": None}, []),
        ({"best": "0.001 %", "median_step": None}, ["gpus 64: best gpu-s/sample", "gpus 128: best gpu-s/sample"]),
        ({"best": "99 %", "median_step": "0.001 %"}, ["median step time +"]),
        ({"best": None, "median_step": None, "champion_rank": 1}, []),
    ],
)
def test_thresholds(sandbox: Sandbox, thresholds: dict[str, Any], told: list[str]) -> None:
    sandbox.write(sweeps=["a.yaml"], thresholds=thresholds)
    sandbox.night()
    sandbox.change_network()
    outcome = sandbox.night()
    regressions = sandbox.record(outcome).sweeps[0].regressions
    assert outcome.code == (1 if told else 0)
    assert len(regressions) == len(told)
    assert all(text.startswith(begin) for text, begin in zip(regressions, told, strict=True))


def test_plans_that_can_no_longer_run_are_a_regression(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["b.yaml"], thresholds={"best": None, "median_step": None, "champion_rank": 3})
    sandbox.night()
    sandbox.write_sweep("b", hardware={"preset": "H100-SXM", "memory": "20 GB"})
    outcome = sandbox.night()
    assert outcome.code == 1
    told = sandbox.record(outcome).sweeps[0].regressions
    assert [text for text in told if "plans can no longer run (memory_exceeds_device" in text]
    assert "gpus 64: the best plan of the baseline is now infeasible (threshold 3)" in told
    sandbox.write_sweep("b", hardware={"preset": "H100-SXM", "memory": "1 kB"})
    sandbox.write(sweeps=["b.yaml"])
    assert "gpus 64: no plan can run any more" in sandbox.night().summary


def test_plans_that_fail_are_a_failure(sandbox: Sandbox) -> None:
    axes = {"hardware.nic_bandwidth": ["1e-300 B/s", "100 Gb/s"], "tp": [4], "all_gpus": [512]}
    sandbox.write_sweep("b", axes=axes, hardware={"preset": "H100-SXM", "nic_efficiency": 1e-10})
    outcome = sandbox.night()
    assert outcome.code == 2
    assert "b: 1 plan failed" in outcome.summary


def test_a_defect_in_one_sweep_does_not_cost_the_others_their_night(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(prepared: Any, *arguments: Any, **more: Any) -> Any:
        if prepared.provenance["name"] == "a":
            raise ZeroDivisionError("of ours")
        return run_sweep(prepared, *arguments, **more)

    monkeypatch.setattr("sweep.nightly.night.run_sweep", broken)
    outcome = sandbox.night()
    a, b = sandbox.record(outcome).sweeps
    assert (outcome.code, a.status, b.status) == (2, "failed", "done")
    assert a.error == "ZeroDivisionError: of ours"
    assert any("Traceback" in text for text in sandbox.told)


def test_a_fixed_baseline_stands_until_the_inputs_are_as_good(sandbox: Sandbox) -> None:
    first = sandbox.night()
    sandbox.change_network()
    sandbox.write(baseline=first.night)
    worse = sandbox.night()
    assert worse.code == 1
    again = sandbox.night()
    assert (again.code, again.did_nothing) == (1, True), "against a fixed baseline it is still worse"
    sandbox.change_network("400 Gb/s")
    assert sandbox.night().code == 0
    sandbox.write(baseline="20200101T000000Z-00000000")
    with pytest.raises(
        SpecError, match="baseline: found '20200101T000000Z-00000000', expected previous or a finished night of"
    ):
        sandbox.night()


def test_a_night_that_was_cut_off_is_gone_on_with(anywhere: Sandbox) -> None:
    """Cut off in the second sweep, the first is done; with other inputs it is left, and never compared with."""

    class Stop(BaseException):
        pass

    def stop(text: str) -> None:
        if text.startswith("b: "):
            raise Stop

    first = anywhere.night()
    anywhere.change_network()
    with pytest.raises(Stop):
        anywhere.night(log=stop)
    cut = anywhere.nights.read()[-1]
    assert cut.finished is None
    resumed = anywhere.night()
    assert resumed.night == cut.night
    assert f"Night {cut.night} was interrupted: resuming it." in anywhere.told
    a, b = anywhere.record(resumed).sweeps
    assert (resumed.code, a.computed, b.computed, a.baseline) == (1, 0, 0, first.night)
    assert anywhere.ack().returncode == 0

    anywhere.change_network("5 GB/s")
    with pytest.raises(Stop):
        anywhere.night(log=stop)
    left = anywhere.nights.read()[-1]
    assert (left.finished, left.sweeps[0].status) == (None, "done")
    anywhere.change_network("4.999 GB/s")
    outcome = anywhere.night()
    assert f"Night {left.night} was interrupted and its inputs have changed since: it stays as it is." in anywhere.told
    assert anywhere.record(outcome).sweeps[0].baseline == resumed.night
    assert outcome.code == 1, "what the cut-off night found was told to nobody"


def test_a_kill_in_the_middle_of_a_night(sandbox: Sandbox, tmp_path: Path) -> None:
    big = {
        "tp": [1, 2, 4, 8, 16],
        "pp": [1, 2, 3, 4, 6],
        "all_gpus": {"range": [64, 1024, 64]},
        "ga": {"range": [24, 7680, 24]},
    }
    sandbox.write_sweep("a", hardware="h100.yaml", axes=big)
    sandbox.write(workers=1)
    process = subprocess.Popen(sandbox.command(), stdout=subprocess.DEVNULL, start_new_session=True)
    until(lambda: list((tmp_path / "root" / "results").glob("a-*/part-*.parquet")), process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = sandbox.call()
    assert done.returncode == 0, done.stderr
    assert "was interrupted: resuming it" in done.stdout
    (night,) = sandbox.nights.read()
    a = night.sweeps[0]
    assert 0 < a.computed < a.rows == 128_000
    undisturbed = tmp_path / "undisturbed"
    run_sweep(prepare(load_spec(tmp_path / "a.yaml"), tmp_path), Store(directory=undisturbed), InlineExecutor())
    assert rows(sandbox.nights.results(a.results)).equals(rows(undisturbed))


@pytest.mark.parametrize("number", rest_long([signal.SIGINT, signal.SIGTERM], 1))
def test_an_interrupted_night_says_how_it_goes_on(sandbox: Sandbox, tmp_path: Path, number: int) -> None:
    sandbox.write_sweep("a", hardware="h100.yaml", axes={"tp": [1, 2, 4, 8], "all_gpus": {"range": [64, 1024, 8]},
                                                         "ga": {"range": [24, 768, 24]}})  # fmt: skip
    sandbox.write(workers=1)
    process = subprocess.Popen(sandbox.command(), stdout=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: list((tmp_path / "root" / "results").glob("a-*/part-*.parquet")), process)
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert (process.returncode, told.splitlines()[-1]) == (128 + number, "Interrupted. Run the same command to resume.")
    assert sandbox.nights.read()[0].finished is None


def test_exit_codes_and_last_lines(sandbox: Sandbox) -> None:
    fine = sandbox.call()
    assert (fine.returncode, fine.stdout.splitlines()[-1]) == (0, "Nothing beyond the thresholds; nothing to compare with yet")
    sandbox.change_network()
    worse = sandbox.here()
    assert worse.returncode == 1
    assert NETWORK in worse.stdout.splitlines()[-1]
    sandbox.break_workload()
    failed = sandbox.here()
    assert failed.returncode == 2
    assert failed.stdout.splitlines()[-1].startswith("1 failure: b: ")
    wrong = sandbox.here("thresholds.bset=1 %")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.endswith("thresholds.bset: unknown key, nearest valid: best\n")


def test_retention_deletes_what_its_rule_says(anywhere: Sandbox) -> None:
    first = anywhere.night()
    anywhere.write(keep={"nights": 2}, baseline=first.night)
    outcomes = [first]
    for rate in ("45 GB/s", "40 GB/s", "35 GB/s"):
        anywhere.change_network(rate)
        outcomes.append(anywhere.night())
    kept = [night.night for night in anywhere.nights.read()]
    assert kept == [outcomes[k].night for k in (0, 2, 3)], "the newest two, and the baseline"
    assert (anywhere.nights.root / "nights").subfolders() == kept
    results = {sweep.results for night in anywhere.nights.read() for sweep in night.sweeps}
    assert set((anywhere.nights.root / "results").subfolders()) == results, "shared results stay, those of nobody go"
    assert len(results) == 4
    for night in anywhere.nights.read():
        for one in night.sweeps:
            assert rows(anywhere.nights.results(one.results)).num_rows == 48


def test_retention_leaves_the_files_of_others(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["a.yaml"], keep={"nights": 1})
    sandbox.night()  # kept, as the first
    sandbox.change_network("49 GB/s")
    outcome = sandbox.night()
    record = sandbox.record(outcome)
    mine = [
        Path(sandbox.root) / "nights" / outcome.night / "notes.txt",
        Path(sandbox.root) / "results" / record.sweeps[0].results / "plot.png",
        Path(sandbox.root) / "nights" / "20260101T000000Z-old",
        Path(sandbox.root) / "results" / "a-somebody",
    ]
    for path in mine[:2]:
        path.write_text("mine")
    for path in mine[2:]:
        path.mkdir()
        (path / "night.json").write_text("{}")
    for rate in ("48 GB/s", "47 GB/s"):
        sandbox.change_network(rate)
        sandbox.night()
    assert outcome.night not in [night.night for night in sandbox.nights.read()]
    assert all(path.exists() for path in mine)
    assert sorted(path.name for path in mine[0].parent.iterdir()) == ["notes.txt"]
    assert sorted(path.name for path in mine[1].parent.iterdir()) == ["plot.png"]


def test_retention_by_days_keeps_the_last_good_night_of_each_sweep(sandbox: Sandbox) -> None:
    sandbox.write(keep={"days": 1})
    good = sandbox.night()
    sandbox.break_workload()
    nights = [sandbox.night(hours=30).night for _ in range(4)]
    kept = [night.night for night in sandbox.nights.read()]
    assert kept == [good.night, *nights[-2:]], "the last good one of b; what tonight was compared with; tonight"


STARTS = st.lists(st.integers(0, 100_000), min_size=1, max_size=30, unique=True).map(sorted)


@given(
    starts=STARTS,
    keep=st.builds(Keep, nights=st.none() | st.integers(1, 12), days=st.none() | st.integers(1, 40)),
    chosen=st.sets(st.integers(0, 29)),
    later=st.integers(0, 50_000),
)
def test_the_rule_of_retention(starts: list[int], keep: Keep, chosen: set[int], later: int) -> None:
    """A night goes where the rule names it and nothing protects it; never another."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    nights = [Night(nightly="n", night=str(m), started=begin + timedelta(minutes=m), inputs="") for m in starts]
    protected = {nights[k].night for k in chosen if k < len(nights)}
    now = nights[-1].started + timedelta(minutes=later)
    gone = expired(nights, keep, now, protected)
    for k, night in enumerate(nights):
        newest = keep.nights is not None and len(nights) - k <= keep.nights
        young = keep.days is not None and (now - night.started).total_seconds() < 86_400 * keep.days
        ruled = keep.nights is not None or keep.days is not None
        assert (night in gone) == (ruled and not newest and not young and night.night not in protected)


def test_two_nightlies_do_not_share_a_root(sandbox: Sandbox) -> None:
    sandbox.night()
    sandbox.write(name="other")
    with pytest.raises(SpecError, match="holds nights of 'test', not of 'other'; give each nightly file its own root"):
        sandbox.night()


def test_two_nights_at_once_on_the_command_line(sandbox: Sandbox) -> None:
    with locked(sandbox.nights.root):
        done = sandbox.call()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {sandbox.root}: another nightly run is active here\n"
    assert sandbox.nights.read() == []


def _may_mount() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.long
def test_a_night_on_a_full_disk_names_the_file_and_the_next_goes_on(sandbox: Sandbox, tmp_path: Path) -> None:
    """A disk of 64 kB: there is room for the record of the night and the first slices of its first sweep."""
    if not _may_mount():
        pytest.skip("this user may not mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    sandbox.write(root=str(disk))
    script = f"mount -t tmpfs -o size=64k tmpfs {disk} && {{ {shlex.join(sandbox.command())}; echo code $?; }}"
    enlarged = f"mount -o remount,size=64m {disk} && {{ {shlex.join(sandbox.command())}; echo code $?; }}"
    done = subprocess.run([*ALONE, "sh", "-c", f"{script}; {enlarged}"], capture_output=True, text=True, check=False)
    full, _, after = done.stdout.partition("code 2\n")
    assert "Traceback" not in done.stdout + done.stderr
    assert "No space left on device" in full + done.stderr, done
    told = next(line for line in (full + done.stderr).splitlines() if "No space left on device" in line)
    assert str(disk) in told.partition("No space left on device")[0], told
    assert "code 0\n" in after, done


def test_a_damaged_record_is_named(sandbox: Sandbox) -> None:
    outcome = sandbox.night()
    outcome.folder.write_bytes("night.json", b'{"nightly": 1}')
    with pytest.raises(
        SpecError, match=r"night\.json: is damaged \(nightly: .*\); restore it from a copy, or delete this night"
    ):
        sandbox.night()


def damage(sandbox: Sandbox, night: str, how: str) -> None:
    """Damage the result of sweep `a` in a night."""
    record = next(found for found in sandbox.nights.read() if found.night == night)
    store = Store(directory=sandbox.nights.results(record.sweeps[0].results))
    (part,) = store.slices()
    if how == "gone":
        store.discard()
    elif how == "missing":
        store.folder.delete(part.file_name)
    else:
        data = bytearray(store.folder.read_bytes(part.file_name))
        data[len(data) // 3] ^= 4
        store.folder.write_bytes(part.file_name, bytes(data))


DAMAGES = ("gone", "missing", "flipped")


@pytest.mark.parametrize(("anywhere", "how"), once_on_s3(DAMAGES), indirect=["anywhere"])
def test_a_baseline_that_is_not_whole_is_a_failure(anywhere: Sandbox, how: str) -> None:
    """Its preset has changed since, so it cannot be computed again; a regression would not be seen."""
    first = anywhere.night()
    damage(anywhere, first.night, how)
    anywhere.change_network()
    for _ in range(2):  # a retry hides nothing
        second = anywhere.night()
        a, b = anywhere.record(second).sweeps
        assert (second.code, a.status, b.status) == (2, "failed", "done")
        assert f"a: the baseline, night {first.night}, cannot be trusted: " in second.summary
        assert "its inputs are no longer at hand; set `baseline` to another night, or delete " in second.summary
    for name in first.folder.names():
        first.folder.delete(name)
    assert anywhere.ack().returncode == 0
    assert anywhere.night().code == 0, "as the message says"


@pytest.mark.parametrize(("anywhere", "how"), once_on_s3(DAMAGES[1:]), indirect=["anywhere"])
def test_a_baseline_is_computed_again_where_its_inputs_are_at_hand(anywhere: Sandbox, how: str) -> None:
    """Only the spec has changed: last night's is in its result, and its files are as they were."""
    first = anywhere.night()
    result = anywhere.nights.results(anywhere.record(first).sweeps[0].results)
    whole = rows(result)
    damage(anywhere, first.night, how)
    anywhere.write_sweep("a", hardware={"preset": "h100.yaml", "nic_bandwidth": "10 GB/s"})
    second = anywhere.night()
    assert any(f"a: the baseline, night {first.night}, was computed again: " in text for text in anywhere.told)
    a, _ = anywhere.record(second).sweeps
    assert (second.code, a.status, a.baseline) == (1, "done", first.night)
    assert a.regressions
    assert rows(result).equals(whole)


def test_a_clock_that_was_ahead_once(sandbox: Sandbox) -> None:
    """The night with the wrong date is compared with its neighbours in the line, and costs no real night its place."""
    sandbox.write(sweeps=["a.yaml"], keep={"nights": 3, "days": 3})
    rates = iter(f"{rate} GB/s" for rate in range(60, 50, -1))
    outcomes = []
    for hours in (24.0, 24.0, 24.0 * 400, -24.0 * 399, 24.0, 24.0):
        sandbox.change_network(next(rates))
        outcomes.append(sandbox.night(hours=hours))
        if len(outcomes) == 3:
            assert len(sandbox.nights.read()) == 3, "a wrong clock deletes nothing"
    future = outcomes[2].night
    assert future.startswith("2027")
    assert f"warning: night {future} is dated after now: a clock was or is wrong; nights count by their number" in sandbox.told
    kept = [night.night for night in sandbox.nights.read()]
    assert kept == [outcomes[k].night for k in (0, 1, 3, 4, 5)], "the first, three by number; a wrong date is not young"
    for k in (4, 5):
        assert sandbox.record(outcomes[k]).sweeps[0].baseline == outcomes[k - 1].night


@pytest.mark.parametrize("seed", rest_long(range(3), 1))
def test_a_clock_that_jumps_back_and_forth(sandbox: Sandbox, seed: int) -> None:
    """At every look, by up to a year: the line of nights, what each is compared with and what is kept go by number."""
    chance, line = random.Random(seed), []
    sandbox.write(sweeps=["a.yaml"], keep={"nights": 3}, thresholds={"best": None, "median_step": None})

    def now() -> datetime:
        return datetime(2026, 11, 22, tzinfo=UTC) + timedelta(hours=chance.uniform(-9000, 9000))

    for number in range(6):
        sandbox.change_network(f"{60 - number} GB/s")
        outcome = sandbox.night(now=now)
        line.append(outcome.night)
        record = sandbox.record(outcome)
        assert (outcome.code in (0, 1), record.number) == (True, number + 1)
        assert record.sweeps[0].baseline == (line[-2] if number else None)
        assert [night.night for night in sandbox.nights.read()] == [*line[:-3][:1], *line[-3:]]
        assert rows(sandbox.nights.results(record.sweeps[0].results)).num_rows == 48


def test_retention_that_is_ended_in_the_middle_goes_on_the_next_night(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is deleted is no night that is kept, nor its results, whichever file was the last."""
    sandbox.write(keep={"nights": 1}, thresholds={"best": None, "median_step": None})
    sandbox.night()  # kept, as the first
    sandbox.change_network("50.1 GB/s")
    first = sandbox.night()
    sandbox.change_network("45 GB/s")
    sandbox.night()
    delete, left = Folder.delete, [1]

    def failing(folder: Folder, name: str) -> None:
        if not left[0] and name.startswith(("part-", "report")):
            raise OSError("ended here")
        left[0] -= name.startswith("part-")
        delete(folder, name)

    sandbox.change_network("40 GB/s")
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "delete", failing)
        with pytest.raises(OSError, match="ended here"):
            sandbox.night()
    assert first.night in [night.night for night in sandbox.nights.read()], "its record goes last"
    sandbox.change_network("35 GB/s")
    last = sandbox.night()
    kept = sandbox.nights.read()
    assert (last.code, [night.number for night in kept]) == (0, [1, 4, 5]), "tonight, and what it was compared with"
    for night in kept:
        for one in night.sweeps:
            assert rows(sandbox.nights.results(one.results)).num_rows == 48
    assert set((sandbox.nights.root / "results").subfolders()) == {sweep.results for night in kept for sweep in night.sweeps}


def test_a_night_of_an_earlier_version_from_the_future_is_set_aside(sandbox: Sandbox) -> None:
    first = sandbox.night()
    sandbox.change_network()
    future = sandbox.night(hours=24.0 * 400)
    for outcome in (first, future):
        record = sandbox.record(outcome)
        record.number, record.listed = 0, False
        sandbox.nights.write(record)
    (sandbox.nights.root / "nights").delete("line.json")
    sandbox.change_network("20 GB/s")
    third = sandbox.night(hours=-24.0 * 399)
    assert sandbox.record(third).sweeps[0].baseline == first.night
    assert sandbox.record(third).number == 1


def test_nights_of_one_minute_have_bars_of_their_own(sandbox: Sandbox) -> None:
    for rate, hours in (("45 GB/s", 24.0), ("40 GB/s", 20 / 3600), ("35 GB/s", 24.0)):
        sandbox.change_network(rate)
        outcome = sandbox.night(hours=hours)
    page = outcome.folder.read_bytes("report.html").decode()
    figures = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    labels = ["2026-11-22 02:30:00", "2026-11-22 02:30:20", "2026-11-23 02:30"]
    assert [figure["x"]["names"] for figure in figures[:3]] == [labels] * 3


def test_a_baseline_pinned_once_stays(sandbox: Sandbox) -> None:
    first = sandbox.night()
    sandbox.write(keep={"nights": 1}, baseline=first.night)
    sandbox.change_network("45 GB/s")
    sandbox.night()
    sandbox.write(keep={"nights": 1})
    for rate in ("40 GB/s", "35 GB/s"):
        sandbox.change_network(rate)
        last = sandbox.night()
    kept = [night.night for night in sandbox.nights.read()]
    assert (kept[0], kept[-1], len(kept)) == (first.night, last.night, 3)


def test_a_night_whose_sweeps_all_failed_says_only_that(sandbox: Sandbox) -> None:
    sandbox.write(sweeps=["b.yaml"])
    sandbox.break_workload()
    outcome = sandbox.night()
    assert outcome.summary.startswith("1 failure: b: ")
    assert "compare with" not in outcome.summary


def test_records_of_a_night() -> None:
    night = Night(nightly="n", night="x", started=datetime(2026, 1, 1, tzinfo=UTC), inputs="", sweeps=[SweepRecord(name="a")])
    assert Night.model_validate_json(night.model_dump_json()) == night


@pytest.mark.long
def test_two_clocks_share_a_line_of_nights(make_sandbox: SandboxMaker, bucket: str) -> None:
    """Two machines take turns, one three days ahead: each night is compared with the one before it, none is lost."""
    sandbox = make_sandbox(f"{bucket}/nightly")
    sandbox.write(keep={"nights": 4, "days": 2})
    clocks = [datetime(2026, 11, day, 2, 30, tzinfo=UTC) for day in (22, 26, 24, 28, 26, 30, 28, 30)]
    outcomes = []
    for k, clock in enumerate(clocks):
        sandbox.time = clock
        sandbox.change_network(f"{60 - k} GB/s")
        outcomes.append(sandbox.night(hours=0))
    line = [outcome.night for outcome in outcomes]
    kept = sandbox.nights.read()
    assert [night.night for night in kept][-4:] == line[-4:]
    for night in kept[1:]:
        assert night.sweeps[0].baseline == line[line.index(night.night) - 1]


def test_a_night_whose_store_loses_a_slice_says_so_and_the_next_adds_it(
    make_sandbox: SandboxMaker, bucket: str, s3_server: str
) -> None:
    with faulty(s3_server) as faults:
        sandbox = make_sandbox(f"{bucket}/nightly?endpoint_override={faults.address}&scheme=http&region=us-east-1")
        faults.only, faults.loses = "/part-", 1.0
        lost = sandbox.night()
        assert lost.code == 2
        assert "finished plans are not in the store, which took them without an error; run the same command" in lost.summary
        faults.loses = 0.0
        assert sandbox.night().code == 0
