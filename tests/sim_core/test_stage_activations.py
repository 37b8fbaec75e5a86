"""Activations in flight: as many micro-batches as fill a pipeline tell as much as all; recompute never needs more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sim_core import (
    MEMORY,
    HardwareTable,
    checkpointing_codes,
    legality,
    plans as plans_of,
    read_model,
    read_stack,
    shape_of,
    workload_from_model,
)
from sim_core.costing.peak import stage_memory
from sim_core.costing.stage_activations import count_in_flight, micro_batches_to_fill
from sim_core.engine.codes import CHUNK_MASK, CHUNK_SHIFT, row_of
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.schedules import DEEPSPEED, GPIPE, ONE_F_ONE_B
from sim_core.metrics import PEAK_BYTES
from sim_core.models.activations import activation_bytes
from sim_core.models.keys import make_keys
from tests.conftest import make_plans
from tests.model_plans import MODELS, drawn, machines, workload_of


def counted(schedule: int, pp: int, vpp: int, ga: int, group: int) -> list[int]:
    """Micro-batches of each chunk of each stage when the stage keeps the most."""
    order, found = np.empty(pp * row_of(schedule, vpp, ga), np.int64), np.zeros((1, 2, pp * vpp), np.int64)
    fill_order(order_writers(np.array([schedule])), schedule, pp, vpp, ga, group, order, order)
    count_in_flight(order, schedule, pp, vpp, ga, found)
    in_flight: list[int] = found[0, 0].tolist()
    return in_flight


def most_kept(pp: int, vpp: int, ga: int, group: int) -> list[float]:
    """Most bytes of each stage of 1F1B whose chunks keep, and run again, unlike amounts."""
    order = np.empty(pp * row_of(ONE_F_ONE_B, vpp, ga), np.int64)
    fill_order(order_writers(np.array([ONE_F_ONE_B])), ONE_F_ONE_B, pp, vpp, ga, group, order, order)
    of_stages = np.random.default_rng(pp * vpp).uniform(1, 5, (pp, vpp, 2))
    found = []
    for codes, bytes_of in zip(order.reshape(pp, -1), of_stages, strict=True):
        now = most = 0.0
        for code in codes.tolist():
            held, works = bytes_of[code >> CHUNK_SHIFT & CHUNK_MASK]
            most = max(most, now + (works if code & 1 else held))
            now += -held if code & 1 else held
        found.append(most)
    return found


def test_a_pipeline_that_is_full_keeps_no_more() -> None:
    fewer = 0
    for pp, vpp, more, ga in itertools.product((1, 2, 3, 5), (1, 2, 3), (None, 0, 1, 4), (1, 2, 3, 5, 7, 12, 20, 33, 64)):
        group = 0 if more is None else pp + more
        plans = make_plans(schedule=[ONE_F_ONE_B], pp=[pp], vpp=[vpp], ga=[ga], microbatch_group_size=[group])
        enough = int(micro_batches_to_fill(plans, np.zeros(1, np.int64))[0])
        assert enough <= ga
        fewer += enough < ga
        assert most_kept(pp, vpp, enough, group) == pytest.approx(most_kept(pp, vpp, ga, group), rel=1e-12)
        if vpp == 1:
            assert counted(DEEPSPEED, pp, 1, enough, group) == counted(DEEPSPEED, pp, 1, ga, group)
    assert fewer > 100


@pytest.mark.parametrize("vpp", [[1, 2, 4], [4, 2, 1]])
def test_plans_of_one_batch_keep_what_each_keeps_alone(h100: HardwareTable, vpp: list[int]) -> None:
    workload = workload_of("llama3-8b", "megatron-core")
    axes = {"tp": 1, "pp": 4, "dp": 1, "ga": 32, "overlap_pp": True}
    together = legality(workload, h100, plans_of(workload, vpp=vpp, **axes))[1]
    alone = np.concatenate([legality(workload, h100, plans_of(workload, vpp=each, **axes))[1] for each in vpp], axis=1)
    np.testing.assert_array_equal(together, alone)
    assert len(set(together[MEMORY.index("activation_bytes")])) == 3


def test_inputs_stay_only_in_plans_that_shard_parameters() -> None:
    """Hooks of FSDP hold the inputs of 32 frozen layers to the end of the backward (hf-trainer: register_multi_grad_hook): 2
    bytes of 1,024 tokens x 4,096. Plans that differ in sharding alone each keep their own."""
    lora = {"rank": 16, "targets": ["qkv", "projection"]}
    model = read_model("llama3-8b", {"sequence": 1024, "vocabulary": 4096, "lora": lora})
    workload = workload_from_model(model, read_stack("hf-trainer"), sequence_parallel=False)
    axes: dict[str, int | str] = {"tp": 1, "pp": 1, "dp": 8, "ga": 2, "checkpointing": "full"}
    machine, ways, row = machines(), ("none", "parameters"), MEMORY.index("activation_bytes")
    together = legality(workload, machine, plans_of(workload, sharding=ways, **axes))[1][row]
    alone = [legality(workload, machine, plans_of(workload, sharding=way, **axes))[1][row, 0] for way in ways]
    assert together.tolist() == alone
    assert alone[1] - alone[0] == 32 * 2 * 1024 * 4096


def test_a_module_that_a_stage_does_not_have_does_not_run_there_again() -> None:
    """DeepSeek-V3, 8 layers of which 3 have a dense MLP, on 4 stages: the last two have none of them."""
    model = read_model("deepseek-v3", {"layers": 8, "sequence": 1024, "mtp_layers": 0})
    workload = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    plain, again = (
        stage_memory(workload, plans_of(workload, tp=1, pp=4, ep=8, dp=8, ga=8, checkpointing=how)) for how in ("none", "mlp")
    )
    row = MEMORY.index("activation_bytes")
    assert (again[row, :2] < plain[row, :2]).all()
    assert again[row, 2:].tolist() == plain[row, 2:].tolist()


@pytest.mark.parametrize(("pp", "waits"), [(2, 2), (4, 4)])
def test_what_recompute_restored_stays_until_the_weight_gradients(pp: int, waits: int) -> None:
    """ZB-H1 runs as many micro-batches' weight gradients later on its last stage as there are stages (Qi et al. 2023, arXiv
    2401.10241, figure 3): with full recompute, too, it then keeps all but core attention of each (appendix G)."""
    workload = workload_of("llama3-8b", "megatron-core")
    row, axes = MEMORY.index("activation_bytes"), {"tp": 1, "pp": pp, "dp": 1, "ga": 4 * pp}
    one = stage_memory(workload, plans_of(workload, schedule="1f1b", **axes))[row, pp - 1]
    kept = stage_memory(workload, plans_of(workload, schedule="zb-h1", checkpointing="full", **axes))[row, pp - 1]
    assert 0.7 * waits < kept / one < 1.3 * waits


def test_gpipe_keeps_all() -> None:
    plans = make_plans(schedule=[GPIPE], pp=[2], vpp=[1], ga=[64], microbatch_group_size=[0])
    assert micro_batches_to_fill(plans, np.zeros(1, np.int64)).tolist() == [64]


def allocated(layers: int, whole: float, of_input: float, span: int, last: int) -> float:
    """Most bytes while one micro-batch goes forward and backward, tensor by tensor.

    The layers before `last` are kept as the inputs of spans of so many, which the backward runs again.
    """
    spans = [range(first, min(first + span, last)) for first in range(0, last, span)]
    now = most = (layers - last) * whole + len(spans) * of_input
    now -= (layers - last) * whole  # their backward
    for one in reversed(spans):
        most = max(most, now + len(one) * whole - of_input)
        now -= of_input
    return most


@pytest.mark.parametrize(
    "label", ["none", "full", "block:1", "block:3", "block:7", "block:8", "every:1", "every:2", "every:4", "every:8"]
)
def test_recompute_keeps_what_a_list_of_tensors_does(h100: HardwareTable, label: str) -> None:
    """An inner stage of 1F1B, with two micro-batches in flight: the input of a layer is part of what its recompute writes."""
    workload = workload_of("llama3-8b", "megatron-core")

    def activations(checkpointing: str) -> float:
        plan = plans_of(workload, tp=1, pp=4, dp=1, ga=8, checkpointing=checkpointing)
        return float(shape_of(workload, h100, plan).memory[MEMORY.index("activation_bytes"), 2])

    whole, of_input = activations("none") / 2 / 8, 2.0 * 1024 * 4096
    kind, _, number = label.partition(":")
    last = 0 if kind == "none" else int(number) if kind == "block" else 8
    span = int(number) if kind == "every" else 1
    spans = -(-last // span)
    other = (8 - last) * whole + spans * of_input
    assert activations(label) == pytest.approx(other + allocated(8, whole, of_input, span, last), rel=1e-12)


@pytest.mark.parametrize("first", [1, 4, 7])
def test_a_backward_that_makes_its_gradients_has_them_beside_what_is_kept(h100: HardwareTable, first: int) -> None:
    """Llama 3 8B, an inner stage of 1F1B with eight layers, of which the first run again, and two micro-batches in flight. When
    the last of those runs its backward, the layers after it are gone, of those before it the inputs are there, of it all, and
    the gradients that it works on: not a byte less is the peak."""
    model = read_model("llama3-8b", {"sequence": 1024})
    stack = read_stack("megatron-core").model_copy(update={"gradients_made": True})
    workload = workload_from_model(model, stack, sequence_parallel=True)
    plan = plans_of(workload, tp=1, pp=4, dp=1, ga=8, checkpointing=f"block:{first}")
    found = stage_memory(workload, plan)[MEMORY.index("activation_bytes"), 2]
    unit = model.layer_units[0]
    whole, _, of_input = activation_bytes(model, unit, make_keys(), stack)[0]
    gradients = 1024 * (2 * 4096 + 2 * 2 * 14336)  # of the hidden state; of both halves of the MLP
    other = first * of_input + (8 - first) * whole
    assert found >= other + (first - 1) * of_input + whole + gradients
    assert found >= 2 * other


@pytest.mark.parametrize("model", MODELS)
def test_running_more_again_never_needs_more_memory(model: str) -> None:
    hardware, workload = machines(), workload_of(model, "megatron-deepspeed")
    plans = drawn(np.random.default_rng(3), workload, hardware, 100)
    peak = {}
    for label in ("none", "block:1", "block:2", "full", "every:1", "every:2"):
        how, span = (np.repeat(code, len(plans.tp)) for code in checkpointing_codes([label]))
        reason, memory = legality(workload, hardware, plans._replace(checkpointing=how, checkpoint_layers=span))
        peak[label] = np.where(reason == 0, memory[PEAK_BYTES], np.nan)
    assert np.isfinite(peak["block:1"]).sum() > 10
    for more, fewer in itertools.pairwise(("full", "block:2", "block:1", "none")):
        assert not (peak[more] > peak[fewer] * (1 + 1e-12)).any(), (more, fewer)
    assert not (peak["every:2"] > peak["none"] * (1 + 1e-12)).any()
    np.testing.assert_allclose(peak["every:1"], peak["full"], rtol=1e-12)
