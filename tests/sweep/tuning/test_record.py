"""`tune.csv`: what is read of it, what is refused, and that two writers do not lose a line."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from sim_core import FormatError, SpecError
from sweep.tuning import record
from sweep.tuning.record import Entry, append, doubts, read_record, runs_of

IDENTITY = "0123456789abcdef0123"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    assert read_record(path) == []
    append(path, IDENTITY, Entry(plan=3, state="ok", step_time_s=1.93, peak_memory_gib=61.0, note='a "good"\none, too'))
    append(path, IDENTITY, Entry(plan=4, state="oom", log="logs/4.log"))
    first, second = read_record(path, IDENTITY)
    assert (first.plan, first.state, first.step_time_s, first.peak_memory_gib) == (3, "ok", 1.93, 61.0)
    assert first.note == 'a "good" one, too'
    assert (second.plan, second.state, second.step_time_s, second.log) == (4, "oom", None, "logs/4.log")
    heading = path.read_text(encoding="utf-8").splitlines()[0]
    assert heading == "plan,state,step_time_s,peak_memory_gib,log,note,sweep"
    with pytest.raises(FormatError, match=r"tune.csv:2: sweep: found '0123456789abcdef', expected ffff"):
        read_record(path, "f" * 64)


def test_the_median_of_several_times_counts(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("plan, iter_ms,note\n5,1000,a\n\n7,2000,b\n5,3000,c\n5,1100,\n", encoding="utf-8")
    runs = runs_of(read_record(path))
    assert {plan: run.step_time_s for plan, run in runs.items()} == {5: 1.05, 7: 2.0}, "3 s is of a slow machine"
    assert doubts(runs) == ["plan 5: 3 times from 1 to 3 s; the median of those within 42 % of the least counts"]


def test_states_of_one_plan(tmp_path: Path) -> None:
    """What ran once can run; what was skipped last is skipped; a slow run took at least the longest that it was seen."""
    path = tmp_path / "own.csv"
    rows = "1,oom,\n1,ok,2\n2,ok,2\n2,skip,\n3,slow,4\n3,slow,5\n4,crash,\n4,oom,\n"
    path.write_text(f"plan,state,step_time_s\n{rows}", encoding="utf-8")
    found = {plan: (run.state, run.step_time_s) for plan, run in runs_of(read_record(path)).items()}
    assert found == {1: ("ok", 2.0), 2: ("skip", None), 3: ("slow", 5.0), 4: ("oom", None)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("plan\n1\n", "1: heading: found 'plan', expected plan and step_time_s or iter_ms"),
        ("plan,iter_ms\n1\n", "2: cells: found 1, expected 2"),
        ('plan,note,iter_ms\n1,"two\nlines",5\n2,,0\n', "4: iter_ms: found '0'"),
        ('plan,iter_ms\n1,"2"x\n', "2: not a CSV row"),
        ("plan,iter_ms\n1,2\n3,\0\n", "3: not text: found a null byte"),
        ("plan,iter_ms\n-1,5\n", "2: plan: found '-1'"),
        ("plan,iter_ms\n1,fast\n", "2: iter_ms: found 'fast'"),
        ("plan,step_time_s\n1,0\n", "2: step_time_s: found '0'"),
        ("plan,step_time_s\n1,inf\n", "2: step_time_s: found 'inf'"),
        ("plan,state,step_time_s\n1,oomm,\n", "2: state: found 'oomm'"),
        ("plan,state,step_time_s\n1,ok,\n", "2: step_time_s: found nothing"),
        ("plan,state,step_time_s,peak_memory_gib\n1,ok,1,-3\n", "2: peak_memory_gib: found '-3'"),
    ],
)
def test_a_bad_table(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError) as error:
        read_record(path)
    assert told in str(error.value)
    assert str(error.value).startswith(f"{path}:")


def test_a_broken_table_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    path.write_text("plan,state,step_time_s\n1,what,\n", encoding="utf-8")
    with pytest.raises(FormatError, match="2: state"):
        append(path, IDENTITY, Entry(plan=2, state="oom"))
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "tune.csv"
    threads = [threading.Thread(target=append, args=(path, IDENTITY, Entry(plan=plan, state="crash"))) for plan in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry.plan for entry in read_record(path, IDENTITY)) == list(range(8))


def test_a_lock_that_is_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tune.csv"
    monkeypatch.setattr(record, "_PAUSE_S", 0.0)
    with (tmp_path / ".tune.csv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SpecError, match=r"tune.csv: another process is writing it; nothing was added"):
            append(path, IDENTITY, Entry(plan=1, state="oom"))
    assert not path.exists()
