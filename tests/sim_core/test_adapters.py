"""Low-rank adapters: what is frozen has no weight gradient, no state, no reduction; sharded, it is gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import hardware_table, plans, read_hardware, simulate, slice_plans
from sim_core.errors import SpecError
from sim_core.models.activations import activation_bytes
from sim_core.models.keys import make_keys
from sim_core.models.messages import messages
from sim_core.models.operators import operators
from sim_core.models.precision import FP8_DELAYED, IN_ANY_LAYOUT, PRECISION_NAMES
from sim_core.models.reading import read_model
from sim_core.models.stack import read_stack
from sim_core.models.weights import frozen, frozen_bytes, held, model_flops_per_token, parameters
from sim_core.terms import ALL_GATHER, FORWARD, INPUT_GRADIENT, TP, WEIGHT_GRADIENT
from sim_core.workloads.modelled import workload_from_model
from tests.facts import stack_with

LORA: dict[str, Any] = {"lora": {"rank": 16, "targets": ("qkv", "projection")}, "sequence": 8192}
TRAINED = 44_564_480
"""Of Llama 2 70B with rank 16 on attention: 80 x 16 x ((8192 + 10240) + (8192 + 8192)); MLPerf's fine-tuning reports 44.5 M."""


def test_only_adapters_are_trained() -> None:
    model = read_model("llama2-70b", LORA)
    counts = parameters(model)
    assert (counts.adapters, counts.total) == (TRAINED, parameters(read_model("llama2-70b")).total)
    layer = model.layer_units[0]
    keys = make_keys(tp=[1, 4])
    whole, divided = 16 * (8192 + 8192), 16 * (10240 + 8192)  # the sides on every rank, and those that tp divides
    assert held(model, layer, keys).dense.tolist() == [whole + divided, whole + divided / 4]
    bare = held(read_model("llama2-70b"), layer, keys).dense
    assert frozen(model, layer, keys).dense.tolist() == bare.tolist()
    assert frozen_bytes(model, layer, keys).dense.tolist() == (2 * bare).tolist()


def test_frozen_matrices_are_kept_as_they_are_multiplied() -> None:
    """With one scale a matrix is transposed as it is used, on any device; scales of blocks along one side need two copies.
    Norms and embedding stay in 16 bits."""
    model = read_model("llama2-70b", LORA)
    of_layer = 8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672
    precisions = FP8_DELAYED, IN_ANY_LAYOUT[FP8_DELAYED], PRECISION_NAMES.index("mxfp8"), PRECISION_NAMES.index("nvfp4")
    found = frozen_bytes(model, model.layer_units[0], make_keys(tp=[1] * 4, precision=precisions)).dense - 2 * 2 * 8192
    assert (found / of_layer).tolist() == [1.0, 1.0, 2 * (1 + 1 / 32), 2 * (4 / 8 + 1 / 16)]


def test_frozen_matrices_have_two_products_and_adapters_three() -> None:
    model = read_model("llama2-70b", LORA)
    work = operators(model, model.layer_units[0], make_keys(), stack_with())
    of_weights = {work.names[k] for k in np.flatnonzero(work.phase == WEIGHT_GRADIENT)}
    assert of_weights == {
        "qkv_lora_a", "qkv_lora_b", "projection_lora_a", "projection_lora_b", "gradient_accumulation",
    }  # fmt: skip
    linear = sum(work.flops[0, work.row(name, INPUT_GRADIENT)] for name in ("qkv", "projection", "fc1", "fc2"))
    matrices = 8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672
    assert linear == 2 * 8192 * matrices


def test_kernels_around_an_adapter() -> None:
    """Its input is dropped out (read, written, a mask), its output scaled and added; backward as much, and its input's gradient
    is added to that of the frozen matrix. No copy of an operand is cast for a weight gradient."""
    model = read_model("llama2-70b", {"lora": LORA["lora"] | {"dropout": 0.1}, "sequence": 8192})
    keys = make_keys(precision=[FP8_DELAYED])
    work = operators(model, model.layer_units[0], keys, stack_with())
    moved = {(name, phase): size for name, phase, size in zip(work.names, work.phase, work.bytes[0], strict=True)}
    entering, leaving = 8192 * 8192, 8192 * 10240
    assert moved["qkv_lora_dropout", FORWARD] == moved["qkv_lora_dropout", INPUT_GRADIENT] == 5 * entering
    assert moved["qkv_lora_add", FORWARD] == (4 + 6) * leaving
    assert moved["qkv_lora_add", INPUT_GRADIENT] == 4 * leaving + 6 * entering
    ffn = 8192 * 28672
    assert moved["casts", FORWARD] == 3 * entering + 3 * entering - 1 * entering + 3 * ffn  # the MLP's norm writes 8 bits
    assert moved["casts", INPUT_GRADIENT] == 3 * (leaving + entering + 2 * ffn + entering)


def test_flops_of_a_token_are_those_of_what_is_computed() -> None:
    """Forward and input gradient of frozen matrices and the head, three products of adapters, attention both ways."""
    model = read_model("llama2-70b", LORA)
    matrices = 80 * (8192 * 10240 + 8192 * 8192 + 3 * 8192 * 28672) + 8192 * 32000
    attention = 80 * 2 * 8192 * 64 * 256
    assert model_flops_per_token(model) == pytest.approx(2 * 2 * matrices + 3 * 2 * TRAINED + 3 * attention)


def test_state_and_gradients_are_those_of_adapters() -> None:
    model = read_model("llama2-70b", LORA)
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    reduced = workload.arrays.step.comm_bytes.sum()
    assert reduced == pytest.approx(TRAINED * (4 + 2))  # fp32 gradients, 16-bit parameters


def test_inputs_of_frozen_layers_are_not_kept_or_gathered_for_their_weights() -> None:
    model, whole = read_model("llama2-70b", LORA), read_model("llama2-70b", {"sequence": 8192})
    layer, keys = model.layer_units[0], make_keys(tp=2, sequence_parallel=1)
    saved = activation_bytes(whole, layer, keys, stack_with()) - activation_bytes(model, layer, keys, stack_with())
    assert saved[0, 0] == 8192 * (2 * 28672 / 2 + 2 * 8192 / 2)  # input of fc2, and of fc1 on its own tokens
    dropped = read_model("llama2-70b", {"lora": LORA["lora"] | {"dropout": 0.1}, "sequence": 8192})
    more = activation_bytes(dropped, layer, keys, stack_with()) - activation_bytes(model, layer, keys, stack_with())
    assert more[0, 0] == 8192 * (8192 / 2 + 3 * 8192 / 2)  # a mask; the projection's adapter keeps its own input
    sent = messages(model, layer, keys, stack_with())
    again = {
        sent.operators[k]
        for k in range(len(sent.names))
        if (sent.group[k], sent.kind[k], sent.phase[k]) == (TP, ALL_GATHER, INPUT_GRADIENT)
    }
    assert {"qkv"} <= again
    assert "fc1" not in again
    gathered = {sent.operators[k] for k in range(len(sent.names)) if (sent.kind[k], sent.phase[k]) == (ALL_GATHER, FORWARD)}
    assert "fc1" in gathered


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"rank": 0}, "lora.rank: found '0'"),
        ({"rank": 8, "targets": ["embedding"]}, "lora.targets.0: found 'embedding', valid: fc1, fc2, projection, qkv"),
        ({"rank": 8, "base": "nf5"}, "lora.base: found 'nf5', nearest valid: nf4"),
        ({"rank": 8, "targets": []}, "lora.targets: expected at least one, each once"),
        ({"rank": 8, "targets": ["qkv", "qkv"]}, "lora.targets: expected at least one, each once"),
        ({"rank": 8, "target": ["qkv"]}, "lora.target: unknown key, nearest valid: targets"),
    ],
)
def test_wrong_adapters_are_one_line(lora: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_model("llama2-70b", {"lora": lora})
    assert str(error.value).startswith(f"llama2-70b: {message}")


def test_experts_have_no_adapters() -> None:
    with pytest.raises(SpecError, match="experts have no adapters here"):
        read_model("qwen3-30b-a3b", {"lora": {"rank": 8, "targets": ["fc1"]}})


def test_targets_that_no_layer_has_train_nothing() -> None:
    model = read_model("nemotron-h-8b", {"lora": {"rank": 8}, "pattern": "M-" * 26})
    with pytest.raises(SpecError, match=r"nemotron-h-8b: lora\.targets: no layer has qkv or projection"):
        workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)


def _sharded(lora: bool, how: str, ga: int) -> dict[str, float]:
    model = read_model("llama2-70b", LORA if lora else {"sequence": 8192})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    device = read_hardware("H100-SXM").with_values({"memory": "100 TB"})
    plan = plans(workload, tp=1, pp=1, vpp=1, dp=64, ga=ga, micro_batch=1, sharding=how)
    found = simulate(workload, hardware_table([device], None), plan).named()
    return {name: float(column[0]) for name, column in found.items() if column.dtype.kind == "f"}


def test_sharded_frozen_weights_are_gathered_and_never_reduced() -> None:
    """FSDP: of each micro-batch the two gathers of the whole model are left, and a reduction of 0.06 % of its gradients."""

    def of_a_micro_batch(lora: bool, how: str) -> float:
        return (_sharded(lora, how, 8)["dp_total_s"] - _sharded(lora, how, 4)["dp_total_s"]) / 4

    scatters = of_a_micro_batch(False, "gradients")
    gathers = of_a_micro_batch(False, "parameters") - scatters
    narrow = of_a_micro_batch(True, "parameters") - gathers
    assert 0 < narrow < 0.03 * scatters  # latency of 80 narrow messages
    assert of_a_micro_batch(True, "gradients") == pytest.approx(narrow, rel=0.2)


def test_sharded_frozen_weights_take_two_bytes_over_the_ranks() -> None:
    frozen_weights = parameters(read_model("llama2-70b")).total
    whole, divided = _sharded(True, "none", 4), _sharded(True, "parameters", 4)
    assert whole["state_bytes"] == pytest.approx(2 * frozen_weights + 18 * TRAINED, rel=1e-6)
    assert divided["state_bytes"] == pytest.approx((2 * frozen_weights + 18 * TRAINED) / 64, rel=1e-6)
    layer, adapters = 8192 * 10240 + 8192**2 + 3 * 8192 * 28672 + 2 * 8192, TRAINED // 80
    ends = 2 * 32000 * 8192 + 8192
    gathered = 2 * (ends + 2 * (layer + adapters)) + (2 + 4) * adapters  # one layer ahead; gradients of one layer's adapters
    assert divided["communication_bytes"] == pytest.approx(gathered, rel=1e-6)


def test_plans_with_adapters_need_in_a_batch_what_they_need_alone() -> None:
    model = read_model("llama2-70b", LORA)
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB"})], None)
    grid = plans(workload, tp=[1, 4], precision=["bf16", "fp8_delayed"], dp=16, ga=4, sharding=["gradients", "parameters"])
    together = simulate(workload, hardware, grid)
    alone = [simulate(workload, hardware, slice_plans(grid, np.array([row]))).memory for row in range(len(grid.tp))]
    assert np.isfinite(together.memory).all()
    np.testing.assert_array_equal(together.memory, np.concatenate(alone, axis=1))


LAYER_WEIGHTS = 80 * (8192 * 10240 + 8192**2 + 3 * 8192 * 28672)


@pytest.mark.parametrize(("base", "width"), [("16-bit", 2.0), ("nf4", 0.5 + 32 / 64 / 8), ("nf4-double", 0.5 + 0.127 / 8)])
def test_a_base_of_four_bits(base: str, width: float) -> None:
    """QLoRA (arXiv 2305.14314, section 3): 4 bits and 0.5 of constants a parameter, 0.127 with double quantisation; what is no
    linear layer stays. Each matrix is written in 16 bits before the product of its forward and of its input gradient."""
    model = read_model("llama2-70b", {"sequence": 8192, "lora": {"rank": 16, "base": base}})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    device = read_hardware("H100-SXM").with_values({"memory": "100 TB"})

    def run(**plan: Any) -> dict[str, Any]:
        given = plans(
            workload, **{"tp": 1, "micro_batch": 1, "all_gpus": 1, "sharding": "none", "checkpointing": "none", **plan}
        )
        return simulate(workload, hardware_table([device], None), given).named()

    found, wide = run(ga=[4, 8]), parameters(model).total - LAYER_WEIGHTS
    assert found["state_bytes"][0] == pytest.approx(width * LAYER_WEIGHTS + 2 * wide + 18 * TRAINED, rel=2e-5)
    if base != "16-bit":
        plain = workload_from_model(read_model("llama2-70b", LORA), read_stack("megatron-core"), sequence_parallel=True)
        kept = plans(plain, tp=1, micro_batch=1, all_gpus=1, sharding="none", checkpointing="none", ga=[4, 8])
        before = simulate(plain, hardware_table([device], None), kept).named()
        more_s = np.diff(found["step_time_s"])[0] - np.diff(before["step_time_s"])[0]
        traffic_s = 4 * 2 * (2 + width) * LAYER_WEIGHTS / 3.35e12
        assert traffic_s < more_s < 1.5 * traffic_s
        shared = [run(all_gpus=64, ga=ga, sharding="parameters", overlap_param=False)["dp_total_s"][0] for ga in (4, 8)]
        wide_s = [_sharded(True, "parameters", ga)["dp_total_s"] for ga in (4, 8)]
        assert 0 < np.diff(shared)[0] / np.diff(wide_s)[0] - width / 2 < 0.1  # latency, norms, gradients of adapters
