"""DeepSeek texts, whose attention is latent: moved to another plan they equal the file generated for it, or are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import Facts, HardwareTable, hardware_table, read_hardware, read_workload, summarize
from tests.aicb import write
from tests.aicb_generator import DEEPSEEK, DENSE, Model, Plan, Text
from tests.sim_core.test_generated_pairs import allowed, moved, simulated

EXACT = 1e-3
"""Percent that a state may be off: all parameters are known to the last one."""
MODELS = {
    "16 layers": replace(DEEPSEEK, layers=16),
    "three dense layers": replace(DEEPSEEK, layers=32, hidden=7168, heads=128, vocabulary=129280, dense_layers=3),
    "40 heads": replace(DEEPSEEK, layers=16, hidden=7168, heads=40, vocabulary=128256, sequence=4096, dense_layers=0),
    "six experts of a token": replace(DEEPSEEK, layers=16, topk=6, vocabulary=151936),
    "no shared expert": replace(DEEPSEEK, layers=16, dense_layers=0, shared=False),
}


@pytest.fixture(scope="module")
def machine() -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e9 GB"})], measured_on=None)


def random_plan(rng: np.random.Generator) -> Plan:
    ep = int(rng.choice([1, 2, 4, 8]))
    return Plan(
        tp=int(rng.choice([1, 2, 4, 8])), pp=int(rng.choice([1, 1, 2, 4])), ep=ep, dp=ep * int(rng.choice([1, 2, 4])),
        micro_batch=int(rng.choice([1, 2, 4])), ga=int(rng.choice([1, 4, 8])),
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_random_moves_are_right_or_refused(tmp_path: Path, machine: HardwareTable, name: str) -> None:
    model, rng = MODELS[name], np.random.default_rng(len(name))
    reasons: Counter[str] = Counter()
    for _ in range(12):
        a, b = random_plan(rng), random_plan(rng)
        for reason, step, state in moved(tmp_path, machine, model, a, b):
            reasons[reason] += 1
            if not reason:
                assert abs(step) <= max(allowed(a, b), 0.15), (a, b, step)  # embedding_grads is an activation's size
                assert b.ep == b.dp or abs(state) <= EXACT, (a, b, state)
            elif reason == "embedding_unknown":
                assert a.tp == a.ep == 1 or a.ep == a.dp, (a, b)
            else:
                assert a.tp == 1 or a.ep == 1 or a.ep == a.dp, (a, b, reason)
    assert reasons[""] >= 6, reasons


@pytest.mark.parametrize(
    ("change", "model"),
    [
        ({"pp": 4}, DEEPSEEK),  # one dense layer on the first stage alone
        ({"pp": 1}, DEEPSEEK),
        ({"tp": 8}, DEEPSEEK),  # the down projections stay whole
        ({"tp": 1}, DEEPSEEK),
        ({"ep": 8}, DEEPSEEK),  # the shared expert stays on every rank
        ({"ep": 1}, DEEPSEEK),
        ({"dp": 64}, DEEPSEEK),
    ],
)
def test_one_axis_at_a_time(tmp_path: Path, machine: HardwareTable, change: dict[str, int], model: Model) -> None:
    a = Plan(tp=4, pp=2, ep=2, dp=16, ga=4)
    for reason, step, state in moved(tmp_path, machine, model, a, replace(a, **change)):
        assert (reason, abs(step) < 0.1, abs(state) < EXACT) == ("", True, True), (step, state)


@pytest.mark.parametrize("ffn", [7, 4096, 10880])
@pytest.mark.parametrize("model", [DEEPSEEK, DENSE], ids=["latent", "dense"])
def test_a_width_that_is_not_the_files_opens_no_other_stages(
    tmp_path: Path, machine: HardwareTable, model: Model, ffn: int
) -> None:
    """10,880 is the dense model's own."""
    a = Plan(tp=4, ep=2 if model.experts else 1, dp=16)
    found = [reason for reason, _, _ in moved(tmp_path, machine, model, a, replace(a, pp=4), ffn=ffn)]
    assert found == ([""] * 2 if ffn == model.ffn else ["embedding_unknown"] * 2)


def test_a_width_that_is_told_makes_one_sum_two_numbers(tmp_path: Path, machine: HardwareTable) -> None:
    """At tp 1 and ep 1 no message tells the number of experts, and nothing but the user their width."""
    a = Plan(tp=1, pp=2, ep=1, dp=16)
    b = replace(a, pp=4)
    assert [reason for reason, _, _ in moved(tmp_path, machine, DEEPSEEK, a, b)] == ["embedding_unknown"] * 2
    for reason, step, state in moved(tmp_path, machine, DEEPSEEK, a, b, ffn=2048):
        assert (reason, abs(step) < 0.1, abs(state) < EXACT) == ("", True, True)


def test_heads_tell_a_vocabulary_that_nobody_knows(tmp_path: Path, machine: HardwareTable) -> None:
    model, a = replace(DEEPSEEK, vocabulary=77777), Plan(tp=4, ep=2, dp=16)
    text = write(tmp_path, str(Text(model, a)))
    b = replace(a, pp=2)
    unknown, _ = read_workload(text, Facts(micro_batch=1))
    assert any("set workload.heads" in note and "32 with a vocabulary of 77824" in note for note in unknown.notes)
    assert simulated(unknown, machine, b, "event")[0] == "embedding_unknown"
    assert simulated(unknown, machine, replace(a, tp=2), "event")[0] == ""
    known, _ = read_workload(text, Facts(micro_batch=1, heads=32))
    own, _ = read_workload(write(tmp_path, str(Text(model, b, at=a))), Facts(micro_batch=1, heads=32))
    here, there = (simulated(each, machine, b, "event") for each in (known, own))
    assert here[0] == there[0] == ""
    assert here[1:] == pytest.approx(there[1:], rel=1e-3)


def test_other_ranks_of_the_latents_move_neither_tp_nor_stages(tmp_path: Path, machine: HardwareTable) -> None:
    """Which parameters every tensor-parallel rank holds follows from the generator's ranks, or from nothing."""
    model, a = replace(DEEPSEEK, q_rank=1500), Plan(tp=4, ep=2, dp=16)
    work, _ = read_workload(write(tmp_path, str(Text(model, a))), Facts(micro_batch=1))
    for change in ({"tp": 8}, {"pp": 2}):
        assert simulated(work, machine, replace(a, **change), "event")[0] == "embedding_unknown"
    assert simulated(work, machine, replace(a, dp=32), "event")[0] == ""


def test_the_summary_is_of_the_recorded_stage(tmp_path: Path) -> None:
    """The first of two, with one dense layer of 16: the mean stage has half of one."""
    work, _ = read_workload(write(tmp_path, str(Text(DEEPSEEK, Plan(tp=4, pp=2, ep=2)))), Facts(micro_batch=1))
    runs = {name: count for name, count, _, _ in summarize(work).pieces}
    assert (runs["attention_o_row"], runs["mlp_column"], runs["mlp_moelayer"]) == (16, 16, 5 * 15)
