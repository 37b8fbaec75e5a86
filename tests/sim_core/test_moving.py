"""Moving a workload to another plan: the identity is exact, and agrees with a file that was made for the other plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import METRICS, HardwareTable, Workload, simulate, trace
from sim_core.workloads.moving import EXPONENTS, N_RULES, RULES, rule_scales
from tests.aicb import gpt_text, read, write
from tests.conftest import GPT7B, LLAMA405B, ROOT, make_plans


def metrics(workload: Workload, hardware: HardwareTable, **plan: int) -> dict[str, float]:
    results = simulate(workload, hardware, make_plans(workload, **plan))
    assert results.reason.tolist() == [0]
    return dict(zip(METRICS, results.metrics[:, 0].tolist(), strict=True))


def file_ns(path: Path, phase: str, names: tuple[str, ...]) -> int:
    """Nanoseconds of a phase's column(s) over the lines whose name starts with one of `names`, read with no reader of ours."""
    columns = {"forward": (2,), "backward": (5, 8), "all": (2, 5, 8)}[phase]
    rows = [line.split() for line in path.read_text().splitlines()[2:]]
    return sum(int(row[c]) for row in rows if row[0].startswith(names) for c in columns)


def test_gpt7b_on_its_own_plan_reproduces_the_file_to_the_nanosecond(gpt7b: Workload, h100: HardwareTable) -> None:
    """The first embedding repeats half of the optimizer's 43,802,754 ns: once a step, besides the 449,675 ns of each time."""
    found = metrics(gpt7b, h100)
    excess = 43_802_754 // 2 - 449_675
    layers = ("embedding_layer", "attention_layer", "mlp_layer")
    steps = ("grad_", "layernorm", "embedding_grads", "moe_grad_norm")
    assert round(found["compute_forward_s"] * 1e9) == file_ns(GPT7B, "forward", layers)
    assert round(found["compute_backward_s"] * 1e9) == file_ns(GPT7B, "backward", layers) - excess
    assert round(found["optimizer_s"] * 1e9) == file_ns(GPT7B, "all", steps) + excess
    assert found["bubble_s"] == 0.0


def test_llama_on_its_own_plan_reproduces_the_file_to_the_nanosecond(llama: Workload, h100: HardwareTable) -> None:
    """The file holds one stage; over 16 stages its layers run 16 times, its embedding and last layer once."""
    plan = {"tp": 8, "pp": 16, "all_gpus": 1024, "ga": 16}
    found = metrics(llama, h100, **plan)
    ends = ("embedding_layer", "final_column")
    for metric, phase in (("compute_forward_s", "forward"), ("compute_backward_s", "backward")):
        whole = 16 * file_ns(LLAMA405B, phase, ("attention", "mlp")) + file_ns(LLAMA405B, phase, ends)
        assert found[metric] * 16 * 1e9 == pytest.approx(whole, abs=1e-3)


def test_bytes_of_the_own_plan_are_the_file_s(gpt7b: Workload) -> None:
    arrays = gpt7b.arrays
    scale = np.empty(N_RULES)
    rule_scales(1.0, 1.0, 1.0, 1.0, 1.0, EXPONENTS, scale)
    assert scale.tolist() == [1.0] * N_RULES
    rows = [line.split() for line in GPT7B.read_text().splitlines()[2:]]
    step_bytes = sorted(int(row[c]) for row in rows[:7] for c in (4, 7, 10) if int(row[c]))
    assert sorted(arrays.step.comm_bytes[arrays.step.comm_bytes > 0].tolist()) == step_bytes
    in_file = {(row[0], int(row[4])) for row in rows[7:]}
    assert {(name, int(b)) for name, b in zip(gpt7b.names, arrays.pieces.comm_bytes[:, 0], strict=True)} == in_file


@pytest.mark.parametrize("experts", [0, 2**28])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "pp": 1, "all_gpus": 64, "ga": 4, "micro_batch": 1},
        {"tp": 8, "pp": 4, "all_gpus": 64, "ga": 8, "micro_batch": 2},
        {"tp": 1, "pp": 8, "all_gpus": 64, "ga": 2, "micro_batch": 4},
        {"tp": 4, "pp": 2, "all_gpus": 128, "ga": 1, "micro_batch": 8, "ep": 4},
    ],
)
def test_a_moved_workload_agrees_with_a_file_made_for_that_plan(
    tmp_path: Path, h100: HardwareTable, plan: dict[str, Any], sequence_parallel: bool, experts: int
) -> None:
    """Two files of one model, generated for two plans: the first moved to the second's plan gives the second's step."""
    if "ep" in plan and not experts:
        plan = {**plan, "ep": 1}
    make: dict[str, Any] = {"sequence_parallel": sequence_parallel, "experts": experts}
    here = write(tmp_path, gpt_text(tp=4, pp=2, all_gpus=32, ga=2, **make), "here.txt")
    there = write(tmp_path, gpt_text(**plan, **make), "there.txt")
    moved = metrics(read(here), h100, **plan)
    made = metrics(read(there, plan["micro_batch"]), h100, **plan)
    for name in METRICS:
        assert moved[name] == pytest.approx(made[name], rel=1e-6, abs=1e-7), name


def test_more_stages_hold_fewer_layers_and_no_layer_is_lost(gpt7b: Workload, h100: HardwareTable) -> None:
    """36 layers over 8 stages: 4 and 5 in turn. The first stage has the embedding besides, so it is left out here."""
    events = trace(gpt7b, h100, make_plans(tp=4, pp=8, ga=1))
    forward = events.backward == 0
    seconds = (events.end_s - events.start_s)[forward][np.argsort(events.stage[forward])]
    counts = np.array([4, 5] * 4)
    assert counts.sum() == gpt7b.layers
    assert seconds[1:] / counts[1:] == pytest.approx(np.full(7, seconds[1] / 5), rel=1e-9)


def test_the_rule_table_of_the_docs_is_the_one_of_the_code() -> None:
    text = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")

    def power(exponent: int) -> str:
        return {0: "", 1: "x", -1: "1/x"}[exponent]

    for rule in RULES:
        powers = [power(e) for e in (rule.micro_batch, rule.tp, rule.ep, rule.sequence, rule.experts)]
        row = "| " + " | ".join([f"`{rule.name}`", *powers, "yes" if rule.by_layers else "", rule.why]) + " |"
        assert row in text, f"docs/moving.md lacks the row: {row}"
