"""`sweep fit`: the sum of its terms, the changes that fit, its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model
from tests.sweep.commands import sweep

TERMS = ("state_bytes", "activation_bytes", "logits_bytes", "communication_bytes", "allocator_bytes", "reserved_bytes")


def asked(*words: object, code: int = 0) -> dict[str, Any]:
    done = sweep("fit", *words, "--json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_does_not_fit_is_told_with_what_does() -> None:
    found = asked("llama3-70b", "--gpus", 64, code=3)
    row, changes = found["row"], found["changes"]
    assert row["reason"] == "memory_exceeds_device"
    assert row["peak_memory_bytes"] == pytest.approx(sum(row[name] for name in TERMS))
    assert 0 <= found["chance"] < 0.01
    assert not changes[0]["fields"].keys() & {"tp", "cp", "pp", "ep"}, "the first leaves the groups alone"
    rest = [each["row"]["step_time_s"] for each in changes[1:]]
    assert rest == sorted(rest)
    model = read_model("llama3-70b")
    of = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    for each in changes:
        plan = {"tp": 1, "cp": 1, "pp": 1, "all_gpus": 64, "global_batch": 64, "checkpointing": "none", **each["fields"]}
        again = simulate(of, hardware_table([read_hardware("H100-SXM")], None), plans(of, **plan)).named()
        assert again["step_time_s"][0] == pytest.approx(each["row"]["step_time_s"])
        assert again["peak_memory_bytes"][0] < read_hardware("H100-SXM").value("memory")


def test_what_is_said_stays() -> None:
    found = asked("llama3-70b", "--gpus", 64, "--set", "checkpointing=full", "--set", "tp=4", "--set", "pp=1", code=3)
    assert all(not each["fields"].keys() & {"checkpointing", "tp", "pp"} for each in found["changes"])
    assert found["row"]["checkpointing"] == "full"


def test_what_fits_is_told_with_its_step() -> None:
    done = sweep("fit", "llama3-8b", "--gpus", 8, "--set", "tp=2")
    assert done.returncode == 0
    first = done.stdout.splitlines()
    assert first[0].startswith("llama3-8b on 8 x H100-SXM: tp 2, cp 1, pp 1, ep 1, dp 4, ")
    assert first[1].startswith("  fits: ")
    assert first[1].endswith(" a step")


def test_a_plan_that_cannot_run_says_why() -> None:
    done = sweep("fit", "llama3-8b", "--gpus", 3, "--set", "tp=2")
    assert done.returncode == 3
    assert "cannot run: gpus_not_divisible: tp * cp * pp does not divide all_gpus" in done.stdout


def test_nothing_may_fit() -> None:
    done = sweep("fit", "gpt3-175b", "--gpus", 8)
    assert done.returncode == 3
    assert "makes it fit: it takes more GPUs" in done.stdout


def test_a_changed_model_is_the_one_that_is_named() -> None:
    done = sweep("fit", "llama3-8b", "--gpus", 8, "--set", "workload.model=llama3-70b")
    assert done.stdout.startswith("llama3-70b on 8 x H100-SXM: ")
