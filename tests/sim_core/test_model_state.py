"""What a rank holds of the model, counted by hand: both ends of a V, experts in narrow shards, weights that FSDP gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    MEMORY,
    REASONS,
    HardwareTable,
    Workload,
    hardware_table,
    legality,
    parameters,
    plans,
    read_hardware,
    read_model,
    read_stack,
    shape_of,
    workload_from_model,
)

LAYER, VOCABULARY, HIDDEN = 218_112_000, 128_256, 4096
"""Llama 3 8B: weights of one of its 32 layers; rows and width of its embedding and of its head, which are apart."""
END = VOCABULARY * HIDDEN
PER_WEIGHT = 2 + 4 + 12
"""Bytes of a weight, its gradient and its optimizer, not sharded (Rajbhandari et al. 2019, section 3.1; 32-bit gradients)."""


def table() -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)


def work(name: str = "llama3-8b", stack: str = "megatron-core") -> Workload:
    return workload_from_model(read_model(name, {"sequence": 1024}), read_stack(stack), sequence_parallel=True)


def state_of(of: Workload, reason: str = "", **plan: Any) -> float:
    """Bytes of state on the fullest stage of one plan, which has this reason."""
    found, memory = legality(of, table(), plans(of, **plan))
    assert [REASONS[code] for code in found] == [reason]
    return float(memory[MEMORY.index("state_bytes"), 0])


STAGES = {
    "1f1b": 8 * LAYER + END + HIDDEN,  # the last one: head and final norm
    "zb-v": 8 * LAYER + 2 * END + HIDDEN,  # a V ends where it began: the first one has embedding and head
    "v-half": 8 * LAYER + 2 * END + HIDDEN,
    "v-min": 8 * LAYER + 2 * END + HIDDEN,
    "dualpipev": 8 * LAYER + 2 * END + HIDDEN,
    "dualpipe": 2 * 8 * LAYER + 2 * END + HIDDEN,  # the first and the last stage of two copies that run towards each other
}
"""Weights on the fullest of four stages (Qi et al. 2024, arXiv 2405.15362, figure 2; DeepSeek-V3, arXiv 2412.19437, fig. 5)."""


@pytest.mark.parametrize("reason", ["", "straggler_beyond_pp", "layer_list_unfit"])
@pytest.mark.parametrize("schedule", STAGES)
def test_the_fullest_stage_of_a_v_holds_both_ends(schedule: str, reason: str) -> None:
    """Of a plan that can run, and of one that is refused: its state is said, too; of a list that does not fit, the mean."""
    vpp = 1 if schedule in ("1f1b", "dualpipe") else 2
    refused: dict[str, dict[str, Any]] = {
        "": {},
        "straggler_beyond_pp": {"straggler_factor": 1.5, "straggler_stage": 4},
        "layer_list_unfit": {"layer_split": [32 // (4 * vpp)] * (4 * vpp - 1) + [16]},
    }
    plan: dict[str, Any] = {"pp": 4, "all_gpus": 4, "ga": 16, "vpp": vpp, "schedule": schedule, "sharding": "none"}
    if schedule == "dualpipe":
        plan["sharding"] = "stack"  # its two copies share the optimizer
    width = 2 + 4 + 12 / 2 if schedule == "dualpipe" else PER_WEIGHT
    assert state_of(work(), reason, **plan, **refused[reason]) == pytest.approx(width * STAGES[schedule], rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "vpp", "with_head"),
    [("1f1b", 1, {3}), ("1f1b", 2, {3}), ("zb-v", 2, {0}), ("v-half", 2, {0}), ("v-min", 2, {0}), ("dualpipe", 1, {0, 3})],
)
def test_logits_are_where_the_head_is(schedule: str, vpp: int, with_head: set[int]) -> None:
    """On each stage a whole number of micro-batches of logits, bf16 with gradients and a softmax of 32 bits: 8 bytes each."""
    of = work()
    grid = plans(of, pp=4, all_gpus=4, ga=16, micro_batch=2, vpp=vpp, schedule=schedule)
    logits = shape_of(of, table(), grid).memory[MEMORY.index("logits_bytes")]
    assert set(np.flatnonzero(logits).tolist()) == with_head
    counted = logits / (2 * 1024 * VOCABULARY)
    of_one = read_stack("megatron-core").logit_bytes
    assert np.round(counted / of_one) == pytest.approx(counted / of_one)


@pytest.mark.parametrize(("shard", "ep"), [(2, 8), (4, 8), (8, 8), (16, 8), (4, 2)])
def test_experts_that_no_two_ranks_of_a_shard_share_are_whole(shard: int, ep: int) -> None:
    """Mixtral on 32 GPUs: of `shard` neighbours, `shard / ep` hold the same experts; fewer than one cannot divide them."""
    model = parameters(read_model("mixtral-8x7b"))
    experts = model.by_part["routed_experts"]
    expected = PER_WEIGHT * ((model.total - experts) / shard + experts / ep / max(shard // ep, 1))
    found = state_of(work("mixtral-8x7b"), all_gpus=32, ep=ep, sharding="parameters", dp_shard=shard)
    assert found == pytest.approx(expected, rel=2e-3)


def test_wide_and_narrow_shards_do_not_change_each_other() -> None:
    """Plans of one batch, with `dp_shard` and without: each has the state that it has alone."""
    of = work("mixtral-8x7b")
    shards = [0, 4, 32]
    together = legality(of, table(), plans(of, all_gpus=32, ep=8, sharding="parameters", dp_shard=shards))[1]
    alone = [state_of(of, all_gpus=32, ep=8, sharding="parameters", dp_shard=shard) for shard in shards]
    assert together[MEMORY.index("state_bytes")].tolist() == alone


@pytest.mark.parametrize(
    ("sharding", "width"),
    [("none", 4 + 12), ("optimizer", 2 + 4 + 12 / 32), ("gradients", 2 + 16 / 32), ("parameters", 16 / 32)],
)
def test_weights_that_fsdp_gathers_once_stay_in_16_bits(sharding: str, width: float) -> None:
    """FSDP keeps weights of 32 bits. Where optimizer or gradients are divided, a copy of 16 bits of all weights stays on each
    rank (SHARD_GRAD_OP; Rajbhandari et al. 2019, section 5: P_os and P_os+g); where weights are, none does."""
    of = work(stack="torchtitan")
    held = parameters(read_model("llama3-8b")).total
    assert state_of(of, all_gpus=32, sharding=sharding) == pytest.approx(width * held, rel=1e-3)


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan", "maxtext", "llm-foundry"])
def test_one_rank_divides_nothing(stack: str) -> None:
    """Without data parallelism every sharding keeps the same: nothing is gathered, nothing waits to be scattered."""
    of = work(stack=stack)
    grid = plans(of, all_gpus=16, pp=16, sharding=["none", "optimizer", "gradients", "parameters"], dp_shard=[0])
    memory = legality(of, table(), grid)[1]
    assert (memory == memory[:, :1]).all()


def test_experts_of_one_rank_each_are_not_gathered() -> None:
    """Mixtral, an expert a rank: 8 ranks divide what is dense, and keep a copy of it in 16 bits; experts are whole anyway.

    Nor do the gradients of experts wait to be scattered: the widest that do are those of the head, with its norm."""
    of, model = work("mixtral-8x7b", stack="torchtitan"), parameters(read_model("mixtral-8x7b"))
    experts = model.by_part["routed_experts"]
    grid = plans(of, all_gpus=8, ep=8, sharding=["none", "optimizer", "gradients"], dp_shard=[0])
    found = dict(zip(MEMORY, legality(of, table(), grid)[1], strict=True))
    dense = [16.0, 2 + 4 + 12 / 8, 2 + 16 / 8]
    expected = [of_dense * (model.total - experts) + 16 * experts / 8 for of_dense in dense]
    assert found["state_bytes"] == pytest.approx(expected, rel=1e-3)
    assert np.diff(found["communication_bytes"]) == pytest.approx([0, (2 + 4) * (32000 + 1) * 4096])
