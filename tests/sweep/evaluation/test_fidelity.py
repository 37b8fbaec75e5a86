"""Two fidelities of one sweep, one plan on its own, and export: from the command line and against the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aicb import gpt_text, write
from tests.conftest import EXAMPLES, GPT7B, LLAMA405B
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, rows

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"


@pytest.fixture
def both(write_spec: SpecWriter, tmp_path: Path) -> Path:
    axes = {"fidelity": ["event", "simai"], "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "all_gpus": [128, 512], "ga": [1, 8]}
    spec = write_spec(axes=axes, where=None, fixed={"dp_overlap_ratio": 0.5})
    done = sweep("run", spec, "--out", tmp_path / "out", "--workers", 0)
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


@pytest.mark.parametrize("where", ["fidelity", "fixed.fidelity", "axes.fidelity"])
def test_fidelity_is_a_key_a_fixed_value_or_an_axis(write_spec: SpecWriter, tmp_path: Path, where: str) -> None:
    value = "[simai]" if where.startswith("axes") else "simai"
    told = sweep("run", write_spec(), "--out", tmp_path / "out", "--workers", 0, "--top", 0, "--set", f"{where}={value}")
    assert told.returncode == 0, told.stderr
    assert set(rows(tmp_path / "out")["fidelity"].to_pylist()) == {"simai"}


@pytest.mark.parametrize(("path", "total"), [(GPT7B, "480926"), (LLAMA405B, "14772256")])
def test_simulate_prints_the_tool_s_breakdown(path: Path, total: str) -> None:
    told = sweep("simulate", path, "--fidelity", "simai", "--hardware", "H100-SXM")
    assert told.returncode == 0
    assert ["total", total, "100.0%"] in [line.split() for line in told.stdout.splitlines()]


def test_simulate_changes_the_plan_and_names_what_cannot_run() -> None:
    told = sweep("simulate", GPT7B, "--set", "tp=8", "--set", "hardware.nic_bandwidth=100 Gb/s")
    assert told.returncode == 0
    assert "tp 8, pp 1" in told.stdout
    assert "layer_split" not in told.stdout
    assert "step time" in told.stdout
    refused = sweep("simulate", GPT7B, "--set", "pp=5")
    assert refused.returncode == 3
    assert "infeasible: gpus_not_divisible" in refused.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("tpp=8", "--set: tpp: unknown name, nearest valid: tp, pp, vpp"),
        ("tp=fixed.x", "--set: tp: found 'fixed.x', expected a whole number from 1 to 65,536"),
        ("=8", "--set: found =8, expected key=value, such as tp=8"),
        ("tp", "--set: found tp, expected key=value, such as tp=8"),
        ("tp=[1", "--set tp=[1: the value is not valid YAML"),
    ],
)
def test_a_fault_of_a_set_names_what_the_user_wrote(given: str, message: str) -> None:
    wrong = sweep("simulate", GPT7B, "--set", given)
    assert (wrong.returncode, wrong.stderr) == (2, f"error: {message}\n")


def test_simulate_names_every_value_that_was_set() -> None:
    told = sweep("simulate", GPT7B, "--set", "layer_split=[36]", "--set", "overlap_tp=true", "--set", "device_speed=2")
    (plan,) = (line for line in told.stdout.splitlines() if line.startswith("plan: "))
    assert "layer_split 36" in plan
    assert "overlap_tp yes" in plan
    assert "device_speed 2" in plan


def test_simulate_in_fidelity_simai_exits_with_3_for_a_plan_that_cannot_run() -> None:
    refused = sweep("simulate", GPT7B, "--fidelity", "simai", "--set", "pp=5")
    assert refused.returncode == 3
    assert "infeasible: gpus_not_divisible" in refused.stdout
    assert "total" not in refused.stdout
    small = sweep("simulate", GPT7B, "--fidelity", "simai", "--set", "hardware.memory=1 GB")
    assert small.returncode == 3  # the tool knows no memory: its numbers are printed nevertheless
    assert "infeasible: memory_exceeds_device" in small.stdout
    assert "total" in small.stdout
    others = sweep("simulate", MOE, "--fidelity", "simai")
    assert others.returncode == 3
    assert "infeasible: not_in_simai" in others.stdout


def test_an_exported_plan_simulates_to_its_row(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec = write_spec(axes={"tp": [4, 8], "pp": [1, 2], "ga": [1, 4]}, where=None, fixed={"fidelity": "simai"})
    assert sweep("run", spec, "--out", tmp_path / "out", "--workers", 0, "--top", 0).returncode == 0
    for row in rows(tmp_path / "out").to_pylist():
        out = tmp_path / "plan.txt"
        assert sweep("export", spec, "--plan", row["plan"], "-o", out).returncode == 0
        told = sweep("simulate", out, "--fidelity", "simai", "--hardware", "H100-SXM").stdout
        total = next(line.split()[1] for line in told.splitlines() if line.startswith("  total"))
        assert int(total) == pytest.approx(row["step_time_s"] * 1e6, abs=2)


def test_what_an_exported_text_cannot_say_is_noted(write_spec: SpecWriter) -> None:
    spec = write_spec(axes={"checkpointing": ["none", "file", "full"], "micro_batch": [1, 2], "tp": [4]}, where=None)
    told = [sweep("export", spec, "--plan", plan) for plan in range(6)]
    assert [each.returncode for each in told] == [0] * 6
    again = "note: checkpointing full: what runs again is work of the backward in the text; read it with `none` or `file`\n"
    held = "note: the format does not hold the micro-batch: read the text with workload.micro_batch: 2\n"
    assert [each.stderr for each in told] == ["", held, "", held, again, again + held]


def test_checkpoint_ids_that_simai_ignores_are_noted(write_spec: SpecWriter, tmp_path: Path) -> None:
    text = gpt_text(tp=4, pp=1, all_gpus=8, layers=4)
    ids = "checkpoints: 2 6 8 checkpoint_initiates: 2 7 9"
    path = write(tmp_path, text.replace("checkpoints: 0 checkpoint_initiates: 0", ids), "ids.txt")
    axes = {"checkpointing": ["file", "none"], "tp": [4], "all_gpus": [8]}
    spec = write_spec(axes=axes, where=None, workload={"path": path})
    told = [sweep("export", spec, "--plan", plan) for plan in range(2)]
    noted = "note: checkpointing file: SimAI itself uses only the first of the 2 checkpoint ids\n"
    assert [each.stderr for each in told] == [noted, ""]
    assert [ids in each.stdout for each in told] == [True, False]


def test_a_plan_that_no_text_describes_is_refused_before_it_is_written(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec = write_spec(axes={"pp": [8], "tp": [4]}, where=None)
    told = sweep("export", spec, "--plan", 0, "-o", tmp_path / "plan.txt")
    reason = "pp 8 does not divide 36 layers: one file cannot describe unequal stages"
    assert (told.returncode, told.stderr) == (1, f"error: {reason}\n")
    assert not (tmp_path / "plan.txt").exists()


def test_export_of_a_plan_that_is_not_there_or_cannot_run(write_spec: SpecWriter) -> None:
    spec = write_spec()
    beyond = sweep("export", spec, "--plan", 10**6)
    assert (beyond.returncode, beyond.stderr) == (2, "error: --plan 1000000: the space holds plans 0 to 11519\n")
    told = sweep("export", spec, "--plan", 11_519)
    assert told.returncode == 1
    assert told.stderr.startswith("error: plan 11519 is infeasible: ")
