"""Peaks of eager PyTorch: gradients made by the backward, copies of the optimizer's step, what a layer's backward works on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import MEMORY, hardware_table, legality, plans, read_hardware, shape_of, simulate
from sim_core.bounding import reasons_over
from sim_core.models.reading import read_model
from sim_core.models.stack import read_stack
from sim_core.models.weights import parameters
from sim_core.workloads.modelled import workload_from_model

GIB = 2**30
PURE: dict[str, Any] = {"weight_bytes": 2.0, "gradient_bytes": 2.0, "adam_bytes": 4.0, "sharding": "none"}
"""Weights, gradients and both moments of 16 bits, as transformers' Trainer has them where the model was loaded in bf16."""
EAGER: dict[str, Any] = {"gradients_made": True, "activation_input_bytes": 3.0, "logit_bytes": 8.0}
LORA: dict[str, Any] = {"rank": 16, "dropout": 0.1, "apart": True}
TOKENS, H, KV, F, V = 4096, 4096, 1024, 14336, 32000
INPUTS = 32 * 2.0 * TOKENS * H
"""Bytes of the inputs of all layers of Mistral 7B for one sequence."""


def peak(facts: dict[str, Any], how: str = "full", *, lora: dict[str, Any] | None = None, **axes: Any) -> float:
    """GiB of tensors of Mistral 7B, one sequence of 4,096 tokens a micro-batch."""
    model = read_model("mistral-7b-v0.1", {"sequence": TOKENS} | ({"lora": lora} if lora else {}))
    stack = read_stack("megatron-core").model_copy(update=facts)
    workload = workload_from_model(model, stack, sequence_parallel=False)
    table = hardware_table([read_hardware("A100-80G-SXM").with_values({"memory": "1 TB"})], None)
    plan = plans(workload, tp=1, pp=1, vpp=1, checkpointing=how, **{"dp": 1, "ga": 1, "micro_batch": 1} | axes)
    memory = shape_of(workload, table, plan).memory[:, 0]
    rest = ("allocator_bytes", "reserved_bytes", "peak_memory_bytes")
    return float(sum(memory[MEMORY.index(name)] for name in MEMORY if name not in rest)) / GIB


def weights(bytes_of_each: float) -> float:
    """GiB of all weights at so many bytes each."""
    return parameters(read_model("mistral-7b-v0.1")).total * bytes_of_each / GIB


def test_the_optimizers_step_can_be_the_peak() -> None:
    """PyTorch's foreach Adam makes the square root of all second moments: a fifth copy, 67.46 GiB measured on one A100
    (fms-acceleration, refs/a100_80gb.csv) whatever the batch, as long as activations stay below it."""
    foreach = PURE | EAGER | {"step_bytes": 2.0}
    assert [peak(foreach, micro_batch=number) for number in (1, 4, 8)] == pytest.approx([67.46] * 3, rel=1e-3)
    fp32 = {"weight_bytes": 0.0, "gradient_bytes": 4.0, "adam_bytes": 12.0, "sharding": "parameters", "step_bytes": 4.0}
    assert peak(EAGER | fp32, dp=2, micro_batch=4) == pytest.approx(67.46, rel=1e-3)  # measured, refs/a100_80gb_liger.csv


def test_gradients_come_as_activations_go() -> None:
    """At the first backward of a step there are none; of a later micro-batch they stand beside all activations."""
    once, twice = (peak(PURE | EAGER, micro_batch=32, ga=ga) for ga in (1, 2))
    assert twice - once == pytest.approx(weights(2), rel=1e-6)
    assert peak(PURE | EAGER | {"gradients_made": False, "logit_bytes": 16.0}, micro_batch=32) == pytest.approx(
        peak(PURE | EAGER | {"logit_bytes": 16.0}, micro_batch=32) + weights(2)
    )


def test_one_micro_batch_stands_for_no_others() -> None:
    """What fits with one micro-batch need not fit with two, though one fills a pipeline of one stage."""
    workload = workload_from_model(
        read_model("mistral-7b-v0.1", {"sequence": TOKENS}),
        read_stack("megatron-core").model_copy(update=PURE | EAGER),
        sequence_parallel=False,
    )
    table = hardware_table([read_hardware("A100-80G-SXM")], None)
    plan = plans(workload, tp=1, pp=1, vpp=1, dp=1, ga=1, micro_batch=12, checkpointing="full")
    number = np.array([1, 2, 3])
    alone = [int(legality(workload, table, plan._replace(ga=number[[k]]))[0][0]) for k in range(3)]
    assert len({*alone}) == 2
    assert reasons_over(workload, table, plan, number).tolist() == [alone]


def test_logits_or_what_a_layer_works_on() -> None:
    """Logits are gone when the last layer runs again; 12 bytes a logit stand beside the inputs of all layers."""
    loss = 12.0 * TOKENS * V + 4.0 * TOKENS * H
    at_loss = weights(6) + (INPUTS + loss) / GIB
    assert peak(PURE | EAGER | {"logit_bytes": 12.0}, micro_batch=16) == pytest.approx(
        weights(6) + 16 * (at_loss - weights(6)), rel=1e-6
    )
    # norms and their outputs 8 h (the first norm's input is the layer's own), attention 2 (2 h + 2 kv), MLP: gate, its
    # activation, up, their product 8 f; three gradients at its backward for one that goes: 4 f; that of the output 2 h
    layer = TOKENS * (6 * H + 2 * (2 * H + 2 * KV) + 12 * F + 2 * H)
    ends = 4.0 * TOKENS * H
    expected = weights(6) + 16 * (INPUTS + layer + ends) / GIB
    assert peak(PURE | EAGER | {"logit_bytes": 0.0}, micro_batch=16) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(71.85, rel=0.02)  # measured with Liger's loss


def test_adapters_of_peft() -> None:
    """Queries, keys and values each drop out their input: 3 bytes an element; no product of the MLP is kept, so its gradient is
    one more. Measured on one A100: 46.68 GiB with 16 sequences, 8.26 GiB more for each four."""
    adapted = peak(PURE | EAGER | {"logit_bytes": 0.0}, lora=LORA, micro_batch=16)
    layer = TOKENS * (2 * H + 9 * H + 2 * (2 * H + 2 * KV) + 3 * H + 12 * F + 2 * H)
    trained = 32 * 16 * (3 * H + H + 2 * KV + H + H)
    expected = weights(2) + 6 * trained / GIB + 16 * (INPUTS + layer + 4.0 * TOKENS * H) / GIB
    assert adapted == pytest.approx(expected, rel=1e-6)
    assert adapted == pytest.approx(46.68, rel=0.02)


def test_inputs_of_frozen_layers_stay_under_fsdp1() -> None:
    """Its hooks on a frozen layer's input hold the input and its gradient until the backward ends: 3.0 GiB a sequence measured
    on two and on four A100s, 2.06 on one, which needs no FSDP."""
    sharded = PURE | EAGER | {"sharding": "parameters", "frozen_inputs_stay": True}
    each = (peak(sharded, lora=LORA, dp=4, micro_batch=16) - peak(sharded, lora=LORA, dp=4, micro_batch=8)) / 8
    assert each == pytest.approx(3.0, rel=0.03)
    none_stay = sharded | {"frozen_inputs_stay": False}
    assert peak(sharded, lora=LORA, dp=4, micro_batch=16) - peak(none_stay, lora=LORA, dp=4, micro_batch=16) == pytest.approx(
        16 * INPUTS / GIB, rel=0.05
    )
    trained = [peak(facts, dp=4, micro_batch=16) for facts in (sharded, none_stay)]
    assert trained[0] == trained[1]  # hooks of what is trained hold nothing


def test_running_more_again_never_needs_more_memory() -> None:
    found = [peak(PURE | EAGER, how, micro_batch=8) for how in ("full", "block:20", "block:4", "none")]
    assert found == sorted(found)
    assert peak(PURE | EAGER, "every:2", micro_batch=8) <= found[-1]


def test_divided_logits_of_torchtitan() -> None:
    """Its loss over ranks is made of PyTorch's operators: log-softmax, a mask, their sum and the product, in fp32."""
    model = read_model("llama3-8b", {"sequence": TOKENS})
    workload = workload_from_model(model, read_stack("torchtitan"), sequence_parallel=True)
    table = hardware_table([read_hardware("H100-SXM")], None)
    each = [
        float(shape_of(workload, table, plans(workload, tp=tp, pp=1, dp=8, ga=1)).memory[MEMORY.index("logits_bytes"), 0])
        for tp in (1, 2)
    ]
    rows = 128256  # a multiple of 128 tp
    assert each == [12.0 * TOKENS * rows, 16.0 * TOKENS * rows / 2]


@pytest.mark.parametrize(
    ("facts", "measured_s"),
    [
        ({"logit_bytes": 14.0}, 5.35),
        ({"norm_bytes": (4.0, 8.0), "rotary_bytes": (4.0, 4.0), "loss_bytes": (18.0, 26.0), "logit_bytes": 10.0}, 4.75),
    ],
)
def test_kernels_of_the_trainer(facts: dict[str, Any], measured_s: float) -> None:
    """Four sequences on one A100 with all layers run again, with kernels one by one and with fms-acceleration's for norms,
    rotation and loss (refs/a100_80gb.csv): bytes that are counted make the difference."""
    stack = read_stack("hf-trainer").model_copy(
        update=PURE | {"step_bytes": 2.0, "optimizer_bytes": 14.0, "accumulation_bytes": 0.0} | facts
    )
    workload = workload_from_model(read_model("mistral-7b-v0.1", {"sequence": TOKENS}), stack, sequence_parallel=False)
    plan = plans(workload, tp=1, pp=1, all_gpus=1, checkpointing="full", micro_batch=4)
    found = simulate(workload, hardware_table([read_hardware("A100-80G-SXM")], None), plan)
    assert found.named()["step_time_s"][0] == pytest.approx(measured_s, rel=0.05)
