"""One plan throughout: what a launch file leads to is named by the answer, tune, explain, what-if, export and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError, short
from sweep.api import load
from sweep.exporting.meant import plan_number
from sweep.ranking.ranking import rank
from sweep.reopening import reopened
from tests.sweep.commands import sweep

LAUNCHED = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 \\
  --sequence-parallel --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear --normalization RMSNorm \\
  --position-embedding-type rope --bf16 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256 \\
  --untie-embeddings-and-output-weights \\
  --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"""


FEW = {"axes.cp": "[1]", "axes.pp": "[1, 2]", "axes.vpp": "[1, 4, 8]", "axes.checkpointing": "[none]"}
SETS = [part for name, value in FEW.items() for part in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the spec that `init` writes for a launch file, on A100s of 40 GB, which have no FP8."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "run.sh").write_text(LAUNCHED)
    sweep("init", folder / "run.sh", "--hardware", "A100-40G-SXM", "-o", folder / "job.yaml")
    told = sweep("run", folder / "job.yaml", "--out", folder / "out", *SETS)
    assert told.returncode == 0, "what lies outside of the space is no error, though the device has no FP8"
    return folder / "out"


def test_one_plan_throughout(job: Path, tmp_path: Path) -> None:
    told = " ".join(sweep("rank", job).stdout.split())
    found = re.search(r"Launch plan (\d+) \(.*% behind the fastest, plan (\d+)\)", told)
    assert found is not None
    plan, fastest = map(int, found.groups())
    assert fastest == rank(job, top=1).rows["plan"][0].as_py() != plan
    assert json.loads(sweep("tune", job, "--json").stdout)["next"][0]["plan"] == plan
    assert sweep("explain", job).stdout.startswith(f"plan {plan}\n")
    assert json.loads(sweep("export", job, "--plan", "best", "--format", "json").stdout)["plan"] == plan
    named, meant = (sweep("whatif", job, *text, "--gpus", 32).stdout for text in ([str(plan)], []))
    assert named == meant
    assert load(job).export() == load(job).export(plan)
    sweep("report", job, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"<h3>Launch plan {plan}</h3>" in page
    assert f"<h3>Best plan: plan {fastest}</h3>" in page


def test_a_search_proves_and_keeps_the_plan_that_is_launched(job: Path) -> None:
    """It kept the fastest alone, none of which was likely to run."""
    plan = json.loads(sweep("tune", job, "--json").stdout)["next"][0]["plan"]
    told = sweep("search", job.parent / "job.yaml", "--out", job.parent / "searched", "--best", 1, *SETS)
    assert f"Launch plan {plan} (" in told.stdout, told.stderr


def test_a_run_of_the_job_moves_the_answer(job: Path) -> None:
    """A plan that did not fit is not to be launched, and nothing that needs as much."""
    first = json.loads(sweep("tune", job, "--json").stdout)["next"][0]["plan"]
    sweep("tune", job, "--add", f"plan={first}", "--failed", "oom")
    try:
        opened = reopened(job)
        second = plan_number(opened, "best")
        assert second != first
        assert f"Launch plan {second} (" in sweep("rank", job).stdout
        assert opened.prepared.sweep.named == ("megatron-core",)
    finally:
        (job / "tune.csv").unlink()


def test_what_is_no_plan_is_refused(job: Path) -> None:
    with pytest.raises(SpecError, match=r"PLAN: found x, expected a number from 0 to .* or best"):
        plan_number(reopened(job), "x")


def test_a_recorded_job_has_the_first_of_the_ranking(tmp_path: Path) -> None:
    """No draws of constants concern measured times."""
    spec = Path(__file__).parents[3] / "examples" / "gpt2_ddp.yaml"
    sweep("run", spec, "--out", tmp_path / "out", "--top", 0)
    first = rank(tmp_path / "out", top=1).best
    assert first is not None
    assert plan_number(reopened(tmp_path / "out", spec), "best") == first["plan"]


def test_a_job_that_runs_is_told_alike_on_every_surface(tmp_path: Path) -> None:
    """What its log says of step and memory, within 2 %; of other plans the same expected step, not the simulated one."""
    running = {
        "plan": {"tp": 1, "pp": 1, "micro_batch": 1, "checkpointing": "full"},
        "step_time_s": 1.5,
        "peak_memory_gib": 40.0,
    }
    spec = {
        "name": "runs",
        "workload": {"model": "llama3-8b", "stack": "torchtitan", "sequence": 8192},
        "hardware": "H200-SXM",
        "running": running,
        "axes": {"tp": [1, 2], "pp": [1, 2], "layer_split": ["balanced"], "checkpointing": ["none", "full"]},
        "fixed": {"all_gpus": 8, "global_batch": 16, "micro_batch": 1, "vpp": 1, "layers": 31},
        "objectives": [{"minimize": "step_time"}],
    }
    (tmp_path / "runs.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    out = tmp_path / "out"
    assert sweep("run", tmp_path / "runs.yaml", "--out", out, "--quiet").returncode == 0
    told = " ".join(sweep("rank", out).stdout.split())
    found = re.search(r"Launch plan (\d+): .*?; (\S+ m?s) a step expected, .*How sure: .* (\S+ m?s) simulated\)", told)
    assert found is not None, told
    plan, step, simulated = found.groups()
    assert step != simulated
    assert f"plan {plan} is expected to take {step}, " in told
    assert " step expected_s " in told
    assert re.search(rf" {plan} .*? {simulated} {step} ", told.partition("expected_s")[2]), "its row says both"
    asked = json.loads(sweep("tune", out, "--json").stdout)["next"][0]
    assert str(asked["plan"]) == plan, "the first that is asked for is the one to launch"
    explained = sweep("explain", out).stdout
    assert f"step {step} expected here (" in explained
    assert f", {simulated} simulated" in explained
    now = json.loads(sweep("whatif", out, "--nic", "100 GB/s", "--json").stdout)["before"]
    assert now["step_time_s"] == pytest.approx(asked["expected_step_time_s"])
    own = re.search(r"the job that runs is plan (\d+)", told)
    assert own is not None
    of_own = json.loads(sweep("explain", out, own[1], "--json").stdout)["expected"]
    assert of_own["step_time_s"] == pytest.approx(1.5, rel=0.02)
    assert of_own["peak_memory_bytes"] == pytest.approx(40 * 2**30, rel=0.02)
    sweep("report", out, "-o", tmp_path / "page.html")
    assert f"{step} a step expected, {simulated} simulated" in (tmp_path / "page.html").read_text(encoding="utf-8")


NAMED = ("expected_s", "step_time_low_s", "step_time_high_s", "runs_probability", "expected_bytes")
"""What is known of a plan, by the names of its columns."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the spec that `init` writes for a script, with step and memory of its job."""
    folder = tmp_path_factory.mktemp("running")
    (folder / "run.sh").write_text(LAUNCHED)
    told = ("--set", "step_time_s=9.5", "--set", "peak_memory_gib=40")
    assert sweep("init", folder / "run.sh", "--hardware", "H100-SXM", *told, "-o", folder / "job.yaml").returncode == 0
    fewer = ("--set", "axes.tp=[2, 4]", "--set", "axes.vpp=[1, 4]")  # each command tells of all of them
    done = sweep("run", folder / "job.yaml", "--out", folder / "out", "--quiet", *SETS, *fewer)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def rows_by_plan(result: Path, *options: object) -> dict[int, dict[str, Any]]:
    done = sweep("rank", result, "--json", *options)
    assert done.returncode == 0, done.stderr
    return {row["plan"]: row for row in json.loads(done.stdout)}


def test_what_runs_tell_of_a_plan_is_one_on_every_surface(running: Path, tmp_path: Path) -> None:
    """Step, interval, memory, chance and ties of the plan to launch, the second and that of the job: the rows of `rank` had
    interval and chance of published runs, and ties were those of before the run."""
    rows = rows_by_plan(running)
    told = " ".join(sweep("rank", running).stdout.split())
    found = re.search(r"Launch plan (\d+).*?; (\d+) other plans cannot be told from (it|the fastest);", told)
    mine = re.search(r"the job that runs is plan (\d+) ", told)
    assert found is not None, told
    assert mine is not None, told
    launch, job, ties = int(found[1]), int(mine[1]), int(found[2])
    second = next(plan for plan in rows if plan != launch)
    assert sum(row["tie"] for row in rows.values()) <= ties + 1
    asked = json.loads(sweep("tune", running, "--json").stdout)["next"][0]
    assert asked["plan"] == launch
    sweep("report", running, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"{ties} plans cannot be told from plan {next(iter(rows))}" in page
    for plan in (launch, second, job):
        (row,) = rows_by_plan(running, "--where", f"plan = {plan}").values()
        known = {name: pytest.approx(row[name], rel=1e-9) for name in NAMED}
        if plan in rows:
            assert {name: rows[plan][name] for name in NAMED} == known
        if plan == launch:
            assert {name: asked[name] for name in NAMED} == known
            assert asked["expected_step_time_s"] == known["expected_s"]
        explained = json.loads(sweep("explain", running, plan, "--json").stdout)
        step, memory = ("step_time_s", "peak_memory_bytes")
        shown = {"expected_s": explained["expected"][step], "expected_bytes": explained["expected"][memory]}
        assert {**explained["expected"], **shown} | known == {**explained["expected"], **shown}
        within = explained["within"]
        assert within["low"] * explained["row"][step] == known["step_time_low_s"]
        assert within["high"] * explained["row"][step] == known["step_time_high_s"]
        assert within["bars"][-1] == ties
        assert plan not in rows or within["tie"] == rows[plan]["tie"]
        priced = json.loads(sweep("whatif", running, plan, "--tokens", "1T", "--price", 2, "--json").stdout)
        for then in ("before", "same_plan"):
            shown = {"expected_s": priced[then][step], "expected_bytes": priced[then][memory]}
            assert {**priced[then], **shown} | known == {**priced[then], **shown}, then
        low, high = (short(row[name], "s") for name in NAMED[1:3])
        step_text = short(row["expected_s"], "s")
        if plan == launch:
            assert f"step {step_text} expected here ({low} to {high} in 90% of cases)" in sweep("explain", running, plan).stdout
            assert f"; {step_text} a step expected" in told
            assert f"the measured step is between {low} and {high} in 90% of cases (steps of this job tell;" in told
            assert f"runs with a chance of {row['runs_probability']:.0%}" in told
            assert f"{step_text} a step expected, " in page
            assert f"(90%: {low} to {high})" in page
    (stable,) = (row for row in rows_by_plan(running, "--stable", "--top", 500).values() if row["plan"] == launch)
    same = ("expected_s", "expected_low_s", "expected_high_s", "runs_probability")
    assert [stable[name] for name in same] == [pytest.approx(rows[launch][name], rel=1e-9) for name in NAMED[:4]]
    best = json.loads(sweep("show", running, "--json").stdout)["best"]
    assert {name: best[name] for name in NAMED} == {name: pytest.approx(rows[best["plan"]][name]) for name in NAMED}
    assert load(running).rank(top=1).to_pylist()[0]["expected_s"] == pytest.approx(best["expected_s"])


def test_the_best_plan_then_is_told_of_as_it_is_now(running: Path) -> None:
    """Beside the job's own plan the best one had the factor of that, and the interval of any plan."""
    mine = re.search(r"the job that runs is plan (\d+) ", sweep("rank", running).stdout)
    assert mine is not None
    answer = json.loads(sweep("whatif", running, mine[1], "--tokens", "1T", "--json").stdout)
    first = next(iter(rows_by_plan(running).values()))
    assert answer["after"]["step_time_s"] == pytest.approx(first["expected_s"])
    assert answer["after"]["step_time_high_s"] == pytest.approx(first["step_time_high_s"])
    faster = json.loads(sweep("whatif", running, mine[1], "--nic", "800 Gb/s", "--json").stdout)
    assert "runs_probability" in faster["before"]


def test_a_condition_on_the_chance_is_that_of_the_job(running: Path) -> None:
    """It chose by the chance of published runs, which the rows beside it contradicted."""
    rows = rows_by_plan(running, "--top", 200)
    chances = sorted(row["runs_probability"] for row in rows.values())
    least = (chances[len(chances) // 2] + chances[-1]) / 2
    chosen = rows_by_plan(running, "--top", 200, "--where", f"runs_probability > {least}")
    assert chosen.keys() == {plan for plan, row in rows.items() if row["runs_probability"] > least} != set()
    assert all(row["runs_probability"] > least for row in chosen.values())
    assert "runs_probability" not in sweep("rank", running, "--where", f"runs_probability > {least}").stderr


def test_before_a_run_nothing_is_told_of_the_job(job: Path) -> None:
    assert not {"expected_s", "expected_bytes"} & next(iter(rows_by_plan(job).values())).keys()


@pytest.mark.parametrize(
    ("running", "told"),
    [
        ({"step_time_s": 0.001}, "found a step of 1 ms, "),
        ({"step_time_s": 1.5, "peak_memory_gib": 53248.0}, "found a peak of 53,248.0 GiB, expected at most 146.8: "),
    ],
)
def test_a_job_that_cannot_be_is_refused_wherever_it_counts(running: dict[str, float], told: str, tmp_path: Path) -> None:
    """The answer went on without a word of it, or with memory a thousand times too large: MiB taken for GiB."""
    spec = {
        "name": "wrong",
        "workload": {"model": "llama3-8b", "stack": "torchtitan", "sequence": 8192},
        "hardware": "H200-SXM",
        "running": {"plan": {"tp": 1}, **running},
        "axes": {"tp": [1, 2]},
        "fixed": {"all_gpus": 8, "global_batch": 16, "micro_batch": 1, "pp": 1},
        "objectives": [{"minimize": "step_time"}],
    }
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(spec, sort_keys=False), encoding="utf-8")
    sweep("run", tmp_path / "wrong.yaml", "--out", tmp_path / "out", "--quiet")
    for command in ("rank", "tune", "explain"):
        done = sweep(command, tmp_path / "out")
        assert done.returncode == 1, command
        assert told in done.stderr, command
        assert done.stderr.count("\n") == 1


def test_beside_a_script_whose_step_is_given_the_cheapest_change_comes_first(tmp_path: Path) -> None:
    """Overlap was fixed as the job has it, and no change was told of but the best plan's."""
    (tmp_path / "run.sh").write_text(LAUNCHED.replace(" --overlap-grad-reduce --overlap-param-gather", ""))
    sets = ("--set", "step_time_s=9.5", "--set", "peak_memory_gib=30")
    init = sweep("init", tmp_path / "run.sh", "--hardware", "H100-SXM", *sets, "-o", tmp_path / "job.yaml")
    assert "measured 32.21 GB (as given)" in init.stdout, init.stderr
    spec = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert (spec["running"]["step_time_s"], spec["running"]["peak_memory_gib"]) == (9.5, 30.0)
    mine_tp = spec["running"]["plan"]["tp"]
    assert [spec["axes"][name] for name in ("overlap_grad", "overlap_param")] == [[False, True]] * 2
    one = [part for name in ("cp", "vpp") for part in ("--set", f"axes.{name}=[1]")]
    two = [part for name in ("pp", "micro_batch") for part in ("--set", f"axes.{name}=[1, 2]")]
    few = (*one, *two, "--set", "axes.layer_split=[even]", "--set", "axes.tp=[2, 4]")
    told = sweep("run", tmp_path / "job.yaml", "--out", tmp_path / "out", *few)
    assert told.returncode == 0, told.stderr
    lines = [line.removeprefix("running: ") for line in told.stdout.split("\n") if line.startswith("running: ")]
    own = re.match(r"the job that runs is plan (\d+) \(measured 9\.5 s a step", lines[0])
    assert own is not None, told.stdout
    kinds = {line.partition(":")[0]: line for line in lines[1:]}
    other = sweep("rank", tmp_path / "out", "--where", f"tp = {6 - mine_tp}")  # 2 or 4, which the job has not
    assert (other.returncode, other.stderr) == (0, ""), "a condition may leave out the job that runs"
    assert "running: the job that runs is plan " in other.stdout
    shown = " ".join(sweep("show", tmp_path / "out").stdout.split())
    assert all(f"Running: {line}." in shown for line in lines)
    columns = ["plan", "step_time_s", *spec["axes"]]
    rows = {row["plan"]: row for row in load(tmp_path / "out").to_arrow(columns).to_pylist()}
    mine, moving = rows[int(own[1])], {"tp", "pp"}
    for kind, most in (("first one change that moves no weights", 1), ("several of these together", 9)):
        for plan, less in re.findall(r"plan (\d+) \([^()]*\) ([\d.]+)% less", kinds[kind]):
            changed = {name for name in spec["axes"] if rows[int(plan)][name] != mine[name]}
            assert 1 <= len(changed) <= most
            assert not changed & moving
            saved = 1 - rows[int(plan)]["step_time_s"] / mine["step_time_s"]
            assert 0 < float(less) / 100 <= saved + 0.02, "a change saves about as much as is simulated"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("step_time_s=0", "found '0', expected a number above 0"),
        ("step_time_s=fast", "found 'fast', expected a number"),
        ("step_time_s=1e9", "found '1000000000.0', expected a number of at most 1e+06"),
        ("step_time_s=.inf", "found '.inf', expected a number"),
        ("peak_memory_gib=true", "found 'True', expected a number"),
        ("peak_memory_gib=1e9", "found '1000000000.0', expected a number of at most 100000"),
    ],
)
def test_a_step_or_memory_that_cannot_be_is_refused(tmp_path: Path, given: str, told: str) -> None:
    (tmp_path / "run.sh").write_text(LAUNCHED)
    done = sweep("init", tmp_path / "run.sh", "--set", given, "-o", tmp_path / "job.yaml")
    assert done.returncode == 1
    assert done.stderr == f"error: --set {given.partition('=')[0]}: {told}\n"


@pytest.mark.parametrize("source", ["llama3-8b", "examples/workloads/gpt7b_tp4_dp128.simai.txt"])
def test_a_step_of_what_is_no_job_is_refused(tmp_path: Path, source: str) -> None:
    done = sweep("init", source, "--set", "step_time_s=3", "-o", tmp_path / "job.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --set step_time_s: only a log or a launch file takes it;")
