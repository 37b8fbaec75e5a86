"""The commands on rank traces, as a user calls them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim_core import SimError
from sweep.cli import app
from tests.conftest import EXAMPLES
from tests.trace_jobs import JobSpec, make_job

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SMALL = EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"


@pytest.fixture
def told() -> Callable[..., str]:
    def call(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_inspect_shows_the_job(told: Callable[..., str]) -> None:
    text = told("inspect", MOE)
    for part in ("1 of 16 ranks", "tp 1, pp 4, vpp 1, ep 2, dp 4", "ga 16, 1f1b", "718.91 ms", "send_forward+recv_backward"):
        assert part in text
    rows = [line.split() for line in text.splitlines() if line.strip().endswith("%") and "ms" not in line]
    assert sum(float(cell.rstrip("%")) for cell in rows[0][2:]) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize(("trace", "recorded_ms"), [(MOE, 718.91), (SMALL, 165.87)])
def test_replay_is_within_two_percent_and_says_what_it_assumed(
    told: Callable[..., str], trace: Path, recorded_ms: float
) -> None:
    found = json.loads(told("replay", trace, "--json"))
    assert found["recorded_s"] * 1e3 == pytest.approx(recorded_ms, abs=0.005)
    assert abs(found["error"]) < 0.02
    assert any("not recorded: assumed" in note for note in found["notes"])
    assert "replayed step" in told("replay", trace)


def test_replay_takes_facts_that_a_name_does_not_tell(told: Callable[..., str], tmp_path: Path) -> None:
    bare = tmp_path / "trace.txt"
    shutil.copy(MOE, bare)
    named, told_facts = json.loads(told("replay", MOE, "--json")), ("--set", "all_gpus=16", "--set", "ep=2", "--set", "tp=1")
    assert json.loads(told("replay", bare, "--json", *told_facts))["replayed_s"] == named["replayed_s"]
    assert "set workload.all_gpus" in told("replay", bare)


def test_a_timeline_is_a_chrome_trace_of_both(told: Callable[..., str], tmp_path: Path) -> None:
    """Events of a thread do not overlap but for calls and waits inside an operation; the ends are the two steps."""
    out = tmp_path / "timeline.json"
    told("timeline", MOE, "-o", out)
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
    assert names == {"recorded", "replayed"}
    slices = [event for event in events if event["ph"] == "X"]
    ends_ms = {pid: max(e["ts"] + e["dur"] for e in slices if e["pid"] == pid) / 1e3 for pid in (1, 2)}
    assert ends_ms[1] == pytest.approx(718.91, abs=0.01)
    assert ends_ms[2] == pytest.approx(716.66, abs=0.1)
    for thread in {(e["pid"], e["tid"]) for e in slices}:
        here = [e for e in slices if (e["pid"], e["tid"]) == thread]
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in here if e["name"] != "wait" and " " not in e["name"])
        for (_, end), (start, _) in itertools.pairwise(own):
            assert start >= end - 0.01
        inner = [(e["ts"], e["ts"] + e["dur"]) for e in here if e["name"] == "wait" or " " in e["name"]]
        assert all(any(a - 0.01 <= start and end <= b + 0.01 for a, b in own) for start, end in inner)
    assert sum(e["name"] == "wait" for e in slices) > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("replay", MOE, "--ranks"), "1 of 16 ranks have a trace"),
        (("replay", MOE, "--set", "pp=0"), "pp"),
        (("replay", MOE, "--set", "qp=4"), "unknown key, nearest valid"),
        (("replay", "/nonexistent/*.txt"), "no file matches"),
        (("inspect", MOE, "--set", "repeat.times=3"), "repeat.from: missing"),
        (("export", EXAMPLES / "moe_trace.yaml", "--plan", 4904, "--format", "simai"), "only SimAI texts can be exported"),
    ],
)
def test_faults_are_one_line(arguments: tuple[object, ...], message: str) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, SimError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_traces_that_are_not_of_one_step_are_told(told: Callable[..., str], tmp_path: Path) -> None:
    """Two stages made of one file: what one sends, nobody receives."""
    text = SMALL.read_text(encoding="utf-8")
    for rank, stage in ((0, 0), (1, 0), (2, 1), (3, 1)):
        other = text.replace("rank:2:", f"rank:{rank}:").replace("stage_id=1", f"stage_id={stage}")
        (tmp_path / f"rank{rank}.txt").write_text(other, encoding="utf-8")
    assert "have no counterpart in the other rank's trace" in told("replay", tmp_path, "--set", "pp=2")


SPEC = JobSpec(pp=2, dp=1, ga=4, seed=51)


def test_a_start_far_from_the_recording_is_warned_of(told: Callable[..., str], tmp_path: Path) -> None:
    """A first send that nobody waited for took 60 ms: the replay lacks them, and says so; the untouched files start near."""
    folder = make_job(SPEC).write(tmp_path)
    plan = ("--hardware", "A800-80G-SXM", "--set", "hardware.memory=1 TB")
    assert "warning" not in told("replay", folder)
    assert "  note: recorded plan: simulated " in told("simulate", folder, *plan)
    for path in folder.iterdir():
        bare = re.sub(r"timestamp=[0-9.]+(?=,sub)", "timestamp=0", path.read_text())
        path.write_text(re.sub(r"(send_forward\(.*?duration=)[0-9.]+", r"\g<1>60", bare, count=1))
    assert "warning: the replay is more than 3% off the recording" in told("replay", folder)
    assert "  note: warning: recorded plan: simulated " in told("simulate", folder, *plan)


def test_stages_with_a_trace_are_told_beside_the_step(told: Callable[..., str], tmp_path: Path) -> None:
    folder = make_job(replace(SPEC, moe=True, tied=False)).write(tmp_path, ranks=[1])
    assert re.search(r"replayed step .* ms\n  recorded stages replayed .* ms  \([+-]0\.", told("replay", folder))
    printed = told("simulate", folder, "--hardware", "A800-80G-SXM", "--set", "hardware.memory=1 TB")
    assert re.search(r"note: recorded plan: simulated .* ms; of it the stages with a trace .* ms, recorded .* ms", printed)


def test_a_trace_without_a_backward_is_no_step(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_text("\n".join(MOE.read_text(encoding="utf-8").splitlines()[:3]) + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["replay", str(path)])
    assert "no backward_step in the trace" in str(result.exception)


@pytest.mark.parametrize("command", [("rank", "results", "-o", "x.xlsx"), ("compare", "a", "b", "-o", "x.pdf")])
def test_a_suffix_that_is_no_format_is_refused(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, list(command))
    assert "expected .txt, ." in str(result.exception)


def test_another_sequence_is_an_axis_and_says_what_is_assumed(told: Callable[..., str], tmp_path: Path) -> None:
    """From rank 0 of the example: tokens per second count the plan's own tokens; a model has one sequence."""
    spec = tmp_path / "s.yaml"
    axes = "axes: {sequence: [1024, 4096], experts: [8, 16]}"
    text = f"name: s\nworkload: {{path: {MOE}, layers: 8}}\nhardware: {{preset: A800-80G-SXM, memory: 1 TB}}\n{axes}\n"
    spec.write_text(text)
    out = tmp_path / "out"
    printed = " ".join(told("run", spec, "--out", out, "--workers", "0", "-v").split())
    assert "the longer of launching its kernels" in printed
    assert "experts: ranks get the tokens they got with 8" in printed
    assert "moves of 8 recorded jobs of one cluster to another sequence" in printed
    rows = json.loads(told("rank", out, "--json", "--columns", "all"))
    assert {(row["sequence"], row["experts"]) for row in rows} == {(1024, 8), (1024, 16), (4096, 8), (4096, 16)}
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * row["sequence"])
