"""`sweep tune`: what it says, writes and refuses, its face in Python, and the loop that runs a stand-in for a trainer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError
from sweep.api import load
from sweep.tuning.launching import LOGS, launch
from sweep.tuning.record import read_record
from tests.sweep.commands import sweep
from tests.sweep.inputs.specimens import megatron_log

SPEC: dict[str, Any] = {
    "name": "tuned",
    "model": "llama3-8b",
    "workload": {"sequence": 4096},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2, 4], "pp": [1, 2], "micro_batch": [1, 2], "sharding": ["none", "optimizer"]},
    "fixed": {"all_gpus": 16, "global_batch": 64},
}
TRAINER = Path(__file__).parent / "trainer.py"
KEYS = ("tp", "pp", "micro_batch", "sharding")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result without runs."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "tuned.yaml").write_text(yaml.safe_dump(SPEC, sort_keys=False), encoding="utf-8")
    assert sweep("run", folder / "tuned.yaml", "--out", folder / "out", "--workers", 0, "--top", 0).returncode == 0
    return folder / "out"


@pytest.fixture
def result(made: Path) -> Path:
    """The same without what an earlier test wrote."""
    for name in ("tune.csv", ".tune.csv.lock"):
        (made / name).unlink(missing_ok=True)
    for log in (made / LOGS).glob("*"):
        log.unlink()
    return made


def asked(result: Path, *options: object) -> dict[str, Any]:
    told = sweep("tune", result, *options, "--json")
    assert told.returncode == 0, told.stderr
    answer: dict[str, Any] = json.loads(told.stdout)
    return answer


def test_a_step_that_no_device_can_take_is_refused(result: Path, tmp_path: Path) -> None:
    """8.03e9 parameters x 6 FLOPs x 262,144 tokens on 16 x 989.4 TFLOP/s take 0.8 s at the peak, attention aside."""
    line = "found a step of 50 ms, [0-9.]+ times its devices' peak, expected [0-9.]+ (s|ms) or more: is it the whole step"
    done = sweep("tune", result, "--add", "plan=0", "--step", "50 ms")
    assert done.returncode == 1
    assert re.search(line, done.stderr), done.stderr
    assert not (result / "tune.csv").exists()
    table = tmp_path / "runs.csv"
    table.write_text("plan,state,step_time_s,peak_memory_gib\n0,ok,0.05,\n")
    assert re.search(line, sweep("tune", result, "--measured", table).stderr)


def test_a_log_in_the_place_of_a_table_is_named(result: Path, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(megatron_log())
    told = sweep("tune", result, "--measured", tmp_path / "run.log").stderr
    assert f"{tmp_path / 'run.log'}: is a Megatron-LM log, not a table of runs: `sweep tune " in told


def test_a_loop_by_hand(result: Path) -> None:
    first = asked(result)
    assert (first["best"], first["expected_regret"], first["stop"]) == (None, None, False)
    (plan,) = first["next"]
    assert {*KEYS, "plan", "all_gpus", "global_batch", "hardware"} <= set(plan)
    second = asked(result, "--add", f"plan={plan['plan']}", "--step", "2.5 s", "--memory", "61 GiB")
    assert second["best"] == {"plan": plan["plan"], "step_time_s": 2.5}
    regret = second["expected_regret"]
    assert 0 <= regret["p10"] <= regret["mean"] <= 3
    assert regret["p10"] <= regret["p90"]
    assert "expected regret: not known before 4 runs (1 so far); " in sweep("tune", result).stdout
    other = second["next"][0]["plan"]
    assert other != plan["plan"]
    third = asked(result, "--add", other, "--failed", "oom", "-n", 3)
    assert len({plan["plan"], other, *(each["plan"] for each in third["next"])}) == 5
    skipped = third["next"][0]["plan"]
    after = asked(result, "--add", f"plan={skipped}", "--skip", "--next", 64)
    assert skipped not in [each["plan"] for each in after["next"]]
    assert after["expected_regret"]["mean"] != regret["mean"]
    assert [(entry.plan, entry.state) for entry in read_record(result / "tune.csv")] == [
        (plan["plan"], "ok"), (other, "oom"), (skipped, "skip"),
    ]  # fmt: skip
    assert read_record(result / "tune.csv")[0].peak_memory_gib == 61.0


def test_the_same_from_python(result: Path) -> None:
    tuner = load(result).tuner()
    (first,) = tuner.ask()
    assert first.plan == asked(result)["next"][0]["plan"]
    tuner.tell(first.plan, 2.5, peak_memory_gib=61)
    (second,) = load(result).tuner().ask(1)  # another process: all state is in the file
    assert tuner.ask(2)[0].plan == second.plan
    tuner.tell(second.plan, "slow")
    assert tuner.runs[second.plan].step_time_s == 5.0  # twice the best
    with pytest.raises(SpecError, match="found 'gone', expected seconds of a step, or one of oom, crash, slow, skip"):
        tuner.tell(second.plan, "gone")


def test_what_it_says(result: Path) -> None:
    told = sweep("tune", result, "-n", 2).stdout
    assert "0 runs" in told
    assert told.count("--tensor-model-parallel-size") == 2
    assert told.count("worth less than one asked for after them") == 1
    assert "GPU-minutes" in told
    assert "stop: no, no step is measured yet" in told


def test_a_table_of_measurements_is_only_read(result: Path, tmp_path: Path) -> None:
    plan = asked(result)["next"][0]["plan"]
    table = tmp_path / "m.csv"
    table.write_text(f"plan,state,step_time_s,peak_memory_gib\n{plan},ok,2.0,50\n", encoding="utf-8")
    answer = asked(result, "--measured", table, "--next", 2)
    assert answer["best"] == {"plan": plan, "step_time_s": 2.0}
    assert len(answer["next"]) == 2
    assert not (result / "tune.csv").exists()
    ranked = json.loads(sweep("rank", result, "--measured", table, "--json", "--top", 100).stdout)
    (own,) = [row for row in ranked if row["plan"] == plan]
    assert own["measured_s"] == 2.0
    assert own["expected_s"] == pytest.approx(2.0, rel=0.01)
    assert [row["expected_s"] for row in ranked] == sorted(row["expected_s"] for row in ranked)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--add", "plan=99999", "--step", "1 s"], "does not hold it, expected 0 to 23"),
        (["--add", "plan=1", "--step", "1.9"], "--step 1.9: found no unit, expected such as '1.9 s'"),
        (["--add", "plan=1"], "how did it go?"),
        (["--add", "plan=1", "--failed", "slowly"], "expected oom, crash, slow"),
        (["--add", "plan=1", "--failed", "oom", "--step", "1 s"], "takes no --step"),
        (["--add", "plan=1", "--skip", "--step", "1 s"], "found --skip and --step, expected one of them"),
        (["--add", "one", "--step", "1 s"], "expected plan=NUMBER"),
        (["--step", "1 s"], "of which run? expected --add plan=NUMBER beside it"),
        (["--regret", "two"], "expected a share from 0% to 100%"),
        (["--launch", "sbatch run.sh"], "expected {flags} or {plan} in it"),
        (["--launch", "run {gpus}"], "expected no braces but {flags}, {plan}, {log}"),
        (["--measured", "nowhere.csv"], "No such file"),
        (["--by", "peak_memory_bytes"], "expected a column in proportion to time"),
    ],
)
def test_a_mistake_is_one_line(result: Path, options: list[str], told: str) -> None:
    answer = sweep("tune", result, *options)
    assert answer.returncode == (1 if "does not hold it" in told else 2)
    assert told in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (result / "tune.csv").exists()


def test_a_table_of_another_result(result: Path, tmp_path: Path) -> None:
    plan = asked(result)["next"][0]["plan"]
    assert sweep("tune", result, "--add", f"plan={plan}", "--step", "2 s").returncode == 0
    text = (result / "tune.csv").read_text(encoding="utf-8")
    other = tmp_path / "other.csv"
    other.write_text(text[:-17] + "0" * 16 + "\n", encoding="utf-8")
    answer = sweep("tune", result, "--file", other)
    assert "2: sweep: found '0000000000000000'" in answer.stderr
    assert answer.returncode == 1


def _grid(result: Path, folder: Path) -> tuple[Path, dict[tuple[Any, ...], str]]:
    """What each plan does: as simulated or up to a third slower; the fullest fail, one dies."""
    table = load(result).to_arrow()
    outcomes: dict[tuple[Any, ...], str] = {}
    for row in table.to_pylist():
        if row["step_time_s"] is None:
            continue
        own = tuple(int(row[name] == "optimizer") if name == "sharding" else row[name] for name in KEYS)
        slower = 1 + 0.3 * (row["tp"] == 1) + 0.1 * (row["pp"] > 1)
        full = row["peak_memory_bytes"] > 0.85 * row["device_memory_bytes"]
        outcomes[own] = "oom" if full else f"{1e3 * slower * row['step_time_s']:.1f}"
    path = folder / "grid.txt"
    path.write_text("".join(f"{' '.join(map(str, own))} {what}\n" for own, what in outcomes.items()), encoding="utf-8")
    return path, outcomes


def test_a_loop_that_runs_by_itself(result: Path, tmp_path: Path) -> None:
    """It finds the best plan of the table. Killed in the middle of a run, it waits for that run next time and takes its log."""
    grid, outcomes = _grid(result, tmp_path)
    trainer, released = f"{sys.executable} {TRAINER} {grid} {{flags}}", tmp_path / "released"
    called = [sys.executable, "-m", "sweep", "tune", str(result), "--launch"]
    held = f"echo begun; for _ in $(seq 600); do [ -e {released} ] && break; sleep 0.1; done; {trainer}"
    with subprocess.Popen([*called, held], stdout=subprocess.DEVNULL, start_new_session=True) as launcher:
        while not any(log.stat().st_size for log in (result / LOGS).glob("*")):
            time.sleep(0.05)
        launcher.kill()
    assert read_record(result / "tune.csv") == []
    lines = []
    with subprocess.Popen([*called, trainer, "--budget", "4"], stdout=subprocess.PIPE, text=True) as again:
        for line in again.stdout or ():
            lines.append(line)
            if "waits for a run that was begun before" in line:
                released.touch()
    assert again.returncode == 0
    assert sum("by the log of a run that was begun before" in line for line in lines) == 1
    assert released.exists()
    before = read_record(result / "tune.csv")
    assert len({entry.plan for entry in before}) == len(before) == 4
    assert {entry.state for entry in before} <= {"ok", "oom"}
    peaks = [entry.peak_memory_gib for entry in before if entry.state == "ok"]
    assert peaks == pytest.approx([20.0] * len(peaks))  # 20480 MB, as Megatron-LM prints MiB
    assert peaks
    assert sweep("tune", result, "--launch", trainer, "--budget", 7).returncode == 0
    best = min(float(what) for what in outcomes.values() if what != "oom") / 1e3
    found = min(entry.step_time_s for entry in read_record(result / "tune.csv") if entry.step_time_s is not None)
    assert found <= 1.02 * best


def test_a_command_that_dies_is_a_crash(result: Path) -> None:
    told = sweep("tune", result, "--launch", "echo {flags}; exit 3", "--budget", 1)
    assert told.returncode == 0, told.stderr
    (entry,) = read_record(result / "tune.csv")
    assert (entry.state, entry.note) == ("crash", "exit code 3, no step in its log")


def test_a_log_of_another_plan(result: Path, tmp_path: Path) -> None:
    grid, _ = _grid(result, tmp_path)
    assert sweep("tune", result, "--launch", f"{sys.executable} {TRAINER} {grid} {{flags}}", "--budget", 1).returncode == 0
    (entry,) = read_record(result / "tune.csv")
    table = load(result).to_arrow().to_pylist()
    own = table[entry.plan]
    other = next(row for row in table if row["step_time_s"] and row["tp"] != own["tp"])
    answer = sweep("tune", result, "--add", f"plan={other['plan']}", "--log", entry.log)
    assert f"is a log of another plan: found tp {own['tp']}, expected {other['tp']} of plan {other['plan']}" in answer.stderr
    assert len(read_record(result / "tune.csv")) == 1


def test_a_plan_without_flags_is_skipped_not_launched(result: Path, tmp_path: Path) -> None:
    """It was launched with the words that say why there are none."""
    tuner, said = load(result).tuner(), list[str]()
    first = tuner.ask()[0].plan
    launch(
        tuner,
        f"echo {{flags}} >> {tmp_path}/launched",
        lambda plan: "none: a file has them" if plan == first else "--some",
        said.append,
        limit=0.0,
        budget=2,
    )
    assert said[0] == f"plan {first}: skipped, flags none: a file has them"
    assert tuner.runs[first].state == "skip"
    assert (tmp_path / "launched").read_text() == "--some\n"


def test_a_table_of_another_result_is_refused_where_it_is_only_read(result: Path, tmp_path: Path) -> None:
    """Plan numbers of another result mean other plans, whoever reads them."""
    other = tmp_path / "other.csv"
    other.write_text(f"plan,state,step_time_s,sweep\n0,ok,2.5,{'f' * 16}\n", encoding="utf-8")
    for command in ("tune", "rank"):
        told = sweep(command, result, "--measured", other)
        assert told.returncode == 1
        assert "plan numbers of another mean other plans" in told.stderr


def test_a_spent_budget_is_said(result: Path) -> None:
    plan = asked(result)["next"][0]["plan"]
    told = sweep("tune", result, "--add", plan, "--step", "2.5 s", "--budget", 1).stdout
    assert "stop: yes, the budget is spent" in told
    assert "no plan is left" not in told
    assert "runs with a chance of " in sweep("tune", result).stdout


def test_the_job_that_runs_today_is_a_run(tmp_path: Path) -> None:
    """`running:` of a spec: measured, so it is told; nobody ran it for the loop, so no budget pays for it."""
    plan = {"tp": 4, "pp": 1, "micro_batch": 1, "sharding": "optimizer"}
    for name, running in (
        ("own", {"plan": plan, "step_time_s": 2.9}),
        ("other", {"plan": plan | {"tp": 8}, "step_time_s": 2.9}),
    ):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(SPEC | {"running": running}, sort_keys=False), encoding="utf-8")
        out = ("--out", tmp_path / name, "--workers", 0, "--top", 0)
        assert sweep("run", tmp_path / f"{name}.yaml", *out).returncode == 0
    told = asked(tmp_path / "own", "--budget", 1)
    best = load(tmp_path / "own").tuner().row(told["best"]["plan"])
    assert {name: best[name] for name in plan} == plan
    assert told["best"]["step_time_s"] == 2.9
    assert len(told["next"]) == 1
    said = sweep("tune", tmp_path / "own", "--add", f"plan={best['plan']}", "--step", "2 s").stdout
    assert f"best: plan {best['plan']}, 2 s" in said  # measured again: a slower time is no news
    assert asked(tmp_path / "own", "--budget", 1)["next"] == []
    assert asked(tmp_path / "other")["best"] is None
    assert "(`running:` of the spec) is none of these plans" in sweep("tune", tmp_path / "other").stdout
    tuner = load(tmp_path / "own").tuner()
    assert tuner.runs[best["plan"]].times == (2.9, 2.0), "a repeat of the job that runs is its second time"
    assert tuner.made[best["plan"]].times == (2.0,)


def test_a_search_with_few_plans_says_how_to_have_more(result: Path, tmp_path: Path) -> None:
    assert sweep("search", result.parent / "tuned.yaml", "--out", tmp_path / "out", "--workers", 0).returncode == 0
    told = sweep("tune", tmp_path / "out").stdout.splitlines()
    assert re.search(r": 0 runs; [12] plans? to choose from$", told[0]), "the fastest, and the one to launch"
    assert "more to choose from: `sweep search SPEC --best 200`" in told[1]
    assert re.match(r"next: plan \d+", told[2])


def test_how_stable_the_pick_is(result: Path) -> None:
    """Before any run several plans may win; a run that is much slower than expected takes its plan out."""

    def wins() -> dict[int, float]:
        told = sweep("rank", result, "--stable", "--top", "24", "--format", "json")
        assert told.returncode == 0, told.stderr
        rows = json.loads(told.stdout)
        assert [row["wins"] for row in rows] == sorted((row["wins"] for row in rows), reverse=True)
        return {row["plan"]: row["wins"] for row in rows}

    before = wins()
    first = next(iter(before))
    assert 0.99 <= sum(before.values()) < 1 + 1e-9
    assert before[first] < 1
    slow = 3 * next(row for row in asked(result)["next"])["expected_step_time_s"]
    assert sweep("tune", result, "--add", f"plan={first}", "--step", f"{slow} s").returncode == 0
    assert wins()[first] < before[first] / 2


def test_a_run_far_slower_than_expected_is_said_and_asked_for_again(result: Path) -> None:
    """The first run takes 2.5 times as long as others of its kind; a second one as expected clears it."""

    def add(plan: int, seconds: float) -> None:
        assert sweep("tune", result, "--add", f"plan={plan}", "--step", f"{seconds} s").returncode == 0

    (first,) = asked(result)["next"]
    base = first["expected_step_time_s"]
    add(first["plan"], 2.5 * base)
    for _ in range(4):
        (proposal,) = asked(result)["next"]
        if proposal["plan"] == first["plan"]:
            break
        add(proposal["plan"], base * 1.02)
    said = sweep("tune", result).stdout
    assert f"note: plan {first['plan']} took " in said
    assert f"next: plan {first['plan']}" in said
    assert "why: again: how much its step differs from run to run decides" in said
    add(first["plan"], base)
    assert "times as long as the other runs say" not in sweep("tune", result).stdout
