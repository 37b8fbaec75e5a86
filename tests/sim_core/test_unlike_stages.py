"""What stages of unlike layers hold: state, gradients and optimizer by the layers that they have, not by how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    HardwareTable,
    Workload,
    hardware_table,
    parameters,
    plans,
    read_hardware,
    read_model,
    read_stack,
    shape_of,
    simulate,
    workload_from_model,
)
from sim_core.metrics import STATE_BYTES

STATE: float = 18.0
"""Bytes of a parameter where nothing is sharded: 2 + 4 + 12."""
SHORT: dict[str, dict[str, object]] = {
    "deepseek-v3": {
        "layers": 12,
        "experts.dense_layers": 3,
        "experts.count": 16,
        "experts.groups": 1,
        "experts.topk_groups": 1,
    },
    "nemotron-h-56b": {"layers": 16, "pattern": "M-M-M-M-M-M*M*--"},
    "nemotron3-nano-30b-a3b": {"layers": 16, "pattern": "MEMEM*EMMEMEM*EM"},
    "llama4-maverick": {"layers": 12, "experts.count": 16, "experts.dense_layers": [0, 2, 4, 6, 8, 10]},
    "qwen3-next-80b-a3b": {"layers": 12, "experts.count": 16},
}


@pytest.fixture(scope="module")
def table() -> HardwareTable:
    return hardware_table([read_hardware("H200-SXM").with_values({"memory": "100 TB"})], None)


def work(model: str, **values: object) -> Workload:
    of = read_model(model, {**SHORT.get(model, {}), **values})
    return workload_from_model(of, read_stack("megatron-core"), sequence_parallel=True)


def plan_of(workload: Workload, layers: list[int], **plan: Any) -> Any:
    chosen = {"dp": 1, "pp": len(layers), "ga": 8, "micro_batch": 1, "layer_split": [layers], "sharding": "none", **plan}
    return plans(workload, **chosen)


@pytest.mark.parametrize("name", SHORT)
def test_the_state_of_a_stage_is_that_of_its_layers(name: str, table: HardwareTable) -> None:
    """Counted layer by layer; the ends have embedding and head, the last one multi-token prediction with its experts."""
    workload = work(name)
    model = workload.modelled.model if workload.modelled else None
    assert model
    of_unit = {unit.name: unit.parameters for unit in parameters(model).units}
    each = np.array([of_unit[model.layer_units[unit].name] for unit in model.unit_of_layer], float)
    cuts = [2, 3, 5, model.layers - 10]
    expected = np.array([part.sum() for part in np.split(each, np.cumsum(cuts)[:-1])]) * STATE
    found = shape_of(workload, table, plan_of(workload, cuts)).memory[STATE_BYTES]
    inner = slice(1, 3)
    assert found[inner] == pytest.approx(expected[inner], rel=1e-6)
    assert np.ptp(each) > 0.01 * each.mean()
    head = model.vocabulary * model.hidden * STATE
    assert found[0] >= expected[0] + 0.99 * head
    mtp = parameters(model).mtp * STATE
    assert found[3] == pytest.approx(expected[3] + head + mtp, rel=0.05)


def test_gradients_and_optimizer_follow_what_a_stage_holds(table: HardwareTable) -> None:
    """Experts in the second half alone: the stage that has them all reduces, updates and gathers longer."""
    reduced, updated = (METRICS.index(name) for name in ("dp_total_s", "optimizer_s"))

    def measured(where: str) -> np.ndarray[Any, Any]:
        workload = work("nemotron3-nano-30b-a3b", pattern=where)
        return simulate(workload, table, plan_of(workload, [8, 8], dp=8, sharding="optimizer", ep=8)).metrics[:, 0]

    apart, mixed = measured("M" * 4 + "*" * 4 + "E" * 8), measured("ME*EMEMEM*EMEM*E"[:16].replace("M*EMEM*E", "*E*EMEME"))
    assert apart[[reduced, updated]].sum() == pytest.approx(mixed[[reduced, updated]].sum(), rel=0.05)  # means over stages
    assert apart[METRICS.index("step_time_s")] > mixed[METRICS.index("step_time_s")]


def test_layers_that_are_alike_hold_what_they_did(table: HardwareTable) -> None:
    workload = work("llama3-8b")
    two = [shape_of(workload, table, plan_of(workload, cut)).memory[STATE_BYTES] for cut in ([8, 8, 8, 8], [8, 4, 12, 8])]
    assert two[1][1] == pytest.approx(two[0][1] / 2)
    assert two[1][2] == pytest.approx(two[0][2] * 1.5)
