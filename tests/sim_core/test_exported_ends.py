"""Exported texts of the generator's files: embedding, head, and what the first micro-batch has once a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sim_core import (
    METRICS,
    Facts,
    HardwareTable,
    Plans,
    Workload,
    export_simai,
    hardware_table,
    read_hardware,
    read_workload,
    simulate,
)
from tests.aicb import write
from tests.aicb_generator import DEEPSEEK, DENSE, EXPERTS, Model, Plan, Text
from tests.conftest import make_plans


def same_step(here: Workload, there: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Assert that a plan has the same parts of its step, but for rounding, and the same state."""
    found, read = simulate(here, hardware, plans), simulate(there, hardware, plans)
    assert found.reason.tolist() == read.reason.tolist() == [0]
    assert found.state_bytes[0] == pytest.approx(read.state_bytes[0], rel=1e-6)
    for name, a, b in zip(METRICS, found.metrics[:, 0], read.metrics[:, 0], strict=True):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize(
    "plan",
    [
        {"ga": 8},
        {"pp": 1, "ga": 1},
        {"pp": 4, "ga": 8, "micro_batch": 2},
        {"tp": 8, "pp": 2, "ga": 2, "all_gpus": 64},
    ],
)
@pytest.mark.parametrize("base", [{"ga": 1}, {"ga": 4}, {"ga": 1, "pp": 2}])
def test_an_exported_text_has_embedding_head_and_excess_where_the_generator_has_them(
    tmp_path: Path, h100: HardwareTable, base: dict[str, int], plan: dict[str, int], fidelity: int
) -> None:
    """Texts whose embedding has parameters, and a first weight gradient that counts once a step."""
    made = Plan(tp=4, **base)
    path = write(tmp_path, str(Text(DENSE, made)))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    assert workload.arrays.shares.ends > 0
    target = {"tp": 4, "pp": made.pp, "all_gpus": 128, **plan, "fidelity": fidelity}
    plans = make_plans(workload, **target)
    text = export_simai(path, workload, h100, plans)
    there = write(tmp_path, text, "there.txt")
    moved, _ = read_workload(there, Facts(micro_batch=plan.get("micro_batch", 1)))
    same_step(workload, moved, h100, plans)
    leading = [line.split()[8] for line in text.splitlines() if line.startswith("embedding_layer")]
    assert len(leading) == target["ga"]
    assert len(set(leading[1:])) <= 1
    parameters = next(int(line.split()[10]) / 4 for line in text.splitlines() if line.startswith("grad_param_comm"))
    sizes = replace(made, tp=target["tp"], pp=target["pp"])
    assert parameters == Text(DENSE, sizes).dense()  # what the generator writes for that plan


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("profiled", [True, False])
def test_experts_and_texts_without_times_are_exported_alike(
    tmp_path: Path, h100: HardwareTable, model: Model, profiled: bool
) -> None:
    """`grad_norm` gathers on TP, which does not make the sends of a dense model those of sequence parallelism."""
    base, plan = ({"ep": 2}, {"tp": 4, "ep": 4}) if model.experts else ({}, {"tp": 2})
    path = write(tmp_path, str(Text(model, Plan(tp=4, pp=2, **base), profiled=profiled)))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    plans = make_plans(workload, **plan, pp=4, all_gpus=128, ga=4, fidelity=[0, 1])
    for row in range(2):
        there = write(tmp_path, export_simai(path, workload, h100, plans, row), "there.txt")
        moved, _ = read_workload(there, Facts(micro_batch=1))
        one = Plans(**{name: column[row : row + 1] for name, column in plans._asdict().items()})
        same_step(workload, moved, h100, one)


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize("plan", [{"pp": 4}, {"pp": 1}, {"tp": 8, "pp": 4, "ep": 8}, {"tp": 2, "ep": 1, "micro_batch": 2}])
def test_latent_attention_is_exported_as_the_generator_writes_it(tmp_path: Path, plan: dict[str, int], fidelity: int) -> None:
    """Dense layers on the first stage, down projections whole, shared experts on every rank: parameters to the last one."""
    roomy = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)
    made = Plan(tp=4, pp=2, ep=2, dp=16)
    workload, _ = read_workload(path := write(tmp_path, str(Text(DEEPSEEK, made))), Facts(micro_batch=1))
    to = replace(made, **plan, dp=32)
    plans = make_plans(workload, tp=to.tp, pp=to.pp, ep=to.ep, all_gpus=to.all_gpus, ga=4, fidelity=fidelity,
                       micro_batch=to.micro_batch)  # fmt: skip
    text = export_simai(path, workload, roomy, plans)
    moved, _ = read_workload(write(tmp_path, text, "there.txt"), Facts(micro_batch=to.micro_batch))
    same_step(workload, moved, roomy, plans)
    sent = {line.split()[0]: int(line.split()[10]) for line in text.splitlines() if line.startswith(("grad_p", "moe_"))}
    truth = Text(DEEPSEEK, to)
    assert (sent["grad_param_comm"], sent["moe_grad_norm2"]) == (4 * truth.dense(), 4 * truth.of_experts())
