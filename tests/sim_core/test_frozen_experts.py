"""Frozen experts beside adapters, sharded with FSDP: which ranks share a weight depends on whether tp divides the experts."""

from __future__ import annotations

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model

LAYERS, HIDDEN, FFN, EXPERTS = 4, 4096, 14336, 8
OF_EXPERTS = LAYERS * EXPERTS * 3 * HIDDEN * FFN


@pytest.mark.parametrize("experts_with_tp", [False, True])
@pytest.mark.parametrize(("tp", "ep", "dp"), [(1, 1, 8), (1, 4, 8), (2, 1, 8), (2, 4, 8), (4, 8, 8), (2, 8, 4)])
def test_frozen_experts_take_two_bytes_over_all_ranks(experts_with_tp: bool, tp: int, ep: int, dp: int) -> None:
    """Every weight is on as few ranks as can be: all GPUs together hold each frozen weight of an expert once."""
    if experts_with_tp and dp % ep:
        pytest.skip("a group of experts lies within the replicas")
    lora = {"lora": {"rank": 8, "targets": ["qkv", "projection"]}, "sequence": 1024, "layers": LAYERS}
    stack = read_stack("megatron-core").with_facts({"experts_with_tp": experts_with_tp})
    work = workload_from_model(read_model("mixtral-8x7b", lora), stack, sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB"})], None)
    sharded, whole = (
        simulate(work, hardware, plans(work, tp=tp, ep=ep, dp=dp, ga=1, sharding=how)).named()["state_bytes"][0]
        for how in ("parameters", "none")
    )
    adapters = LAYERS * 8 * (HIDDEN + 6144 + HIDDEN + HIDDEN)
    dense_frozen = LAYERS * (HIDDEN * 6144 + HIDDEN * HIDDEN + 2 * HIDDEN + HIDDEN * EXPERTS) + 2 * 32000 * HIDDEN + HIDDEN
    assert sharded * tp * dp == pytest.approx(2 * (OF_EXPERTS + dense_frozen) + 18 * adapters, rel=0.002)
    etp = tp if experts_with_tp else 1
    assert whole > 2 * OF_EXPERTS / (ep * etp)
