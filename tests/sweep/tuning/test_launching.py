"""The launcher of `sweep tune`: lost at every stage it finds its job again and runs none twice; slow runs are stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.demo import BIN, demo_cluster
from sim_core import SpecError
from sweep.api import load
from sweep.tuning.launching import LOGS, Submitted, submitted
from sweep.tuning.record import read_record
from tests.sweep.commands import sweep
from tests.sweep.tuning.slurm import install
from tests.sweep.tuning.test_tune_command import made, result  # noqa: F401 (fixtures)
from tests.waiting import until

STEP = (
    "iteration {0}/ 12 | consumed samples: 64 | elapsed time per iteration (ms): {1} | global batch size: 64 | lm loss: 1.0 |"
)
MEMORY = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 9000.0 | max allocated: 20480.0 | reserved: 21000.0"
HEAD = "sweep tune 0123abcd: on here, process group 12\n"


def steps(ms: float, count: int = 12) -> str:
    """Shell commands that print the steps of a log."""
    return "; ".join(f"echo ' {STEP.format(at, ms)}'" for at in range(1, count + 1))


def script(folder: Path, text: str) -> Path:
    path = folder / "train.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def launcher(out: Path, command: str, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "sweep", "tune", str(out), "--launch", command, *options]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def log_of(out: Path) -> str:
    return "".join(log.read_text() for log in sorted((out / LOGS).glob("*.log")))


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ("Submitted batch job 123\n", Submitted("123", ray=False)),
        ("Submitted batch job 123 on cluster two\n", Submitted("123 -M two", ray=False)),
        ("123\n", Submitted("123", ray=False)),
        ("123;two\n", Submitted("123 -M two", ray=False)),
        (
            "Job submission server address: http://h:1\n\nJob 'raysubmit_a' submitted successfully\n",
            Submitted("--address http://h:1 raysubmit_a", ray=True),
        ),
        ("a line\n123\n", None),
    ],
)
def test_the_number_of_a_job(text: str, job: Submitted | None) -> None:
    assert submitted(HEAD + text) == job


@pytest.mark.parametrize("requeues", [False, True])
def test_a_launcher_that_is_killed_at_every_stage_runs_no_job_twice(result: Path, tmp_path: Path, requeues: bool) -> None:  # noqa: F811
    slurm, gate = tmp_path / "slurm", tmp_path / "gate"
    environment = {**os.environ, "PATH": f"{install(slurm)}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    if requeues:
        (slurm / "requeue").touch()
    train = script(tmp_path, f"until [ -e {gate} ]; do sleep 0.05; done; {steps(900)}; echo end")

    def ran() -> list[str]:
        return (slurm / "ran").read_text().splitlines() if (slurm / "ran").exists() else []

    def lost(condition: Callable[[], object], *, reboot: bool) -> None:
        """A launcher that is killed once the condition holds, with what it has begun."""
        with launcher(result, f"sbatch {train} {{plan}}", environment, "--budget", "1") as process:
            assert until(condition, process)
            process.kill()
        for group in re.findall(r"process group (\d+)", log_of(result)) if reboot else ():
            with suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)
        assert read_record(result / "tune.csv") == []

    lost(lambda: "process group" in log_of(result), reboot=False)
    lost(lambda: "Submitted batch job" in log_of(result), reboot=False)
    lost(ran, reboot=True)
    lost(lambda: True, reboot=True)
    (slurm / "again").touch()
    gate.touch()
    with launcher(result, f"sbatch {train} {{plan}}", environment, "--budget", "1") as process:
        assert process.stdout is not None
        told = process.stdout.read()
    assert process.returncode == 0, told
    assert ran() == (["1 died", "1"] if requeues else ["1"])
    (entry,) = read_record(result / "tune.csv")
    assert (entry.state, entry.step_time_s) == ("ok", 0.9)


def test_a_job_that_ended_while_its_launcher_was_lost(result: Path, tmp_path: Path) -> None:  # noqa: F811
    """Cancelled before its first step it tells nothing of its plan; one that failed is a crash."""
    slurm = tmp_path / "slurm"
    path, states = install(slurm), ("CANCELLED by 1000", "FAILED")
    plans = [each.plan for each in load(result).tuner().ask(2)]
    (result / LOGS).mkdir(exist_ok=True)
    identity = load(result).tuner().identity[:8]
    for number, (plan, state) in enumerate(zip(plans, states, strict=True), start=1):
        (slurm / f"{number}.state").write_text(state)
        text = f"sweep tune {identity}: on elsewhere, process group 1\nSubmitted batch job {number}\n"
        (result / LOGS / f"plan-{plan}.log").write_text(text)
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    with launcher(result, "sbatch {plan}", environment, "--budget", "1") as process:
        assert process.stdout is not None
        told = process.stdout.read()
    assert process.returncode == 0, told
    entries = {entry.plan: (entry.state, entry.note) for entry in read_record(result / "tune.csv")}
    assert entries == {
        plans[0]: ("skip", "job 1 CANCELLED, no step in its log"),
        plans[1]: ("crash", "job 2 FAILED, no step in its log"),
    }
    assert not (slurm / "ran").exists()


@pytest.mark.parametrize("by_slurm", [False, True])
def test_a_run_above_twice_the_best_is_stopped_and_is_a_bound(result: Path, tmp_path: Path, by_slurm: bool) -> None:  # noqa: F811
    """Three at a time: the others wait for nobody; the slow ones would run for ever."""
    slurm = tmp_path / "slurm"
    environment = {**os.environ, "PATH": f"{install(slurm)}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    best = load(result).tuner().ask()[0].plan
    assert sweep("tune", result, "--add", f"plan={best}", "--step", "1 s").returncode == 0
    begun = tmp_path / "begun"
    begun.mkdir()
    together = f"touch {begun}/$1; until [ $(ls {begun} | wc -l) -ge 3 ]; do sleep 0.05; done"
    train = script(tmp_path, f"{together}; {steps(2500, 5)}; until false; do sleep 1; done")
    with launcher(result, f"{'sbatch ' * by_slurm}{train} {{plan}}", environment, "--budget", "4", "-n", "3") as process:
        assert process.stdout is not None
        told = process.stdout.read()
    assert process.returncode == 0, told
    entries = read_record(result / "tune.csv")[1:]
    assert [(entry.state, entry.step_time_s) for entry in entries] == [("slow", 2.0)] * 3, told
    assert len({entry.plan for entry in entries} | {best}) == 4
    assert len([*begun.iterdir()]) == 3


def test_a_run_that_tells_only_its_memory_counts(result: Path, tmp_path: Path) -> None:  # noqa: F811
    train = script(tmp_path, f"echo '{MEMORY}'")
    told = sweep("tune", result, "--launch", f"{train} {{plan}}", "--budget", 1)
    assert told.returncode == 0, told.stderr
    (entry,) = read_record(result / "tune.csv")
    assert (entry.state, entry.step_time_s, entry.peak_memory_gib) == ("ok", None, 20.0)
    tuner = load(result).tuner()
    other = tuner.ask()[0].plan
    assert other != entry.plan
    assert sweep("tune", result, "--add", f"plan={other}", "--memory", "30 GiB").returncode == 0
    assert len(tuner.made) == 2
    assert (tuner.best, tuner.stops()) == (None, False)
    with pytest.raises(SpecError, match="found ok alone, expected the seconds of a step, or the peak memory"):
        tuner.tell(other, "ok")


@pytest.mark.long
def test_a_launcher_that_is_lost_on_a_ray_cluster(result: Path, tmp_path: Path) -> None:  # noqa: F811
    """Its submitter is killed with it: the job goes on, is found by its number, its log fetched."""
    gate, count = tmp_path / "gate", tmp_path / "count"
    train = script(tmp_path, f"echo $1 >> {count}; until [ -e {gate} ]; do sleep 0.1; done; {steps(900)}")
    with demo_cluster([1]) as cluster:
        environment = {**cluster.environment, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
        command = f"ray job submit --address {cluster.dashboard} -- {train} {{plan}}"
        with launcher(result, command, environment, "--budget", "1") as process:
            assert until(count.exists, process)
            assert until(lambda: "submitted successfully" in log_of(result), process)
            process.kill()
        (group,) = re.findall(r"process group (\d+)", log_of(result))
        os.killpg(int(group), signal.SIGKILL)
        gate.touch()
        with launcher(result, command, environment, "--budget", "1") as process:
            assert process.stdout is not None
            told = process.stdout.read()
        assert process.returncode == 0, told
    (entry,) = read_record(result / "tune.csv")
    assert (entry.state, entry.step_time_s) == ("ok", 0.9), log_of(result)
    assert len(count.read_text().splitlines()) == 1, told + log_of(result)
