"""A file calibrated by a model: its own times at its own plan, the model's ratios elsewhere, messages that it lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import (
    Facts,
    HardwareTable,
    SpecError,
    Workload,
    calibrated,
    hardware_table,
    parse_model,
    plans,
    read_hardware,
    read_stack,
    read_workload,
    simulate,
    workload_from_model,
)
from tests.aicb import write
from tests.aicb_generator import DENSE, EXPERTS, Model, Plan, Text

H20 = read_hardware("H20-SXM").with_values({"memory": "1e6 GB"})
"""Without measured tables: collectives of files and models cost the same."""


def numbers(model: Model, **values: Any) -> dict[str, Any]:
    """The model of a generated file."""
    experts = {"experts": {"count": model.experts, "topk": model.topk, "ffn": model.ffn}} if model.experts else {}
    dense = {} if model.experts else {"ffn": model.ffn}
    return {
        "name": "generated", "source": "a test", "layers": model.layers, "hidden": model.hidden, "heads": 32, "gated": False,
        "activation": "gelu", "norm": "layernorm", "position": "learned", "positions": model.sequence, "tied": False,
        "vocabulary": model.vocabulary, "sequence": model.sequence, **experts, **dense, **values,
    }  # fmt: skip


def of_model(model: Model, **values: Any) -> Workload:
    stack = read_stack("nemo-24")
    return workload_from_model(parse_model(numbers(model, **values), "test"), stack, sequence_parallel=model.sequence_parallel)


def recorded(folder: Path, model: Model, plan: Plan, **kind: Any) -> Workload:
    return read_workload(write(folder, str(Text(model, plan, **kind))), Facts(micro_batch=plan.micro_batch))[0]


def run(work: Workload, **plan: Any) -> dict[str, Any]:
    table: HardwareTable = hardware_table([H20], None)
    found = simulate(work, table, plans(work, **plan)).named()
    return {name: column[0] if name == "reason" else float(column[0]) for name, column in found.items()}


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_layers_take_their_recorded_time_at_the_recorded_plan(tmp_path: Path, model: Model) -> None:
    plan = Plan(tp=4, ep=2 if model.experts else 1, dp=2, ga=1)  # 8 GPUs: more have stragglers
    file = recorded(tmp_path, model, plan)
    plain = of_model(model)
    work = calibrated(file, plain, H20)
    assert [work.recorded_fields[name] for name in ("tp", "ep", "all_gpus", "ga")] == [4, plan.ep, 8, 1]
    own = {"tp": 4, "ep": plan.ep, "all_gpus": 8, "ga": 1}
    assert work.modelled
    (forward, backward), *ends_factors = work.modelled.calibration
    assert ends_factors == [(1.0, 1.0), (1.0, 1.0)]
    for name, factor, phases in (("compute_forward_s", forward, [0]), ("compute_backward_s", backward, [1, 2])):
        arrays = file.arrays
        of_layers = sum(
            times * arrays.pieces.compute_s[arrays.pieces.unit == unit][:, phases].sum()
            for unit, times in enumerate(arrays.unit_layers[:, -1])
        )
        ends = (factor * run(plain, **own)[name] - run(work, **own)[name]) / (factor - 1)  # both are linear in the layers
        assert run(work, **own)[name] - ends == pytest.approx(of_layers, rel=1e-9)


def test_elsewhere_the_ratios_are_the_models(tmp_path: Path) -> None:
    """Twice the tensor parallelism takes more than half of the time: the kernels get smaller."""
    plain = of_model(DENSE)
    work = calibrated(recorded(tmp_path, DENSE, Plan(tp=2, dp=8)), plain, H20)
    assert work.modelled
    factor = work.modelled.calibration[0][0]
    for plan in ({"tp": 4, "all_gpus": 32}, {"tp": 2, "micro_batch": 4, "all_gpus": 16}):
        mine, models = (float(run(each, **plan)["compute_forward_s"]) for each in (work, plain))
        here, there = (float(run(each, tp=2, all_gpus=16, micro_batch=1)["compute_forward_s"]) for each in (work, plain))
        both = np.linalg.solve(np.array([[1, 1], [factor, 1]]), np.array([[models, there], [mine, here]]))  # layers, ends
        assert both[0, 0] / both[0, 1] > (0.5 if plan["tp"] == 4 else 3.5)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_all_to_alls_that_a_file_lacks_are_those_of_the_file_that_has_them(tmp_path: Path, ep: int) -> None:
    """A file made at ep 1 has none; the generator's file for the target plan is the truth."""
    file = recorded(tmp_path, EXPERTS, Plan(tp=2, ep=1, dp=16))
    target = Plan(tp=2, ep=ep, dp=16)
    plan = {"tp": 2, "ep": ep, "all_gpus": 32, "ga": 4}
    assert run(file, **plan)["reason"] == "ep_messages_unknown"
    found = run(calibrated(file, of_model(EXPERTS), H20), **plan)
    truth = run(recorded(tmp_path, EXPERTS, target), **plan)
    assert found["reason"] == ""
    assert found["ep_total_s"] == pytest.approx(truth["ep_total_s"], rel=1e-3)
    assert found["dp_total_s"] == pytest.approx(truth["dp_total_s"], rel=0.05)  # the generator counts the embedding 4 times
    assert found["peak_memory_bytes"] > found["state_bytes"] > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 30}, "layers: found 32 in the file, and 30 in the model generated"),
        ({"hidden": 5120}, "hidden: found 4096 in the file, and 5120 in the model generated"),
        ({"sequence": 1024}, "sequence: found 2048 in the file, and 1024 in the model generated"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        calibrated(recorded(tmp_path, DENSE, Plan(tp=4)), of_model(DENSE, **values), H20)


def test_a_file_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no times of its layers"):
        calibrated(recorded(tmp_path, DENSE, Plan(tp=4), profiled=False), of_model(DENSE), H20)


def test_experts_that_the_stack_does_not_divide_are_noted(tmp_path: Path) -> None:
    plain = of_model(EXPERTS)
    assert plain.modelled
    undivided = replace(plain, modelled=replace(plain.modelled, stack=read_stack("megatron-core")))
    file = recorded(tmp_path, EXPERTS, Plan(tp=2, ep=2, dp=8))
    assert any("divides experts by tp" in note for note in calibrated(file, undivided, H20).notes)
    assert not any("divides experts by tp" in note for note in calibrated(file, plain, H20).notes)


def test_doubtful_records_of_the_file_stay_doubtful(tmp_path: Path) -> None:
    """An MoE weight gradient of 1 ns makes the calibrated backward too short: the run must say so."""
    file = recorded(tmp_path, EXPERTS, Plan(tp=2, ep=2, dp=8))
    assert file.checks
    assert calibrated(file, of_model(EXPERTS), H20).checks == file.checks


def test_a_sequence_that_the_user_gives_is_compared(tmp_path: Path) -> None:
    """Without the messages that tell it: a trimmed file."""
    file = replace(recorded(tmp_path, DENSE, Plan(tp=4)), implied=None, sequence=4096)
    with pytest.raises(SpecError, match="sequence: found 4096 in the file, and 2048 in the model"):
        calibrated(file, of_model(DENSE), H20)
