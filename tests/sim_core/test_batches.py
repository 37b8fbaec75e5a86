"""Plans of one batch get what each of them gets alone: splits, updates, memory and layers are shared only where they agree."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import (
    HardwareTable,
    Plans,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    slice_plans,
    workload_from_model,
)

ROOMY = ("H100-SXM", "A100-80G-SXM")


@pytest.fixture(scope="module")
def hardware() -> HardwareTable:
    return hardware_table([read_hardware(name).with_values({"memory": "100 TB"}) for name in ROOMY], None)


def of_model(name: str, layers: int) -> Workload:
    model = read_model(name, {"sequence": 1024, "layers": layers})
    return workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)


def same_alone(workload: Workload, hardware: HardwareTable, table: Plans) -> None:
    """Assert that the plans of a batch are those plans one by one."""
    together = simulate(workload, hardware, table)
    assert not together.reason.any()
    for row in range(len(table.tp)):
        alone = simulate(workload, hardware, slice_plans(table, np.array([row])))
        np.testing.assert_array_equal(together.metrics[:, row], alone.metrics[:, 0])
        np.testing.assert_array_equal(together.memory[:, row], alone.memory[:, 0])


def test_updates_of_pipelines_of_any_length_on_two_devices(hardware: HardwareTable) -> None:
    work = of_model("qwen3-0.6b", 4)
    table = plans(work, tp=2, dp=2, ga=4, pp=[2, 1], optimizer=["muon", "adamw", "adafactor"])
    same_alone(work, hardware, table._replace(hardware=np.arange(6) % 2))


def test_experts_behind_dense_layers(hardware: HardwareTable) -> None:
    """GLM-4.5-Air: its first layer is dense, so stages differ."""
    work = of_model("glm-4.5-air", 4)
    same_alone(work, hardware, plans(work, tp=1, dp=2, ep=2, ga=4, pp=[1, 4, 2], optimizer=["adamw", "muon"]))


def test_splits_by_cost_of_layers_that_run_again(hardware: HardwareTable) -> None:
    """Where more of the layers run again, the head is worth fewer of them, and the last stage takes another one."""
    work = of_model("llama3-8b", 10)
    again, split = ["block:1", "block:2"], "balanced_cost"
    table = plans(work, tp=2, dp=2, ga=4, layers=[6, 8, 10], pp=[3, 4], checkpointing=again, layer_split=split)
    same_alone(work, hardware, table)


def test_stages_of_files(gpt7b: Workload, hardware: HardwareTable) -> None:
    same_alone(gpt7b, hardware, plans(gpt7b, all_gpus=512, ga=4, overlap_pp=False, pp=[4, 1, 2], layer_split="balanced"))
